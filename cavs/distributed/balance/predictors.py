"""Predictions of a worker's speed from what it was, for load balancing on shared CPUs.

As in LB-BSP (Chen et al. 2020, section 3.2): one predictor a worker. A predictor is told the speed
of every iteration that ended, and the CPU and memory use at its start; it is asked for the speed of
the iteration that begins, whose CPU and memory use is known already.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Predictor(Protocol):
    """Speeds in samples a second; use of CPU and memory as shares, 0 where unknown."""

    def update(self, speed: float, cpu: float = 0.0, memory: float = 0.0) -> None:
        """An iteration ended: its speed, and the use when it began."""
        ...

    def predict(self, cpu: float = 0.0, memory: float = 0.0) -> float:
        """The speed of the next iteration; only after the first `update`."""
        ...


@dataclass
class Memoryless(Predictor):
    """The speed of the last iteration."""

    speed: float = 0.0

    def update(self, speed: float, cpu: float = 0.0, memory: float = 0.0) -> None:
        self.speed = speed

    def predict(self, cpu: float = 0.0, memory: float = 0.0) -> float:
        return self.speed


@dataclass
class EMA(Predictor):
    """The exponential moving average; `alpha` is the weight of the newest."""

    alpha: float = 0.2
    mean: float | None = None

    def update(self, speed: float, cpu: float = 0.0, memory: float = 0.0) -> None:
        before = speed if self.mean is None else self.mean
        self.mean = before + self.alpha * (speed - before)

    def predict(self, cpu: float = 0.0, memory: float = 0.0) -> float:
        return self.mean or 0.0


@dataclass
class ARIMA(Predictor):
    """ARIMA(2, 2, 1) over the last `window` speeds, fitted for each prediction.

    Differenced twice, then two autoregressive terms and one moving-average term by the regressions
    of Hannan and Rissanen (1982): residuals of a longer autoregression stand for the unseen noise.
    Until `least` speeds are known, and where the forecast is no possible speed, the last one.
    """

    window: int = 64
    least: int = 12
    speeds: deque[float] = field(default_factory=deque)

    def update(self, speed: float, cpu: float = 0.0, memory: float = 0.0) -> None:
        self.speeds.append(speed)
        if len(self.speeds) > self.window:
            self.speeds.popleft()

    def predict(self, cpu: float = 0.0, memory: float = 0.0) -> float:
        speeds = np.array(self.speeds)
        if not len(speeds):
            return 0.0
        last = float(speeds[-1])
        if len(speeds) < self.least:
            return last
        scale = float(np.abs(speeds).mean())
        forecast = scale * _forecast(speeds / scale)
        # Beyond twice what was ever seen, the differences have run away.
        if not 0.5 * speeds.min() <= forecast <= 2 * speeds.max():
            return last
        return forecast


def _forecast(speeds: Floats) -> float:
    """The next value of an ARIMA(2, 2, 1) fitted to `speeds`, 12 or more."""
    changes = np.diff(speeds, 2)
    noise = _residuals(changes, order=min(6, len(changes) // 3))
    begin = 3
    targets = changes[begin:]
    inputs = np.stack(
        [changes[begin - 1 : -1], changes[begin - 2 : -2], noise[begin - 1 : -1]], axis=1
    )
    weights = _regress(inputs, targets)
    change = float(weights @ [changes[-1], changes[-2], noise[-1]])
    return float(2 * speeds[-1] - speeds[-2] + change)


def _residuals(values: Floats, order: int) -> Floats:
    """Return the residuals of an autoregression of `order` terms; zeros at the start."""
    inputs = np.stack([values[order - i - 1 : len(values) - i - 1] for i in range(order)], axis=1)
    targets = values[order:]
    left: Floats = np.concatenate([np.zeros(order), targets - inputs @ _regress(inputs, targets)])
    return left


def _regress(inputs: Floats, targets: Floats) -> Floats:
    """Least squares, with just enough ridge to stay finite on constant series."""
    square = inputs.T @ inputs
    ridge = 1e-8 * (np.trace(square) / len(square) + 1e-8)
    solved: Floats = np.linalg.solve(square + ridge * np.eye(len(square)), inputs.T @ targets)
    return solved
