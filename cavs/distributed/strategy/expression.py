"""The strategy expression: graph-level configuration and one node for every parameter.

It follows AutoDist (Zhang 2020, section 7.3). Everything is immutable, equal by value, and written
to JSON and back without loss; ranks compare `Strategy.digest` before the first step. An expression
can still be wrong for a model or a cluster: see `cavs.distributed.strategy.verify`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar, NoReturn, TypeVar

from cavs.distributed.cluster.resources import ResourceSpec, node_of
from cavs.distributed.strategy.variable import Variable
from cavs.errors import ConfigError, renamed

FORMAT = 1  # version of the JSON form
REDUCTIONS = ("mean", "sum")


def refuse(owner: str, field: str, value: Any, hint: str) -> NoReturn:
    """Raise the `ConfigError` of an option with an invalid value."""
    raise ConfigError(f"{owner}: {field} is {value!r}", hint=hint)


def check_whole(owner: str, field: str, value: Any, least: int = 0) -> None:
    """Raise `ConfigError` unless an option is a whole number of at least `least`."""
    if type(value) is not int or value < least:
        refuse(owner, field, value, f"give a whole number of at least {least}")


def check_number(
    owner: str, field: str, value: Any, least: float = 0.0, most: float = math.inf
) -> None:
    """Raise `ConfigError` unless an option is a finite number in [least, most]."""
    is_number = type(value) in (int, float) and math.isfinite(value)
    if not is_number or not least <= value <= most:
        span = f"of at least {least}" if most == math.inf else f"from {least} to {most}"
        refuse(owner, field, value, f"give a number {span}")


def check_names(owner: str, field: str, value: Any) -> tuple[str, ...]:
    """Return device names as a tuple. Raises `ConfigError` if they are none."""
    if isinstance(value, str) or not all(isinstance(name, str) and name for name in value):
        refuse(owner, field, value, "give a list of device names")
    return tuple(value)


@dataclass(frozen=True)
class Problem:
    """A fault of a strategy, and its cure."""

    what: str
    hint: str


def absent(what: str, device: str, devices: Collection[str]) -> Problem:
    """Return the problem that `what` names a device which is none of `devices`."""
    some = sorted(devices)
    shown = ", ".join(some[:8]) + (", ..." if len(some) > 8 else "")
    return Problem(f"{what}: there is no device {device}", f"the devices are {shown}")


@dataclass(frozen=True, kw_only=True)
class Synchroniser:
    """How the gradients of a parameter, or of a shard, come together; its fields are its options.

    `cavs.distributed.sync` adds how one is priced and run. type: its name in JSON.
    takes_compressor: True if it compresses gradients.
    """

    type: ClassVar[str]
    takes_compressor: ClassVar[bool] = False

    @property
    def owner(self) -> str | None:
        """Device that owns the value; None if every replica keeps it."""
        return None

    def moved_to(self, owner: str) -> Synchroniser:
        """Return the same with another owner."""
        raise NotImplementedError(f"{self.type} has no owner")

    @property
    def lag(self) -> int | None:
        """Number of steps by which replicas may lag behind; None sets no bound."""
        return 0

    @property
    def is_stale(self) -> bool:
        """True if the owner applies each gradient as it comes, so that replicas may lag behind."""
        return self.lag != 0

    @property
    def diverges(self) -> bool:
        """True if replicas may hold different values of the parameter."""
        return False

    @property
    def reduces_gradients(self) -> bool:
        """True if gradients are summed over the ranks, at least in some steps."""
        return True

    @property
    def mixes_values(self) -> bool:
        """True if ranks exchange values of the parameter, which every rank then changes itself."""
        return False

    @property
    def sums_on_hosts(self) -> bool:
        """True if the replicas of a host sum among themselves first."""
        return False

    @property
    def replicates_on_hosts(self) -> bool:
        """True if one replica of a host receives new values for all of them."""
        return False

    def summary(self, compressor: str) -> str:
        """Return a few words for a table of nodes."""
        return self.type.replace("_", " ")

    def problems(
        self, strategy: Strategy, leaf: NodeConfig, variable: Variable, cluster: ResourceSpec | None
    ) -> Iterator[Problem]:
        """Yield what is wrong with `leaf`, a node of this synchroniser or a shard."""
        if leaf.placement and set(leaf.placement) != set(strategy.graph.replicas):
            lacking = [d for d in strategy.graph.replicas if d not in leaf.placement]
            stray = [d for d in leaf.placement if d not in strategy.graph.replicas]
            what = f"{lacking[0]} does not keep it" if lacking else f"{stray[0]} runs no replica"
            yield Problem(
                f"{leaf.name}: {self.type} needs the value on every replica, but {what}",
                "leave placement empty, or name all replicas",
            )

    @classmethod
    def problems_together(
        cls, strategy: Strategy, variables: Mapping[str, Variable]
    ) -> Iterator[Problem]:
        """Yield what is wrong with all nodes of this class together."""
        yield from ()


REGISTRY: dict[str, type[Synchroniser]] = {}  # by type
S = TypeVar("S", bound=type[Synchroniser])


def register(cls: S) -> S:
    """Class decorator: let strategies use a synchroniser, and JSON name it by its type."""
    if REGISTRY.get(cls.type, cls).__qualname__ != cls.__qualname__:
        raise ConfigError(f"there is already a synchroniser {cls.type}", hint="rename one")
    REGISTRY[cls.type] = cls
    return cls


def synchronisers() -> dict[str, type[Synchroniser]]:
    """Return all synchronisers by type, with those of cavs, which are above this package."""
    import_module("cavs.distributed.sync")
    return REGISTRY


@dataclass(frozen=True, kw_only=True)
class NodeConfig:
    """Configuration of one parameter, or of one shard of it.

    name: of the parameter, ``NAME/part_I`` of a shard. partition: number of parts of every axis; ()
    leaves it whole. placement: devices that hold the value, for the reader: () or those that follow
    from the synchroniser. compressor: as `cavs.distributed.compression.parse` reads it. A
    partitioned node has one shard a part, in order, and no synchroniser of its own; a shard is
    never partitioned again.
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
            refuse(self.name, "compressor", self.compressor, 'name it, such as "float16"')
        object.__setattr__(self, "partition", tuple(self.partition))
        object.__setattr__(self, "placement", check_names(self.name, "placement", self.placement))
        object.__setattr__(self, "shards", tuple(self.shards))
        for parts in self.partition:
            check_whole(self.name, "partition", parts, least=1)
        shards = self.parts if self.parts > 1 else 0
        if len(self.shards) != shards:
            raise ConfigError(
                f"{self.name}: partition {list(self.partition)} makes {shards} shards, "
                f"{len(self.shards)} are given",
                hint="give the number of parts of every axis and a node for each shard, or neither",
            )
        if not shards and not isinstance(self.synchroniser, Synchroniser):
            *some, last = (cls.__name__ for cls in REGISTRY.values())
            hint = f"give {', '.join(some)} or {last}"
            refuse(self.name, "its synchroniser", self.synchroniser, hint)
        own = self.synchroniser is not None or self.placement or self.compressor != "none"
        if shards and own:
            raise ConfigError(
                f"{self.name}: a partitioned parameter has a synchroniser, placement or compressor",
                hint="they belong to its shards",
            )
        for i, shard in enumerate(self.shards):
            if shard.partition or shard.name != f"{self.name}/part_{i}":
                partition = list(shard.partition)
                raise ConfigError(
                    f"{self.name}: shard {i} is called {shard.name!r}, partition {partition}",
                    hint=f"call it {self.name}/part_{i}, without partition",
                )

    @property
    def parts(self) -> int:
        """Number of shards; 1 of a whole parameter."""
        return math.prod(self.partition)

    @property
    def leaves(self) -> tuple[NodeConfig, ...]:
        """Its shards, or the node itself where it is whole."""
        return self.shards or (self,)

    @property
    def sync(self) -> Synchroniser:
        """The synchroniser of a leaf."""
        assert self.synchroniser is not None, f"{self.name} is partitioned: ask its shards"
        return self.synchroniser

    def to_dict(self) -> dict[str, Any]:
        """Return the node as sequences, dicts, strings, numbers and booleans."""
        if self.shards:
            shards = [shard.to_dict() for shard in self.shards]
            return {"name": self.name, "partition": self.partition, "shards": shards}
        return {
            "name": self.name,
            "placement": self.placement,
            "synchroniser": {"type": self.sync.type, **asdict(self.sync)},
            "compressor": self.compressor,
        }


