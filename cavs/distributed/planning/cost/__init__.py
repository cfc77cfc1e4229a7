"""The cost of a strategy: bytes on the wire, predicted time, and simulation."""

from cavs.distributed.planning.cost.calibrate import calibrate, cards
from cavs.distributed.planning.cost.plan import bytes_by_rank, plan
from cavs.distributed.planning.cost.predict import FEATURES, Prediction, features, predict
from cavs.distributed.planning.cost.simulate import Simulation, simulate
from cavs.distributed.sync.operation import Chain, Load, Operation, sent_bytes

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
