"""Runs compiled models on the engine."""

from cavs.runtime.explain import Explanation, explain
from cavs.runtime.session import EvalResult, Session, StepResult

__all__ = ["EvalResult", "Explanation", "Session", "StepResult", "explain"]