@dataclass(frozen=True, kw_only=True)
class GraphConfig:
    """The devices of a strategy, and how gradients are reduced.

    replicas: devices that run the model; rank i is the i-th. servers: devices that run no replica
    and only own parameters, ranks after the replicas. gradients: "mean" weights each rank by its
    share of the global batch, so that the sum is the gradient of the mean over the batch; "sum"
    adds the gradients of the ranks.
    """

    replicas: tuple[str, ...]
    servers: tuple[str, ...] = ()
    gradients: str = "mean"

    def __post_init__(self) -> None:
        object.__setattr__(self, "replicas", check_names("strategy", "replicas", self.replicas))
        object.__setattr__(self, "servers", check_names("strategy", "servers", self.servers))
        if not self.replicas:
            raise ConfigError("a strategy without replicas", hint="name at least one device")
        if twice := sorted({d for d in self.ranks if self.ranks.count(d) > 1}):
            raise ConfigError(
                f"device {twice[0]} runs more than one rank of the strategy",
                hint="name each device once, as a replica or as a server",
            )
        if self.gradients not in REDUCTIONS:
            refuse("strategy", "gradients", self.gradients, 'use "mean" or "sum"')

    @property
    def ranks(self) -> tuple[str, ...]:
        """The device of every rank: replicas, then servers."""
        return self.replicas + self.servers

    def rank_of(self, device: str) -> int:
        """Return the rank that runs on `device`, or else the first one of its node.

        Where GPUs compute, the process of the first one serves the CPU of their node. Raises
        `ConfigError` if the node has no rank.
        """
        if device in self.ranks:
            return self.ranks.index(device)
        nodes = [node_of(other) for other in self.ranks]
        if node_of(device) in nodes:
            return nodes.index(node_of(device))
        raise ConfigError(
            f"device {device} is on a node without replica or server",
            hint=f"use a node of {', '.join(self.ranks[:8])}, or add the device to servers",
        )


