"""Runs compiled models on the engine."""

from cavs.runtime.session import EvalResult, Session, StepResult

__all__ = ["EvalResult", "Session", "StepResult"]
