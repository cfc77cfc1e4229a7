"""Computation of a step, as the planning of a training takes it into account."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cavs.distributed.strategy import Variable, by_gradient
from cavs.errors import ConfigError


@dataclass(frozen=True)
class Compute:
    """Seconds that one replica computes in a step.

    ready: when the gradient of each parameter is done, from the start of backward; of the others,
    gradients are done evenly over backward, in the order of `by_gradient`. slowest: factor by which
    the slowest replica takes longer.
    """

    forward: float = 0.0
    backward: float = 0.0
    ready: Mapping[str, float] = field(default_factory=dict)
    slowest: float = 1.0

    def __post_init__(self) -> None:
        times = {"forward": self.forward, "backward": self.backward, **self.ready}
        for name, seconds in times.items():
            if not 0 <= seconds < float("inf"):
                raise ConfigError(f"compute: {name} is {seconds} seconds", hint="give 0 or more")
        if not 1 <= self.slowest < float("inf"):
            raise ConfigError(f"compute: slowest is {self.slowest}", hint="give 1 or more")

    @property
    def seconds(self) -> float:
        """Seconds of forward and backward on the slowest replica."""
        return (self.forward + self.backward) * self.slowest

    def gradient_times(self, variables: Sequence[Variable]) -> dict[str, float]:
        """Return when the gradient of every parameter is done, from the start of the step."""
        count = len(variables)
        return {
            v.name: self.slowest
            * (self.forward + self.ready.get(v.name, self.backward * (i + 1) / count))
            for i, v in enumerate(by_gradient(variables))
        }
