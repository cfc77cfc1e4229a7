"""The base of optimisers: a rule, its numbers and its state arrays.

The engine applies the rule in the same call that runs forward and backward; of a parameter with a
sparse gradient (an embedding table) it updates only the rows that were looked up. A rule is traced
once into a fused kernel, unless the engine has one of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from cavs import _engine
from cavs.codegen.update import UpdateProgram, trace_update
from cavs.config import require, require_number
from cavs.errors import ConfigError, MovedAttributeError, renamed
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


@renamed({"kind": "name", "factors": "scales", "states_per_parameter": "states"})
@dataclass(frozen=True)
class Optimizer:
    """Base of all optimisers: a learning rate and a weight decay.

    A subclass names the `states` that it holds for each element, zero at first, and defines `rule`;
    further options are fields of a frozen dataclass::

        @dataclass(frozen=True)
        class Momentum(cavs.optim.Optimizer):
            beta: float = 0.9
            states = ("mean",)

            def rule(self, value, gradient, state, rate, step):
                mean = self.beta * state.mean + gradient
                return value - rate * mean, {"mean": mean}

    Args:
        lr: A number or a schedule.
        weight_decay: Added to the gradient as `weight_decay * value`. In a class with
            `decoupled_decay`, such as `AdamW`, it is multiplied by the rate and shrinks the value
            instead.
        groups: Scales of the two for parameters whose names match a shell pattern; the first
            pattern that matches counts:
            ``{"*.b": {"weight_decay": 0.0}, "embedding.*": {"lr": 0.1}}``.
    """

    lr: float | Schedule
    _: KW_ONLY
    weight_decay: float = 0.0
    groups: Mapping[str, Mapping[str, float]] = field(default_factory=dict, hash=False)
    states: ClassVar[tuple[str, ...]] = ()
    decoupled_decay: ClassVar[bool] = False
    # The engine's own kernels: by rule, and True if its decay is decoupled.
    _kernels: ClassVar[dict[tuple[object, bool], str]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if isinstance(cls.__dict__.get("rule"), str):
            raise MovedAttributeError(
                f"{cls.__name__} defines rule as a name, but it is the method that updates a value",
                hint=f"define {cls.__name__}.rule(value, gradient, state, rate, step)",
            )
        _check_states(cls)

    def __post_init__(self) -> None:
        as_schedule(self.lr)
        require_number("weight_decay", self.weight_decay, "a number >= 0", lambda x: x >= 0)
        _check_groups(self.groups)

    def rule(self, value: Any, gradient: Any, state: Any, rate: Any, step: Any) -> Any:
        """Return the new value of an element and, by name, its new states.

        It is traced once: the operands are symbols, on which it computes by operators of Python and
        elementwise ones of `cavs.ops`, element by element. Numbers that it computes from `rate` and
        `step` alone are computed once per update, in float64.

        Args:
            value: The value; shrunk, if the class has `decoupled_decay`.
            gradient: Its gradient, after clipping, with weight decay unless that is decoupled.
            state: The states, such as ``state.mean``.
            rate: The learning rate of the parameter.
            step: The number of the update, from 1 on; ``0.9 ** step`` is a number.

        Returns the value, or a tuple of the value and a dict of the states.
        """
        raise NotImplementedError

    @property
    def name(self) -> str:
        """Name of the rule in checkpoints: that of the engine's kernel, or of the class."""
        return self.kernel or type(self).__name__

    @property
    def kernel(self) -> str:
        """Name of the engine's kernel for this rule; empty if it is traced."""
        return self._kernels.get((type(self).rule, self.decoupled_decay), "")

    @cached_property
    def program(self) -> UpdateProgram:
        """The traced rule. Raises `TraceError`, with the user's line, for one that is invalid."""
        cls = type(self)
        if cls.rule is Optimizer.rule:
            raise ConfigError(
                f"{cls.__name__} has no rule",
                hint=f"define {cls.__name__}.rule(self, value, gradient, state, rate, step)",
            )
        return trace_update(
            cls.__name__,
            self.rule,
            self.state_names(),
            decays=self.weight_decay != 0,
            decoupled=self.decoupled_decay,
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes without the traced rule, which each process traces by itself."""
        return {key: value for key, value in vars(self).items() if key != "program"}

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
            "kind": self.name,
            "lr": self.rate(step),
            "momentum": 0.0,
            "nesterov": False,
            "beta1": 0.0,
            "beta2": 0.0,
            "eps": 0.0,
            "weight_decay": float(self.weight_decay),
            "bias1": 1.0,
            "bias2": 1.0,
            "step": step + 1.0,
            "program": None if self.kernel else self.program,
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

    def state_names(self) -> tuple[str, ...]:
        """Names of the state arrays of each trainable parameter."""
        return self.states

    def num_states(self) -> int:
        """Number of state arrays per trainable parameter."""
        return len(self.state_names())

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
        names, settings = list(self.state_names()), self._settings()
        found = {"kind": self.name, "schedule": state, "settings": settings, "states": names}
        return found if self.kernel else found | {"rule": self.program.text}

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


def _check_states(cls: type[Optimizer]) -> None:
    names = cls.states
    fits = isinstance(names, tuple) and all(isinstance(x, str) and x.isidentifier() for x in names)
    fits = fits and len(set(names)) == len(names) <= _engine.MOST_STATES
    need = f'a tuple of at most {_engine.MOST_STATES} different names, such as ("mean",)'
    require(fits, f"{cls.__name__}.states", names, need)
