"""Load balancing: how much of every batch each rank gets."""

from cavs.distributed.balance.balancer import Balancer
from cavs.distributed.balance.lbbsp import (
    PREDICTORS,
    PairBalancer,
    PairRule,
    SpeedBalancer,
    SpeedRule,
)
from cavs.distributed.balance.model import FEATURES, CostModel, features, profiles
from cavs.distributed.balance.narx import NARX
from cavs.distributed.balance.predictors import ARIMA, EMA, Memoryless, Predictor
from cavs.distributed.balance.shares import gradient_weights, whole_shares
from cavs.distributed.balance.split import Split, StructureBalancer, split_batch, split_profiles
from cavs.distributed.balance.usage import HostUsage, Usage, gpu_usage, host_usage, usage_on

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
