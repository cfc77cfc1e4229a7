"""Split batches so that every rank's graphs are predicted to take equally long."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from cavs.distributed.balance.balancer import Balancer, Floats, Reports
from cavs.distributed.balance.model import CostModel, features, profiles
from cavs.errors import ConfigError

_EXCHANGES = 200  # moves and swaps at most; each makes the slowest rank faster
_PACKINGS = 6  # halvings of the interval in which the best packing lies
_WASTE = 1.05  # below, sharing levels better than by chance gains too little to look for
_EVEN = 1.002  # slowest by mean: what is left is below the noise of a clock


def gradient_weights(counts: Sequence[int]) -> list[float]:
    """Return factors of each rank's mean gradient over its `counts` samples, so that the sum over
    ranks is the mean gradient of the whole batch (Chen et al. 2020, section 3.4).
    """
    total = sum(counts)
    if total < 1 or min(counts) < 0:
        raise ConfigError(f"batches of {list(counts)} samples", hint="give at least one sample")
    return [count / total for count in counts]


class Split:
    """The graphs that each rank runs: `parts` holds their positions in the batch, ascending.

    seconds: as predicted, by rank. weights: of each rank's mean gradient, see `gradient_weights`.
    features: of each rank's graphs, for `CostModel.update`.
    """

    def __init__(self, parts: list[list[int]], seconds: Floats, rows: Floats) -> None:
        self.parts, self.seconds, self.features = parts, seconds, rows
        self.weights = gradient_weights([len(part) for part in parts])

    @property
    def imbalance(self) -> float:
        """Predicted time of the slowest rank by the mean of all; 1 is even."""
        return float(self.seconds.max() / self.seconds.mean())


class _Sets:
    """The graphs of every rank while they are dealt out.

    rows: a row per graph, its vertices at each level and its edges. sums: those of each rank.
    """

    def __init__(self, rows: Floats, model: CostModel) -> None:
        self.rows, self.model, ranks = rows, model, len(model.slowness)
        self.sums = np.zeros((ranks, rows.shape[1]))
        self.owner = np.full(len(rows), -1)
        self.count, self.seconds = np.zeros(ranks, np.int64), np.zeros(ranks)

    def time(self, sums: Floats, ranks: Any) -> Floats:
        """Predicted seconds of sets of graphs on `ranks`."""
        slowness: Floats = self.model.slowness[ranks]
        return slowness * self.model.predict(_features(sums))

    def ends_with(self, graph: int) -> Floats:
        """Predicted seconds of each rank if it also gets `graph`."""
        return self.time(self.sums + self.rows[graph], slice(None))

    def deal_to(self, graph: int, rank: int, seconds: float) -> None:
        self.sums[rank] += self.rows[graph]
        self.count[rank] += 1
        self.owner[graph], self.seconds[rank] = rank, seconds

    def give(self, graph: int, rank: int) -> None:
        """Move a graph from its rank to `rank`."""
        for owner, sign in ((int(self.owner[graph]), -1), (rank, 1)):
            self.sums[owner] += sign * self.rows[graph]
            self.count[owner] += sign
            self.seconds[owner] = self.time(self.sums[owner], owner)
        self.owner[graph] = rank

    def deal(self) -> None:
        """Deal the longest graph first, each to the rank that then ends earliest.

        The cost of a graph depends on the levels that the rank runs anyway. Every rank gets one.
        """
        alone = self.model.predict(_features(self.rows))
        for done, graph in enumerate(np.argsort(-alone, kind="stable").tolist()):
            then = self.ends_with(graph)
            if len(self.owner) - done <= np.count_nonzero(self.count == 0):
                then[self.count > 0] = np.inf
            # Among equal ends, take the least growth, where levels are shared.
            rank = int(np.lexsort((then - self.seconds, then))[0])
            self.deal_to(graph, rank, then[rank])

    def pack(self, limit: float) -> bool:
        """Deal the deepest graph first, each to the rank where it adds least that ends by `limit`.

        So deep graphs share the levels of one rank. False if a graph fits nowhere, or a rank gets
        none.
        """
        widths = self.rows[:, :-1]
        for graph in np.lexsort((-widths.sum(axis=1), -(widths > 0).sum(axis=1))).tolist():
            then = self.ends_with(graph)
            growth = np.where(then <= limit, then - self.seconds, np.inf)
            rank = int(np.argmin(growth))
            if not np.isfinite(growth[rank]):
                return False
            self.deal_to(graph, rank, then[rank])
        return bool(self.count.all())

    def settle(self) -> None:
        """Improve until the ranks are even or nothing helps."""
        for _ in range(_EXCHANGES):
            if self.seconds.max() <= _EVEN * self.seconds.mean() or not self.improve():
                return

    def improve(self) -> bool:
        """Move or exchange a graph of the slowest rank; return False if nothing gets faster."""
        slow = int(np.argmax(self.seconds))
        mine = np.flatnonzero(self.owner == slow)
        others = np.argsort(self.seconds, kind="stable")
        for rank in others[others != slow].tolist():
            theirs = np.flatnonzero(self.owner == rank)
            ends = np.full((len(mine), len(theirs) + 1), np.inf)
            if len(mine) > 1:
                ends[:, -1] = self._ends(slow, rank, self.rows[mine])
            for row, graph in zip(ends, mine, strict=True):
                row[:-1] = self._ends(slow, rank, self.rows[graph] - self.rows[theirs])
            i, j = divmod(int(np.argmin(ends)), ends.shape[1])
            if ends[i, j] < self.seconds[slow] * (1 - 1e-9):
                self.give(int(mine[i]), rank)
                if j < len(theirs):
                    self.give(int(theirs[j]), slow)
                return True
        return False

    def _ends(self, slow: int, rank: int, moved: Floats) -> Floats:
        """Return when the later of two ranks ends, if graphs of these rows move between them."""
        slower = self.time(self.sums[slow] - moved, slow)
        return np.maximum(slower, self.time(self.sums[rank] + moved, rank))


def _features(rows: Floats) -> Floats:
    return features(rows[..., :-1], rows[..., -1])


def split_batch(graphs: Sequence[Any], model: CostModel) -> Split:
    """Split the graphs of a global batch so that the predicted times are as even as can be.

    graphs: `cavs.Graph` objects, at least one a rank, else `ConfigError`. Ranks with equal models
    find the same split.
    """
    return split_profiles(*profiles(graphs), model)


def split_profiles(widths: Floats, edges: Floats, model: CostModel) -> Split:
    """Split graphs given by their `profiles`, as `split_batch` does."""
    ranks = len(model.slowness)
    if len(widths) < ranks:
        what = f"{len(widths)} graphs for {ranks} ranks"
        raise ConfigError(what, hint="use a larger batch or fewer ranks")
    rows = np.column_stack([widths, edges]).astype(np.float64, copy=False)
    sets = _Sets(rows, model)
    sets.deal()
    sets.settle()
    # Together, all graphs share their levels: no split can end earlier.
    whole = model.predict(_features(rows.sum(axis=0)))
    low, high = float(whole / (1 / model.slowness).sum()), float(sets.seconds.max())
    for _ in range(_PACKINGS if high > _WASTE * low else 0):
        packed, limit = _Sets(rows, model), (low + high) / 2
        if packed.pack(limit):
            packed.settle()
            sets, high = packed, float(packed.seconds.max())
        else:
            low = limit
    parts = [np.flatnonzero(sets.owner == rank).tolist() for rank in range(ranks)]
    return Split(parts, sets.seconds.copy(), _features(sets.sums))


class StructureBalancer(Balancer[CostModel, Floats]):
    """A `Balancer` by the structure of graphs: each rank is predicted to take equally long.

    model: of the times; a new one unless given.
    """

    needs_times = False  # the prior distinguishes deep graphs from flat ones

    def __init__(
        self,
        ranks: int | None = None,
        lag: int = 3,
        model: CostModel | None = None,
        timeout: float = 600.0,
    ) -> None:
        self.model = model or CostModel(1)
        if model is not None and ranks not in (None, len(model.slowness)):
            what = f"a balancer of {ranks} ranks with a model of {len(model.slowness)}"
            raise ConfigError(what, hint="leave ranks out: the model says how many they are")
        super().__init__(ranks if model is None else len(model.slowness), lag, timeout)

    def fresh(self) -> Self:
        other = super().fresh()
        other.model = CostModel(1)
        return other

    def _begin(self, ranks: int) -> None:
        if len(self.model.slowness) != ranks:
            self.model = CostModel(ranks)

    def _now(self) -> CostModel:
        return copy.copy(self.model)

    def _deal(self, graphs: Sequence[Any], known: CostModel) -> tuple[list[list[int]], Floats]:
        split = split_batch(graphs, known)
        return split.parts, split.features

    def _learn(self, dealt: Floats, seconds: Sequence[float], reports: Reports) -> None:
        self.model.update(dealt, seconds)
