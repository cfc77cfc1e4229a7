"""Optimisers as users write them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cavs
from cavs import ops


@dataclass(frozen=True)
class AMSGrad(cavs.optim.Optimizer):
    """Adam with the largest second moment so far (Reddi et al. 2018)."""

    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 1e-8
    states = ("mean", "square", "largest")

    def rule(self, value: Any, gradient: Any, state: Any, rate: Any, step: Any) -> Any:
        mean = self.beta1 * state.mean + (1 - self.beta1) * gradient
        square = self.beta2 * state.square + (1 - self.beta2) * gradient**2
        largest = ops.maximum(state.largest, square / (1 - self.beta2**step))
        new = value - rate / (1 - self.beta1**step) * mean / (ops.sqrt(largest) + self.eps)
        return new, {"mean": mean, "square": square, "largest": largest}


@dataclass(frozen=True)
class HeavyBall(cavs.optim.Optimizer):
    """Momentum from the value before, which becomes a state."""

    beta: float = 0.9
    states = ("previous",)

    def rule(self, value: Any, gradient: Any, state: Any, rate: Any, step: Any) -> Any:
        return value + self.beta * (value - state.previous) - rate * gradient, {"previous": value}


@dataclass(frozen=True)
class TracedAdam(cavs.optim.Adam):
    """Adam without the engine's own kernel."""

    def rule(self, *operands: Any) -> Any:
        return super().rule(*operands)


@dataclass(frozen=True)
class TracedAdamW(cavs.optim.AdamW):
    """AdamW without the engine's own kernel."""

    def rule(self, *operands: Any) -> Any:
        return super().rule(*operands)


@dataclass(frozen=True)
class TracedSGD(cavs.optim.SGD):
    """SGD without the engine's own kernel."""

    def rule(self, *operands: Any) -> Any:
        return super().rule(*operands)


@dataclass(frozen=True)
class TracedAdagrad(cavs.optim.Adagrad):
    """Adagrad without the engine's own kernel."""

    def rule(self, *operands: Any) -> Any:
        return super().rule(*operands)
