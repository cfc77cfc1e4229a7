"""Load balancing: how much of every batch each rank gets."""

from cavs.distributed.balance.lbbsp import PairBalancer, SpeedBalancer
from cavs.distributed.balance.model import CostModel
from cavs.distributed.balance.narx import NARX
from cavs.distributed.balance.online import StructureBalancer
from cavs.distributed.balance.predictors import ARIMA, EMA, Memoryless, Predictor
from cavs.distributed.balance.profile import FEATURES, features, profiles
from cavs.distributed.balance.shares import gradient_weights, whole_shares
from cavs.distributed.balance.split import Split, split_batch, split_profiles

__all__ = [
    "ARIMA",
    "EMA",
    "FEATURES",
    "NARX",
    "CostModel",
    "Memoryless",
    "PairBalancer",
    "Predictor",
    "SpeedBalancer",
    "Split",
    "StructureBalancer",
    "features",
    "gradient_weights",
    "profiles",
    "split_batch",
    "split_profiles",
    "whole_shares",
]
