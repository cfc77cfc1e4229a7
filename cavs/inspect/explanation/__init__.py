"""Explanations as pages: how a model is compiled and how a batch runs, as one HTML file."""

from cavs.inspect.explanation.page import page

__all__ = ["page"]
