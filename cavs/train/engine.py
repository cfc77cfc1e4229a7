"""What training asks of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

Array = NDArray[Any]


class StepOutcome(Protocol):
    """What a step of the engine returns."""

    loss: float
    grad_norm: float


class EvalOutcome(Protocol):
    """What a forward run returns; `loss` is a mean over `weight` terms."""

    loss: float
    outputs: Mapping[str, Array]
    weight: float


class Engine(Protocol):
    """The session a trainer drives (`cavs.runtime.Session`)."""

    def prepare(self, batch: Any) -> None:
        """Make the schedule of a coming batch; safe in a background thread."""
        ...

    def invalidate(self) -> None:
        """Take note that parameters were written from outside."""
        ...

    def step(
        self,
        batch: Any,
        hyper: dict[str, Any],
        states: list[list[Array]],
        *,
        seed: int,
        step: int,
        max_norm: float | None,
    ) -> StepOutcome:
        """Forward, backward, update; nothing is updated if loss or norm is not finite."""
        ...

    def evaluate(self, batch: Any) -> EvalOutcome:
        """Forward only."""
        ...

    def predict(self, batch: Any) -> dict[str, Array]:
        """The outputs of a forward run by name; the batch needs no labels."""
        ...
