"""Rules that builders share: their options, how many shards, which server."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from cavs.distributed.cluster.resources import ResourceSpec, node_of
from cavs.distributed.compression import parse
from cavs.distributed.planning.builders.builder import Builder
from cavs.distributed.strategy import (
    GraphConfig,
    NodeConfig,
    Strategy,
    Synchroniser,
    Variable,
    partition_of,
)
from cavs.distributed.strategy.expression import check_whole, refuse

MAX_SHARDS = 1024


class Loads:
    """The graph of a strategy, the devices that own its parameters, and how many bytes of them."""

    def __init__(self, graph: GraphConfig, servers: Sequence[str] = ()) -> None:
        self.graph = graph
        self.bytes = dict.fromkeys(servers, 0.0)

    def assign(self, nbytes: float) -> str:
        """Give `nbytes` to the server that owns least, the first of equals; return it."""
        return self.assign_shards(nbytes, 1)[0]

    def assign_shards(self, nbytes: float, shards: int) -> list[str]:
        """Return a server for each shard: in order of load, again from the first after the last."""
        order = sorted(self.bytes, key=lambda name: self.bytes[name])
        chosen = [order[i % len(order)] for i in range(shards)]
        for server in chosen:
            self.bytes[server] += nbytes / shards
        return chosen


def option(default: Any, *, least: int | None = None, values: Sequence[object] = ()) -> Any:
    """Return a field of a `RuleBuilder`: a whole number of at least `least`, or one of `values`."""
    return field(default=default, metadata={"least": least, "values": values})


@dataclass(frozen=True, kw_only=True)
class RuleBuilder(Builder):
    """Decides for one parameter after another; its options are fields that it checks.

    An option called compressor is of dense parameters: sparse ones are never compressed.
    """

    def __post_init__(self) -> None:
        owner = type(self).__name__
        for known in fields(self):
            value, values = getattr(self, known.name), known.metadata.get("values")
            if known.name == "compressor":
                parse(value)
            if known.metadata.get("least") is not None:
                check_whole(owner, known.name, value, known.metadata["least"])
            if values and not any(type(value) is type(v) and value == v for v in values):
                refuse(owner, known.name, value, f"give {' or '.join(map(repr, values))}")

    def build(self, variables: Sequence[Variable], resources: ResourceSpec) -> Strategy:
        loads = self.loads(resources)
        return Strategy(graph=loads.graph, nodes=tuple(self.nodes(variables, loads)))

    def loads(self, resources: ResourceSpec) -> Loads:
        """Return the graph, by default a replica wherever one can run, and the servers."""
        return Loads(GraphConfig(replicas=resources.replicas))

    @abstractmethod
    def nodes(self, variables: Sequence[Variable], loads: Loads) -> Iterable[NodeConfig]:
        """Return the node of every variable, in order."""


def smallest_divisor(size: int) -> int:
    """Return the smallest divisor from 2 on, `size` itself if it is prime; 1 for sizes below 2."""
    return next((i for i in range(2, size) if size % i == 0), max(size, 1))


def smallest_non_divisor(size: int) -> int:
    """Return the smallest number from 2 on that does not divide `size`; `size` itself up to 2."""
    return next((i for i in range(2, size) if size % i), max(size, 1))


def equal_shards(size: int, most: int) -> int:
    """Return the smallest divisor of `size`, or 1 where that is more than `most`.

    Each shard costs messages of its own.
    """
    parts = smallest_divisor(size)
    return parts if parts <= most else 1


def axis_size(variable: Variable, axis: int = 0) -> int:
    """Return the size of an axis; 1 of a scalar."""
    return variable.shape[axis] if variable.shape else 1


def cut(
    variable: Variable, axis: int, synchronisers: Sequence[Synchroniser], compressor: str = "none"
) -> NodeConfig:
    """Return the node of a parameter cut along `axis`, a part for each of `synchronisers`.

    One part is the parameter itself. Sparse parameters are never compressed.
    """
    name, parts = variable.name, len(synchronisers)
    names = [f"{name}/part_{i}" for i in range(parts)] if parts > 1 else [name]
    compressor = "none" if variable.sparse else compressor
    leaves = tuple(
        NodeConfig(name=leaf, synchroniser=synchroniser, compressor=compressor)
        for leaf, synchroniser in zip(names, synchronisers, strict=True)
    )
    if parts == 1:
        return leaves[0]
    return NodeConfig(name=name, partition=partition_of(variable.shape, axis, parts), shards=leaves)


def whole(variable: Variable, synchroniser: Synchroniser, compressor: str = "none") -> NodeConfig:
    """Return the node of a parameter that stays whole."""
    return cut(variable, 0, [synchroniser], compressor)


def owners(resources: ResourceSpec, graph: GraphConfig) -> tuple[str, ...]:
    """Return where servers can run with the replicas of `graph`: a CPU device of each process.

    The devices that run no replica are all served by the first process of their node: load that is
    spread over them would stay in one place.
    """
    runs, found = set(graph.replicas), dict[str, str]()
    for device in resources.cpu_devices or graph.replicas:
        found.setdefault(device if device in runs else node_of(device), device)
    return tuple(found.values())


def is_hierarchical(graph: GraphConfig) -> bool:
    """True if a first sum inside the nodes saves messages between them."""
    replicas = Counter(node_of(device) for device in graph.replicas)
    return len(replicas) > 1 and max(replicas.values()) > 1
