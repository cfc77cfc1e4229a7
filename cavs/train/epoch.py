"""The batches of an epoch as indices of graphs; their size may change within the epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavs.errors import CheckpointError
from cavs.train.sampling import Sampler, draw

Ids = NDArray[np.int64]
#: First batch and batch size of each part of an epoch, ascending from batch 0.
Parts = tuple[tuple[int, int], ...]


def changed(parts: Parts, position: int, size: int) -> Parts:
    """Return `parts` with batches of `size` graphs from batch `position` on."""
    return (*(part for part in parts if part[0] < position), (position, size))


@dataclass(frozen=True)
class EpochOrder:
    """The order of `count` graphs in an epoch, and how it is cut into batches.

    bucket_sizes: Size of every graph, by which the graphs of a batch are similar, or None. The
    other fields are those of `cavs.DataLoader`.
    """

    count: int
    shuffle: bool
    seed: int
    drop_last: bool
    bucket_sizes: Ids | None = None
    sampler: Sampler | None = None

    def batches(self, epoch: int, parts: Parts) -> list[Ids]:
        """Return the indices of the graphs of every batch of `epoch`, at any time the same.

        Each part cuts the graphs that the batches before it have left.
        """
        rng = np.random.default_rng((self.seed, epoch))
        if self.sampler is not None:
            order = draw(self.sampler, rng, self.count)
        else:
            order = rng.permutation(self.count) if self.shuffle else np.arange(self.count)
        order = order.astype(np.int64, copy=False)
        left = np.arange(len(order))  # positions in the order, since a graph may come twice
        found: list[Ids] = []
        for i, (first, size) in enumerate(parts):
            cut = self._cut(order, left, size, rng)
            if i + 1 < len(parts):
                cut = cut[: parts[i + 1][0] - first]
                left = left[~np.isin(left, np.concatenate([left[:0], *cut]))]
            found += (order[positions] for positions in cut)
        return found

    def _cut(self, order: Ids, left: Ids, size: int, rng: np.random.Generator) -> list[Ids]:
        """Return the positions in `order` of the graphs of each batch."""
        if self.drop_last:
            left = left[: len(left) // size * size]
        if self.bucket_sizes is None:
            return [left[i : i + size] for i in range(0, len(left), size)]
        left = left[np.argsort(self.bucket_sizes[order[left]], -1, "stable")]
        cut = [left[i : i + size] for i in range(0, len(left), size)]
        drawn = self.shuffle or self.sampler is not None
        return [cut[i] for i in rng.permutation(len(cut))] if drawn else cut


def graphs_before(parts: Parts, batch: int) -> int:
    """Return the number of graphs of the batches before `batch`, none of which is the last."""
    ends = [first for first, _ in parts[1:]] + [batch]
    return sum(
        (min(end, batch) - first) * size
        for (first, size), end in zip(parts, ends, strict=True)
        if first < batch
    )


def parts_of(state: Mapping[str, Any], position: int) -> Parts:
    """Return the parts in the state of a loader that stopped at batch `position`.

    Raises `CheckpointError` if they are invalid.
    """
    stored: Sequence[Any] = state.get("batch_sizes") or [[0, state["batch_size"]]]
    try:
        parts = tuple((int(first), int(size)) for first, size in stored)
    except (TypeError, ValueError) as error:
        raise _invalid(stored) from error
    firsts = [first for first, _ in parts]
    if firsts != sorted(set(firsts)) or firsts[0] != 0 or min(size for _, size in parts) < 1:
        raise _invalid(stored)
    if firsts[-1] > position:  # the last batches are repeated, in the size that was agreed last
        return changed(parts, position, parts[-1][1])
    return parts


def _invalid(stored: object) -> CheckpointError:
    return CheckpointError(
        f"the loader was saved with batch sizes {stored!r}, but they are pairs of a first batch, "
        "ascending from 0, and a size of at least 1",
        hint="take an older checkpoint",
    )
