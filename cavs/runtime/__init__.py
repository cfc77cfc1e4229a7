"""Compile and run models: `Session`."""

from cavs.errors import moved
from cavs.runtime.forward_run import ForwardRun, Gradients
from cavs.runtime.interface import EvalResult, PendingStep, StepResult
from cavs.runtime.session import Session

__all__ = ["EvalResult", "ForwardRun", "Gradients", "PendingStep", "Session", "StepResult"]

__getattr__ = moved(
    "cavs.runtime", {name: f"cavs.inspect.{name}" for name in ("Explanation", "explain")}
)
