"""From a strategy, or none, to the exchanges of one compiled program."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from cavs.distributed.compression import parse
from cavs.distributed.strategy import (
    BUCKET,
    AllReduce,
    NodeConfig,
    ParameterServer,
    Shard,
    Strategy,
    SufficientFactors,
    is_stale,
    shards_of,
)
from cavs.distributed.strategy.roles import Roles
from cavs.distributed.sync.all_reduce import (
    CompressedAllReduce,
    DenseAllReduce,
    SparseAllGather,
)
from cavs.distributed.sync.exchange import Array, Exchange, Part, part_of
from cavs.distributed.sync.on_device import DeviceAllReduce, DeviceGroup
from cavs.distributed.sync.parameter_server import DenseServers, SparseServers
from cavs.distributed.sync.stale_server import StalePush, StaleServers
from cavs.distributed.sync.sufficient_factors import FactorBroadcast
from cavs.errors import ConfigError


def exchanges_of(
    strategy: Strategy | None,
    executor: Any,
    parameters: Mapping[str, Any],
    kinds: Mapping[str, str],
    roles: Roles,
    servers: StaleServers | None = None,
    group: DeviceGroup | None = None,
    *,
    bucket: int = BUCKET,
) -> list[Exchange]:
    """The exchanges for a program that this rank takes part in, in the order of all ranks.

    kinds: "dense", "sparse" or "none" for the gradient of every parameter in this program.
    servers: of the stale parameters, if the strategy has some. group: devices that sum among
    themselves what they can.
    """
    names = list(parameters)
    order = [i for i in executor.gradient_order() if parameters[names[i]].trainable]
    values = [p.current().reshape(-1) for p in parameters.values()]
    builder = _Plan(executor, values, bucket, roles, servers)
    for i in order:
        shape = parameters[names[i]].shape
        node = None if strategy is None else strategy.node(names[i])
        if servers is not None and servers.layout.of(i) and roles.computes:
            builder.push(i, kinds[names[i]] == "sparse")
        if node is not None and all(is_stale(leaf.sync) for leaf in node.leaves):
            continue
        if not (roles.computes or is_served(node)):
            continue
        if kinds[names[i]] == "sparse":
            builder.sparse(i, shape, node, strategy)
        else:
            builder.dense(i, shape, node, strategy)
    exchanges = builder.finish(group, served_by(strategy, parameters))
    at = {parameter: place for place, parameter in enumerate(order)}
    return sorted(exchanges, key=lambda e: max(at[p] for p in e.parameters))


def is_served(node: NodeConfig | None) -> bool:
    """Whether some of a parameter is owned by servers."""
    return node is not None and any(isinstance(x.sync, ParameterServer) for x in node.leaves)


def served_by(strategy: Strategy | None, parameters: Iterable[str]) -> list[int]:
    """Numbers of the parameters that servers own, or parts of which they do."""
    nodes = {} if strategy is None else {node.name: node for node in strategy.nodes}
    return [i for i, name in enumerate(parameters) if is_served(nodes.get(name))]


def _without_nccl(name: str, group: DeviceGroup | None) -> ConfigError:
    reason = "parts of its group are not consecutive in memory, or are needed on the host"
    if group is None:
        reason = "NCCL sums nothing here: see collectives of the trainer"
    return ConfigError(
        f"{name}: its all-reduce has spec 'nccl', but {reason}", hint="give it spec 'auto'"
    )


class _Plan:
    def __init__(
        self,
        executor: Any,
        values: Sequence[Array],
        bucket: int,
        roles: Roles,
        servers: StaleServers | None,
    ) -> None:
        self.executor, self.values, self.bucket, self.roles = executor, values, bucket, roles
        self.stale = servers
        self.pushed: list[int] = []
        self.exchanges: list[Exchange] = []
        self.open: list[Part] = []  # of the bucket being filled
        self.groups: dict[int, list[Part]] = {}
        self.by_nccl: dict[int | None, str] = {}  # groups that ask for it, with a name of them
        self.sums: list[list[Part]] = []  # dense, of all ranks, together
        self.servers: dict[tuple[bool, bool], list[tuple[Part, int]]] = {}  # by level, replication

    def sparse(
        self, i: int, shape: tuple[int, ...], node: NodeConfig | None, strategy: Strategy | None
    ) -> None:
        if node is None or isinstance(node.leaves[0].sync, AllReduce):
            self.exchanges.append(SparseAllGather(i, self.values))
            return
        assert strategy is not None
        ranges, two_level = [], False
        for leaf, shard in zip(node.leaves, shards_of(node, shape), strict=True):
            if shard.axis != 0 or not isinstance(leaf.sync, ParameterServer):
                raise ConfigError(
                    f"{leaf.name}: rows of a sparse gradient cannot be cut along axis {shard.axis} "
                    f"or shared by {leaf.sync.type}",
                    hint="cut axis 0 and use parameter servers or all-reduce for all shards",
                )
            two_level |= leaf.sync.two_level
            owner = strategy.graph.rank_of(leaf.sync.destination)
            ranges.append((shard.start, shard.stop, owner))
        self.exchanges.append(
            SparseServers(i, self.values, ranges, self.roles, two_level=two_level)
        )

    def dense(
        self, i: int, shape: tuple[int, ...], node: NodeConfig | None, strategy: Strategy | None
    ) -> None:
        if node is None or strategy is None:
            size = shape[0] if shape else 1
            self._fill(part_of(i, shape, Shard(0, 0, size, shape)))
            return
        for leaf, shard in zip(node.leaves, shards_of(node, shape), strict=True):
            part, sync = part_of(i, shape, shard), leaf.sync
            if is_stale(sync) or not (self.roles.computes or isinstance(sync, ParameterServer)):
                continue
            if isinstance(sync, ParameterServer):
                self._serve(part, strategy.graph.rank_of(sync.destination), sync)
            elif isinstance(sync, SufficientFactors):
                self._factor(part, leaf, node)
            elif leaf.compressor == "none":
                if sync.group is None:
                    self._fill(part)
                else:
                    self.groups.setdefault(sync.group, []).append(part)
                if sync.spec == "nccl":
                    self.by_nccl.setdefault(sync.group, leaf.name)
            else:
                compressor = parse(leaf.compressor)
                if strategy.graph.gradients == "mean":  # a sum here, divided with the update
                    compressor = compressor.averaged(self.roles.count)
                self.exchanges.append(
                    CompressedAllReduce(part, self.values, self.executor, compressor, seed=i)
                )

    def _factor(self, part: Part, leaf: NodeConfig, node: NodeConfig) -> None:
        """Factors where the gradient is a sum of products; they multiply to the whole matrix."""
        if node.shards:
            raise ConfigError(
                f"{leaf.name}: a shard of a parameter has no factors of its own",
                hint="leave the partition of its parameter empty",
            )
        if self.executor.set_factored(part.parameter):
            self.exchanges.append(FactorBroadcast(part, self.values, self.executor))
        else:
            self._fill(part)

    def _fill(self, whole: Part) -> None:
        """Into buckets, as it is done: in slabs where it is large."""
        for part in whole.slabs(self.executor.gradient_slab(whole.parameter)):
            size = sum(p.size for p in self.open) * self.values[0].itemsize
            if self.open and size + part.size * self.values[0].itemsize > self.bucket:
                self.sums.append(self.open)
                self.open = []
            self.open.append(part)

    def _serve(self, part: Part, owner: int, sync: ParameterServer) -> None:
        kind = sync.two_level, sync.local_replication
        full = self.servers.setdefault(kind, [])
        size = sum(p.size for p, _ in full) * self.values[0].itemsize
        if full and size + part.size * self.values[0].itemsize > self.bucket:
            self._close(kind)
        self.servers[kind].append((part, owner))

    def _close(self, kind: tuple[bool, bool]) -> None:
        """The parts so far in one exchange."""
        two_level, replicated = kind
        self.exchanges.append(
            DenseServers(
                self.servers[kind],
                self.values,
                self.executor,
                self.roles,
                two_level=two_level,
                replicated=replicated,
            )
        )
        self.servers[kind] = []

    def push(self, i: int, sparse: bool) -> None:
        """The stale shards of a parameter; tables travel as they are done, others in buckets."""
        assert self.stale is not None
        if sparse:
            self.exchanges.append(StalePush([i], self.values, self.stale, self.roles))
            return
        size = sum(self.values[j].nbytes for j in self.pushed)
        if self.pushed and size + self.values[i].nbytes > self.bucket:
            self.exchanges.append(StalePush(self.pushed, self.values, self.stale, self.roles))
            self.pushed = []
        self.pushed.append(i)

    def finish(self, group: DeviceGroup | None, served: Collection[int]) -> list[Exchange]:
        if self.pushed:
            assert self.stale is not None
            self.exchanges.append(StalePush(self.pushed, self.values, self.stale, self.roles))
        # The last gradient comes when the run ends: the others of its bucket need not wait for it.
        self.sums += filter(None, [self.open[:-1], self.open[-1:]])
        for kind in [kind for kind, parts in self.servers.items() if parts]:
            self._close(kind)
        asking = [(self.by_nccl[None], sum) for sum in self.sums if None in self.by_nccl]
        for number, parts in self.groups.items():
            alone = parts[0].slabs(self.executor.gradient_slab(parts[0].parameter))
            own = [parts] if len(parts) > 1 else [[part] for part in alone]
            self.sums += own
            asking += [(self.by_nccl[number], sum) for sum in own if number in self.by_nccl]
        there = [] if group is None else self._on_device(served)
        for name, parts in asking:
            if parts not in there:
                raise _without_nccl(name, group)
        for parts in self.sums:
            if group is not None and parts in there:
                exchange = DeviceAllReduce(parts, self.values, self.executor, group)
                self.exchanges.append(exchange)
            else:
                self.exchanges.append(DenseAllReduce(parts, self.values, self.executor))
        return self.exchanges

    def _on_device(self, served: Collection[int]) -> list[list[Part]]:
        """The sums over gradients that nothing else needs on the host."""
        here = set(served).union(*(e.parameters for e in self.exchanges))
        there = [s for s in self.sums if all(p.rows == 1 for p in s)]
        here.update(p.parameter for s in self.sums if s not in there for p in s)
        while mixed := [s for s in there if any(p.parameter in here for p in s)]:
            there = [s for s in there if s not in mixed]
            here.update(p.parameter for s in mixed for p in s)
        return there
