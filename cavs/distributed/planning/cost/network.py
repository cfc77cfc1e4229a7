"""The time of an operation on a cluster, and the ports that it occupies."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cavs.distributed.cluster.resources import ResourceSpec, node_of
from cavs.distributed.strategy import GraphConfig
from cavs.distributed.sync.operation import Floats, Operation

ROOTED = ("reduce", "gather", "broadcast")


@dataclass(frozen=True)
class Cost:
    """The three terms of the cost model (Zhang 2020, equations 8.2 and 8.3).

    transfer: seconds on the slowest link. messages, local_messages: how many one after another,
    between nodes and inside them (the coefficients of their latencies). launches: of a copy or
    kernel on a device (the coefficient of delta). reduce: seconds of summing.
    """

    transfer: float
    messages: float
    local_messages: float
    launches: float = 1.0
    reduce: float = 0.0


@dataclass(frozen=True)
class PortUsage:
    """The ports that an operation keeps busy with sending and receiving, and for how many seconds.

    Ports: the network card of every node, then the local port of every rank. ranks take part;
    overhead is how long each of them handles messages, whatever their size.
    """

    ranks: NDArray[np.intp]
    overhead: Floats
    senders: NDArray[np.intp]
    out: Floats
    receivers: NDArray[np.intp]
    into: Floats

    @property
    def longest(self) -> float:
        """Seconds of the busiest port."""
        return float(max(self.out.max(initial=0.0), self.into.max(initial=0.0)))


def _ring_share(collective: str, n: int) -> float:
    """Return how often a link of a ring of `n` ranks carries the array of one rank."""
    return 2 * (n - 1) / n if collective == "all_reduce" else n - 1.0


class Cluster:
    """The ranks of a strategy on the nodes of a resource specification."""

    def __init__(self, graph: GraphConfig, resources: ResourceSpec) -> None:
        self.network = resources.network
        addresses = [node_of(device) for device in graph.ranks]
        self.nodes = list(dict.fromkeys(addresses))
        index = {address: i for i, address in enumerate(self.nodes)}
        self.node_of_rank = np.array([index[address] for address in addresses])
        self.card = np.array([resources.bandwidth(address) for address in self.nodes])
        self.world = len(addresses)
        self._units: dict[tuple[object, ...], tuple[PortUsage, Cost]] = {}

    @property
    def ports(self) -> int:
        """Number of ports."""
        return len(self.nodes) + self.world

    def seconds(self, cost: Cost) -> float:
        """Return the time of an operation alone on the network."""
        return (
            cost.transfer
            + cost.reduce
            + cost.messages * self.network.latency
            + cost.local_messages * self.network.local_latency
            + cost.launches * self.network.memcpy_latency
        )

    def measure(self, operation: Operation) -> tuple[PortUsage, Cost]:
        """Return the ports that an operation occupies, and its terms of the model."""
        if isinstance(operation.nbytes, tuple):
            occupied = self._occupation(operation)
            return occupied, self._cost(operation, occupied)
        # Dense gradients of one node are summed in memory that all its ranks see, if there is some.
        near = len(np.unique(self.node_of_rank[list(operation.ranks)])) == 1
        shares = operation.in_place and self.network.common_bandwidth > 0
        common = shares and near and not operation.is_tree
        # Seconds are linear in bytes: operations that differ in bytes alone are measured once.
        key = (operation.collective, operation.ranks, operation.root, operation.is_tree, common)
        if key not in self._units:
            unit = replace(operation, nbytes=1.0)
            if common:
                self._units[key] = self._in_common(np.asarray(operation.ranks))
            else:
                occupied = self._occupation(unit)
                self._units[key] = occupied, self._cost(unit, occupied, tree=operation.is_tree)
        occupied, cost = self._units[key]
        scale = operation.nbytes
        return (
            replace(occupied, out=occupied.out * scale, into=occupied.into * scale),
            replace(cost, transfer=cost.transfer * scale, reduce=cost.reduce * scale),
        )

    def _in_common(self, ranks: NDArray[np.intp]) -> tuple[PortUsage, Cost]:
        """Return the ports and terms of one byte that `ranks` sum in memory all of them see."""
        ports, seconds = len(self.nodes) + ranks, 1.0 / self.network.common_bandwidth
        busy = np.full(len(ranks), seconds)
        occupied = PortUsage(ranks, np.zeros(len(ranks)), ports, busy, ports, busy)
        return occupied, Cost(seconds, 0, 2 * math.ceil(math.log2(len(ranks))))

    def _cost(self, operation: Operation, occupied: PortUsage, *, tree: bool = False) -> Cost:
        ranks = np.asarray(operation.ranks)
        if operation.collective in ROOTED:
            return self._rooted(operation, ranks, occupied)
        n, nbytes = len(ranks), float(operation.bytes_of_ranks().mean())
        crosses, leaving = self._ring(ranks)
        links = [] if crosses.all() else [self.network.local_bandwidth]
        if crosses.any():
            used = leaving > 0
            links += [(self.card[used] / leaving[used]).min(), self.network.flow_bandwidth]
        slowest = float(min(links))  # bytes a second around the ring
        reduce = nbytes / self.network.reduce_bandwidth
        if tree:
            depth = math.ceil(math.log2(n))
            inner = math.ceil(math.log2(np.bincount(self.node_of_rank[ranks]).max()))
            across = depth - inner  # levels of the binomial tree that leave the nodes
            local = nbytes / self.network.local_bandwidth
            transfer = 2 * (across * nbytes / slowest + inner * local)
            return Cost(transfer, 2 * across, 2 * inner, 1, depth * reduce)
        steps = 2 * (n - 1) if operation.collective == "all_reduce" else n - 1
        messages = (steps, 0) if crosses.any() else (0, steps)
        summed = 0.0 if operation.collective == "all_gather" else (n - 1) / n
        if operation.collective == "all_to_all":
            transfer = occupied.longest
        else:
            transfer = _ring_share(operation.collective, n) * nbytes / slowest
        return Cost(transfer, *messages, 1, summed * reduce)

    def _ring(self, ranks: NDArray[np.intp]) -> tuple[NDArray[np.bool_], NDArray[np.intp]]:
        """Return the ranks whose next one is on another node, and how often each node is left."""
        node = self.node_of_rank[ranks]
        crosses = node != np.roll(node, -1)
        return crosses, np.bincount(node[crosses], minlength=len(self.nodes))

    def _rooted(self, operation: Operation, ranks: NDArray[np.int64], occupied: PortUsage) -> Cost:
        transfer = occupied.longest
        others = ranks[ranks != operation.root]
        own = operation.bytes_of_ranks()[ranks != operation.root]
        remote = self.node_of_rank[others] != self.node_of_rank[operation.root]
        if remote.any():
            transfer = max(transfer, float(own[remote].max()) / self.network.flow_bandwidth)
        is_sum = operation.collective != "broadcast"
        reduce = float(own.sum()) / self.network.reduce_bandwidth if is_sum else 0.0
        return Cost(transfer, int(remote.sum()), int((~remote).sum()), 1, reduce)

    def _occupation(self, operation: Operation) -> PortUsage:
        out, into = np.zeros(self.ports), np.zeros(self.ports)
        ranks = np.asarray(operation.ranks)
        own, node = operation.bytes_of_ranks(), self.node_of_rank[ranks]
        base, local = len(self.nodes), self.network.local_bandwidth
        n, mean = len(ranks), float(own.mean())
        overhead = np.zeros(n)  # collectives are timed whole
        if operation.collective in ROOTED:
            root, home = operation.root, self.node_of_rank[operation.root]
            near = (ranks != root) & (node == home)
            far = node != home
            np.add.at(out, node[far], own[far] / self.card[node[far]])
            into[home] = own[far].sum() / self.card[home]
            out[base + ranks[near]] = own[near] / local
            into[base + root] = own[near].sum() / local
            if operation.collective == "broadcast":
                out, into = into, out
            single = np.where(far, self.network.latency, self.network.local_latency)
            handled = np.where(ranks == root, single[ranks != root].sum(), single)
            overhead = handled + self.network.memcpy_latency
        elif operation.collective == "all_to_all":
            count = np.bincount(node, minlength=base)
            out[:base] = into[:base] = count * (n - count) * mean / n / self.card
            out[base + ranks] = into[base + ranks] = (count[node] - 1) * mean / n / local
        else:  # a ring, or a tree of small messages, which goes once through every node
            share = _ring_share(operation.collective, n)
            crosses, leaving = self._ring(ranks)
            streams = np.minimum(leaving, 1) if operation.is_tree else leaving
            out[:base] = into[:base] = streams * share * mean / self.card
            out[base + ranks[~crosses]] = share * mean / local
            into[base + np.roll(ranks, -1)[~crosses]] = share * mean / local
        senders, receivers = np.flatnonzero(out), np.flatnonzero(into)
        return PortUsage(ranks, overhead, senders, out[senders], receivers, into[receivers])
