"""Optimisers, each a few lines; `cavs.train.optimizer` has their base."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

from cavs.config import require, require_number
from cavs.errors import ConfigError
from cavs.ops import sqrt
from cavs.train.named_types import NamedTypes
from cavs.train.optimizer import Optimizer, TrainableParameter

__all__ = [
    "NAMED",
    "OPTIMIZERS",
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Lion",
    "Optimizer",
    "RMSProp",
    "TrainableParameter",
]

Array = NDArray[Any]


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

    def rule(self, value: Any, gradient: Any, state: Any, rate: Any, step: Any) -> Any:
        if not self.momentum:
            return value - rate * gradient
        momentum = self.momentum * state.momentum + gradient
        ahead = gradient + self.momentum * momentum if self.nesterov else momentum
        return value - rate * ahead, {"momentum": momentum}

    @property
    def kernel(self) -> str:
        return "momentum" if super().kernel and self.momentum else super().kernel

    def state_names(self) -> tuple[str, ...]:
        """Return the momentum, if there is one."""
        return ("momentum",) if self.momentum else ()

    def hyper(self, step: int) -> dict[str, Any]:
        own = {"momentum": float(self.momentum), "nesterov": self.nesterov}
        return super().hyper(step) | own


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """`s += g * g; value -= lr * g / (sqrt(s) + eps)`; `s` starts at `initial`."""

    eps: float = 1e-10
    initial: float = 0.0
    states: ClassVar[tuple[str, ...]] = ("sum",)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_eps(self.eps)
        require_number("initial", self.initial, "a number >= 0", lambda x: x >= 0)

    def rule(self, value: Any, gradient: Any, state: Any, rate: Any, step: Any) -> Any:
        total = state.sum + gradient * gradient
        return value - rate * gradient / (sqrt(total) + self.eps), {"sum": total}

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
    states: ClassVar[tuple[str, ...]] = ("mean", "square")

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_beta("beta1", self.beta1)
        _check_beta("beta2", self.beta2)
        _check_eps(self.eps)

    def rule(self, value: Any, gradient: Any, state: Any, rate: Any, step: Any) -> Any:
        mean = self.beta1 * state.mean + (1.0 - self.beta1) * gradient
        square = self.beta2 * state.square + (1.0 - self.beta2) * (gradient * gradient)
        rate = rate / (1.0 - self.beta1**step)
        root = 1.0 / sqrt(1.0 - self.beta2**step)
        new = value - rate * mean / (sqrt(square) * root + self.eps)
        return new, {"mean": mean, "square": square}

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
    decoupled_decay: ClassVar[bool] = True


@dataclass(frozen=True)
class RMSProp(Optimizer):
    """`s = beta * s + (1 - beta) * g * g; value -= lr * g / (sqrt(s) + eps)` (Hinton 2012)."""

    beta: float = 0.99
    eps: float = 1e-8
    states: ClassVar[tuple[str, ...]] = ("square",)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_beta("beta", self.beta)
        _check_eps(self.eps)

    def rule(self, value: Any, gradient: Any, state: Any, rate: Any, step: Any) -> Any:
        square = self.beta * state.square + (1.0 - self.beta) * (gradient * gradient)
        return value - rate * gradient / (sqrt(square) + self.eps), {"square": square}


@dataclass(frozen=True)
class Adadelta(Optimizer):
    """Steps as large as earlier ones, in units of the value (Zeiler 2012); `lr` is mostly 1."""

    beta: float = 0.9
    eps: float = 1e-6
    states: ClassVar[tuple[str, ...]] = ("square", "change")

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_beta("beta", self.beta)
        _check_eps(self.eps)

    def rule(self, value: Any, gradient: Any, state: Any, rate: Any, step: Any) -> Any:
        square = self.beta * state.square + (1.0 - self.beta) * (gradient * gradient)
        move = gradient * sqrt(state.change + self.eps) / sqrt(square + self.eps)
        change = self.beta * state.change + (1.0 - self.beta) * (move * move)
        return value - rate * move, {"square": square, "change": change}


@dataclass(frozen=True)
class Lion(Optimizer):
    """The sign of a momentum (Chen et al. 2023), with decoupled weight decay."""

    beta1: float = 0.9
    beta2: float = 0.99
    states: ClassVar[tuple[str, ...]] = ("momentum",)
    decoupled_decay: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_beta("beta1", self.beta1)
        _check_beta("beta2", self.beta2)

    def rule(self, value: Any, gradient: Any, state: Any, rate: Any, step: Any) -> Any:
        ahead = self.beta1 * state.momentum + (1.0 - self.beta1) * gradient
        momentum = self.beta2 * state.momentum + (1.0 - self.beta2) * gradient
        return value - rate * ((ahead > 0.0) - (ahead < 0.0)), {"momentum": momentum}


Optimizer._kernels.update(
    {
        (SGD.rule, False): "sgd",
        (Adagrad.rule, False): "adagrad",
        (Adam.rule, False): "adam",
        (Adam.rule, True): "adamw",
    }
)

OPTIMIZERS: dict[str, type[Optimizer]] = {
    "sgd": SGD,
    "adagrad": Adagrad,
    "adam": Adam,
    "adamw": AdamW,
    "rmsprop": RMSProp,
    "adadelta": Adadelta,
    "lion": Lion,
}
#: Optimisers by name; a file of a user may have more.
NAMED = NamedTypes[Optimizer](Optimizer, "optimiser", "optimizer", OPTIMIZERS, "cavs.optim")
