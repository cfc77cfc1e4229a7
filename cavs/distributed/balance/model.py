"""The time of a step from the structure of its graphs, learned while training."""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul

import numpy as np
from numpy.typing import NDArray

from cavs.distributed.balance.profile import FEATURES
from cavs.errors import ConfigError

Floats = NDArray[np.float64]
_PRIOR = np.array([1e-4, 1e-5, 1e-6, 1e-6, 1e-6, 1e-7])  # seconds; only its proportions matter
_LEAST = 1e-3  # of the prior, that every feature costs: no work is done in no time


class CostModel:
    """Recursive least squares over `FEATURES`, with coefficients that are never zero or less.

    Kept are the sums of products of the features and of features and time, in which older steps
    count less and less (`forget` a step), so that a slower clock is learned anew. Coefficients are
    the positive minimum of the squared error, relative to the size of the work: more work never
    takes less time. Before the first step a prior holds in which every feature costs a little; the
    proportions of the first splits hang on it, nothing later.

    Ranks of different speeds share the coefficients; `slowness` says how many times longer each one
    takes than they predict.
    """

    def __init__(self, ranks: int, forget: float = 0.98, smooth: float = 0.2) -> None:
        if ranks < 1 or not 0 < forget <= 1 or not 0 < smooth <= 1:
            raise ConfigError(
                f"a cost model of {ranks} ranks, forget {forget}, smooth {smooth}",
                hint="give at least 1 rank, and numbers above 0, up to 1",
            )
        self.forget, self.smooth = forget, smooth
        self.coefficients = _PRIOR.copy()
        self.slowness = np.ones(ranks)
        self.steps = 0
        size = len(FEATURES)
        self._square, self._moment = np.zeros((size, size)), np.zeros(size)

    def predict(self, features: Floats) -> Floats:
        """Seconds of sets of graphs with `features` (..., 6) on a rank of slowness 1."""
        seconds: Floats = features @ self.coefficients
        return seconds

    def update(self, features: Floats, seconds: Sequence[float]) -> None:
        """One step: features (ranks, 6) of what each rank ran, and how long it computed."""
        times = np.asarray(seconds, np.float64)
        if features.shape != (len(self.slowness), len(FEATURES)) or times.shape != (
            len(self.slowness),
        ):
            raise ConfigError(
                f"features {list(features.shape)} and {times.size} times of "
                f"{len(self.slowness)} ranks",
                hint="give one row and one time for each rank",
            )
        if not (np.isfinite(times).all() and (times > 0).all()):
            raise ConfigError(f"times {list(seconds)}", hint="give positive seconds")
        self.steps += 1
        # The first steps are forgotten faster: the slownesses were not known yet.
        forget = min(self.forget, self.steps / (self.steps + 2))
        self._square *= forget
        self._moment *= forget
        for row, time in zip(features, times / self.slowness, strict=True):
            work = float(row @ _PRIOR)  # a small batch counts as much as a large one
            self._square += np.outer(row, row) / work**2
            self._moment += row * time / work**2
        self.coefficients = self._solve()
        ratio = times / self.predict(features)
        smooth = max(self.smooth, 1 / self.steps)
        slowness = self.slowness * (ratio / self.slowness) ** smooth
        # Only proportions are known: the fastest rank is the measure of the others.
        self.slowness = slowness / slowness.min()

    def _solve(self) -> Floats:
        """The minimum over positive coefficients, by coordinate descent from the last one."""
        scale = np.sqrt(np.diag(self._square).copy())
        scale[scale == 0] = 1.0
        square = self._square / np.outer(scale, scale)
        # A ridge towards the prior decides what the data leave open: features that always grow
        # together.
        ridge = 1e-4 * max(np.trace(square), 1e-12)
        prior = self._prior() * scale
        least = _LEAST * prior
        moment = self._moment / scale + ridge * prior
        square += ridge * np.eye(len(square))
        values = np.maximum(self.coefficients * scale, least)
        found = _descend(square.tolist(), moment.tolist(), least.tolist(), values.tolist())
        solved: Floats = np.array(found) / scale
        return solved

    def _prior(self) -> Floats:
        """The prior's proportions in the size that fits the times seen best."""
        predicted = float(_PRIOR @ self._square @ _PRIOR)
        size = float(_PRIOR @ self._moment) / predicted if predicted > 0 else 1.0
        return _PRIOR * size


def _descend(
    square: list[list[float]], moment: list[float], least: list[float], values: list[float]
) -> list[float]:
    """The minimum of a quadratic over values of at least `least`, one coordinate after the other.

    In numbers of Python: six of them are too few for NumPy to be fast.
    """
    for _ in range(200):
        before = list(values)
        for i, row in enumerate(square):
            rest = moment[i] - sum(map(mul, row, values)) + row[i] * values[i]
            values[i] = max(rest / row[i], least[i])
        moved = max(abs(a - b) for a, b in zip(values, before, strict=True))
        if moved <= 1e-9 * (max(values) + 1e-300):
            break
    return values
