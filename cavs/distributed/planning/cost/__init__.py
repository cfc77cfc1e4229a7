"""Bytes and time of a training step by a strategy: its operations, a formula, and a simulation.

The formula is that of Zhang 2020, section 8.3.1. The features say what the network has to do; how
they are combined into seconds, or which strategy is chosen, is decided elsewhere: a learned model
can take the same features.

In the simulation every port (the network card of each node, the local port of each rank; one to
send and one to receive) serves operations in the order in which they become ready. An operation is
done when the last port it uses has served it, and the ranks have handled its messages, one after
another. So chains to one server queue up, many small messages cost more than few large ones, and
messages during backward are hidden. Work is linear in operations times ports: thousands of ranks
take seconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.planning import compute as computation  # its Compute has moved from here
from cavs.distributed.planning.cost.network import ROOTED, Cluster, calibrate, cards
from cavs.distributed.strategy import Strategy, Variable, by_gradient, shards_of
from cavs.distributed.sync import Member, Pricing, lower
from cavs.distributed.sync.operation import NO_LOAD, Chain, Floats, Load, Operation, sent_bytes
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
    total = np.zeros(len(strategy.graph.ranks))
    for chain in plan(strategy, variables, load, step):
        for operation in chain.operations:
            total += sent_bytes(operation, len(total))
    return total


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
        costs = [cluster.measure(operation) for operation in chain.operations]
        terms = [(x.transfer, x.messages + x.local_messages, 1.0) for x in costs]
        if terms:
            rows[_is_served(chain)].append([sum(term) for term in zip(*terms, strict=True)])
    tables = [np.array(rows[served] or [[0.0] * 3]) for served in (True, False)]
    return np.concatenate([part for x in tables for part in (x.max(axis=0), x.mean(axis=0))])


@dataclass(frozen=True)
class Prediction:
    """seconds: of a step, the longer of compute and synchronisation, and then what follows the
    update. sync_seconds: of synchronisation, that included.

    bytes_by_rank: what every rank sends in a step.
    """

    seconds: float
    sync_seconds: float
    bytes_by_rank: Floats

    @property
    def total_bytes(self) -> float:
        """Bytes sent by all ranks in a step."""
        return float(self.bytes_by_rank.sum())


def predict(
    strategy: Strategy,
    variables: Sequence[Variable],
    resources: ResourceSpec,
    *,
    compute: float = 0.0,
    load: Load = NO_LOAD,
) -> Prediction:
    """Return time and bytes of a step on `resources`, by the formula.

    compute: seconds of forward and backward on a replica. Servers work side by side: the busiest
    port of each phase counts. Collectives follow each other.
    """
    cluster = Cluster(strategy.graph, resources)
    sent = np.zeros(cluster.world)
    out, into = np.zeros((2, 2, cluster.ports))  # by phase: gradients, then new values
    work = np.zeros(cluster.world)  # seconds of messages and sums at every rank
    collective = longest = after_update = 0.0
    for chain in plan(strategy, variables, load):
        alone = 0.0
        for operation in chain.operations:
            sent += sent_bytes(operation, cluster.world)
            cost = cluster.measure(operation)
            seconds = cluster.seconds(cost)
            alone += seconds
            if operation.collective not in ROOTED:
                collective += seconds
                continue
            phase = int(operation.collective == "broadcast")
            out[phase, cost.senders] += cost.out
            into[phase, cost.receivers] += cost.into
            work[cost.ranks] += cost.overhead
            work[operation.root] += cost.reduce
        if _is_served(chain):
            longest = max(longest, alone)
        if chain.follows_update:
            after_update += alone
    busiest = np.maximum(out, into).max(axis=1).sum()
    served = max(busiest + work.max(initial=0.0), longest)
    sync = collective + float(served)
    return Prediction(max(compute, sync - after_update) + after_update, sync, sent)


@dataclass(frozen=True)
class Simulation:
    """seconds: of one step. exposed: those in which replicas wait for the network.

    busy: seconds of work of the busiest port. finished: when each chain was done.
    """

    seconds: float
    exposed: float
    busy: float
    finished: tuple[float, ...]


class _Ports:
    """The times until which ports and ranks are busy."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.out, self.into, self.busy_out, self.busy_into = np.zeros((4, cluster.ports))
        self.work = np.zeros(cluster.world)  # until when each rank handles messages
        self.channel = 0.0

    def serve(self, now: float, operation: Operation) -> float:
        """Return when an operation that is ready at `now` is done."""
        cost = self.cluster.measure(operation)
        self.busy_out[cost.senders] += cost.out
        self.busy_into[cost.receivers] += cost.into
        sending, receiving = self.out[cost.senders], self.into[cost.receivers]
        work = self.work[cost.ranks]
        if operation.collective in ROOTED:
            sending = np.maximum(sending, now) + cost.out
            receiving = np.maximum(receiving, now) + cost.into
            self.out[cost.senders], self.into[cost.receivers] = sending, receiving
            arrived = max(sending.max(initial=0), receiving.max(initial=0), now + cost.transfer)
            # A rank handles one message after another; sums are made by the root.
            handling = cost.overhead + np.where(cost.ranks == operation.root, cost.reduce, 0.0)
            self.work[cost.ranks] = np.maximum(work, now) + handling
            return float((np.maximum(work, arrived) + handling).max())
        # All ranks take part in a collective from its beginning to its end, one after another.
        free = np.concatenate([sending, receiving, work, [now, self.channel]])
        self.channel = float(free.max()) + self.cluster.seconds(cost)
        self.work[cost.ranks] = self.channel
        self.out[cost.senders] = self.into[cost.receivers] = self.channel
        return self.channel


