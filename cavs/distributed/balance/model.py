"""The structure of graphs, and the time of a step from it, learned while training."""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavs.config import require
from cavs.data import Sample
from cavs.distributed.balance.balancer import Floats, check_seconds
from cavs.errors import ConfigError

# Rows of a task are computed in tiles and handed to threads in chunks; what does not fill one still
# costs one.
TILES = (16, 96)
FEATURES = ("step", "levels", *(f"tiles of {tile}" for tile in TILES), "vertices", "edges")
_PRIOR = np.array([1e-4, 1e-5, 1e-6, 1e-6, 1e-6, 1e-7])  # seconds; only its proportions matter
_LEAST = 1e-3  # least cost of a feature, in parts of the prior
_OFTEN, _SELDOM = 32, 8  # it learns at each of so many first steps, then at one in so many
_SURPRISE = 1.3  # ratio to the prediction, relative to another rank, from which it learns at once


def features(widths: NDArray[Any], edges: NDArray[Any] | float) -> Floats:
    """Return the quantities that the time of a step depends on, by `FEATURES`.

    widths: (..., levels), vertices ready together at each level of one set of graphs, or of many;
    zeros where a set is not so deep. edges: (...,). The graphs of a set run level by level
    together, so the levels of a set are those of its deepest graph.
    """
    columns = [np.ones(widths.shape[:-1]), (widths > 0).sum(axis=-1)]
    columns += [np.ceil(widths / tile).sum(axis=-1) for tile in TILES]
    columns += [widths.sum(axis=-1), np.broadcast_to(edges, widths.shape[:-1])]
    return np.stack(columns, axis=-1).astype(np.float64)


def profiles(graphs: Sequence[Any]) -> tuple[Floats, Floats]:
    """Return the profiles of `cavs.Graph` objects, or of `cavs.Sample` objects.

    They are the widths (graphs, levels of the deepest), the vertices of each graph at each level
    (the longest path below a vertex), and the edges (graphs,).
    """
    if any(isinstance(graph, Sample) for graph in graphs[:1]):  # each structure has its own levels
        parts = [profiles([s.graphs[name] for s in graphs]) for name in graphs[0].graphs]
        return np.hstack([widths for widths, _ in parts]), np.sum([e for _, e in parts], axis=0)
    rows = [np.bincount(graph.topology.level) for graph in graphs]
    widths = np.zeros((len(rows), max(map(len, rows), default=0)))
    for i, row in enumerate(rows):
        widths[i, : len(row)] = row
    return widths, np.array([graph.num_edges for graph in graphs], np.float64)


