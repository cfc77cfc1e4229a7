"""A lower bound on the number of batch tasks."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np


def fewest_tasks(schedule: Any, working: Collection[int]) -> int:
    """Return a lower bound on the tasks of any batching policy, for the kinds ``working``.

    A task holds vertices of one kind, none of which depends on another. So vertices of a kind that
    are on one path to a root need a task each, and no task holds two kinds: the bound is the sum,
    over the kinds, of the largest number of vertices of it on one path (ED-Batch, Chen et al.
    2023). It is at least the length of the longest path. Time and memory are linear in edges times
    kinds.
    """
    offsets, child = np.asarray(schedule.edge_offsets), np.asarray(schedule.child)
    longest = np.zeros((len(schedule.order), max(working, default=0) + 1), np.int64)
    for kind, _, (begin, end), _ in schedule.tasks:  # children before parents
        first, last = offsets[begin], offsets[end]
        if last > first:
            below = offsets[begin:end] - first
            some = np.diff(offsets[begin : end + 1]) > 0
            of_children = longest[child[first:last]]
            longest[begin:end][some] = np.maximum.reduceat(of_children, below[some], axis=0)
        if kind in working:
            longest[begin:end, kind] += 1
    return int(longest.max(axis=0).sum()) if len(longest) else 0
