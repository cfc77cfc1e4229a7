"""The registered builders: of all-reduce, and of servers for all parameters or for some."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from cavs.distributed.cluster.resources import ResourceSpec, node_of
from cavs.distributed.planning.builders.builder import (
    MAX_SHARDS,
    REGISTRY,
    Builder,
    Loads,
    RuleBuilder,
    axis_size,
    build,
    builders_of_equal_replicas,
    cut,
    equal_shards,
    find,
    option,
    register,
    smallest_non_divisor,
    whole,
)
from cavs.distributed.planning.builders.replicas import (
    ADPSGD,
    SMA,
    Crossbow,
    Lookahead,
    PartialExchange,
    PeerAverage,
)
from cavs.distributed.strategy import GraphConfig, NodeConfig, Strategy, Variable
from cavs.distributed.sync import AllReduce as AllReduceSynchroniser
from cavs.distributed.sync import ParameterServer, SufficientFactors
from cavs.errors import ConfigError

__all__ = [
    "ADPSGD",
    "PS",
    "REGISTRY",
    "SMA",
    "AllReduce",
    "Buckets",
    "Builder",
    "BytePS",
    "Crossbow",
    "Horovod",
    "Lookahead",
    "PSLoadBalancing",
    "Parallax",
    "PartialExchange",
    "PartitionedAR",
    "PartitionedPS",
    "PeerAverage",
    "Poseidon",
    "RandomAxisPartitionAR",
    "UnevenPartitionedPS",
    "build",
    "builders_of_equal_replicas",
    "factors_pay",
    "find",
    "register",
]


@register
@dataclass(frozen=True, kw_only=True)
class AllReduce(RuleBuilder):
    """Every parameter whole; `chunk` of them, in the order of the model, in a group.

    spec: of all, but "nccl" of dense ones alone.
    """

    chunk: int = option(128, least=1)
    spec: str = "auto"
    compressor: str = "none"

    def axes(self, variables: Sequence[Variable]) -> Iterable[int]:
        """Return the axis to cut of every variable."""
        return [0] * len(variables)

    def parts(self, size: int) -> int:
        """Return the number of shards that an axis of `size` is cut into."""
        return 1

    def nodes(self, variables: Sequence[Variable], loads: Loads) -> Iterable[NodeConfig]:
        begun = 0
        for variable, axis in zip(variables, self.axes(variables), strict=True):
            parts = self.parts(axis_size(variable, axis))
            spec = "auto" if variable.sparse and self.spec == "nccl" else self.spec
            groups = [i // self.chunk for i in range(begun, begun + parts)]
            synchronisers = [AllReduceSynchroniser(spec=spec, group=group) for group in groups]
            yield cut(variable, axis, synchronisers, self.compressor)
            begun += parts


@register
@dataclass(frozen=True, kw_only=True)
class Buckets(RuleBuilder):
    """All-reduce as without a strategy: in the order in which gradients are done, 4 MB together."""

    def nodes(self, variables: Sequence[Variable], loads: Loads) -> Iterable[NodeConfig]:
        return (whole(variable, AllReduceSynchroniser(group=None)) for variable in variables)


@dataclass(frozen=True, kw_only=True)
class ShardedBuilder:
    """Cuts an axis in as many equal shards as its smallest divisor.

    max_shards: an axis that would need more, because its size is a large prime, stays whole.
    """

    max_shards: int = option(MAX_SHARDS, least=1)

    def parts(self, size: int) -> int:
        """Return the number of shards of an axis of `size`."""
        return equal_shards(size, self.max_shards)


@register
@dataclass(frozen=True, kw_only=True)
class PartitionedAR(ShardedBuilder, AllReduce):
    """Equal shards of axis 0; `chunk` shards in a group. Its options: see `ShardedBuilder`, too."""


@register
@dataclass(frozen=True, kw_only=True)
class RandomAxisPartitionAR(PartitionedAR):
    """As `PartitionedAR`, along an axis drawn by `seed`; sparse parameters along axis 0."""

    seed: int = option(0, least=0)

    def axes(self, variables: Sequence[Variable]) -> Iterable[int]:
        rng = random.Random(self.seed)
        for variable in variables:
            long = [axis for axis, size in enumerate(variable.shape) if size > 1]
            yield 0 if variable.sparse or not long else rng.choice(long)


@register
@dataclass(frozen=True, kw_only=True)
class Horovod(RuleBuilder):
    """Ring all-reduce of everything, fused into buffers of a fixed size (Sergeev et al. 2018).

    fusion: bytes a buffer holds at most; a larger parameter has one of its own.
    """

    fusion: int = option(64 * 1024 * 1024, least=1)
    compressor: str = "none"

    def nodes(self, variables: Sequence[Variable], loads: Loads) -> Iterable[NodeConfig]:
        group, used = 0, 0
        for variable in variables:
            nbytes = 0 if variable.sparse else variable.nbytes
            if used and not variable.sparse and used + nbytes > self.fusion:
                group, used = group + 1, 0
            used += nbytes
            yield whole(variable, AllReduceSynchroniser(spec="ring", group=group), self.compressor)


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
        if self.servers >= len(devices):
            raise ConfigError(
                f"{type(self).__name__}: servers={self.servers} of {len(devices)} devices leave "
                "none to compute",
                hint=f"give at most {len(devices) - 1}",
            )
        if self.servers:
            servers = devices[-self.servers :]
            return Loads(GraphConfig(replicas=devices[: -self.servers], servers=servers), servers)
        # A CPU device of each process. The devices that run no replica are all served by the first
        # process of their node: load that is spread over them would stay in one place.
        owners = dict[str, str]()
        for device in resources.cpu_devices or devices:
            owners.setdefault(device if device in devices else node_of(device), device)
        return Loads(GraphConfig(replicas=devices), tuple(owners.values()))

    def nodes(self, variables: Sequence[Variable], loads: Loads) -> Iterable[NodeConfig]:
        return (self.owned(variable, loads) for variable in variables)

    def owned(self, variable: Variable, loads: Loads) -> NodeConfig:
        """Return the node of a parameter on the servers that own the fewest bytes so far."""
        two_level = self.two_level
        if two_level is None:  # where a first sum inside the nodes saves messages between them
            replicas = Counter(map(node_of, loads.graph.replicas))
            several = len(replicas) > 1 and max(replicas.values()) > 1
            two_level = several and self.sync and self.staleness == 0
        chosen = loads.assign(variable.nbytes, self.parts(axis_size(variable)))
        synchronisers = [
            ParameterServer(
                destination=server,
                two_level=two_level,
                local_replication=self.local_replication and not variable.sparse,
                sync=self.sync,
                staleness=self.staleness,
            )
            for server in chosen
        ]
        return cut(variable, 0, synchronisers)

    def parts(self, size: int) -> int:
        """Return the number of shards that an axis 0 of `size` is cut into."""
        return 1


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


@register
@dataclass(frozen=True, kw_only=True)
class PartitionedPS(ShardedBuilder, ServerBuilder):
    """Equal shards of axis 0, spread over the servers. Its options: see `ShardedBuilder`, too."""


@register
@dataclass(frozen=True, kw_only=True)
class UnevenPartitionedPS(ServerBuilder):
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
                group = i // self.chunk
                yield whole(variable, AllReduceSynchroniser(group=group), self.compressor)


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
                yield whole(variable, AllReduceSynchroniser(group=None))
            else:
                yield self.owned(variable, loads)
