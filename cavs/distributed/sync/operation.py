"""Collective operations of a training step, with the bytes that every rank sends in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavs.errors import renamed

Floats = NDArray[np.float64]
INDEX_BYTES = 4  # bytes of a row number
HEADER_BYTES = 8  # a count, where sizes differ between ranks
SMALL = 1 << 14  # bytes: an all-reduce up to here goes up and down a tree, above around a ring


@renamed({"kind": "collective"})
@dataclass(frozen=True)
class Operation:
    """One collective among `ranks`.

    collective: all_reduce, all_gather, all_to_all; reduce or gather to `root`; broadcast from it.
    nbytes: size of the array that each rank contributes, or receives in a broadcast: one number, or
    one for each of `ranks`. in_place: True of dense gradients in the engine's memory, which other
    ranks may map.
    """

    collective: str
    ranks: tuple[int, ...]
    nbytes: float | tuple[float, ...]
    root: int = -1
    in_place: bool = False

    def bytes_of_ranks(self) -> Floats:
        """`nbytes` for each of `ranks`."""
        return np.broadcast_to(np.asarray(self.nbytes, np.float64), len(self.ranks))

    @property
    def is_tree(self) -> bool:
        """True of an all-reduce that is too small for a ring."""
        return self.collective == "all_reduce" and float(self.bytes_of_ranks()[0]) <= SMALL


@dataclass(frozen=True)
class Chain:
    """Operations on one parameter, shard or fused group, one after the other.

    leaves: the names it carries. waits: True if a step ends only after it (synchronous). bounded:
    True if replicas stay within some steps of each other.
    """

    leaves: tuple[str, ...]
    operations: tuple[Operation, ...]
    waits: bool = True
    bounded: bool = True


@dataclass(frozen=True)
class Load:
    """Measured load of a step, by parameter; it replaces expectations.

    rows: numbers of the rows of a sparse parameter that each replica touches, none twice. factors:
    number of pairs of vectors of each replica.
    """

    rows: Mapping[str, Sequence[NDArray[np.integer[Any]]]]
    factors: Mapping[str, Sequence[float]]


NO_LOAD = Load({}, {})


def rooted(collective: str, nbytes: Mapping[int, float], root: int) -> list[Operation]:
    """Return an operation with a root; none where the root is alone."""
    members = {root: 0.0, **nbytes}
    if len(members) < 2:
        return []
    ranks = tuple(sorted(members))
    sizes = tuple(members[r] for r in ranks)
    same = len(set(sizes)) == 1
    return [Operation(collective, ranks, sizes[0] if same else sizes, root)]


def sent_bytes(operation: Operation, world: int) -> Floats:
    """Return the bytes that each of `world` ranks sends to others in one operation.

    Headers are counted where sizes differ between ranks.
    """
    ranks = np.asarray(operation.ranks)
    n, own = len(ranks), operation.bytes_of_ranks()
    result = np.zeros(world)
    match operation.collective:
        case "all_reduce" if operation.is_tree:
            result[ranks] = own * _tree_messages(n)
        case "all_reduce":
            result[ranks] = own * 2 * (n - 1) / n
        case "all_gather":  # around a ring: everything but what the next one brought
            result[ranks] = own.sum() - np.roll(own, -1) + HEADER_BYTES * (n - 1)
        case "all_to_all":
            result[ranks] = own * (n - 1) / n + HEADER_BYTES * (n - 1)
        case "reduce" | "gather":
            header = HEADER_BYTES if operation.collective == "gather" else 0
            result[ranks] = np.where(ranks == operation.root, 0, own + header)
        case _:
            result[operation.root] = own[ranks != operation.root].sum()
    return result


def _tree_messages(n: int) -> Floats:
    """Return the messages of each of n ranks in an all-reduce up and down a binomial tree."""
    rank = np.arange(n)
    sends = (rank > 0).astype(np.float64)
    step = 1
    while step < n:
        sends += (rank % (2 * step) == 0) & (rank + step < n)
        step *= 2
    return sends
