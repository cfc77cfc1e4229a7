"""Drawings of graphs, vertex functions and schedules."""

from cavs.inspect.draw import dot_function, dot_graph, dot_schedule, render

__all__ = ["dot_function", "dot_graph", "dot_schedule", "render"]
