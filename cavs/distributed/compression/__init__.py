"""Compressors: the sum of the ranks' gradients in fewer bytes."""

from cavs.distributed.compression.exchange import (
    Compressor,
    Exchange,
    Reduced,
    Reduction,
    Round,
    State,
    flatten,
    is_alike,
    lockstep,
    run,
    share_of,
    unflatten,
    weighed,
)
from cavs.distributed.compression.fewer_numbers import PowerSGD, TopK
from cavs.distributed.compression.parse import NAMES, parse
from cavs.distributed.compression.quantise import BFloat16, ErrorFeedback, Float16, Identity, OneBit

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
