"""A strategy after some of its ranks are gone."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

from cavs.distributed.strategy.expression import NodeConfig, Strategy
from cavs.distributed.strategy.partition import shards_of
from cavs.errors import ConfigError


def without(
    strategy: Strategy, lost: Collection[int], shapes: Mapping[str, tuple[int, ...]]
) -> Strategy:
    """Return the strategy of the ranks that are left when those of numbers `lost` are gone.

    Parameters of lost owners go to the rank that owns the fewest bytes; servers are preferred to
    replicas. shapes: of the parameters, by name. Raises `ConfigError` if no replica is left.
    """
    graph = strategy.graph
    gone = {graph.ranks[rank] for rank in lost}
    replicas = tuple(d for d in graph.replicas if d not in gone)
    servers = tuple(d for d in graph.servers if d not in gone)
    if not replicas:
        raise ConfigError(
            f"all {len(graph.replicas)} ranks that compute are gone",
            hint="resume from the last checkpoint",
        )
    sizes = {
        leaf.name: math.prod(shard.shape)
        for node in strategy.nodes
        for leaf, shard in zip(node.leaves, shards_of(node, shapes[node.name]), strict=True)
    }
    loads = dict.fromkeys(servers or replicas, 0)
    for leaf in strategy.leaves:
        if leaf.sync.owner is not None:
            owner = graph.ranks[graph.rank_of(leaf.sync.owner)]
            if owner in loads:
                loads[owner] += sizes[leaf.name]

    def moved(leaf: NodeConfig) -> NodeConfig:
        sync = leaf.sync
        placement = tuple(d for d in leaf.placement if d not in gone)
        if sync.owner is not None and graph.rank_of(sync.owner) in lost:
            heir = min(loads, key=lambda device: loads[device])
            loads[heir] += sizes[leaf.name]
            sync = sync.moved_to(heir)
            placement = (heir,) if leaf.placement else ()
        return replace(leaf, synchroniser=sync, placement=placement)

    nodes = tuple(
        replace(node, shards=tuple(map(moved, node.shards))) if node.shards else moved(node)
        for node in strategy.nodes
    )
    left = replace(graph, replicas=replicas, servers=servers)
    return replace(strategy, graph=left, nodes=nodes)
