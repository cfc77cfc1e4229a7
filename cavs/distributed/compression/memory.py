"""The state of compressors as arrays, for a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cavs.distributed.compression.exchange import Array, State

_ALIKE = ("step", "right")  # a counter, and the factor of PowerSGD that begins the next step


def flatten(state: State) -> dict[str, Array]:
    """Every array and whole number in a state, by its path."""
    found: dict[str, Array] = {}
    for key, value in state.items():
        if isinstance(value, dict):
            found |= {f"{key}.{inner}": array for inner, array in flatten(value).items()}
        else:
            found[key] = np.asarray(value, np.int64) if isinstance(value, int) else value
    return found


def unflatten(like: State, arrays: Mapping[str, Array]) -> State:
    """A state of the form of `like` with the content of `arrays`, as `flatten` gives them."""
    result: State = {}
    for key, value in like.items():
        if isinstance(value, dict):
            prefix = f"{key}."
            inner = {k.removeprefix(prefix): a for k, a in arrays.items() if k.startswith(prefix)}
            result[key] = unflatten(value, inner)
        elif isinstance(value, int):
            result[key] = int(arrays[key])
        else:
            result[key] = arrays[key].astype(value.dtype).reshape(value.shape)
    return result


def weighed(state: State, by: float) -> State:
    """A state whose gradients count `by` times as much; counters stay as they are."""
    result: State = {}
    for key, value in state.items():
        if isinstance(value, dict):
            result[key] = weighed(value, by)
        else:
            result[key] = value if isinstance(value, int) else value * value.dtype.type(by)
    return result


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
    """True if `name`, a path from `flatten`, is of state that is equal on all ranks."""
    return name.rpartition(".")[2] in _ALIKE
