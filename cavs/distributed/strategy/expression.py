"""The strategy expression: graph-level configuration and one node for every parameter.

Follows the representation of AutoDist (Zhang 2020, section 7.3). Everything is immutable, equal by
value, and written to JSON and back without loss; `Strategy.digest` is what ranks compare before the
first step. What an expression says can still be wrong for a model or a cluster:
`cavs.distributed.strategy.verify` finds that out.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from cavs.errors import ConfigError

SPECS = ("auto", "ring", "nccl")
BUCKET = 4 << 20  # bytes of dense gradients that travel together where no group says otherwise
REDUCTIONS = ("mean", "sum")


def _whole(owner: str, field: str, value: Any, least: int = 0) -> None:
    if type(value) is not int or value < least:
        raise ConfigError(
            f"{owner}: {field} is {value!r}", hint=f"give a whole number of at least {least}"
        )


def _names(owner: str, field: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not all(isinstance(name, str) and name for name in value):
        raise ConfigError(f"{owner}: {field} is {value!r}", hint="give a list of device names")
    return tuple(value)


@dataclass(frozen=True, kw_only=True)
class AllReduce:
    """Every replica keeps the parameter; gradients are reduced to all of them.

    Dense gradients by all-reduce, sparse ones by all-gather of indices and rows, all of a table
    together however it is cut. spec: who reduces: "nccl" asks for NCCL, and is refused where the
    gradient is not summed by it; "ring" and "auto" leave it to ``collectives`` of the trainer, and
    a large sum goes around a ring in any case. group: dense nodes of one group travel in one
    buffer; those of group None in buckets of up to `BUCKET` bytes, which the run fills in the order
    in which gradients are done, the last one alone. What has a compressor travels alone in any.
    """

    type: ClassVar[str] = "all_reduce"
    spec: str = "auto"
    group: int | None = 0

    def __post_init__(self) -> None:
        if self.spec not in SPECS:
            raise ConfigError(f"AllReduce: spec is {self.spec!r}", hint=f"use {', '.join(SPECS)}")
        if self.group is not None:
            _whole("AllReduce", "group", self.group)


@dataclass(frozen=True, kw_only=True)
class ParameterServer:
    """One device owns the parameter: gradients are reduced to it, values broadcast from it.

    destination: the owning device. two_level: the replicas of one node first reduce among
    themselves and one of them speaks to the destination. local_replication: each node keeps a copy
    of the values that its replicas read. sync: the owner waits for the gradients of all replicas;
    otherwise it applies each as it comes (asynchronous). staleness: by how many steps the fastest
    replica, or with two_level node, may be ahead of the slowest; 0 is bulk-synchronous. It needs
    ``sync``.
    """

    type: ClassVar[str] = "parameter_server"
    destination: str
    two_level: bool = False
    local_replication: bool = False
    sync: bool = True
    staleness: int = 0

    def __post_init__(self) -> None:
        _names("ParameterServer", "destination", [self.destination])
        _whole("ParameterServer", "staleness", self.staleness)
        for field in ("two_level", "local_replication", "sync"):
            if type(getattr(self, field)) is not bool:
                raise ConfigError(
                    f"ParameterServer: {field} is {getattr(self, field)!r}",
                    hint="give true or false",
                )
        if self.staleness and not self.sync:
            raise ConfigError(
                f"ParameterServer: staleness {self.staleness} with sync=False",
                hint="asynchronous servers have no bound: leave staleness at 0, or set sync=True",
            )


@dataclass(frozen=True, kw_only=True)
class SufficientFactors:
    """Every replica keeps the parameter and broadcasts the factors U, V of its gradient UᵀV.

    Each parameter alone, as soon as its factors are there.
    """

    type: ClassVar[str] = "sufficient_factors"


Synchroniser = AllReduce | ParameterServer | SufficientFactors


def is_stale(sync: Synchroniser) -> bool:
    """Whether the owner applies each gradient as it comes, so that replicas differ in steps."""
    return isinstance(sync, ParameterServer) and (not sync.sync or sync.staleness > 0)


SYNCHRONISERS: tuple[type[Synchroniser], ...] = (AllReduce, ParameterServer, SufficientFactors)


@dataclass(frozen=True, kw_only=True)
class NodeConfig:
    """What is done with one parameter, or with one shard of it.

    name: of the parameter, ``NAME/part_I`` of a shard. partition: the number of parts of every
    axis; () leaves it whole. placement: the devices that hold the value; it says for the reader
    what follows from the synchroniser, and anything else is refused; () means just that.
    compressor: as `cavs.distributed.compression.parse` reads it. A partitioned node has one shard
    a part, in order, and no synchroniser of its own; a shard is never partitioned again.
    """

    name: str
    synchroniser: Synchroniser | None = None
    partition: tuple[int, ...] = ()
    placement: tuple[str, ...] = ()
    compressor: str = "none"
    shards: tuple[NodeConfig, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(f"a node of a strategy is called {self.name!r}", hint="name it")
        if not isinstance(self.compressor, str):
            raise ConfigError(
                f"{self.name}: compressor is {self.compressor!r}", hint='name it, such as "float16"'
            )
        object.__setattr__(self, "partition", tuple(self.partition))
        object.__setattr__(self, "placement", _names(self.name, "placement", self.placement))
        object.__setattr__(self, "shards", tuple(self.shards))
        for parts in self.partition:
            _whole(self.name, "partition", parts, least=1)
        if self.parts > 1:
            self._check_shards()
        elif self.shards:
            raise ConfigError(
                f"{self.name}: {len(self.shards)} shards, but its partition is "
                f"{list(self.partition)}",
                hint="give the number of parts of every axis, or no shards",
            )
        elif not isinstance(self.synchroniser, SYNCHRONISERS):
            raise ConfigError(
                f"{self.name}: its synchroniser is {self.synchroniser!r}",
                hint="give AllReduce, ParameterServer or SufficientFactors",
            )

    def _check_shards(self) -> None:
        if len(self.shards) != self.parts:
            raise ConfigError(
                f"{self.name}: partition {list(self.partition)} makes {self.parts} shards, "
                f"{len(self.shards)} are given",
                hint="give one node a shard",
            )
        if self.synchroniser is not None or self.placement or self.compressor != "none":
            raise ConfigError(
                f"{self.name}: a partitioned parameter has a synchroniser, placement or compressor",
                hint="they belong to its shards",
            )
        for i, shard in enumerate(self.shards):
            if shard.partition or shard.name != f"{self.name}/part_{i}":
                raise ConfigError(
                    f"{self.name}: shard {i} is called {shard.name!r}, partition "
                    f"{list(shard.partition)}",
                    hint=f"call it {self.name}/part_{i}, without partition",
                )

    @property
    def parts(self) -> int:
        """The number of shards; 1 of a whole parameter."""
        product = 1
        for parts in self.partition:
            product *= parts
        return product

    @property
    def leaves(self) -> tuple[NodeConfig, ...]:
        """The shards, or the node itself where it is whole."""
        return self.shards or (self,)

    @property
    def sync(self) -> Synchroniser:
        """The synchroniser of a leaf."""
        assert self.synchroniser is not None, f"{self.name} is partitioned: ask its shards"
        return self.synchroniser


@dataclass(frozen=True, kw_only=True)
class GraphConfig:
    """replicas: the devices that run the model; rank i is the i-th.

    servers: devices that run no replica and only own parameters, ranks after the replicas.
    gradients: "mean" weights each rank by its share of the global batch, so that the sum is the
    gradient of the mean over the batch; "sum" adds what the ranks computed.
    """

    replicas: tuple[str, ...]
    servers: tuple[str, ...] = ()
    gradients: str = "mean"

    def __post_init__(self) -> None:
        object.__setattr__(self, "replicas", _names("strategy", "replicas", self.replicas))
        object.__setattr__(self, "servers", _names("strategy", "servers", self.servers))
        if not self.replicas:
            raise ConfigError("a strategy without replicas", hint="name at least one device")
        twice = sorted({d for d in self.ranks if self.ranks.count(d) > 1})
        if twice:
            raise ConfigError(
                f"device {twice[0]} runs more than one rank of the strategy",
                hint="name each device once, as a replica or as a server",
            )
        if self.gradients not in REDUCTIONS:
            raise ConfigError(
                f"strategy: gradients is {self.gradients!r}", hint='use "mean" or "sum"'
            )

    @property
    def ranks(self) -> tuple[str, ...]:
        """The device of every rank: replicas, then servers."""
        return self.replicas + self.servers

    def rank_of(self, device: str) -> int:
        """The rank that acts for `device`.

        The one that runs on it, or else the first one of its node: where GPUs compute, the CPU of
        their node is served by the process of the first GPU. Raises `ConfigError` if the node has
        no rank.
        """
        if device in self.ranks:
            return self.ranks.index(device)
        node = device.rsplit(":", 2)[0]
        for rank, other in enumerate(self.ranks):
            if other.rsplit(":", 2)[0] == node:
                return rank
        raise ConfigError(
            f"device {device} is on a node without replica or server",
            hint=f"use a node of {', '.join(self.ranks[:8])}, or add the device to servers",
        )


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """How one model is trained on many workers: nodes in the order of the model's parameters.

    builder: who made it, for the reader; no part of the digest.
    """

    graph: GraphConfig
    nodes: tuple[NodeConfig, ...]
    builder: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple(self.nodes))
        names = [node.name for node in self.nodes]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(
                f"parameter {twice[0]} stands twice in a strategy", hint="keep one of its nodes"
            )

    @cached_property
    def _by_name(self) -> dict[str, NodeConfig]:
        return {node.name: node for node in self.nodes}

    def node(self, name: str) -> NodeConfig:
        """The node of the parameter `name`. Raises `ConfigError` if there is none."""
        if name not in self._by_name:
            raise ConfigError(
                f"the strategy says nothing about parameter {name}",
                hint="build it anew for this model; one that was frozen then stays so: thaw it "
                "before, or resume from a checkpoint, with which a new strategy is made",
            )
        return self._by_name[name]

    @property
    def leaves(self) -> tuple[NodeConfig, ...]:
        """Every whole parameter and every shard, in order."""
        return tuple(leaf for node in self.nodes for leaf in node.leaves)

    @cached_property
    def has_stale(self) -> bool:
        """Whether some parameter, or shard, is stale: see `is_stale`."""
        return any(is_stale(leaf.sync) for leaf in self.leaves)

    @cached_property
    def is_asynchronous(self) -> bool:
        """True if all are stale, so that a step waits for no other rank."""
        return all(is_stale(leaf.sync) for leaf in self.leaves)

    @cached_property
    def digest(self) -> str:
        """64 hexadecimal digits, equal for equal strategies on every machine (SHA-256)."""
        from cavs.distributed.strategy.text import to_dict

        content = {key: value for key, value in to_dict(self).items() if key != "builder"}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()
