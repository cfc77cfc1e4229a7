"""A small network that predicts a worker's speed from its past, and its CPU and memory use."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from cavs.distributed.balance.predictors import EMA, Floats, Predictor

INPUTS = 8  # two speeds before; CPU and memory now, and twice before


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
        scaled = (inputs - self.mean[:INPUTS]) / self.deviation[:INPUTS]
        values = np.tanh(scaled @ self.hidden + self.bias) @ self.output + self.offset
        return np.asarray(values * self.deviation[INPUTS] + self.mean[INPUTS])


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


def examples(rows: Floats) -> tuple[Floats, Floats]:
    """Return inputs (n - 2, 8) and speeds (n - 2,) of rows (speed, cpu, memory) in order."""
    speed, cpu, memory = rows.T
    inputs = [speed[1:-1], speed[:-2], cpu[2:], cpu[1:-1], cpu[:-2]]
    inputs += [memory[2:], memory[1:-1], memory[:-2]]
    return np.stack(inputs, axis=1), speed[2:]


def train(rows: Floats, width: int, seed: int, start: Weights | None = None) -> Weights:
    """Return weights fitted to rows (speed, cpu, memory); the last fifth decides when to stop."""
    inputs, targets = examples(rows)
    both = np.concatenate([inputs, targets[:, None]], axis=1)
    mean, deviation = both.mean(axis=0), both.std(axis=0)
    deviation[deviation < 1e-12] = 1.0
    x, y = (inputs - mean[:INPUTS]) / deviation[:INPUTS], (targets - mean[-1]) / deviation[-1]
    cut = max(len(y) - max(len(y) // 5, 1), 1)
    rng = np.random.default_rng(seed)
    if start is not None and start.output.shape == (width,):
        parts = [start.hidden, start.bias, start.output, np.array(start.offset)]
    else:
        hidden = rng.normal(0, INPUTS**-0.5, (INPUTS, width))
        parts = [hidden, np.zeros(width), rng.normal(0, width**-0.5, width), np.array(0.0)]
    hidden, bias, output, offset = _descend(parts, x[:cut], y[:cut], x[cut:], y[cut:])
    return Weights(hidden, bias, output, float(offset), mean, deviation)


def _descend(
    parts: list[Floats], x: Floats, y: Floats, x_held: Floats, y_held: Floats
) -> list[Floats]:
    """Adam on the mean square error until the held-out error has not fallen for 30 steps."""
    first, second = [np.zeros_like(p) for p in parts], [np.zeros_like(p) for p in parts]
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
