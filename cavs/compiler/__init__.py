"""Compile a traced model to a program of the engine."""