@renamed({"is_free": "is_asynchronous"})
@dataclass(frozen=True, kw_only=True)
class Strategy:
    """How one model is trained on many workers: nodes in the order of the model's parameters.

    builder: its builder, for the reader; no part of the digest.
    """

    graph: GraphConfig
    nodes: tuple[NodeConfig, ...]
    builder: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple(self.nodes))
        names = [node.name for node in self.nodes]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(
                f"parameter {twice[0]} stands twice in a strategy", hint="keep one of its nodes"
            )

    @cached_property
    def _by_name(self) -> dict[str, NodeConfig]:
        return {node.name: node for node in self.nodes}

    def node(self, name: str) -> NodeConfig:
        """Return the node of the parameter `name`. Raises `ConfigError` if there is none."""
        if name not in self._by_name:
            raise ConfigError(
                f"the strategy says nothing about parameter {name}",
                hint="build it again for this model; one that was frozen then stays so: thaw it "
                "before, or resume from a checkpoint, with which a new strategy is made",
            )
        return self._by_name[name]

    @property
    def leaves(self) -> tuple[NodeConfig, ...]:
        """Every whole parameter and every shard, in order."""
        return tuple(leaf for node in self.nodes for leaf in node.leaves)

    @cached_property
    def has_stale(self) -> bool:
        """True if some parameter, or shard, is stale: see `Synchroniser.is_stale`."""
        return any(leaf.sync.is_stale for leaf in self.leaves)

    @cached_property
    def is_asynchronous(self) -> bool:
        """True if all are stale, so that a step waits for no other rank."""
        return all(leaf.sync.is_stale for leaf in self.leaves)

    @cached_property
    def is_divergent(self) -> bool:
        """True if replicas may hold different values: see `Synchroniser.diverges`."""
        return any(leaf.sync.diverges for leaf in self.leaves)

    def to_dict(self) -> dict[str, Any]:
        """Return the strategy as sequences, dicts, strings, numbers and booleans."""
        return {
            "format": FORMAT,
            "builder": self.builder,
            "graph": asdict(self.graph),
            "nodes": [node.to_dict() for node in self.nodes],
        }

    @cached_property
    def digest(self) -> str:
        """64 hexadecimal digits, equal for equal strategies on every machine (SHA-256)."""
        content = {key: value for key, value in self.to_dict().items() if key != "builder"}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()
