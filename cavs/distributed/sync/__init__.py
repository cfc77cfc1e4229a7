"""How the gradients of a parameter are reduced: synchronisers, and the exchanges that run them."""

from cavs.distributed.sync.adpsgd import ADPSGD
from cavs.distributed.sync.all_reduce import (
    AllReduce,
    CompressedAllReduce,
    DenseAllReduce,
    DeviceAllReduce,
    DeviceGroup,
)
from cavs.distributed.sync.model_average import SMA, Crossbow, Lookahead
from cavs.distributed.sync.operation import Pricing
from cavs.distributed.sync.parameter_server import DenseServers, ParameterServer, SparseServers
from cavs.distributed.sync.part import BUCKET, Member, Part, Piece, Scope, part_of
from cavs.distributed.sync.partial_exchange import PartialAllReduce
from cavs.distributed.sync.peer_average import PeerAverage
from cavs.distributed.sync.sufficient_factors import FactorBroadcast, SufficientFactors
from cavs.distributed.sync.synchroniser import (
    Exchange,
    Runtime,
    SparseAllGather,
    Synchroniser,
    Transfer,
    lower,
)

__all__ = [
    "ADPSGD",
    "BUCKET",
    "SMA",
    "AllReduce",
    "CompressedAllReduce",
    "Crossbow",
    "DenseAllReduce",
    "DenseServers",
    "DeviceAllReduce",
    "DeviceGroup",
    "Exchange",
    "FactorBroadcast",
    "Lookahead",
    "Member",
    "ParameterServer",
    "Part",
    "PartialAllReduce",
    "PeerAverage",
    "Piece",
    "Pricing",
    "Runtime",
    "Scope",
    "SparseAllGather",
    "SparseServers",
    "SufficientFactors",
    "Synchroniser",
    "Transfer",
    "lower",
    "part_of",
]
