"""Explanations of compiled models, drawings of graphs and schedules, and reports of trainings."""

from cavs.inspect.draw import dot_function, dot_schedule, render
from cavs.inspect.draw_graph import dot_graph
from cavs.inspect.explain import Explanation, explain
from cavs.inspect.report import write_report

__all__ = [
    "Explanation",
    "dot_function",
    "dot_graph",
    "dot_schedule",
    "explain",
    "render",
    "write_report",
]
