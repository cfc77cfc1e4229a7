"""Collective operations of a training step, with the bytes that every rank sends in them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavs.distributed.cluster.resources import node_of
from cavs.distributed.strategy import Shard, Strategy, Variable
from cavs.distributed.sync.part import Member
from cavs.errors import renamed

Floats = NDArray[np.float64]
INDEX_BYTES = 4  # bytes of a row number
HEADER_BYTES = 8  # a count, where sizes differ between ranks
SMALL = 1 << 14  # bytes: an all-reduce up to here goes up and down a tree, above around a ring
_EVEN, _POWER = 1e-6, 1e9  # c from even draws to a pure power law
_LARGEST = 700.0  # largest argument of exp


@renamed({"kind": "collective"})
@dataclass(frozen=True)
class Operation:
    """One collective among `ranks`.

    collective: all_reduce, all_gather, all_to_all; reduce or gather to `root`; broadcast from it;
    request, in which ranks ask others, drawn evenly, for an array. nbytes: size of the array that
    each rank contributes, receives in a broadcast, or on average sends for requests: one number, or
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
    True if replicas stay within some steps of each other. sends_values: True if it begins with a
    step, since it needs no gradient. follows_update: True if it begins after the update, so that
    nothing hides it.
    """

    leaves: tuple[str, ...]
    operations: tuple[Operation, ...]
    waits: bool = True
    bounded: bool = True
    sends_values: bool = False
    follows_update: bool = False


@dataclass(frozen=True)
class Load:
    """Measured load of a step, by parameter; it replaces expectations.

    rows: numbers of the rows of a sparse parameter that each replica touches, none twice. factors:
    number of pairs of vectors of each replica.
    """

    rows: Mapping[str, Sequence[NDArray[np.integer[Any]]]]
    factors: Mapping[str, Sequence[float]]


NO_LOAD = Load({}, {})


@dataclass(frozen=True)
class Pricing:
    """Facts of the cost model: expectations about training step `step`, or its `load`."""

    strategy: Strategy
    load: Load
    step: int

    @cached_property
    def replicas(self) -> tuple[int, ...]:
        """The ranks that compute."""
        return tuple(range(len(self.strategy.graph.replicas)))

    @cached_property
    def hosts(self) -> list[list[int]]:
        """The replicas of every node."""
        found: dict[str, list[int]] = {}
        for rank, device in enumerate(self.strategy.graph.replicas):
            found.setdefault(node_of(device), []).append(rank)
        return list(found.values())

    def slab(self, member: Member) -> int:
        """Return the number of elements that are sent together: all of the parameter."""
        return max(member.variable.size, 1)

    def has_factors(self, member: Member) -> bool:
        """True if the gradient of a whole matrix is sent as sufficient factors."""
        known = member.variable.factors is not None or member.leaf.name in self.load.factors
        return known and not member.variable.sparse

    def everywhere(
        self, collective: str, nbytes: float | tuple[float, ...], in_place: bool = False
    ) -> tuple[Operation, ...]:
        """Return an operation of all replicas; none where there is one replica."""
        if len(self.replicas) < 2:
            return ()
        return (Operation(collective, self.replicas, nbytes, in_place=in_place),)

    def rows(self, variable: Variable, shard: Shard, ranks: Sequence[int]) -> tuple[Floats, float]:
        """Return the rows of a shard that each of `ranks` touches, and those that any touches."""
        if variable.name in self.load.rows:
            numbers = [self.load.rows[variable.name][rank] for rank in ranks]
            inside = [n[(n >= shard.start) & (n < shard.stop)] for n in numbers]
            union = float(len(np.unique(np.concatenate(inside))))
            return np.array([float(len(n)) for n in inside]), union
        table, size = variable.shape[0], shard.stop - shard.start
        each = (table if variable.rows is None else variable.rows) * size / table
        rows = np.full(len(ranks), each)
        if variable.rows is None or variable.once is None or variable.twice is None:
            # If each draws its own evenly.
            return rows, float(size * (1 - np.prod(1 - np.minimum(rows / size, 1.0))))
        union = distinct(variable.rows, variable.once, variable.twice, len(ranks))
        return rows, min(union, table) * size / table


def row_bytes(variable: Variable) -> float:
    """Return the bytes of a row of a table with its number."""
    return math.prod(variable.shape[1:]) * variable.itemsize + INDEX_BYTES


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
        case "request":
            result[ranks] = own
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


def _mean(rate: float, length: float) -> float:
    """Return the mean of exp(rate * x), x from 0 to `length`."""
    x = min(rate * length, _LARGEST)
    return math.expm1(x) / x if x else 1.0


def distinct(rows: float, once: float, twice: float, samples: float) -> float:
    """Return the number of different rows of `samples` samples, one or more, that are like one.

    rows: different ones in that one. once, twice: those of them that it has once, and twice.

    Words are neither equally frequent nor spread by a power law alone, so neither even draws (all
    rows that replicas share are chance) nor Heaps' law (new ones never run out) holds for text and
    for tables that are touched almost whole. Both are ends of one family: a row is drawn with a
    rate of its own, and rates have a gamma distribution (Fisher 1943; shapes down to -1: Engen
    1974). t samples then show D(t) rows, with D'(t) = a (1 + c t)^-p, D(0) = 0. One sample tells
    all three numbers: the rows in it, those in it once, D'(1), and twice, -D''(1) / 2 (Good and
    Toulmin 1956).
    """
    if once <= 0 or samples <= 1:
        return rows
    slope = 2 * max(twice, 0.5) / once  # -D'' / D' at 1; of none at all half a row is expected

    def shown(c: float) -> float:
        """Return D(1) / D'(1), which grows with c."""
        span = math.log1p(c)
        return (1 + c) / c * span * _mean(slope * (1 + c) / c - 1, span)

    low, high = math.log(_EVEN), math.log(_POWER)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if shown(math.exp(middle)) * once < rows else (low, middle)
    c = math.exp(low)
    span = math.log1p(c * (samples - 1) / (1 + c))
    new = once * (1 + c) / c * span * _mean(1 - slope * (1 + c) / c, span)
    return min(rows + new, rows * samples)
