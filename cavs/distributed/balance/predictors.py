"""Predictions of a worker's speed from its past, for load balancing on shared CPUs.

After LB-BSP (Chen et al. 2020, section 3.2): each worker has a predictor, which is updated when an
iteration ends and predicts the next one, whose CPU and memory use is known already.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from cavs.distributed.balance.balancer import Floats

_INPUTS = 8  # inputs of NARX: two speeds before; CPU and memory now, and twice before


class Predictor(Protocol):
    """Speeds in samples a second; use of CPU and memory as shares, 0 where unknown."""

    def update(self, speed: float, cpu: float = 0.0, memory: float = 0.0) -> None:
        """Learn the speed of an iteration that ended, and the use when it began."""

    def predict(self, cpu: float = 0.0, memory: float = 0.0) -> float:
        """Return the speed of the next iteration; only after the first `update`."""


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


@dataclass(frozen=True)
class Weights:
    """One hidden layer of tanh, one linear output, and the scales of inputs and output."""

    hidden: Floats
    bias: Floats
    output: Floats
    offset: float
    mean: Floats
    deviation: Floats

    def __call__(self, inputs: Floats) -> Floats:
        """Return the speeds, one for each row of `inputs` (n, 8)."""
        scaled = (inputs - self.mean[:_INPUTS]) / self.deviation[:_INPUTS]
        values = np.tanh(scaled @ self.hidden + self.bias) @ self.output + self.offset
        return np.asarray(values * self.deviation[_INPUTS] + self.mean[_INPUTS])


@dataclass
class NARX(Predictor):
    """Nonlinear autoregression with CPU and memory use as driving series (Chen et al. 2020).

    Until `warm_up` iterations are known it predicts as EMA does, or by the `weights` of an earlier
    run of the same job where given. Then it is trained on them by Adam with early stopping, from
    its `weights` if it has any, and again whenever another `period` iterations are known: what a
    machine does changes.
    """

    width: int = 16
    warm_up: int = 500
    period: int = 500
    history: int = 2000
    seed: int = 0
    weights: Weights | None = None
    rows: list[tuple[float, float, float]] = field(default_factory=list)
    count: int = 0
    _ema: EMA = field(default_factory=EMA)

    def update(self, speed: float, cpu: float = 0.0, memory: float = 0.0) -> None:
        self._ema.update(speed)
        self.rows.append((speed, cpu, memory))
        del self.rows[: -self.history]
        self.count += 1
        due = self.count >= self.warm_up and (self.count - self.warm_up) % self.period == 0
        if due and len(self.rows) >= 16:
            self.weights = train(np.array(self.rows), self.width, self.seed, self.weights)

    def predict(self, cpu: float = 0.0, memory: float = 0.0) -> float:
        if self.weights is None or len(self.rows) < 2:
            return self._ema.predict()
        (v2, c2, m2), (v1, c1, m1) = self.rows[-2:]
        inputs = np.array([[v1, v2, cpu, c1, c2, memory, m1, m2]])
        speed = float(self.weights(inputs)[0])
        seen = [row[0] for row in self.rows]
        return float(np.clip(speed, 0.5 * min(seen), 2 * max(seen)))


def train(rows: Floats, width: int, seed: int, start: Weights | None = None) -> Weights:
    """Return weights fitted to rows (speed, cpu, memory); the last fifth decides when to stop."""
    speed, cpu, memory = rows.T
    known = [speed[1:-1], speed[:-2], cpu[2:], cpu[1:-1], cpu[:-2]]
    known += [memory[2:], memory[1:-1], memory[:-2], speed[2:]]  # the last one is to be predicted
    both = np.stack(known, axis=1)
    mean, deviation = both.mean(axis=0), both.std(axis=0)
    deviation[deviation < 1e-12] = 1.0
    scaled = (both - mean) / deviation
    x, y = np.ascontiguousarray(scaled[:, :_INPUTS]), np.ascontiguousarray(scaled[:, _INPUTS])
    cut = max(len(y) - max(len(y) // 5, 1), 1)
    rng = np.random.default_rng(seed)
    if start is not None and start.output.shape == (width,):
        parts = [start.hidden, start.bias, start.output, np.array(start.offset)]
    else:
        hidden = rng.normal(0, _INPUTS**-0.5, (_INPUTS, width))
        parts = [hidden, np.zeros(width), rng.normal(0, width**-0.5, width), np.array(0.0)]
    hidden, bias, output, offset = _descend(parts, x, y, cut)
    return Weights(hidden, bias, output, float(offset), mean, deviation)


def _descend(parts: list[Floats], x: Floats, y: Floats, cut: int) -> list[Floats]:
    """Adam on the mean square error until that of rows beyond `cut` has not fallen in 30 steps."""
    x, y, x_held, y_held = x[:cut], y[:cut], x[cut:], y[cut:]
    first, second = ([np.zeros_like(p) for p in parts] for _ in range(2))
    best, least, since = parts, np.inf, 0
    for step in range(1, 1001):
        hidden, bias, output, offset = parts
        h = np.tanh(x_held @ hidden + bias)
        error = float(np.mean((h @ output + offset - y_held) ** 2))
        if error < least - 1e-6:
            best, least, since = parts, error, 0
        elif (since := since + 1) > 30:
            break
        h = np.tanh(x @ hidden + bias)
        d = 2 * (h @ output + offset - y) / len(y)
        back = np.outer(d, output) * (1 - h * h)
        slopes = [x.T @ back, back.sum(axis=0), h.T @ d, np.array(d.sum())]
        first = [0.9 * f + 0.1 * g for f, g in zip(first, slopes, strict=True)]
        second = [0.999 * s + 0.001 * g * g for s, g in zip(second, slopes, strict=True)]
        parts = [
            p - 0.01 * f / (1 - 0.9**step) / (np.sqrt(s / (1 - 0.999**step)) + 1e-8)
            for p, f, s in zip(parts, first, second, strict=True)
        ]
    return best
