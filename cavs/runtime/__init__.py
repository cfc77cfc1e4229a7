"""Runs compiled models on the engine."""

from cavs.runtime.explain import Explanation, explain
from cavs.runtime.session import Session
from cavs.runtime.variant import EvalResult, PendingStep, StepResult

__all__ = ["EvalResult", "Explanation", "PendingStep", "Session", "StepResult", "explain"]
