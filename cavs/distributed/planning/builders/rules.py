"""The small rules that builders share: how many shards, which server, which axis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cavs.distributed.cluster.resources import ResourceSpec, node_of
from cavs.distributed.strategy import (
    GraphConfig,
    NodeConfig,
    Synchroniser,
    Variable,
    partition_of,
)


def smallest_divisor(size: int) -> int:
    """The smallest divisor from 2 on, `size` itself where it is prime; 1 for a size below 2."""
    return next((i for i in range(2, size) if size % i == 0), max(size, 1))


def smallest_non_divisor(size: int) -> int:
    """The smallest number from 2 on that does not divide `size`; `size` itself of 1 and 2."""
    return next((i for i in range(2, size) if size % i), max(size, 1))


MAX_SHARDS = 1024


def few_shards(parts: int, most: int) -> int:
    """`parts`, or 1 where that is more than `most`: each shard costs messages of its own."""
    return parts if parts <= most else 1


class Loads:
    """Bytes that each server owns so far."""

    def __init__(self, servers: Sequence[str]) -> None:
        self.bytes = dict.fromkeys(servers, 0.0)

    def assign(self, nbytes: float) -> str:
        """The server that owns least, the first of equals; it now owns `nbytes` more."""
        server = min(self.bytes, key=lambda name: self.bytes[name])
        self.bytes[server] += nbytes
        return server

    def assign_shards(self, nbytes: float, shards: int) -> list[str]:
        """A server for each shard: in order of load, again from the first after the last."""
        order = sorted(self.bytes, key=lambda name: self.bytes[name])
        chosen = [order[i % len(order)] for i in range(shards)]
        for server in chosen:
            self.bytes[server] += nbytes / shards
        return chosen


def cut(
    variable: Variable, axis: int, synchronisers: Sequence[Synchroniser], compressor: str = "none"
) -> NodeConfig:
    """The node of a parameter cut along `axis`, a part for each of `synchronisers`.

    One part is the parameter itself. Sparse parameters are never compressed.
    """
    parts = len(synchronisers)
    names = [f"{variable.name}/part_{i}" for i in range(parts)] if parts > 1 else [variable.name]
    leaves = tuple(
        NodeConfig(
            name=name,
            synchroniser=synchroniser,
            compressor="none" if variable.sparse else compressor,
        )
        for name, synchroniser in zip(names, synchronisers, strict=True)
    )
    if parts == 1:
        return leaves[0]
    vector = partition_of(variable.shape, axis, parts)
    return NodeConfig(name=variable.name, partition=vector, shards=leaves)


def rows_of(variable: Variable) -> int:
    """The size of axis 0; 1 of a scalar."""
    return variable.shape[0] if variable.shape else 1


def all_replicas(resources: ResourceSpec) -> GraphConfig:
    """A replica wherever one can run."""
    return GraphConfig(replicas=resources.replicas)


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


def whole(variable: Variable, synchroniser: Synchroniser, compressor: str = "none") -> NodeConfig:
    """The node of a parameter that stays whole."""
    return cut(variable, 0, [synchroniser], compressor)
