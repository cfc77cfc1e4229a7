"""The operations that a strategy runs in a step, their bytes, and the analytic cost model.

The model is that of Zhang 2020, section 8.3.1. The features say what the network has to do; how
they are combined into seconds, or which strategy is chosen, is decided elsewhere: a learned model
can take the same features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.planning.cost.network import ROOTED, Cluster
from cavs.distributed.strategy import Strategy, Variable, by_gradient, shards_of
from cavs.distributed.sync import Member, Pricing, lower
from cavs.distributed.sync.operation import NO_LOAD, Chain, Floats, Load, sent_bytes

FEATURES = tuple(
    f"{exchange}_{reduced}_{term}"
    for exchange in ("servers", "collectives")
    for reduced in ("max", "mean")
    for term in ("transfer", "messages", "launches")
)


def plan(
    strategy: Strategy, variables: Sequence[Variable], load: Load = NO_LOAD, step: int = 0
) -> tuple[Chain, ...]:
    """Return the chains of training step `step` (compressors may warm up).

    They are those of the exchanges that the run lowers the strategy to, in the order in which
    gradients are done (`by_gradient`). The bytes of the run are checked against them.
    """
    pricing = Pricing(strategy, load, step)
    members: list[Member] = []
    numbers = {variable.name: i for i, variable in enumerate(variables)}
    nodes = {node.name: node for node in strategy.nodes}
    for variable in by_gradient(variables):
        if node := nodes.get(variable.name):
            leaves = list(zip(node.leaves, shards_of(node, variable.shape), strict=True))
            for leaf, shard in reversed(leaves):
                members.append(Member.of(numbers[node.name], len(members), leaf, shard, variable))
    chains = [x for transfer in lower(members, pricing) for x in transfer.chains(pricing)]
    return tuple(chain for _, chain in sorted(chains, key=lambda item: item[0]))


def bytes_by_rank(
    strategy: Strategy, variables: Sequence[Variable], load: Load = NO_LOAD, step: int = 0
) -> Floats:
    """Return the bytes that every rank of the strategy sends in one training step."""
    world = len(strategy.graph.ranks)
    total = np.zeros(world)
    for chain in plan(strategy, variables, load, step):
        for operation in chain.operations:
            total += sent_bytes(operation, world)
    return total


@dataclass(frozen=True)
class Prediction:
    """seconds: of a step, the longer of compute and synchronisation. sync_seconds: of the latter.

    bytes_by_rank: what every rank sends in a step.
    """

    seconds: float
    sync_seconds: float
    bytes_by_rank: Floats

    @property
    def total_bytes(self) -> float:
        """Bytes sent by all ranks in a step."""
        return float(self.bytes_by_rank.sum())


def _is_served(chain: Chain) -> bool:
    return any(operation.collective in ROOTED for operation in chain.operations)


def features(
    strategy: Strategy, variables: Sequence[Variable], resources: ResourceSpec, load: Load = NO_LOAD
) -> Floats:
    """Return the 12 `FEATURES`: of the chains with servers, then of the collective ones, the
    largest and the mean of seconds of transfer, messages in a row and device launches.
    """
    cluster = Cluster(strategy.graph, resources)
    rows: dict[bool, list[list[float]]] = {True: [], False: []}
    for chain in plan(strategy, variables, load):
        costs = [cluster.measure(operation)[1] for operation in chain.operations]
        terms = [(x.transfer, x.messages + x.local_messages, x.launches) for x in costs]
        if terms:
            rows[_is_served(chain)].append([sum(term) for term in zip(*terms, strict=True)])
    tables = [np.array(rows[served] or [[0.0] * 3]) for served in (True, False)]
    return np.concatenate([part for x in tables for part in (x.max(axis=0), x.mean(axis=0))])


def predict(
    strategy: Strategy,
    variables: Sequence[Variable],
    resources: ResourceSpec,
    *,
    compute: float = 0.0,
    load: Load = NO_LOAD,
) -> Prediction:
    """Return time and bytes of a step on `resources`.

    compute: seconds of forward and backward on a replica. Servers work side by side: the busiest
    port of each phase counts. Collectives follow each other.
    """
    cluster = Cluster(strategy.graph, resources)
    sent = np.zeros(cluster.world)
    collective = 0.0
    out, into = np.zeros((2, cluster.ports)), np.zeros((2, cluster.ports))  # by phase
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
            phase = int(operation.collective == "broadcast")  # gradients, then new values
            out[phase, occupied.senders] += occupied.out
            into[phase, occupied.receivers] += occupied.into
            work[occupied.ranks] += occupied.overhead
            work[operation.root] += cost.reduce
        if _is_served(chain):
            longest = max(longest, alone)
    busiest = np.maximum(out, into).max(axis=1).sum()
    served = max(busiest + work.max(initial=0.0), longest)
    sync = collective + float(served)
    return Prediction(max(compute, sync), sync, sent)
