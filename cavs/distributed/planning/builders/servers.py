"""Builders for parameter servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.planning.builders.builder import Builder, at_least, one_of, register
from cavs.distributed.planning.builders.rules import (
    MAX_SHARDS,
    Loads,
    all_replicas,
    cut,
    few_shards,
    is_hierarchical,
    owners,
    rows_of,
    smallest_divisor,
    smallest_non_divisor,
    whole,
)
from cavs.distributed.strategy import GraphConfig, NodeConfig, Strategy, Variable
from cavs.distributed.sync import ParameterServer
from cavs.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ServerBuilder(Builder):
    """Options of all of them.

    local_replication: a node fetches dense values once for all its replicas. sync, staleness: see
    `ParameterServer`. two_level: replicas of a node first sum among themselves; None: where nodes
    have several, and training is synchronous. servers: so many of the last devices that could run
    replicas run none, and own all parameters that are on servers; 0: owners run replicas, too.
    """

    local_replication: bool = False
    sync: bool = True
    staleness: int = 0
    two_level: bool | None = None
    servers: int = 0

    def __post_init__(self) -> None:
        at_least(self, "servers", 0)
        at_least(self, "staleness", 0)
        one_of(self, "local_replication", (False, True))
        one_of(self, "sync", (False, True))
        one_of(self, "two_level", (None, False, True))

    def graph_and_servers(self, resources: ResourceSpec) -> tuple[GraphConfig, tuple[str, ...]]:
        """Return the graph of replicas and servers, and the devices that own parameters."""
        devices = resources.replicas
        if not self.servers:
            graph = GraphConfig(replicas=devices)
            return graph, owners(resources, graph)
        if self.servers >= len(devices):
            raise ConfigError(
                f"{type(self).__name__}: servers={self.servers} of {len(devices)} devices leave "
                "none to compute",
                hint=f"give at most {len(devices) - 1}",
            )
        servers = devices[-self.servers :]
        return GraphConfig(replicas=devices[: -self.servers], servers=servers), servers

    def server(self, destination: str, variable: Variable, graph: GraphConfig) -> ParameterServer:
        """The synchroniser of a parameter, or a part of it, owned by `destination`."""
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

    def balanced(
        self, variables: Sequence[Variable], servers: Sequence[str], graph: GraphConfig
    ) -> tuple[NodeConfig, ...]:
        """Every parameter on the server that owns the fewest bytes so far."""
        loads = Loads(servers)
        return tuple(whole(v, self.server(loads.assign(v.nbytes), v, graph)) for v in variables)


@register
@dataclass(frozen=True, kw_only=True)
class PS(ServerBuilder):
    """Everything on the first CPU device."""

    def build(self, variables: Sequence[Variable], resources: ResourceSpec) -> Strategy:
        graph, servers = self.graph_and_servers(resources)
        return Strategy(graph=graph, nodes=self.balanced(variables, servers[:1], graph))


@register
@dataclass(frozen=True, kw_only=True)
class PSLoadBalancing(ServerBuilder):
    """Every parameter whole, on the server that owns the fewest bytes."""

    def build(self, variables: Sequence[Variable], resources: ResourceSpec) -> Strategy:
        graph, servers = self.graph_and_servers(resources)
        return Strategy(graph=graph, nodes=self.balanced(variables, servers, graph))


@dataclass(frozen=True, kw_only=True)
class _Partitioned(ServerBuilder):
    def parts(self, size: int) -> int:
        """How many shards an axis 0 of `size` is cut into."""
        raise NotImplementedError

    def build(self, variables: Sequence[Variable], resources: ResourceSpec) -> Strategy:
        graph, servers = self.graph_and_servers(resources)
        loads, nodes = Loads(servers), []
        for variable in variables:
            parts = self.parts(rows_of(variable))
            chosen = loads.assign_shards(variable.nbytes, parts)
            nodes.append(cut(variable, 0, [self.server(p, variable, graph) for p in chosen]))
        return Strategy(graph=graph, nodes=tuple(nodes))


@register
@dataclass(frozen=True, kw_only=True)
class PartitionedPS(_Partitioned):
    """Axis 0 in as many equal shards as its smallest divisor, spread over the servers.

    max_shards: an axis that would need more, because its size is a large prime, stays whole.
    """

    max_shards: int = MAX_SHARDS

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, "max_shards", 1)

    def parts(self, size: int) -> int:
        return few_shards(smallest_divisor(size), self.max_shards)


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

    def build(self, variables: Sequence[Variable], resources: ResourceSpec) -> Strategy:
        if self.servers:
            raise ConfigError(
                f"BytePS: servers={self.servers}", hint="nodes without GPUs are its servers"
            )
        gpus = tuple(d for d in resources.replicas if ":GPU:" in d)
        idle = tuple(d for d in resources.replicas if d not in gpus)
        if not gpus or not idle:
            graph = all_replicas(resources)
            nodes = self.balanced(variables, owners(resources, graph), graph)
            return Strategy(graph=graph, nodes=nodes)
        graph = GraphConfig(replicas=gpus)
        nodes = self.balanced(variables, idle, graph)
        used = {n.sync.destination for n in nodes if isinstance(n.sync, ParameterServer)}
        graph = GraphConfig(replicas=gpus, servers=tuple(d for d in idle if d in used))
        return Strategy(graph=graph, nodes=nodes)
