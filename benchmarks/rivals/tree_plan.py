"""Index arrays of a batch of binary trees, level by level, without a loop over vertices."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.samples import Sample, Tree

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TreePlan:
    """Rows are the vertices of the batch sorted by (height, height of the parent), stably.

    The rows of a level are contiguous, and so are those that each later level reads.
    Level l has rows level_rows[l] .. level_rows[l + 1]; level 0 is the leaves.
    """

    level_rows: Longs  # [levels + 1]
    leaf_token: Longs  # [leaves]
    child: Longs  # [inner, 2]: rows of the children of row `leaves + i`
    up: Longs  # [rows]: 2 * (row of the parent - leaves) + side, or 2 * inner at a root
    label: Longs  # [rows]; -1 without a label
    vertex: Longs  # [rows]: the vertex's number in the batch
    consumed: Longs  # [levels, levels]: rows of level j whose parent is at level l (0: roots)
    pool_position: Longs  # [rows]: index among all rows that the parent's level reads

    @property
    def leaves(self) -> int:
        return int(self.level_rows[1])

    @property
    def rows(self) -> int:
        return int(self.level_rows[-1])


def plan_trees(samples: SequenceOf[Sample]) -> TreePlan:
    """Return the plan of a batch of trees."""
    trees = [sample for sample in samples if isinstance(sample, Tree)]
    if len(trees) != len(samples) or not trees:
        raise ValueError(f"{len(trees)} trees among {len(samples)} samples; all must be trees")
    sizes = np.array([len(tree) for tree in trees])
    shift = np.repeat(np.cumsum(sizes) - sizes, sizes)
    left = np.concatenate([tree.left for tree in trees]) + shift
    right = np.concatenate([tree.right for tree in trees]) + shift
    token = np.concatenate([tree.token for tree in trees])
    label = np.concatenate([tree.label for tree in trees]).astype(np.int64)
    height = np.concatenate([tree.height for tree in trees]).astype(np.int64)

    rows = len(height)
    levels = int(height.max()) + 1
    inner = np.flatnonzero(height)
    parent_height = np.zeros(rows, np.int64)
    parent_height[left[inner]] = height[inner]
    parent_height[right[inner]] = height[inner]

    key = height * levels + parent_height
    order = np.argsort(key, kind="stable")
    row = np.empty(rows, np.int64)
    row[order] = np.arange(rows)
    flat = np.bincount(key, minlength=levels * levels)
    start = np.cumsum(flat) - flat
    consumed = flat.reshape(levels, levels)
    pool = np.cumsum(consumed, axis=0) - consumed
    position = pool[height, parent_height] + row - start[key]

    level_rows = np.zeros(levels + 1, np.int64)
    np.cumsum(consumed.sum(axis=1), out=level_rows[1:])
    leaves = int(level_rows[1])
    inner_in_order = order[leaves:]
    child = np.stack([row[left[inner_in_order]], row[right[inner_in_order]]], axis=1)
    up = np.full(rows, 2 * len(inner), np.int64)
    up[child.ravel()] = np.arange(2 * len(inner))
    return TreePlan(
        level_rows,
        token[order[:leaves]].astype(np.int64),
        child,
        up,
        label[order],
        order,
        consumed,
        position[order],
    )
