"""Passes: pure functions from graph to graph."""
