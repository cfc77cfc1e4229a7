"""What training asks of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from cavs.errors import ConfigError

Array = NDArray[Any]


class StepOutcome(Protocol):
    """What a step of the engine returns."""

    @property
    def loss(self) -> float:
        """Of the batch, before the update."""
        ...

    @property
    def grad_norm(self) -> float:
        """Global norm, before clipping."""
        ...


class EvalOutcome(Protocol):
    """What a forward run returns."""

    @property
    def loss(self) -> float:
        """Of the batch."""
        ...

    @property
    def outputs(self) -> Mapping[str, Array]:
        """What ``Model.forward`` gives, by name."""
        ...

    @property
    def weight(self) -> float:
        """What the loss of this batch counts in a mean over batches."""
        ...


class Engine(Protocol):
    """The session a trainer drives (`cavs.runtime.Session`).

    The defaults are those of a session whose steps end before they return.
    """

    @property
    def overlaps(self) -> bool:
        """True if `launch` returns while the step still runs."""
        return False

    def prepare(self, batch: Any, training: bool = True) -> None:
        """Make the schedule of a batch to be trained on (or not); safe in a background thread."""
        ...

    def invalidate(self) -> None:
        """Take note that parameters were written from outside."""
        ...

    def keep_dtype(self) -> None:
        """Have the parameters in its own dtype again, if another session has converted them."""
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

    def launch(
        self,
        batch: Any,
        hyper: dict[str, Any],
        states: list[list[Array]],
        *,
        seed: int,
        step: int,
        max_norm: float | None,
        after: Any = None,
    ) -> StepOutcome:
        """Start a step that goes on after the call; its outcome waits for it.

        after: The outcome of an earlier step; if that updates nothing, neither does this one.
        Raises `ConfigError` where `overlaps` is False.
        """
        raise ConfigError("launch() where a step ends before it returns", hint="call step()")

    def lost_steps(self) -> int:
        """Number of steps that were lost with a failed device since the last call."""
        return 0

    def evaluate(self, batch: Any) -> EvalOutcome:
        """Forward only."""
        ...

    def predict(self, batch: Any) -> dict[str, Array]:
        """The outputs of a forward run by name; the batch needs no labels."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What the model is compiled for, as JSON values."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Compile for the same; raises `CheckpointError` on anything else."""
        ...
