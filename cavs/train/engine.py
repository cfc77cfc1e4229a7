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

    @property
    def optional_features(self) -> tuple[str, ...]:
        """Features that may be absent, as the schedule needs them."""
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
