"""The state of compressors as arrays, for a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cavs.distributed.comm.interfaces import Array
from cavs.distributed.compression.exchange import State

_ALIKE = ("step", "right")  # a counter, and the factor of PowerSGD that begins the next step


def flatten(state: State) -> dict[str, Array]:
    """Return every array and whole number of a state, by name."""
    return {k: np.asarray(v, np.int64) if isinstance(v, int) else v for k, v in state.items()}


def unflatten(like: State, arrays: Mapping[str, Array]) -> State:
    """Return a state of the form of `like` with the content of `arrays`, as `flatten` gives it."""
    return {
        name: int(arrays[name])
        if isinstance(value, int)
        else arrays[name].astype(value.dtype).reshape(value.shape)
        for name, value in like.items()
    }


def weighed(state: State, by: float) -> State:
    """Return a state whose gradients count `by` times as much; counters stay as they are."""
    return {k: v if isinstance(v, int) else v * v.dtype.type(by) for k, v in state.items()}


def share_of(every: Array, rank: int, ranks: int, *, average: bool, alike: bool = False) -> Any:
    """Return the share of `rank` of `ranks` in arrays that other ranks kept, `every` by rank.

    As many ranks as before: its own. Otherwise, where all have it alike (see `is_alike`), the same,
    or else an equal share of what they held back: gradients weigh 1 / ranks if they are averaged,
    so that is the mean, and their sum over the new ranks if they are added.
    """
    if len(every) == ranks:
        return every[rank].copy()
    if alike:
        return every[0].copy()
    share = every.mean(axis=0)
    return share if average else share * (len(every) / ranks)


def is_alike(name: str) -> bool:
    """True if `name`, as in checkpoints, is of state that is equal on all ranks."""
    return name.rpartition(".")[2] in _ALIKE
