"""How the gradients of a parameter are reduced: what a strategy's nodes become."""

from cavs.distributed.sync.all_reduce import (
    CompressedAllReduce,
    DenseAllReduce,
    SparseAllGather,
)
from cavs.distributed.sync.exchange import Exchange, Part, Piece, part_of
from cavs.distributed.sync.on_device import DeviceAllReduce, DeviceGroup
from cavs.distributed.sync.parameter_server import DenseServers, SparseServers
from cavs.distributed.sync.plan import exchanges_of
from cavs.distributed.sync.sufficient_factors import FactorBroadcast

__all__ = [
    "CompressedAllReduce",
    "DenseAllReduce",
    "DenseServers",
    "DeviceAllReduce",
    "DeviceGroup",
    "Exchange",
    "FactorBroadcast",
    "Part",
    "Piece",
    "SparseAllGather",
    "SparseServers",
    "exchanges_of",
    "part_of",
]
