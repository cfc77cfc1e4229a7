"""Builders for parameter servers, of all parameters or of some."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.planning.builders.builder import register
from cavs.distributed.planning.builders.rules import (
    MAX_SHARDS,
    Loads,
    RuleBuilder,
    axis_size,
    cut,
    equal_shards,
    is_hierarchical,
    option,
    owners,
    smallest_non_divisor,
    whole,
)
from cavs.distributed.strategy import GraphConfig, NodeConfig, Strategy, Variable
from cavs.distributed.sync import AllReduce, ParameterServer, SufficientFactors
from cavs.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ServerBuilder(RuleBuilder):
    """Every parameter whole, on the server that owns the fewest bytes so far.

    local_replication: a node fetches dense values once for all its replicas. sync, staleness: see
    `ParameterServer`. two_level: replicas of a node first sum among themselves; None: where nodes
    have several, and training is synchronous. servers: so many of the last devices that could run
    replicas run none, and own all parameters that are on servers; 0: owners run replicas, too.
    """

    local_replication: bool = option(False, values=(False, True))
    sync: bool = option(True, values=(False, True))
    staleness: int = option(0, least=0)
    two_level: bool | None = option(None, values=(None, False, True))
    servers: int = option(0, least=0)

    def loads(self, resources: ResourceSpec) -> Loads:
        devices = resources.replicas
        if not self.servers:
            graph = GraphConfig(replicas=devices)
            return Loads(graph, owners(resources, graph))
        if self.servers >= len(devices):
            raise ConfigError(
                f"{type(self).__name__}: servers={self.servers} of {len(devices)} devices leave "
                "none to compute",
                hint=f"give at most {len(devices) - 1}",
            )
        servers = devices[-self.servers :]
        return Loads(GraphConfig(replicas=devices[: -self.servers], servers=servers), servers)

    def nodes(self, variables: Sequence[Variable], loads: Loads) -> Iterable[NodeConfig]:
        return (self.owned(variable, loads) for variable in variables)

    def owned(self, variable: Variable, loads: Loads) -> NodeConfig:
        """Return the node of a parameter on the server that owns the fewest bytes so far."""
        return whole(variable, self.server(loads.assign(variable.nbytes), variable, loads.graph))

    def server(self, destination: str, variable: Variable, graph: GraphConfig) -> ParameterServer:
        """Return the synchroniser of a parameter, or a part of it, owned by `destination`."""
        two_level = self.two_level
        if two_level is None:
            two_level = self.sync and self.staleness == 0 and is_hierarchical(graph)
        return ParameterServer(
            destination=destination,
            two_level=two_level,
            local_replication=self.local_replication and not variable.sparse,
            sync=self.sync,
            staleness=self.staleness,
        )


@register
@dataclass(frozen=True, kw_only=True)
class PS(ServerBuilder):
    """Everything on the first CPU device."""

    def loads(self, resources: ResourceSpec) -> Loads:
        loads = super().loads(resources)
        return Loads(loads.graph, list(loads.bytes)[:1])


@register
@dataclass(frozen=True, kw_only=True)
class PSLoadBalancing(ServerBuilder):
    """Every parameter whole, on the server that owns the fewest bytes."""


@dataclass(frozen=True, kw_only=True)
class _Partitioned(ServerBuilder):
    @abstractmethod
    def parts(self, size: int) -> int:
        """Return the number of shards that an axis 0 of `size` is cut into."""

    def nodes(self, variables: Sequence[Variable], loads: Loads) -> Iterable[NodeConfig]:
        for variable in variables:
            chosen = loads.assign_shards(variable.nbytes, self.parts(axis_size(variable)))
            yield cut(variable, 0, [self.server(d, variable, loads.graph) for d in chosen])


@register
@dataclass(frozen=True, kw_only=True)
class PartitionedPS(_Partitioned):
    """Axis 0 in as many equal shards as its smallest divisor, spread over the servers.

    max_shards: an axis that would need more, because its size is a large prime, stays whole.
    """

    max_shards: int = option(MAX_SHARDS, least=1)

    def parts(self, size: int) -> int:
        return equal_shards(size, self.max_shards)


@register
@dataclass(frozen=True, kw_only=True)
class UnevenPartitionedPS(_Partitioned):
    """Axis 0 in the fewest shards that are not all equal, spread over the servers.

    An axis of 2 cannot be cut so, and is in two, as AutoDist has it.
    """

    def parts(self, size: int) -> int:
        return smallest_non_divisor(size)


@register
@dataclass(frozen=True, kw_only=True)
class BytePS(ServerBuilder):
    """Load-balanced servers on the nodes without GPUs, which run no replica (Jiang et al. 2020).

    Where all nodes have GPUs, or none has, every node is a server and runs its replicas.
    """

    def loads(self, resources: ResourceSpec) -> Loads:
        if self.servers:
            raise ConfigError(
                f"BytePS: servers={self.servers}", hint="nodes without GPUs are its servers"
            )
        gpus = tuple(d for d in resources.replicas if ":GPU:" in d)
        idle = tuple(d for d in resources.replicas if d not in gpus)
        if not gpus or not idle:
            return super().loads(resources)
        return Loads(GraphConfig(replicas=gpus), idle)

    def build(self, variables: Sequence[Variable], resources: ResourceSpec) -> Strategy:
        strategy = super().build(variables, resources)
        graph, used = strategy.graph, {leaf.sync.owner for leaf in strategy.leaves}
        idle = [d for d in resources.replicas if d not in graph.replicas and d in used]
        return replace(strategy, graph=replace(graph, servers=tuple(idle)))


@register
@dataclass(frozen=True, kw_only=True)
class Parallax(ServerBuilder):
    """Dense parameters by all-reduce, sparse ones to servers (Kim et al. 2019)."""

    chunk: int = option(128, least=1)
    compressor: str = "none"

    def nodes(self, variables: Sequence[Variable], loads: Loads) -> Iterable[NodeConfig]:
        for i, variable in enumerate(variables):
            if variable.sparse:
                yield self.owned(variable, loads)
            else:
                yield whole(variable, AllReduce(group=i // self.chunk), self.compressor)


def factors_pay(shape: Sequence[int], pairs: float, workers: int, servers: int) -> bool:
    """Poseidon's rule for a gradient of a matrix of `shape` that is a sum of `pairs` products.

    True if a worker that is also a server moves fewer numbers by broadcasting its factors than
    through the servers (Zhang et al. 2017, Table 1). One worker moves nothing either way: no.
    """
    rows, columns = shape
    by_factors = 2 * pairs * (workers - 1) * (rows + columns)
    by_servers = 2 * rows * columns * (workers + servers - 2) / servers
    return workers > 1 and by_factors <= by_servers


@register
@dataclass(frozen=True, kw_only=True)
class Poseidon(ServerBuilder):
    """Sufficient factors where they are fewer numbers, load-balanced servers elsewhere.

    batch_size: pairs of factors that a replica has in a step; 0 takes what the model says of each
    parameter. otherwise: "all_reduce" sums other dense gradients so, in buckets: that moves as many
    numbers as the rule counts for servers, which hold large matrices whole, not evenly.
    """

    batch_size: int = option(0, least=0)
    otherwise: str = option("servers", values=("servers", "all_reduce"))

    def nodes(self, variables: Sequence[Variable], loads: Loads) -> Iterable[NodeConfig]:
        workers, servers = len(loads.graph.replicas), len(loads.bytes)
        for variable in variables:
            is_product = variable.factors is not None and len(variable.shape) == 2
            pairs = (self.batch_size or variable.factors) if is_product else None
            if variable.sparse:
                yield self.owned(variable, loads)
            elif pairs and factors_pay(variable.shape, pairs, workers, servers):
                yield whole(variable, SufficientFactors())
            elif self.otherwise == "all_reduce":
                yield whole(variable, AllReduce(group=None))
            else:
                yield self.owned(variable, loads)
