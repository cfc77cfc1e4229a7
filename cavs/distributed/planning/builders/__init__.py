"""Strategy builders: named rules that make a strategy for any model and cluster."""

from cavs.distributed.planning.builders.builder import REGISTRY, Builder, build, find, register
from cavs.distributed.planning.builders.collectives import (
    AllReduce,
    Buckets,
    Horovod,
    PartitionedAR,
    RandomAxisPartitionAR,
)
from cavs.distributed.planning.builders.servers import (
    PS,
    BytePS,
    Parallax,
    PartitionedPS,
    Poseidon,
    PSLoadBalancing,
    UnevenPartitionedPS,
    factors_pay,
)

__all__ = [
    "PS",
    "REGISTRY",
    "AllReduce",
    "Buckets",
    "Builder",
    "BytePS",
    "Horovod",
    "PSLoadBalancing",
    "Parallax",
    "PartitionedAR",
    "PartitionedPS",
    "Poseidon",
    "RandomAxisPartitionAR",
    "UnevenPartitionedPS",
    "build",
    "factors_pay",
    "find",
    "register",
]
