"""A discrete simulation of one training step: compute, network and how they overlap.

Every port (the network card of each node, the local port of each rank; one to send and one to
receive) serves operations in the order in which they become ready. An operation is done when the
last port it uses has served it, and the ranks have handled its messages, one after another. So
chains to one server queue up, many small messages cost more than few large ones, and messages
during backward are hidden. New values of synchronous servers leave when the whole step has been
computed and reduced. Work is linear in operations times ports, in NumPy: thousands of ranks take
seconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.planning.compute import Compute
from cavs.distributed.planning.cost.network import ROOTED, Cluster
from cavs.distributed.planning.cost.predict import plan
from cavs.distributed.strategy import Strategy, Variable
from cavs.distributed.sync.operation import NO_LOAD, Chain, Load


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
        self.out, self.into = np.zeros(cluster.ports), np.zeros(cluster.ports)
        self.busy_out, self.busy_into = np.zeros(cluster.ports), np.zeros(cluster.ports)
        self.work = np.zeros(cluster.world)  # until when each rank handles messages
        self.channel = 0.0

    def serve(self, now: float, chain: Chain, index: int) -> float:
        """Return when an operation that is ready at `now` is done."""
        operation = chain.operations[index]
        used, cost = self.cluster.measure(operation)
        self.busy_out[used.senders] += used.out
        self.busy_into[used.receivers] += used.into
        sending, receiving = self.out[used.senders], self.into[used.receivers]
        if operation.collective in ROOTED:
            sending = np.maximum(sending, now) + used.out
            receiving = np.maximum(receiving, now) + used.into
            self.out[used.senders], self.into[used.receivers] = sending, receiving
            arrived = max(sending.max(initial=0), receiving.max(initial=0), now + cost.transfer)
            # A rank handles one message after another; sums are made by the root.
            handling = used.overhead + np.where(used.ranks == operation.root, cost.reduce, 0.0)
            done = np.maximum(self.work[used.ranks], arrived) + handling
            self.work[used.ranks] = np.maximum(self.work[used.ranks], now) + handling
            return float(done.max())
        # All ranks take part in a collective from its beginning to its end, one after another.
        free = np.concatenate([sending, receiving, self.work[used.ranks], [now, self.channel]])
        self.channel = float(free.max()) + self.cluster.seconds(cost)
        self.work[used.ranks] = self.channel
        self.out[used.senders] = self.into[used.receivers] = self.channel
        return self.channel


def simulate(
    strategy: Strategy,
    variables: Sequence[Variable],
    resources: ResourceSpec,
    compute: Compute | None = None,
    load: Load = NO_LOAD,
) -> Simulation:
    """Return the simulation of one step.

    Synchronous servers send new values when all replicas have computed and all sums that a step
    waits for are there. Through chains that do not wait for all (staleness, asynchronous) a replica
    waits for its own gradient and the answer alone, unless some port has more than a step's work.
    Without any bound a step takes as long as that of a usual replica, not of the slowest.
    """
    compute = compute or Compute()
    chains = plan(strategy, variables, load)
    if chains and not any(chain.bounded for chain in chains):
        compute = replace(compute, slowest=1.0)
    times = compute.gradient_times(variables)
    times |= {x.name: times[n.name] for n in strategy.nodes if n.name in times for x in n.leaves}

    def ready(chain: Chain) -> float:
        return max(times[leaf] for leaf in chain.leaves)

    cluster = Cluster(strategy.graph, resources)
    ports = _Ports(cluster)
    queue = [(ready(chain), i, 0) for i, chain in enumerate(chains)]
    heapq.heapify(queue)
    finished = [0.0] * len(chains)
    pulls = [_pull(chain) for chain in chains]
    reducing = sum(chain.waits for chain in chains)  # chains whose sums are not all there
    applied = compute.seconds  # when the update is made, as far as is known
    held: list[tuple[int, int]] = []  # operations of new values, which wait for it
    while queue:
        now, i, index = heapq.heappop(queue)
        finished[i] = now
        if chains[i].waits and index == pulls[i] and reducing:
            applied, reducing = max(applied, now), reducing - 1
            if index < len(chains[i].operations):
                held.append((i, index))
            if not reducing:
                for waiting in held:
                    heapq.heappush(queue, (applied, *waiting))
        elif index < len(chains[i].operations):
            done = ports.serve(now, chains[i], index)
            heapq.heappush(queue, (done, i, index + 1))
    waited = [
        t if chain.waits else ready(chain) + _round_trip(chain, cluster)
        for t, chain in zip(finished, chains, strict=True)
    ]
    busy = float(max(ports.busy_out.max(), ports.busy_into.max()))
    seconds = max([compute.seconds, *waited])
    if not all(chain.waits for chain in chains):
        seconds = max(seconds, busy)
    return Simulation(seconds, seconds - compute.seconds, busy, tuple(finished))


def _pull(chain: Chain) -> int:
    """Return the index of the first operation that brings new values; the end if none does."""
    names = [operation.collective for operation in chain.operations]
    return names.index("broadcast") if "broadcast" in names else len(names)


def _round_trip(chain: Chain, cluster: Cluster) -> float:
    """Return the seconds from a replica to the server and back, if it is alone on the way."""
    seconds = 0.0
    for operation in chain.operations:
        nbytes = operation.bytes_of_ranks().tolist()
        other, most = max(
            ((r, n) for r, n in zip(operation.ranks, nbytes, strict=True) if r != operation.root),
            key=lambda item: item[1],
        )
        ranks = tuple(sorted((other, operation.root)))
        alone = replace(operation, ranks=ranks, nbytes=most)
        seconds += cluster.seconds(cluster.measure(alone)[1])
    return seconds
