"""Learning rates as functions of the step.

A schedule is called with the number of updates done so far (0 before the first) and returns the
rate of the next update. All but `Plateau` are pure; `Plateau` learns from `observe`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Protocol, runtime_checkable

from cavs.config import require_count, require_number
from cavs.errors import CheckpointError, ConfigError


@runtime_checkable
class Schedule(Protocol):
    """A learning rate that depends on the number of updates done."""

    def __call__(self, step: int) -> float:
        """Return the rate of the update that follows `step` updates."""
        ...


@dataclass(frozen=True)
class Constant:
    """The same rate at every step."""

    lr: float

    def __post_init__(self) -> None:
        require_number("lr", self.lr, "a number above 0", lambda x: x > 0)

    def __call__(self, step: int) -> float:
        """Return `lr`."""
        return self.lr


@dataclass(frozen=True)
class StepDecay:
    """`lr` multiplied by `factor` once every `every` steps."""

    lr: float
    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        require_number("lr", self.lr, "a number above 0", lambda x: x > 0)
        require_count("every", self.every)
        require_number("factor", self.factor, "a number in (0, 1]", lambda x: 0 < x <= 1)

    def __call__(self, step: int) -> float:
        """Return `lr * factor ** (step // every)`."""
        return self.lr * self.factor ** (step // self.every)


@dataclass(frozen=True)
class Exponential:
    """`lr * factor ** (step / every)`: smooth decay by `factor` over `every` steps."""

    lr: float
    factor: float
    every: int = 1

    def __post_init__(self) -> None:
        require_number("lr", self.lr, "a number above 0", lambda x: x > 0)
        require_number("factor", self.factor, "a number in (0, 1]", lambda x: 0 < x <= 1)
        require_count("every", self.every)

    def __call__(self, step: int) -> float:
        """Return `lr * factor ** (step / every)`."""
        return float(self.lr * self.factor ** (step / self.every))


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from `lr` down to `floor` over `steps` steps, then `floor`."""

    lr: float
    steps: int
    floor: float = 0.0

    def __post_init__(self) -> None:
        require_number("lr", self.lr, "a number above 0", lambda x: x > 0)
        require_count("steps", self.steps)
        need = f"a number in [0, lr={self.lr}]"
        require_number("floor", self.floor, need, lambda x: 0 <= x <= self.lr)

    def __call__(self, step: int) -> float:
        """Return `floor + (lr - floor) * (1 + cos(pi * step / steps)) / 2`."""
        done = min(step, self.steps) / self.steps
        return self.floor + (self.lr - self.floor) * 0.5 * (1 + math.cos(math.pi * done))


@dataclass(frozen=True)
class WarmUp:
    """A linear rise over `steps` steps to the first rate of `after`, then `after`.

    `after` is a rate or a schedule; it counts its own steps from the end of the rise.
    """

    after: float | Schedule
    steps: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "after", as_schedule(self.after))
        require_count("steps", self.steps)

    def __call__(self, step: int) -> float:
        """Return `after(0) * (step + 1) / steps` during the rise, then `after(step - steps)`."""
        after = as_schedule(self.after)
        if step < self.steps:
            return after(0) * (step + 1) / self.steps
        return after(step - self.steps)


@dataclass
class Plateau:
    """`lr` multiplied by `factor` after more than `patience` evaluations without improvement.

    `observe` takes a value for which lower is better; `Trainer.fit` calls it after each evaluation
    (with the negative of a metric for which higher is better). Every `Trainer` has a copy: loops of
    your own call ``trainer.optimizer.observe(value)``.
    """

    lr: float
    factor: float = 0.5
    patience: int = 2
    floor: float = 0.0
    _rate: float = field(init=False, repr=False)
    _best: float | None = field(init=False, default=None, repr=False)
    _bad: int = field(init=False, default=0, repr=False)

    def __post_init__(self) -> None:
        require_number("lr", self.lr, "a number above 0", lambda x: x > 0)
        require_number("factor", self.factor, "a number in (0, 1)", lambda x: 0 < x < 1)
        require_count("patience", self.patience, 0)
        need = f"a number in [0, lr={self.lr}]"
        require_number("floor", self.floor, need, lambda x: 0 <= x <= self.lr)
        self._rate = self.lr

    def __call__(self, step: int) -> float:
        """Return the current rate, which only `observe` changes."""
        return self._rate

    def observe(self, value: float) -> None:
        """Take the monitored value of an evaluation."""
        if self._best is None or value < self._best:
            self._best, self._bad = value, 0
            return
        self._bad += 1
        if self._bad > self.patience:
            self._rate, self._bad = max(self.floor, self._rate * self.factor), 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint stores, as JSON values."""
        return {"rate": self._rate, "best": self._best, "bad": self._bad}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`. Raises `CheckpointError` on anything else."""
        try:
            best = state["best"]
            rate, bad = float(state["rate"]), int(state["bad"])
            best = None if best is None else float(best)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the checkpoint has an invalid state of the plateau schedule: {state!r}",
                hint="take an older checkpoint",
            ) from error
        self._rate, self._best, self._bad = rate, best, bad


def as_schedule(lr: float | Schedule) -> Schedule:
    """Return `lr` if it is a schedule, else a constant one. Raises `ConfigError`."""
    if isinstance(lr, Real) and not isinstance(lr, bool):
        return Constant(float(lr))
    if callable(lr):
        return lr
    raise ConfigError(
        f"lr is {lr!r}, but must be a number above 0 or a schedule",
        hint="pass lr=0.05 or lr=cavs.train.schedules.Cosine(0.05, steps=1000)",
    )
