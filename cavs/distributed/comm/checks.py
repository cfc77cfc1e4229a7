"""Parts of arrays for ranks, and checks of the arguments of operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cavs.errors import ConfigError


def offsets(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Return the begin and the end of each part."""
    ends = np.cumsum(counts).tolist()
    return list(zip([0, *ends[:-1]], ends, strict=True))


def even_counts(total: int, parts: int) -> list[int]:
    """Return `total` in `parts` counts that differ by at most one, larger ones first."""
    whole, rest = divmod(total, parts)
    return [whole + (i < rest) for i in range(parts)]


def check_rank(rank: int, size: int) -> None:
    """Raise ConfigError if no rank of `size` has this number."""
    if not 0 <= rank < size:
        raise ConfigError(f"there is no rank {rank}", hint=f"ranks are 0 to {size - 1}")


def check_peer(rank: int, own: int, size: int) -> None:
    """Raise ConfigError if this is no other rank of `size` than `own`."""
    check_rank(rank, size)
    if rank == own:
        raise ConfigError(f"rank {rank} is this one", hint="it has the array already")


def check_counts(counts: Sequence[int], elements: int, size: int) -> None:
    """Raise ConfigError if `counts` do not cut so many elements into one part for each rank."""
    if len(counts) != size or sum(counts) != elements or min(counts) < 0:
        raise ConfigError(f"counts {list(counts)} do not cut {elements} elements for {size} ranks")


def check_parts(parts: Sequence[Any], size: int) -> None:
    """Raise ConfigError if there is not one part for each rank."""
    if len(parts) != size:
        raise ConfigError(f"{len(parts)} parts for {size} ranks", hint="one for each")


def not_contiguous(shape: Sequence[int], strides: Sequence[int]) -> ConfigError:
    """Return the error of an array that is not C-contiguous."""
    return ConfigError(
        f"an array of shape {tuple(shape)} and strides {tuple(strides)} is not C-contiguous",
        hint="pass np.ascontiguousarray(array), or that of the library that made it",
    )
