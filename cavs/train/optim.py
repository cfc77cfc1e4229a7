"""Optimisers as data: a rule, its numbers and its state arrays.

The engine applies the rule in the same call that runs forward and backward; of a parameter with a
sparse gradient (an embedding table) it updates only the rows that were looked up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from cavs.config import require, require_number
from cavs.errors import ConfigError, renamed
from cavs.train.schedules import Plateau, Schedule, WarmUp, as_schedule
from cavs.train.settings import to_json

Array = NDArray[Any]


class TrainableParameter(Protocol):
    """A parameter as a training sees it."""

    @property
    def name(self) -> str:
        """Dotted name in the model."""
        ...

    @property
    def value(self) -> Array:
        """Values: float32 or float64, C-contiguous; written in place, never reallocated."""
        ...

    def current(self) -> Array:
        """Return `value` for reading only."""
        ...

    @property
    def trainable(self) -> bool:
        """True if the optimiser updates it."""
        ...


@renamed({"kind": "rule", "factors": "scales"})
@dataclass(frozen=True)
class Optimizer:
    """Base of all optimisers: a learning rate and a weight decay.

    Args:
        lr: A number or a schedule.
        weight_decay: Added to the gradient as `weight_decay * value` (`AdamW`: subtracted from the
            value, multiplied by the rate).
        groups: Scales of the two for parameters whose names match a shell pattern; the first
            pattern that matches counts:
            ``{"*.b": {"weight_decay": 0.0}, "embedding.*": {"lr": 0.1}}``.
    """

    lr: float | Schedule
    _: KW_ONLY
    weight_decay: float = 0.0
    groups: Mapping[str, Mapping[str, float]] = field(default_factory=dict, hash=False)
    rule: ClassVar[str] = ""
    states_per_parameter: ClassVar[int] = 0

    def __post_init__(self) -> None:
        as_schedule(self.lr)
        require_number("weight_decay", self.weight_decay, "a number >= 0", lambda x: x >= 0)
        _check_groups(self.groups)

    def rate(self, step: int) -> float:
        """Return the learning rate of the update that follows `step` updates.

        Raises `ConfigError` if the schedule returns anything but a finite number >= 0.
        """
        rate = self.lr(step) if callable(self.lr) else self.lr
        require_number(f"the rate of step {step + 1}", rate, "a number >= 0", lambda x: x >= 0)
        return float(rate)

    def hyper(self, step: int) -> dict[str, Any]:
        """Return the numbers of the update that follows `step` updates, for the engine."""
        return {
            "kind": self.rule,
            "lr": self.rate(step),
            "momentum": 0.0,
            "nesterov": False,
            "beta1": 0.0,
            "beta2": 0.0,
            "eps": 0.0,
            "weight_decay": float(self.weight_decay),
            "bias1": 1.0,
            "bias2": 1.0,
        }

    def scales(self, names: Collection[str]) -> dict[str, list[tuple[float, float]]]:
        """Return the entry that `groups` add to `hyper`: scales of rate and decay per parameter.

        Raises `ConfigError` for a pattern that matches none of the parameters `names`.
        """
        if not self.groups:
            return {}
        for pattern in self.groups:
            found = any(fnmatchcase(name, pattern) for name in names)
            known = ", ".join(names)
            require(found, "groups", pattern, f"a pattern of some of the parameters {known}")
        first = [
            next((g for p, g in self.groups.items() if fnmatchcase(name, p)), {}) for name in names
        ]
        return {"scales": [(g.get("lr", 1.0), g.get("weight_decay", 1.0)) for g in first]}

    def num_states(self) -> int:
        """Number of state arrays per trainable parameter."""
        return self.states_per_parameter

    def init_states(self, parameters: Sequence[TrainableParameter]) -> list[list[Array]]:
        """Return new state arrays in the order of `parameters`; none for frozen ones."""
        return [
            [np.zeros_like(p.current()) for _ in range(self.num_states())] if p.trainable else []
            for p in parameters
        ]

    def lacks_states(
        self, parameters: Iterable[TrainableParameter], states: Iterable[list[Array]]
    ) -> bool:
        """True if a parameter is trainable now that was frozen before."""
        stateful, pairs = self.num_states() > 0, zip(parameters, states, strict=True)
        return stateful and any(p.trainable and not arrays for p, arrays in pairs)

    def complete_states(
        self, parameters: Iterable[TrainableParameter], states: Iterable[list[Array]]
    ) -> None:
        """Add the state arrays of parameters that were frozen before, in place."""
        for p, arrays in zip(parameters, states, strict=True):
            if p.trainable and not arrays:
                arrays.extend(self.init_states([p])[0])

    def fresh(self) -> Self:
        """Return a copy with a `Plateau` that has observed nothing; itself if it has none."""
        if self.plateau() is None:
            return self
        own = copy(self)
        object.__setattr__(own, "lr", _fresh(self.lr))
        return own

    def plateau(self) -> Plateau | None:
        """Return the `Plateau` inside `lr`, if there is one."""
        lr = self.lr
        while isinstance(lr, WarmUp):
            lr = lr.after
        return lr if isinstance(lr, Plateau) else None

    def observe(self, value: float) -> None:
        """Pass the monitored value to a `Plateau` schedule; others ignore it."""
        plateau = self.plateau()
        if plateau is not None:
            plateau.observe(value)

    def state_dict(self) -> dict[str, Any]:
        """Return the settings and the state of a schedule that a checkpoint stores, as JSON."""
        plateau = self.plateau()
        state = plateau.state_dict() if plateau else None
        return {"kind": self.rule, "schedule": state, "settings": self._settings()}

    def _settings(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {key: value for key, value in to_json(self).items() if key != "class"}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`; a schedule without state ignores the stored one."""
        plateau, stored = self.plateau(), state.get("schedule")
        if plateau is not None and stored is not None:
            before = (state.get("settings") or {}).get("lr")
            while isinstance(before, dict) and "after" in before:
                before = before["after"]
            if isinstance(before, dict) and before.get("lr", plateau.lr) != plateau.lr:
                stored = {**stored, "rate": plateau.lr}  # another rate was given: start from it
            plateau.load_state_dict(stored)


