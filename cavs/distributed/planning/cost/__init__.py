"""What a strategy costs: bytes on the wire, predicted time, simulation, and the choice by them."""

from cavs.distributed.planning.cost.calibrate import calibrate, cards
from cavs.distributed.planning.cost.choose import (
    CANDIDATES,
    Candidate,
    compare,
    is_file,
    make_strategy,
)
from cavs.distributed.planning.cost.plan import bytes_by_rank, plan
from cavs.distributed.planning.cost.predict import FEATURES, Prediction, features, predict
from cavs.distributed.planning.cost.simulate import Compute, Simulation, simulate
from cavs.distributed.sync.operation import Chain, Load, Operation, sent_bytes

__all__ = [
    "CANDIDATES",
    "FEATURES",
    "Candidate",
    "Chain",
    "Compute",
    "Load",
    "Operation",
    "Prediction",
    "Simulation",
    "bytes_by_rank",
    "calibrate",
    "cards",
    "compare",
    "features",
    "is_file",
    "make_strategy",
    "plan",
    "predict",
    "sent_bytes",
    "simulate",
]
