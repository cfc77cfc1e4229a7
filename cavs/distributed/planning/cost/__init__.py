"""The cost of a strategy: bytes on the wire, predicted time, and simulation."""

from cavs.distributed.planning.cost.calibrate import calibrate, cards
from cavs.distributed.planning.cost.predict import (
    FEATURES,
    Prediction,
    bytes_by_rank,
    features,
    plan,
    predict,
)
from cavs.distributed.planning.cost.simulate import Simulation, simulate
from cavs.distributed.sync.operation import Chain, Load, Operation, sent_bytes
from cavs.errors import moved

__all__ = [
    "FEATURES",
    "Chain",
    "Load",
    "Operation",
    "Prediction",
    "Simulation",
    "bytes_by_rank",
    "calibrate",
    "cards",
    "features",
    "plan",
    "predict",
    "sent_bytes",
    "simulate",
]

__getattr__ = moved(
    __name__,
    {"Compute": "cavs.distributed.planning.compute.Compute"}
    | {
        name: f"cavs.distributed.planning.auto.{name}"
        for name in ("CANDIDATES", "Candidate", "compare", "is_file", "make_strategy")
    },
)
