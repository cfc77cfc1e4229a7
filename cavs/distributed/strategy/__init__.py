"""Strategies: what is done with every parameter of a model that many workers train."""

from cavs.distributed.strategy.expression import (
    GraphConfig,
    NodeConfig,
    Strategy,
    Synchroniser,
    register,
)
from cavs.distributed.strategy.partition import Shard, partition_of, shard_ranges, shards_of
from cavs.distributed.strategy.text import load, save, to_text
from cavs.distributed.strategy.variable import Variable, by_gradient, in_order, variables_of
from cavs.errors import moved

__all__ = [
    "GraphConfig",
    "NodeConfig",
    "Shard",
    "Strategy",
    "Synchroniser",
    "Variable",
    "by_gradient",
    "in_order",
    "load",
    "partition_of",
    "register",
    "save",
    "shard_ranges",
    "shards_of",
    "to_text",
    "variables_of",
]

__getattr__ = moved(
    __name__,
    {
        "AllReduce": "cavs.distributed.sync.AllReduce",
        "BUCKET": "cavs.distributed.sync.BUCKET",
        "ParameterServer": "cavs.distributed.sync.ParameterServer",
        "SufficientFactors": "cavs.distributed.sync.SufficientFactors",
        "is_stale": "the property is_stale of a synchroniser",
    },
)