class CostModel:
    """Recursive least squares over `FEATURES`, with coefficients that are never zero or less.

    Older steps count less and less (`forget` a step), so that the model adapts to a slower clock.
    Coefficients are the positive minimum of the squared error, relative to the size of the work:
    more work never takes less time. Before the first step a prior holds in which every feature
    costs a little. Ranks of different speeds share the coefficients; `slowness` says how many times
    longer each one takes than they predict.
    """

    def __init__(self, ranks: int, forget: float = 0.98, smooth: float = 0.2) -> None:
        require(ranks >= 1, "ranks", ranks, "at least 1")
        for name, value in (("forget", forget), ("smooth", smooth)):
            require(0 < value <= 1, name, value, "above 0, up to 1")
        self.forget, self.smooth = forget, smooth
        self.coefficients = _PRIOR.copy()
        self.slowness = np.ones(ranks)
        self.steps = 0
        size = len(FEATURES)
        self._square, self._moment = np.zeros((size, size)), np.zeros(size)
        self._heard: list[tuple[Floats, Floats]] = []  # steps that are not learned from yet

    def predict(self, features: Floats) -> Floats:
        """Return the seconds of sets of graphs with `features` (..., 6) on a rank of slowness 1."""
        # No product of NumPy: ranks on different processors must find the same bits.
        seconds: Floats = (features * self.coefficients).sum(axis=-1)
        return seconds

    def update(self, features: Floats, seconds: Sequence[float]) -> None:
        """Learn from a step: features (ranks, 6) of each rank's graphs, and its seconds."""
        ranks = len(self.slowness)
        check_seconds(seconds, ranks)
        if features.shape != (ranks, len(FEATURES)):
            what = f"features {list(features.shape)} of {ranks} ranks"
            raise ConfigError(what, hint=f"give one row of {len(FEATURES)} for each rank")
        self.steps += 1
        self._heard.append((features, np.array(seconds, np.float64)))
        if self.steps > _OFTEN and self.steps % _SELDOM and not self._surprised():
            return
        first = self.steps - len(self._heard) + 1
        for step, (rows, times) in enumerate(self._heard, first):
            self._count(rows, times, step)
        self.coefficients = self._solve()
        for step, (rows, times) in enumerate(self._heard, first):
            smooth = max(self.smooth, 1 / step)
            self.slowness = self.slowness + smooth * (times / self.predict(rows) - self.slowness)
        # Only proportions are known: the fastest rank is the measure of the others.
        self.slowness = self.slowness / self.slowness.min()
        self._heard.clear()

    def _surprised(self) -> bool:
        """True if the last step took a rank so long, or so short, that its clock has changed."""
        features, times = self._heard[-1]
        found = times / (self.predict(features) * self.slowness)
        return bool((found / found.min()).max() > _SURPRISE)  # slownesses are proportions

    def _count(self, features: Floats, times: Floats, step: int) -> None:
        # The first steps are forgotten faster: the slownesses were not known yet.
        forget = min(self.forget, step / (step + 2))
        work = (features * _PRIOR).sum(axis=-1, keepdims=True)
        rows = features / work  # a small batch counts as much as a large one
        own = times / self.slowness
        self._square = forget * self._square + (rows[:, :, None] * rows[:, None, :]).sum(axis=0)
        self._moment = forget * self._moment + (rows * own[:, None] / work).sum(axis=0)

    def _solve(self) -> Floats:
        """Return the minimum over positive coefficients."""
        scale = np.sqrt(np.diag(self._square).copy())
        scale[scale == 0] = 1.0
        square = self._square / np.outer(scale, scale)
        # A ridge towards the prior decides between features that always grow together.
        ridge = 1e-4 * max(np.trace(square), 1e-12)
        prior = self._prior() * scale
        moment = self._moment / scale + ridge * prior
        square += ridge * np.eye(len(square))
        found = _minimum(square.tolist(), moment.tolist(), (_LEAST * prior).tolist())
        return np.asarray(np.array(found) / scale)

    def _prior(self) -> Floats:
        """Return the prior, scaled to fit the times seen best."""
        predicted = float((np.outer(_PRIOR, _PRIOR) * self._square).sum())
        size = float((_PRIOR * self._moment).sum()) / predicted if predicted > 0 else 1.0
        return _PRIOR * size


def _minimum(square: list[list[float]], moment: list[float], least: list[float]) -> list[float]:
    """Return the x >= `least` with the least x S x / 2 - m x, for a positive definite S.

    An active set (Lawson and Hanson 1974, chapter 23), in numbers of Python: products of NumPy
    differ by the last bit from one processor to another.
    """
    n = len(moment)
    x, free = list(least), [False] * n
    for _ in range(4 * n):  # n mostly; rounding may let one come and go for ever
        pull = [m - sum(map(mul, row, x)) for row, m in zip(square, moment, strict=True)]
        held = [i for i in range(n) if not free[i] and pull[i] > 1e-12 * abs(moment[i])]
        if not held:
            break
        free[max(held, key=lambda i: pull[i])] = True
        while True:
            goal = _stationary(square, moment, x, free)
            short = [i for i in range(n) if free[i] and goal[i] < least[i]]
            if not short:
                x = goal
                break
            # As far as the first bound on the way; there it is held.
            ways = {i: (x[i] - least[i]) / (x[i] - goal[i]) for i in short}
            way = min(ways.values())
            x = [a + way * (b - a) for a, b in zip(x, goal, strict=True)]
            for i in short:
                if ways[i] == way:
                    x[i], free[i] = least[i], False
    return x


def _stationary(
    square: list[list[float]], moment: list[float], x: list[float], free: list[bool]
) -> list[float]:
    """Return `x` with its free numbers at the minimum; by elimination without pivots."""
    chosen = [i for i, is_free in enumerate(free) if is_free]
    held = [i for i, is_free in enumerate(free) if not is_free]
    rows = [
        [square[i][j] for j in chosen] + [moment[i] - sum(square[i][j] * x[j] for j in held)]
        for i in chosen
    ]
    for k, pivot in enumerate(rows):
        for row in rows[k + 1 :]:
            factor = row[k] / pivot[k]
            row[k:] = [a - factor * b for a, b in zip(row[k:], pivot[k:], strict=True)]
    solved = list(x)
    for k in range(len(chosen) - 1, -1, -1):
        rest = sum(rows[k][j] * solved[chosen[j]] for j in range(k + 1, len(chosen)))
        solved[chosen[k]] = (rows[k][-1] - rest) / rows[k][k]
    return solved
