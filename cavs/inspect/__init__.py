"""Explanations of compiled models, and drawings of graphs, vertex functions and schedules."""

from cavs.inspect.draw import dot_function, dot_graph, dot_schedule, render
from cavs.inspect.explain import Explanation, explain

__all__ = ["Explanation", "dot_function", "dot_graph", "dot_schedule", "explain", "render"]
