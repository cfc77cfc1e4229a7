"""Predictions of a worker's speed from what it was, for load balancing on shared CPUs.

After LB-BSP (Chen et al. 2020, section 3.2): each worker has a predictor, which is updated when an
iteration ends and predicts the next one, whose CPU and memory use is known already.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Predictor(Protocol):
    """Speeds in samples a second; use of CPU and memory as shares, 0 where unknown."""

    def update(self, speed: float, cpu: float = 0.0, memory: float = 0.0) -> None:
        """Learn the speed of an iteration that ended, and the use when it began."""
        ...

    def predict(self, cpu: float = 0.0, memory: float = 0.0) -> float:
        """Return the speed of the next iteration; only after the first `update`."""
        ...


@dataclass
class Memoryless(Predictor):
    """Predicts the speed of the last iteration."""

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
    speeds: list[float] = field(default_factory=list)

    def update(self, speed: float, cpu: float = 0.0, memory: float = 0.0) -> None:
        self.speeds.append(speed)
        del self.speeds[: -self.window]

    def predict(self, cpu: float = 0.0, memory: float = 0.0) -> float:
        if len(self.speeds) < self.least:
            return self.speeds[-1] if self.speeds else 0.0
        speeds = np.array(self.speeds)
        scale = float(np.abs(speeds).mean())
        forecast = scale * _forecast(speeds / scale)
        # Beyond twice what was ever seen, the differences have run away.
        fits = 0.5 * speeds.min() <= forecast <= 2 * speeds.max()
        return forecast if fits else self.speeds[-1]


def _forecast(speeds: Floats) -> float:
    """Return the next value of an ARIMA(2, 2, 1) fitted to `speeds`, 12 or more."""
    changes = np.diff(speeds, 2)
    noise = _residuals(changes, order=min(6, len(changes) // 3))
    inputs = np.stack([changes[2:-1], changes[1:-2], noise[2:-1]], axis=1)
    weights = _regress(inputs, changes[3:])
    change = float(weights @ [changes[-1], changes[-2], noise[-1]])
    return float(2 * speeds[-1] - speeds[-2] + change)


def _residuals(values: Floats, order: int) -> Floats:
    """Return the residuals of an autoregression of `order` terms; zeros at the start."""
    inputs = np.stack([values[order - i - 1 : len(values) - i - 1] for i in range(order)], axis=1)
    targets = values[order:]
    return np.concatenate([np.zeros(order), targets - inputs @ _regress(inputs, targets)])


def _regress(inputs: Floats, targets: Floats) -> Floats:
    """Solve least squares, with just enough ridge to stay finite on constant series."""
    square = inputs.T @ inputs
    ridge = 1e-8 * (np.trace(square) / len(square) + 1e-8)
    return np.linalg.solve(square + ridge * np.eye(len(square)), inputs.T @ targets)