def simulate(
    strategy: Strategy,
    variables: Sequence[Variable],
    resources: ResourceSpec,
    compute: computation.Compute | None = None,
    load: Load = NO_LOAD,
) -> Simulation:
    """Return the simulation of one step.

    Synchronous servers send new values, and replicas average updated ones, when all replicas have
    computed and all sums that a step waits for are there. Through chains that do not wait for all
    (staleness, asynchronous) a replica waits for its own gradient and the answer alone, unless some
    port has more than a step's work. For requests that a step does not wait for it waits not at
    all: a slow one serves more steps. Without any bound a step takes as long as that of a usual
    replica, not of the slowest.
    """
    compute = compute or computation.Compute()
    chains = plan(strategy, variables, load)
    if chains and not any(chain.bounded for chain in chains):
        compute = replace(compute, slowest=1.0)
    times = compute.gradient_times(variables)
    times |= {x.name: times[n.name] for n in strategy.nodes if n.name in times for x in n.leaves}
    ready = [
        0.0 if chain.sends_values else max(times[leaf] for leaf in chain.leaves) for chain in chains
    ]
    cluster = Cluster(strategy.graph, resources)
    ports = _Ports(cluster)
    queue = [(now, i, 0) for i, now in enumerate(ready)]
    heapq.heapify(queue)
    finished = [0.0] * len(chains)
    pulls = [_pull(chain) for chain in chains]
    reducing = sum(chain.waits for chain in chains)  # chains whose sums are not all there
    applied = compute.seconds  # when the update is made, as far as is known
    held: list[tuple[int, int]] = []  # operations that wait for it
    while queue:
        now, i, index = heapq.heappop(queue)
        finished[i], operations = now, chains[i].operations
        if chains[i].waits and index == pulls[i] and reducing:
            applied, reducing = max(applied, now), reducing - 1
            if index < len(operations):
                held.append((i, index))
            if not reducing:
                for waiting in held:
                    heapq.heappush(queue, (applied, *waiting))
        elif index < len(operations):
            heapq.heappush(queue, (ports.serve(now, operations[index]), i, index + 1))
    waited = [
        done if chain.waits else begun + _round_trip(chain, cluster)
        for done, begun, chain in zip(finished, ready, chains, strict=True)
    ]
    busy = float(max(ports.busy_out.max(), ports.busy_into.max()))
    seconds = max([compute.seconds, *waited])
    if any(_is_served(chain) and not chain.waits for chain in chains):
        seconds = max(seconds, busy)
    return Simulation(seconds, seconds - compute.seconds, busy, tuple(finished))


def _pull(chain: Chain) -> int:
    """Return the index of the first operation that needs the update; the end if none does."""
    if chain.follows_update:
        return 0
    names = [operation.collective for operation in chain.operations]
    return names.index("broadcast") if "broadcast" in names else len(names)


def _round_trip(chain: Chain, cluster: Cluster) -> float:
    """Return the seconds from a replica to the server and back, if it is alone on the way."""
    seconds = 0.0
    for operation in chain.operations if _is_served(chain) else ():
        sizes = dict(zip(operation.ranks, operation.bytes_of_ranks().tolist(), strict=True))
        sizes.pop(operation.root)
        other = max(sizes, key=lambda rank: sizes[rank])
        ranks = tuple(sorted((other, operation.root)))
        alone = replace(operation, ranks=ranks, nbytes=sizes[other])
        seconds += cluster.seconds(cluster.measure(alone))
    return seconds
