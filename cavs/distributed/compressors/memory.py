"""What compressors remember, as arrays for a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cavs.distributed.compressors.exchange import Array, State


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


def share_of(every: Array, rank: int, ranks: int, *, average: bool) -> Any:
    """What `rank` of `ranks` takes of an array that other ranks kept, `every` by rank.

    As many ranks as before: its own. Otherwise what all have alike, or else an equal share of what
    they held back: gradients weigh 1 / ranks if they are averaged, so that is the mean.
    """
    if len(every) == ranks:
        return every[rank].copy()
    if (every == every[0]).all():
        return every[0].copy()
    share = every.mean(axis=0)
    return share if average else share * (len(every) / ranks)
