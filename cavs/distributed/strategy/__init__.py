"""Strategies: what is done with every parameter of a model that many workers train."""

from cavs.distributed.strategy.expression import (
    BUCKET,
    AllReduce,
    GraphConfig,
    NodeConfig,
    ParameterServer,
    Strategy,
    SufficientFactors,
    Synchroniser,
    is_stale,
)
from cavs.distributed.strategy.partition import Shard, partition_of, shard_ranges, shards_of
from cavs.distributed.strategy.text import load, save, to_text
from cavs.distributed.strategy.variable import Variable, by_gradient, in_order, variables_of

__all__ = [
    "BUCKET",
    "AllReduce",
    "GraphConfig",
    "NodeConfig",
    "ParameterServer",
    "Shard",
    "Strategy",
    "SufficientFactors",
    "Synchroniser",
    "Variable",
    "by_gradient",
    "in_order",
    "is_stale",
    "load",
    "partition_of",
    "save",
    "shard_ranges",
    "shards_of",
    "to_text",
    "variables_of",
]
