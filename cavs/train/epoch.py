"""The batches of an epoch as indices of graphs; their size may change within the epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavs.errors import CheckpointError

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

    def batches(self, epoch: int, parts: Parts) -> list[Ids]:
        """Return the indices of the graphs of every batch of `epoch`, at any time the same.

        Each part cuts the graphs that the batches before it have left.
        """
        rng = np.random.default_rng((self.seed, epoch))
        order = rng.permutation(self.count) if self.shuffle else np.arange(self.count)
        left = order.astype(np.int64, copy=False)
        found: list[Ids] = []
        for i, (first, size) in enumerate(parts):
            cut = self._cut(left, size, rng)
            if i + 1 < len(parts):
                cut = cut[: parts[i + 1][0] - first]
                left = left[~np.isin(left, np.concatenate([left[:0], *cut]))]
            found += cut
        return found

    def _cut(self, left: Ids, size: int, rng: np.random.Generator) -> list[Ids]:
        order = left[: len(left) // size * size] if self.drop_last else left
        if self.bucket_sizes is None:
            return [order[i : i + size] for i in range(0, len(order), size)]
        order = order[np.argsort(self.bucket_sizes[order], -1, "stable")]
        cut = [order[i : i + size] for i in range(0, len(order), size)]
        return [cut[i] for i in rng.permutation(len(cut))] if self.shuffle else cut


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
