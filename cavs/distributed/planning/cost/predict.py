"""The analytic cost model of a strategy on a cluster, and its features.

After Zhang 2020, section 8.3.1. The features say what the network has to do; how they are combined
into seconds, or which strategy is chosen, is decided elsewhere: a learned model can take the same
features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.planning.cost.network import ROOTED, Cluster
from cavs.distributed.planning.cost.plan import plan
from cavs.distributed.strategy import Strategy, Variable
from cavs.distributed.sync.operation import NO_LOAD, Chain, Load, sent_bytes

FEATURES = tuple(
    f"{exchange}_{reduced}_{term}"
    for exchange in ("servers", "collectives")
    for reduced in ("max", "mean")
    for term in ("transfer", "messages", "launches")
)


@dataclass(frozen=True)
class Prediction:
    """seconds: of a step, the longer of compute and synchronisation. sync_seconds: of the latter.

    bytes_by_rank: what every rank sends in a step.
    """

    seconds: float
    sync_seconds: float
    bytes_by_rank: NDArray[np.float64]

    @property
    def total_bytes(self) -> float:
        """Bytes sent by all ranks in a step."""
        return float(self.bytes_by_rank.sum())


def _is_served(chain: Chain) -> bool:
    return any(operation.collective in ROOTED for operation in chain.operations)


def features(
    strategy: Strategy, variables: Sequence[Variable], resources: ResourceSpec, load: Load = NO_LOAD
) -> NDArray[np.float64]:
    """The 12 `FEATURES`: of the chains with servers, then of the collective ones, the largest and
    the mean of seconds of transfer, messages in a row and device launches.
    """
    cluster = Cluster(strategy.graph, resources)
    rows: dict[bool, list[tuple[float, float, float]]] = {True: [], False: []}
    for chain in plan(strategy, variables, load):
        costs = [cluster.measure(operation)[1] for operation in chain.operations]
        if costs:
            rows[_is_served(chain)].append(
                (
                    sum(cost.transfer for cost in costs),
                    sum(cost.messages + cost.local_messages for cost in costs),
                    sum(cost.launches for cost in costs),
                )
            )
    parts: list[NDArray[np.float64]] = []
    for served in (True, False):
        table = np.array(rows[served] or [(0.0, 0.0, 0.0)])
        parts += [table.max(axis=0), table.mean(axis=0)]
    return np.concatenate(parts)


def predict(
    strategy: Strategy,
    variables: Sequence[Variable],
    resources: ResourceSpec,
    *,
    compute: float = 0.0,
    load: Load = NO_LOAD,
) -> Prediction:
    """Time and bytes of a step on `resources`.

    compute: seconds of forward and backward on a replica. Servers work side by side: the busiest
    port of each phase counts. Collectives follow each other.
    """
    cluster = Cluster(strategy.graph, resources)
    sent = np.zeros(cluster.world)
    collective = 0.0
    out = {True: np.zeros(cluster.ports), False: np.zeros(cluster.ports)}
    into = {True: np.zeros(cluster.ports), False: np.zeros(cluster.ports)}
    work = np.zeros(cluster.world)  # seconds of messages and sums at every rank
    longest = 0.0
    for chain in plan(strategy, variables, load):
        alone = 0.0
        for operation in chain.operations:
            sent += sent_bytes(operation, cluster.world)
            occupied, cost = cluster.measure(operation)
            seconds = cluster.seconds(cost)
            alone += seconds
            if operation.collective not in ROOTED:
                collective += seconds
                continue
            push = operation.collective != "broadcast"
            out[push][occupied.senders] += occupied.out
            into[push][occupied.receivers] += occupied.into
            work[occupied.ranks] += occupied.overhead
            work[operation.root] += cost.reduce
        if _is_served(chain):
            longest = max(longest, alone)
    busiest = sum(max(out[phase].max(), into[phase].max()) for phase in (True, False))
    served = max(busiest + work.max(initial=0.0), longest)
    sync = collective + float(served)
    return Prediction(max(compute, sync), sync, sent)
