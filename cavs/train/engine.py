"""Interface between a training and the engine that runs its steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from cavs.errors import ConfigError

Array = NDArray[Any]


class StepOutcome(Protocol):
    """Result of a step."""

    @property
    def loss(self) -> float:
        """Loss of the batch before the update."""
        ...

    @property
    def grad_norm(self) -> float:
        """Global norm of the gradient before clipping."""
        ...

    @property
    def aux(self) -> Mapping[str, Array]:
        """Values that ``Model.loss`` returned with the loss, by name; on a rank those of its part.

        Empty where this rank has computed none.
        """
        return {}


class EvalOutcome(Protocol):
    """Result of a forward run."""

    @property
    def loss(self) -> float:
        """Loss of the batch."""
        ...

    @property
    def outputs(self) -> Mapping[str, Array]:
        """Outputs of ``Model.forward`` by name."""
        ...

    @property
    def weight(self) -> float:
        """Weight of this loss in a mean over batches."""
        ...

    @property
    def aux(self) -> Mapping[str, Array]:
        """Values that ``Model.loss`` returned with the loss, by name."""
        return {}


class Engine(Protocol):
    """Session that a training drives: `cavs.runtime.Session`, or that of one of many ranks.

    The defaults are those of a session whose steps end before they return.
    """

    @property
    def overlaps(self) -> bool:
        """True if `launch` returns while the step still runs."""
        return False

    def prepare(self, batch: Any, training: bool = True) -> None:
        """Build the schedule of a batch; safe in a background thread."""
        ...

    def invalidate(self) -> None:
        """Reload parameters that were written outside of the engine."""
        ...

    def keep_dtype(self) -> None:
        """Convert the parameters back to the engine's dtype if another session changed it."""
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
        """Run forward, backward and update; update nothing if loss or norm is not finite."""
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
        """Start a step that runs on after the call; reading its outcome waits for it.

        after: Outcome of an earlier step; if that one updates nothing, neither does this one.
        Raises `ConfigError` if `overlaps` is False.
        """
        raise ConfigError("launch() where a step ends before it returns", hint="call step()")

    def lost_steps(self) -> int:
        """Number of steps that were lost with a failed device since the last call."""
        return 0

    def evaluate(self, batch: Any) -> EvalOutcome:
        """Run forward on a batch with labels."""
        ...

    def predict(self, batch: Any) -> dict[str, Array]:
        """Run forward and return its outputs by name; the batch needs no labels."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what the model is compiled for, as JSON values."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Compile for what `state_dict` returned. Raises `CheckpointError` on anything else."""
        ...
