"""Members of a strategy, and the facts about a run or a prediction that its lowering needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from cavs.distributed.cluster.resources import node_of
from cavs.distributed.strategy import NodeConfig, Shard, Strategy, Variable
from cavs.distributed.strategy.distinct_rows import distinct
from cavs.distributed.strategy.roles import Roles
from cavs.distributed.sync.operation import INDEX_BYTES, Floats, Load, Operation
from cavs.distributed.sync.part import Array, Part, part_of, values_of
from cavs.errors import ConfigError

BUCKET = 4 << 20  # bytes of dense gradients that travel together where no group says otherwise


@dataclass(frozen=True)
class Member:
    """A parameter, or a shard or slab of it, in a lowering.

    parameter: its number. turn: its place in the order in which gradients are done. variable: of
    the whole parameter; sparse if its gradient is rows in the program at hand.
    """

    parameter: int
    turn: int
    leaf: NodeConfig
    shard: Shard
    variable: Variable
    part: Part

    @staticmethod
    def of(parameter: int, turn: int, leaf: NodeConfig, shard: Shard, variable: Variable) -> Member:
        """Return the member of a shard, or of a whole parameter."""
        part = part_of(parameter, variable.shape, shard)
        return Member(parameter, turn, leaf, shard, variable, part)

    @property
    def nbytes(self) -> int:
        """Bytes of its values."""
        return self.part.size * self.variable.itemsize

    def slabs(self, size: int) -> list[Member]:
        """Return the slabs of `size` elements that become final one after the other."""
        return [replace(self, part=part) for part in self.part.slabs(size)]


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


@dataclass(frozen=True)
class Runtime:
    """Facts of a run: the executor of a program, the parameters by name, and the ranks.

    servers: of the stale parameters, if the strategy has some. group: the devices that sum among
    themselves what they can.
    """

    strategy: Strategy | None
    executor: Any
    parameters: Mapping[str, Any]
    roles: Roles
    servers: Any = None
    group: Any = None

    @cached_property
    def values(self) -> list[Array]:
        """The memory of all parameters, flat, by number."""
        return values_of(self.parameters)

    def slab(self, member: Member) -> int:
        """Return the number of elements of a parameter that become final together."""
        return int(self.executor.gradient_slab(member.parameter))

    def has_factors(self, member: Member) -> bool:
        """Let the executor leave sufficient factors from now on; return True if it can."""
        if member.variable.sparse:
            raise not_rows(member)
        return bool(self.executor.set_factored(member.parameter))

    def owner(self, member: Member) -> int:
        """Return the rank that owns a member."""
        assert self.strategy is not None and member.leaf.sync.owner is not None
        return self.strategy.graph.rank_of(member.leaf.sync.owner)


Facts = Pricing | Runtime  # facts about parameters on which a lowering depends


def not_rows(member: Member) -> ConfigError:
    """Return the error of a member whose gradient is rows where its exchange takes none."""
    return ConfigError(
        f"{member.leaf.name}: rows of a sparse gradient cannot be cut along axis "
        f"{member.shard.axis} or shared by {member.leaf.sync.type}",
        hint="cut axis 0 and use parameter servers or all-reduce for all shards",
    )


def tables(members: Iterable[Member]) -> tuple[list[tuple[Member, ...]], list[Member]]:
    """Split members into the shards of each table, and dense ones."""
    found: dict[int, list[Member]] = {}
    dense: list[Member] = []
    for member in members:
        if member.variable.sparse:
            found.setdefault(member.parameter, []).append(member)
        else:
            dense.append(member)
    return [tuple(sorted(table, key=lambda m: m.shard.start)) for table in found.values()], dense


def buckets(
    members: Iterable[Member], nbytes: Callable[[Member], int] = lambda member: member.nbytes
) -> list[tuple[Member, ...]]:
    """Fill buckets of at most `BUCKET` bytes in order; a larger member has one to itself."""
    found: list[list[Member]] = []
    size = 0
    for member in members:
        if not found or size + nbytes(member) > BUCKET:
            found.append([])
            size = 0
        found[-1].append(member)
        size += nbytes(member)
    return [tuple(bucket) for bucket in found]
