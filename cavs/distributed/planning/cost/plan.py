"""What a strategy sends: the collective operations of one training step, with their bytes.

A `Chain` is what happens to one parameter, shard or fused group: operations one after the other.
Chains stand in the order in which gradients are done (`by_gradient`). From an operation follow the
bytes that every rank sends (`sent_bytes`), which the running half is checked against, and how
long it takes (`cavs.distributed.planning.cost.network`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavs.distributed.cluster.resources import node_of
from cavs.distributed.compression import parse
from cavs.distributed.strategy import (
    BUCKET,
    NodeConfig,
    ParameterServer,
    Shard,
    Strategy,
    SufficientFactors,
    Variable,
    by_gradient,
    shards_of,
)
from cavs.distributed.strategy.distinct_rows import distinct

Floats = NDArray[np.float64]
INDEX_BYTES = 4  # of a row number
HEADER_BYTES = 8  # a count, where sizes differ between ranks
SMALL = 1 << 14  # bytes: an all-reduce up to here goes up and down a tree, above around a ring


@dataclass(frozen=True)
class Operation:
    """One collective among `ranks`.

    kind: all_reduce, all_gather, all_to_all; reduce and gather to `root` (a sum, or parts);
    broadcast from it. nbytes: of the array of each rank: what it brings, or what it gets from a
    broadcast; one number, or one for each of `ranks`. in_place: it is dense gradients where the
    engine makes them, which may be memory that other ranks see.
    """

    kind: str
    ranks: tuple[int, ...]
    nbytes: float | tuple[float, ...]
    root: int = -1
    in_place: bool = False

    def bytes_of_ranks(self) -> Floats:
        """`nbytes` for each of `ranks`."""
        return np.broadcast_to(np.asarray(self.nbytes, np.float64), len(self.ranks))

    @property
    def is_tree(self) -> bool:
        """Whether it is an all-reduce too small for a ring."""
        return self.kind == "all_reduce" and float(self.bytes_of_ranks()[0]) <= SMALL


@dataclass(frozen=True)
class Chain:
    """leaves: the names it carries. waits: whether a step ends only after it (synchronous).

    bounded: whether replicas stay within some steps of each other.
    """

    leaves: tuple[str, ...]
    operations: tuple[Operation, ...]
    waits: bool = True
    bounded: bool = True


@dataclass(frozen=True)
class Load:
    """What each rank really had in a step, by parameter; replaces expectations.

    rows: the numbers of the rows of a sparse parameter that each replica touches, none twice.
    factors: how many pairs of vectors each has.
    """

    rows: Mapping[str, Sequence[NDArray[np.integer[Any]]]]
    factors: Mapping[str, Sequence[float]]


NO_LOAD = Load({}, {})
Member = tuple[NodeConfig, Variable, Shard]  # a whole parameter, or a shard


def plan(
    strategy: Strategy, variables: Sequence[Variable], load: Load = NO_LOAD, step: int = 0
) -> tuple[Chain, ...]:
    """The chains of training step `step` (compressors may warm up)."""
    return tuple(_Planner(strategy, variables, load, step).chains())


class _Planner:
    def __init__(
        self, strategy: Strategy, variables: Sequence[Variable], load: Load, step: int
    ) -> None:
        self.strategy, self.load, self.step = strategy, load, step
        self.variables = {variable.name: variable for variable in variables}
        self.turns = {variable.name: i for i, variable in enumerate(by_gradient(variables))}
        self.replicas = tuple(range(len(strategy.graph.replicas)))
        self.by_node: dict[str, list[int]] = {}
        for rank in self.replicas:
            address = node_of(strategy.graph.ranks[rank])
            self.by_node.setdefault(address, []).append(rank)

    def chains(self) -> list[Chain]:
        found: list[Member] = []
        for node in self.strategy.nodes:
            variable = self.variables[node.name]
            shards = shards_of(node, variable.shape)
            found += [(leaf, variable, s) for leaf, s in zip(node.leaves, shards, strict=True)]
        order = sorted(range(len(found)), key=lambda i: (self.turns[found[i][1].name], -i))
        turns = dict(zip(order, range(len(found)), strict=True))
        groups: dict[int, list[int]] = {}
        in_buckets: list[int] = []
        tables: set[str] = set()
        chains: list[tuple[int, Chain]] = []
        for position, (leaf, variable, shard) in enumerate(found):
            turn = turns[position]
            if isinstance(leaf.sync, ParameterServer):
                chains.append((turn, self.server(leaf, leaf.sync, variable, shard)))
            elif variable.sparse:
                if variable.name not in tables:  # all its rows together, however it is cut
                    tables.add(variable.name)
                    chains.append((turn, self.sparse_everywhere(variable)))
            elif isinstance(leaf.sync, SufficientFactors):
                if variable.factors is None and leaf.name not in self.load.factors:
                    in_buckets.append(position)  # where the run has no factors either
                else:
                    chains.append((turn, self.factors(leaf, variable)))
            elif leaf.compressor != "none":  # each remembers for itself and travels alone
                chains.append((turn, self.fused([found[position]])))
            elif leaf.sync.group is None:
                in_buckets.append(position)
            else:
                groups.setdefault(leaf.sync.group, []).append(position)
        buckets = _buckets(sorted(in_buckets, key=lambda i: turns[i]), found)
        for members in (*groups.values(), *buckets):
            # They leave when the gradient of theirs that comes last is there.
            chain = self.fused([found[i] for i in members])
            chains.append((max(turns[i] for i in members), chain))
        return [chain for _, chain in sorted(chains, key=lambda item: item[0])]

    def factors(self, leaf: NodeConfig, variable: Variable) -> Chain:
        pairs = np.asarray(self.load.factors.get(leaf.name, variable.factors or 0.0), np.float64)
        each = np.broadcast_to(pairs * sum(variable.shape) * variable.itemsize, len(self.replicas))
        return Chain((leaf.name,), self.everywhere("all_gather", tuple(each.tolist())))

    def fused(self, members: Sequence[Member]) -> Chain:
        names = tuple(leaf.name for leaf, _, _ in members)
        sizes: dict[tuple[int, str], float] = {}
        for leaf, variable, shard in members:
            compressor = parse(leaf.compressor)
            count = max(len(self.replicas), 1)
            rounds = compressor.rounds(shard.shape, variable.itemsize, count, self.step)
            for i, part in enumerate(rounds):
                key = (i, part.collective)
                sizes[key] = sizes.get(key, 0.0) + part.nbytes
        whole = all(leaf.compressor == "none" and s.axis == 0 for leaf, _, s in members)
        operations = [self.everywhere(kind, sizes[i, kind], whole) for i, kind in sorted(sizes)]
        return Chain(names, tuple(op for ops in operations for op in ops))

    def everywhere(
        self, kind: str, nbytes: float | tuple[float, ...], in_place: bool = False
    ) -> tuple[Operation, ...]:
        if len(self.replicas) < 2:
            return ()
        return (Operation(kind, self.replicas, nbytes, in_place=in_place),)

    def sparse_everywhere(self, variable: Variable) -> Chain:
        leaves = tuple(leaf.name for leaf in self.strategy.node(variable.name).leaves)
        whole = Shard(0, 0, variable.shape[0], variable.shape)
        rows, _ = self.rows(variable, whole, self.replicas)
        nbytes = tuple((rows * self.row_bytes(variable)).tolist())
        return Chain(leaves, self.everywhere("all_gather", nbytes))

    @staticmethod
    def row_bytes(variable: Variable) -> float:
        return math.prod(variable.shape[1:]) * variable.itemsize + INDEX_BYTES

    def rows(self, variable: Variable, shard: Shard, ranks: Sequence[int]) -> tuple[Floats, float]:
        """Rows of a shard that each of `ranks`, which are replicas, touches, and that any does."""
        if variable.name in self.load.rows:
            numbers = [self.load.rows[variable.name][rank] for rank in ranks]
            inside = [n[(n >= shard.start) & (n < shard.stop)] for n in numbers]
            return np.array([float(len(n)) for n in inside]), float(
                len(np.unique(np.concatenate(inside)))
            )
        table, size = variable.shape[0], shard.stop - shard.start
        each = (table if variable.rows is None else variable.rows) * size / table
        rows = np.full(len(ranks), each)
        if variable.rows is None or variable.once is None or variable.twice is None:
            # If each draws its own evenly.
            return rows, float(size * (1 - np.prod(1 - np.minimum(rows / size, 1.0))))
        union = distinct(variable.rows, variable.once, variable.twice, len(ranks))
        return rows, min(union, table) * size / table

    def server(
        self, leaf: NodeConfig, server: ParameterServer, variable: Variable, shard: Shard
    ) -> Chain:
        root = self.strategy.graph.rank_of(server.destination)
        push, pull = "reduce", "broadcast"
        sent: Floats
        if variable.sparse:
            push = "gather"
            rows, union = self.rows(variable, shard, self.replicas)
            row_bytes = self.row_bytes(variable)
            sent, received = rows * row_bytes, union * row_bytes
        else:
            received = float(math.prod(shard.shape) * variable.itemsize)
            sent = np.full(len(self.replicas), received)
        many = len(self.by_node) > 1  # else there is nobody to speak for a node, as in the run
        operations: list[Operation] = []
        senders = dict(zip(self.replicas, sent.tolist(), strict=True))
        if server.two_level and many:
            senders = {}
            for ranks in self.by_node.values():
                leader = root if root in ranks else ranks[0]
                operations += _rooted(push, {r: float(sent[r]) for r in ranks}, leader)
                senders[leader] = received
                if variable.sparse:
                    senders[leader] = self.rows(variable, shard, ranks)[1] * row_bytes
        operations += _rooted(push, senders, root)
        if server.local_replication and many:
            leaders = [root if root in ranks else ranks[0] for ranks in self.by_node.values()]
            operations += _rooted(pull, dict.fromkeys(leaders, received), root)
            for ranks, leader in zip(self.by_node.values(), leaders, strict=True):
                operations += _rooted(pull, dict.fromkeys(ranks, received), leader)
        else:
            operations += _rooted(pull, dict.fromkeys(self.replicas, received), root)
        waits = server.sync and server.staleness == 0
        return Chain((leaf.name,), tuple(operations), waits, server.sync)


def _buckets(positions: Sequence[int], found: Sequence[Member]) -> list[list[int]]:
    """The buckets that a run fills with what is `found` at `positions`, the last one alone.

    positions: in the order in which gradients are done. One larger than a bucket is one by itself,
    though a run makes and sends it in slabs.
    """
    buckets: list[list[int]] = []
    size = 0.0
    for position in positions:
        _, variable, shard = found[position]
        nbytes = math.prod(shard.shape) * variable.itemsize
        if not buckets or size + nbytes > BUCKET:
            buckets.append([])
            size = 0.0
        buckets[-1].append(position)
        size += nbytes
    if buckets and len(buckets[-1]) > 1:
        buckets.append([buckets[-1].pop()])
    return buckets


def _rooted(kind: str, nbytes: Mapping[int, float], root: int) -> list[Operation]:
    """An operation with a root, none where the root is alone."""
    members = {root: 0.0, **nbytes}
    if len(members) < 2:
        return []
    ranks = tuple(sorted(members))
    sizes = tuple(members[r] for r in ranks)
    same = len(set(sizes)) == 1
    return [Operation(kind, ranks, sizes[0] if same else sizes, root)]


def sent_bytes(operation: Operation, world: int) -> Floats:
    """Bytes that each of `world` ranks sends to others in one operation.

    Headers are counted where sizes differ between ranks.
    """
    ranks = np.asarray(operation.ranks)
    n, own = len(ranks), operation.bytes_of_ranks()
    result = np.zeros(world)
    match operation.kind:
        case "all_reduce" if operation.is_tree:
            result[ranks] = own * _tree_messages(n)
        case "all_reduce":
            result[ranks] = own * 2 * (n - 1) / n
        case "all_gather":  # around a ring: everything but what the next one brought
            result[ranks] = own.sum() - np.roll(own, -1) + HEADER_BYTES * (n - 1)
        case "all_to_all":
            result[ranks] = own * (n - 1) / n + HEADER_BYTES * (n - 1)
        case "reduce" | "gather":
            header = HEADER_BYTES if operation.kind == "gather" else 0
            result[ranks] = np.where(ranks == operation.root, 0, own + header)
        case _:
            result[operation.root] = own[ranks != operation.root].sum()
    return result


def _tree_messages(n: int) -> Floats:
    """Messages each of n ranks sends in an all-reduce up and down a binomial tree."""
    rank = np.arange(n)
    sends = (rank > 0).astype(np.float64)
    step = 1
    while step < n:
        sends += (rank % (2 * step) == 0) & (rank + step < n)
        step *= 2
    return sends


def bytes_by_rank(
    strategy: Strategy, variables: Sequence[Variable], load: Load = NO_LOAD, step: int = 0
) -> Floats:
    """Bytes that every rank of the strategy sends in one training step."""
    world = len(strategy.graph.ranks)
    total = np.zeros(world)
    for chain in plan(strategy, variables, load, step):
        for operation in chain.operations:
            total += sent_bytes(operation, world)
    return total
