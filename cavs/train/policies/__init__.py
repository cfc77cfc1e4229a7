"""Built-in policies, by the name that ``cavs train --policy`` takes."""

from cavs.train.named_types import NamedTypes
from cavs.train.policies.batch import AdaptiveBatch, GNSBatch
from cavs.train.policies.exchange import ExchangeSchedule, NoiseExchange, SwitchStrategy
from cavs.train.policies.rate import NoiseLR, VarianceLR
from cavs.train.policies.roles import StragglerRoles
from cavs.train.policies.scaling import LinearScaling
from cavs.train.policies.size import CostEffectiveSize, ElasticGNS, KeepSize
from cavs.train.policies.store import FollowStore
from cavs.train.policies.topology import AdaptiveTopology
from cavs.train.policy import Policy

BUILT_IN = (
    GNSBatch,
    AdaptiveBatch,
    ElasticGNS,
    KeepSize,
    CostEffectiveSize,
    FollowStore,
    LinearScaling,
    AdaptiveTopology,
    StragglerRoles,
    NoiseLR,
    VarianceLR,
    ExchangeSchedule,
    NoiseExchange,
    SwitchStrategy,
)
#: Policies by name; a file of a user may have more.
POLICIES = NamedTypes[Policy](
    Policy, "policy", "policy", {policy.__name__: policy for policy in BUILT_IN}
)

__all__ = [
    "BUILT_IN",
    "POLICIES",
    "AdaptiveBatch",
    "AdaptiveTopology",
    "CostEffectiveSize",
    "ElasticGNS",
    "ExchangeSchedule",
    "FollowStore",
    "GNSBatch",
    "KeepSize",
    "LinearScaling",
    "NoiseExchange",
    "NoiseLR",
    "StragglerRoles",
    "SwitchStrategy",
    "VarianceLR",
]
