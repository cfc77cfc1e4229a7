"""Load balancing: how much of every batch each rank gets."""

from cavs.distributed.balance.balancer import Balancer, whole_shares
from cavs.distributed.balance.lbbsp import (
    PREDICTORS,
    HostUsage,
    PairBalancer,
    PairRule,
    SpeedBalancer,
    SpeedRule,
    Usage,
    gpu_usage,
    host_usage,
    usage_on,
)
from cavs.distributed.balance.model import FEATURES, CostModel, features, profiles
from cavs.distributed.balance.predictors import ARIMA, EMA, NARX, Memoryless, Predictor
from cavs.distributed.balance.split import (
    Split,
    StructureBalancer,
    gradient_weights,
    split_batch,
    split_profiles,
)

__all__ = [
    "ARIMA",
    "EMA",
    "FEATURES",
    "NARX",
    "PREDICTORS",
    "Balancer",
    "CostModel",
    "HostUsage",
    "Memoryless",
    "PairBalancer",
    "PairRule",
    "Predictor",
    "SpeedBalancer",
    "SpeedRule",
    "Split",
    "StructureBalancer",
    "Usage",
    "features",
    "gpu_usage",
    "gradient_weights",
    "host_usage",
    "profiles",
    "split_batch",
    "split_profiles",
    "usage_on",
    "whole_shares",
]
