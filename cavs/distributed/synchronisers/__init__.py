"""How the gradients of a parameter are reduced: what a strategy's nodes become."""

from cavs.distributed.synchronisers.all_reduce import (
    CompressedAllReduce,
    DenseAllReduce,
    SparseAllGather,
)
from cavs.distributed.synchronisers.exchange import Exchange, Part, Piece, part_of
from cavs.distributed.synchronisers.factors import FactorBroadcast
from cavs.distributed.synchronisers.on_device import DeviceAllReduce, DeviceGroup
from cavs.distributed.synchronisers.plan import exchanges_of
from cavs.distributed.synchronisers.servers import DenseServers, SparseServers

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