def _fresh(lr: float | Schedule) -> float | Schedule:
    if isinstance(lr, WarmUp):
        return replace(lr, after=_fresh(lr.after))
    return replace(lr) if isinstance(lr, Plateau) else lr  # without its observations


def _check_groups(groups: object) -> None:
    need = "a dict of patterns, each with scales of lr and weight_decay"
    require(isinstance(groups, Mapping), "groups", groups, need)
    assert isinstance(groups, Mapping)
    for key, group in groups.items():
        fits = isinstance(key, str) and isinstance(group, Mapping)
        require(fits and set(group) <= {"lr", "weight_decay"}, "groups", {key: group}, need)
        for name, scale in group.items():
            require_number(f"{name} of group {key!r}", scale, "a number >= 0", lambda x: x >= 0)


def _check_beta(name: str, value: float) -> None:
    require_number(name, value, "a number in [0, 1)", lambda x: 0 <= x < 1)


def _check_eps(value: float) -> None:
    require_number("eps", value, "a number above 0", lambda x: x > 0)


@dataclass(frozen=True)
class SGD(Optimizer):
    """`value -= lr * g`; with momentum `m = momentum * m + g; value -= lr * m`.

    Nesterov: `value -= lr * (g + momentum * m)`.
    """

    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_beta("momentum", self.momentum)
        require(isinstance(self.nesterov, bool), "nesterov", self.nesterov, "True or False")
        if self.nesterov and self.momentum == 0:
            raise ConfigError("nesterov=True with momentum=0", hint="pass momentum=0.9")

    def num_states(self) -> int:
        """Return 1 with momentum, 0 without."""
        return 1 if self.momentum else 0

    def hyper(self, step: int) -> dict[str, Any]:
        rule = "momentum" if self.momentum else "sgd"
        own = {"kind": rule, "momentum": float(self.momentum), "nesterov": self.nesterov}
        return super().hyper(step) | own

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"kind": self.hyper(0)["kind"]}


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """`s += g * g; value -= lr * g / (sqrt(s) + eps)`; `s` starts at `initial`."""

    eps: float = 1e-10
    initial: float = 0.0
    rule: ClassVar[str] = "adagrad"
    states_per_parameter: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_eps(self.eps)
        require_number("initial", self.initial, "a number >= 0", lambda x: x >= 0)

    def init_states(self, parameters: Sequence[TrainableParameter]) -> list[list[Array]]:
        """Return sums that start at `initial`."""
        states = super().init_states(parameters)
        for arrays in states:
            for array in arrays:
                array.fill(self.initial)
        return states

    def hyper(self, step: int) -> dict[str, Any]:
        return super().hyper(step) | {"eps": float(self.eps)}


@dataclass(frozen=True)
class Adam(Optimizer):
    """Kingma and Ba 2015, with bias correction; weight decay is part of the gradient.

    The correction depends on the steps of the trainer: a parameter whose first gradients come late
    (one that was frozen, or a row of a table) moves by up to 6.6 times the rate with these betas.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    rule: ClassVar[str] = "adam"
    states_per_parameter: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_beta("beta1", self.beta1)
        _check_beta("beta2", self.beta2)
        _check_eps(self.eps)

    def hyper(self, step: int) -> dict[str, Any]:
        """See `Optimizer.hyper`; `bias1 = 1 - beta1 ** (step + 1)`, `bias2` likewise."""
        own = {
            "beta1": float(self.beta1),
            "beta2": float(self.beta2),
            "eps": float(self.eps),
            "bias1": 1.0 - self.beta1 ** (step + 1),
            "bias2": 1.0 - self.beta2 ** (step + 1),
        }
        return super().hyper(step) | own


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

    _: KW_ONLY
    weight_decay: float = 0.01
    rule: ClassVar[str] = "adamw"


OPTIMIZERS: dict[str, type[Optimizer]] = {
    "sgd": SGD,
    "adagrad": Adagrad,
    "adam": Adam,
    "adamw": AdamW,
}
