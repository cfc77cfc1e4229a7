"""How the gradients of a parameter are reduced: synchronisers, and the exchanges that run them."""

from cavs.distributed.sync.all_reduce import AllReduce, CompressedAllReduce, DenseAllReduce
from cavs.distributed.sync.lowering import exchanges_of, served_by
from cavs.distributed.sync.member import BUCKET, Member, Pricing, Runtime
from cavs.distributed.sync.on_device import DeviceAllReduce, DeviceGroup
from cavs.distributed.sync.parameter_server import DenseServers, ParameterServer, SparseServers
from cavs.distributed.sync.part import Part, Piece, part_of
from cavs.distributed.sync.sufficient_factors import FactorBroadcast, SufficientFactors
from cavs.distributed.sync.synchroniser import (
    Exchange,
    SparseAllGather,
    Synchroniser,
    Transfer,
    lower,
)

__all__ = [
    "BUCKET",
    "AllReduce",
    "CompressedAllReduce",
    "DenseAllReduce",
    "DenseServers",
    "DeviceAllReduce",
    "DeviceGroup",
    "Exchange",
    "FactorBroadcast",
    "Member",
    "ParameterServer",
    "Part",
    "Piece",
    "Pricing",
    "Runtime",
    "SparseAllGather",
    "SparseServers",
    "SufficientFactors",
    "Synchroniser",
    "Transfer",
    "exchanges_of",
    "lower",
    "part_of",
    "served_by",
]
