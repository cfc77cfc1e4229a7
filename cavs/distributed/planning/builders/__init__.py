"""Strategy builders: named rules that make a strategy for any model and cluster."""

from cavs.distributed.planning.builders.builder import REGISTRY, Builder, build, find, register
from cavs.distributed.planning.builders.collectives import (
    AllReduce,
    Buckets,
    Horovod,
    PartitionedAR,
    RandomAxisPartitionAR,
)
from cavs.distributed.planning.builders.hybrid import Parallax, Poseidon, factors_pay
from cavs.distributed.planning.builders.servers import (
    PS,
    BytePS,
    PartitionedPS,
    PSLoadBalancing,
    UnevenPartitionedPS,
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
