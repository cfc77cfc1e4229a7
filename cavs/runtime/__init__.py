"""Compile and run models: `Session` and `explain`."""

from cavs.runtime.explain import Explanation, explain
from cavs.runtime.interface import EvalResult, PendingStep, StepResult
from cavs.runtime.session import Session

__all__ = ["EvalResult", "Explanation", "PendingStep", "Session", "StepResult", "explain"]
