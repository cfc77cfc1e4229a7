"""From a strategy, or none, to the exchanges of one compiled program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cavs.distributed.compressors import parse
from cavs.distributed.resources import node_of
from cavs.distributed.strategy import (
    AllReduce,
    NodeConfig,
    ParameterServer,
    Shard,
    Strategy,
    SufficientFactors,
    is_stale,
    shards_of,
)
from cavs.distributed.synchronisers.all_reduce import (
    CompressedAllReduce,
    DenseAllReduce,
    SparseAllGather,
)
from cavs.distributed.synchronisers.exchange import Array, Exchange, Part, part_of
from cavs.distributed.synchronisers.factors import FactorBroadcast
from cavs.distributed.synchronisers.servers import DenseServers, SparseServers
from cavs.distributed.synchronisers.stale import StalePush, StaleServers
from cavs.errors import ConfigError

BUCKET = 4 << 20  # bytes of gradients that travel together where no strategy says otherwise


def exchanges_of(
    strategy: Strategy | None,
    executor: Any,
    parameters: Mapping[str, Any],
    kinds: Mapping[str, str],
    servers: StaleServers | None = None,
    *,
    bucket: int = BUCKET,
) -> list[Exchange]:
    """The exchanges for a program, in the order in which all ranks make them.

    kinds: "dense", "sparse" or "none" for the gradient of every parameter in this program.
    servers: of the stale parameters, if the strategy has some.
    """
    names = list(parameters)
    order = [i for i in executor.gradient_order() if parameters[names[i]].trainable]
    values = [p.value.reshape(-1) for p in parameters.values()]
    builder = _Plan(executor, values, bucket, servers)
    for i in order:
        shape = parameters[names[i]].value.shape
        node = None if strategy is None else strategy.node(names[i])
        if servers is not None and servers.layout.of(i):
            builder.push(i, kinds[names[i]] == "sparse")
        if node is not None and all(is_stale(leaf.sync) for leaf in node.leaves):
            continue
        if kinds[names[i]] == "sparse":
            builder.sparse(i, shape, node, strategy)
        else:
            builder.dense(i, shape, node, strategy)
    exchanges = builder.finish()
    at = {parameter: place for place, parameter in enumerate(order)}
    return sorted(exchanges, key=lambda e: max(at[p] for p in e.parameters))


class _Plan:
    def __init__(
        self,
        executor: Any,
        values: Sequence[Array],
        bucket: int,
        servers: StaleServers | None,
    ) -> None:
        self.executor, self.values, self.bucket = executor, values, bucket
        self.stale = servers
        self.pushed: list[int] = []
        self.exchanges: list[Exchange] = []
        self.open: list[Part] = []  # of the bucket being filled
        self.groups: dict[int, list[Part]] = {}
        self.servers: list[tuple[Part, int]] = []

    def sparse(
        self, i: int, shape: tuple[int, ...], node: NodeConfig | None, strategy: Strategy | None
    ) -> None:
        if node is None or isinstance(node.leaves[0].sync, AllReduce):
            self.exchanges.append(SparseAllGather(i, self.values))
            return
        assert strategy is not None
        ranges = []
        for leaf, shard in zip(node.leaves, shards_of(node, shape), strict=True):
            if shard.axis != 0 or not isinstance(leaf.sync, ParameterServer):
                raise ConfigError(
                    f"{leaf.name}: rows of a sparse gradient cannot be cut along axis {shard.axis} "
                    f"or shared by {leaf.sync.type}",
                    hint="cut axis 0 and use parameter servers or all-reduce for all shards",
                )
            ranges.append((shard.start, shard.stop, _owner(leaf, strategy)))
        self.exchanges.append(SparseServers(i, self.values, ranges))

    def dense(
        self, i: int, shape: tuple[int, ...], node: NodeConfig | None, strategy: Strategy | None
    ) -> None:
        if node is None or strategy is None:
            size = shape[0] if shape else 1
            self._fill(part_of(i, shape, Shard(0, 0, size, shape)))
            return
        for leaf, shard in zip(node.leaves, shards_of(node, shape), strict=True):
            part, sync = part_of(i, shape, shard), leaf.sync
            if is_stale(sync):
                continue
            if isinstance(sync, ParameterServer):
                self._serve(part, _owner(leaf, strategy))
            elif isinstance(sync, SufficientFactors):
                self._factor(part, leaf, node)
            elif leaf.compressor == "none":
                self.groups.setdefault(sync.group, []).append(part)
            else:
                self.exchanges.append(
                    CompressedAllReduce(
                        part, self.values, self.executor, parse(leaf.compressor), seed=i
                    )
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

    def _fill(self, part: Part) -> None:
        size = sum(p.size for p in self.open) * self.values[0].itemsize
        if self.open and size + part.size * self.values[0].itemsize > self.bucket:
            self.exchanges.append(DenseAllReduce(self.open, self.values, self.executor))
            self.open = []
        self.open.append(part)

    def _serve(self, part: Part, owner: int) -> None:
        size = sum(p.size for p, _ in self.servers) * self.values[0].itemsize
        if self.servers and size + part.size * self.values[0].itemsize > self.bucket:
            self.exchanges.append(DenseServers(self.servers, self.values, self.executor))
            self.servers = []
        self.servers.append((part, owner))

    def push(self, i: int, sparse: bool) -> None:
        """The stale shards of a parameter; tables travel as they are done, others in buckets."""
        assert self.stale is not None
        if sparse:
            self.exchanges.append(StalePush([i], self.values, self.stale))
            return
        size = sum(self.values[j].nbytes for j in self.pushed)
        if self.pushed and size + self.values[i].nbytes > self.bucket:
            self.exchanges.append(StalePush(self.pushed, self.values, self.stale))
            self.pushed = []
        self.pushed.append(i)

    def finish(self) -> list[Exchange]:
        if self.pushed:
            assert self.stale is not None
            self.exchanges.append(StalePush(self.pushed, self.values, self.stale))
        if self.open:
            self.exchanges.append(DenseAllReduce(self.open, self.values, self.executor))
        if self.servers:
            self.exchanges.append(DenseServers(self.servers, self.values, self.executor))
        for parts in self.groups.values():
            self.exchanges.append(DenseAllReduce(parts, self.values, self.executor))
        return self.exchanges


def _owner(leaf: NodeConfig, strategy: Strategy) -> int:
    """The rank that owns a leaf. ConfigError for what no rank can run."""
    sync = leaf.sync
    assert isinstance(sync, ParameterServer)
    nodes = {node_of(device) for device in strategy.graph.ranks}
    if sync.two_level and len(nodes) > 1:
        raise ConfigError(
            f"{leaf.name}: two_level over {len(nodes)} nodes cannot be run yet",
            hint="use two_level=False",
        )
    return strategy.graph.rank_of(sync.destination)
