"""Compressors: the sum of the ranks' gradients in fewer bytes."""

from cavs.distributed.compressors.cast import BFloat16, Float16, Identity
from cavs.distributed.compressors.exchange import (
    Compressor,
    Exchange,
    Reduced,
    Reduction,
    Round,
    State,
    lockstep,
    run,
)
from cavs.distributed.compressors.memory import flatten, is_alike, share_of, unflatten, weighed
from cavs.distributed.compressors.parse import NAMES, parse
from cavs.distributed.compressors.powersgd import PowerSGD
from cavs.distributed.compressors.residual import ErrorFeedback, OneBit
from cavs.distributed.compressors.topk import TopK

__all__ = [
    "NAMES",
    "BFloat16",
    "Compressor",
    "ErrorFeedback",
    "Exchange",
    "Float16",
    "Identity",
    "OneBit",
    "PowerSGD",
    "Reduced",
    "Reduction",
    "Round",
    "State",
    "TopK",
    "flatten",
    "is_alike",
    "lockstep",
    "parse",
    "run",
    "share_of",
    "unflatten",
    "weighed",
]
