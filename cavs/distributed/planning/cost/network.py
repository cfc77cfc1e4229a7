"""The network of a cluster: how fast it is, measured, and what an operation costs on it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavs.distributed.cluster.resources import Network, ResourceSpec, node_of
from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.strategy import GraphConfig
from cavs.distributed.sync.operation import Floats, Operation
from cavs.errors import ConfigError

ROOTED = ("reduce", "gather", "broadcast")
_PINGS = 30
_LARGE = 1 << 22  # bytes
_REPEATS = 5
_FLOOR = 1e-9  # seconds; clocks have ends


@dataclass(frozen=True)
class Cost:
    """The terms of an operation in the cost model, and the ports that it keeps busy.

    transfer: seconds on the slowest link. messages, local_messages: how many one after another,
    between nodes and inside them. reduce: seconds of summing. (Zhang 2020, equations 8.2 and 8.3.
    Their third term is one start of a copy or kernel on a device, of every operation.)

    ranks take part. The ports of `senders` and `receivers` are busy for `out` and `into` seconds.
    Ports: the network card of every node, then the local port of every rank. overhead: seconds for
    which each rank handles messages, whatever their size; collectives are timed whole.
    """

    transfer: float
    messages: int
    local_messages: int
    reduce: float
    ranks: NDArray[np.intp]
    senders: NDArray[np.intp]
    out: Floats
    receivers: NDArray[np.intp]
    into: Floats
    overhead: Floats | float = 0.0

    def times(self, nbytes: float) -> Cost:
        """Return the cost of so many bytes, where this is that of one."""
        linear = ("transfer", "reduce", "out", "into")
        return replace(self, **{name: getattr(self, name) * nbytes for name in linear})


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
        self.ports = len(self.nodes) + self.world
        self._of_one_byte: dict[tuple[object, ...], Cost] = {}

    def seconds(self, cost: Cost) -> float:
        """Return the time of an operation alone on the network."""
        return (
            cost.transfer
            + cost.reduce
            + cost.messages * self.network.latency
            + cost.local_messages * self.network.local_latency
            + self.network.memcpy_latency
        )

    def measure(self, operation: Operation) -> Cost:
        """Return what an operation costs."""
        ranks = np.asarray(operation.ranks)
        if isinstance(operation.nbytes, tuple):
            return self._measure(operation, ranks, tree=False)
        # Dense gradients of one node are summed in memory that all its ranks see, if there is some.
        near = len(np.unique(self.node_of_rank[ranks])) == 1
        shares = operation.in_place and self.network.common_bandwidth > 0
        tree, common = operation.is_tree, shares and near and not operation.is_tree
        # Seconds are linear in bytes: operations that differ in bytes alone are measured once.
        key = (operation.collective, operation.ranks, operation.root, tree, common)
        if key not in self._of_one_byte:
            unit = replace(operation, nbytes=1.0)
            cost = self._in_common(ranks) if common else self._measure(unit, ranks, tree)
            self._of_one_byte[key] = cost
        return self._of_one_byte[key].times(operation.nbytes)

    def _measure(self, operation: Operation, ranks: NDArray[np.intp], tree: bool) -> Cost:
        if operation.collective in ROOTED:
            return self._rooted(operation, ranks)
        return self._collective(operation, ranks, tree)

    def _in_common(self, ranks: NDArray[np.intp]) -> Cost:
        """Return the cost of one byte that `ranks` sum in memory all of them see."""
        seconds, barriers = 1.0 / self.network.common_bandwidth, math.ceil(math.log2(len(ranks)))
        busy = np.zeros(self.ports)
        busy[len(self.nodes) + ranks] = seconds
        return Cost(seconds, 0, 2 * barriers, 0.0, ranks, *_busy(busy), *_busy(busy))

    def _rooted(self, operation: Operation, ranks: NDArray[np.intp]) -> Cost:
        """Return the cost of a message of every other rank to the root, or from it."""
        own, node = operation.bytes_of_ranks(), self.node_of_rank[ranks]
        root, home = operation.root, self.node_of_rank[operation.root]
        others, far = ranks != root, node != home
        near, base, local = others & ~far, len(self.nodes), self.network.local_bandwidth
        out, into = np.zeros((2, self.ports))
        np.add.at(out, node[far], own[far] / self.card[node[far]])
        into[home] = own[far].sum() / self.card[home]
        out[base + ranks[near]] = own[near] / local
        into[base + root] = own[near].sum() / local
        transfer = max(out.max(), into.max(), own[far].max(initial=0) / self.network.flow_bandwidth)
        reduce = float(own[others].sum()) / self.network.reduce_bandwidth
        if operation.collective == "broadcast":
            out, into, reduce = into, out, 0.0
        single = np.where(far, self.network.latency, self.network.local_latency)
        handled = np.where(others, single, single[others].sum())
        overhead = handled + self.network.memcpy_latency
        terms = float(transfer), int(far.sum()), int(near.sum()), reduce
        return Cost(*terms, ranks, *_busy(out), *_busy(into), overhead)

    def _collective(self, operation: Operation, ranks: NDArray[np.intp], tree: bool) -> Cost:
        """Return the cost of an operation in which all ranks do the same, with equal bytes."""
        n, nbytes = len(ranks), float(operation.bytes_of_ranks().mean())
        node, base, local = self.node_of_rank[ranks], len(self.nodes), self.network.local_bandwidth
        crosses = node != np.roll(node, -1)  # the next rank is on another node
        leaving = np.bincount(node[crosses], minlength=base)  # how often a ring leaves each node
        links = [] if crosses.all() else [local]
        if crosses.any():
            links += [(self.card[leaving > 0] / leaving[leaving > 0]).min()]
            links += [self.network.flow_bandwidth]
        slowest = float(min(links))  # bytes a second around the ring
        reduce = nbytes / self.network.reduce_bandwidth
        out, into = np.zeros((2, self.ports))
        spread = {"all_to_all": n, "request": n - 1}  # parts of an array, one to each other rank
        if operation.collective in spread:
            count, part = np.bincount(node, minlength=base), nbytes / spread[operation.collective]
            out[:base] = count * (n - count) * part / self.card
            out[base + ranks] = (count[node] - 1) * part / local
            into[:] = out
            transfer = float(out.max())
            if operation.collective == "request" and crosses.any():  # one connection
                transfer = max(transfer, nbytes / self.network.flow_bandwidth)
        else:  # a ring, or a tree of small messages, which goes once through every node
            share = 2 * (n - 1) / n if operation.collective == "all_reduce" else n - 1.0
            streams = np.minimum(leaving, 1) if operation.is_tree else leaving
            out[:base] = into[:base] = streams * share * nbytes / self.card
            out[base + ranks[~crosses]] = share * nbytes / local
            into[base + np.roll(ranks, -1)[~crosses]] = share * nbytes / local
            transfer = share * nbytes / slowest
        if tree:
            depth = math.ceil(math.log2(n))
            inner = math.ceil(math.log2(np.bincount(node).max()))
            across = depth - inner  # levels of the binomial tree that leave the nodes
            transfer = 2 * (across * nbytes / slowest + inner * (nbytes / local))
            terms = transfer, 2 * across, 2 * inner, depth * reduce
        else:
            steps = {"all_reduce": 2 * (n - 1), "request": 2}.get(operation.collective, n - 1)
            summed = 0.0 if operation.collective in ("all_gather", "request") else (n - 1) / n
            messages = (steps, 0) if crosses.any() else (0, steps)
            terms = transfer, *messages, summed * reduce
        return Cost(*terms, ranks, *_busy(out), *_busy(into))


def _busy(seconds: Floats) -> tuple[NDArray[np.intp], Floats]:
    """Return the ports that are busy, and for how many seconds."""
    ports = np.flatnonzero(seconds)
    return ports, seconds[ports]


def calibrate(
    communicator: Communicator,
    addresses: Sequence[str],
    network: Network | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Network:
    """Return `network` with what was measured in place of what it says; the same on all ranks.

    addresses: the node of every rank. All ranks call it; it takes well below a second. Two ranks of
    one node, and two of different ones, exchange small and large messages; then all sum a large
    array, which shows how fast they add, and another in memory that all of them see.
    """
    network = network or Network()
    if len(addresses) != communicator.size:
        raise ConfigError(
            f"{len(addresses)} addresses for {communicator.size} ranks", hint="give one for each"
        )
    if communicator.size == 1:
        return network
    probe, measured = _Probe(communicator, addresses, clock), dict[str, float]()
    for prefix, near in (("local_", True), ("", False)):
        pairs = combinations(range(communicator.size), 2)
        pair = next((p for p in pairs if (addresses[p[0]] == addresses[p[1]]) == near), None)
        if pair is not None:
            times = probe.ping(pair, 8, _PINGS), probe.ping(pair, _LARGE, _REPEATS)
            small, large = probe.values_of(pair[0], *times)
            measured[prefix + "latency"] = small
            measured[prefix + "bandwidth"] = _LARGE / max(large - small, _FLOOR)
    network = replace(network, **measured)
    return replace(
        network,
        reduce_bandwidth=probe.sums(network),
        common_bandwidth=probe.sums_in_common(network.local_latency),
    )


def cards(
    communicator: Communicator,
    addresses: Sequence[str],
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Return bytes a second of every node's network card, of three nodes or more; else {}.

    The same on all ranks, which all call it. Nodes exchange messages with the one before and the
    one behind: the faster of both is what a card reaches. One between two slower cards seems equal.
    """
    nodes = list(dict.fromkeys(addresses))
    if (count := len(nodes)) < 3:
        return {}
    probe = _Probe(communicator, addresses, clock)
    first = [addresses.index(node) for node in nodes]
    found = np.zeros(count)  # links of each node with the next one
    for turn in range(3):  # three rounds, so that no node uses two links at once
        communicator.all_reduce(np.zeros(1))  # ranks begin together
        for i in range(count):
            here = 2 if i == count - 1 and count % 2 else i % 2
            pair = first[i], first[(i + 1) % count]
            if here == turn and communicator.rank in pair:
                seconds = probe.ping(pair, _LARGE, _REPEATS)
                found[i] = _LARGE / seconds if communicator.rank == pair[0] else 0.0
    communicator.all_reduce(found)
    return {node: float(max(found[i], found[i - 1])) for i, node in enumerate(nodes)}


@dataclass
class _Probe:
    """Times messages and sums of `communicator`, whose ranks run on `addresses`."""

    communicator: Communicator
    addresses: Sequence[str]
    clock: Callable[[], float]

    def ping(self, pair: tuple[int, int], nbytes: int, count: int) -> float:
        """Return half of the fastest round trip; 0 on ranks that do not take part."""
        c, (first, second) = self.communicator, pair
        if c.rank not in pair:
            return 0.0
        array, best = np.zeros(nbytes // 8), math.inf
        for _ in range(count):
            begin = self.clock()
            if c.rank == first:
                c.send(array, second)
                c.receive(array, second)
            else:
                c.receive(array, first)
                c.send(array, first)
            best = min(best, self.clock() - begin)
        return max(best / 2, _FLOOR)

    def sums(self, network: Network) -> float:
        """Return bytes a second that a rank adds: what an all-reduce takes beyond its messages."""
        seconds = self._all_reduce(np.zeros(_LARGE // 8))
        n, nodes = self.communicator.size, len(set(self.addresses))
        links = [network.local_bandwidth] if nodes < n else []
        links += [network.bandwidth] if nodes > 1 else []
        latency = network.latency if nodes > 1 else network.local_latency
        messages = 2 * (n - 1) / n * _LARGE / min(links) + 2 * (n - 1) * latency
        rest = seconds - messages
        return _LARGE * (n - 1) / n / rest if rest > _FLOOR else math.inf

    def sums_in_common(self, latency: float) -> float:
        """Return bytes a second of an all-reduce in memory that all ranks see; 0 without it.

        Ranks of several nodes have memory of each; sums there include the network.
        """
        memory = self.communicator.common_memory(_LARGE)
        if memory is None or len(set(self.addresses)) > 1:
            return 0.0
        seconds = self._all_reduce(memory.view(np.float64))
        barriers = 2 * math.ceil(math.log2(self.communicator.size))
        return _LARGE / max(seconds - barriers * latency, _FLOOR)

    def _all_reduce(self, array: NDArray[Any]) -> float:
        """Return the seconds that the sum of `array` takes; the same on all ranks."""
        best = math.inf
        for _ in range(_REPEATS):
            self.communicator.all_reduce(np.zeros(1))  # ranks begin together
            begin = self.clock()
            self.communicator.all_reduce(array)
            best = min(best, self.clock() - begin)
        return self.values_of(0, best)[0]

    def values_of(self, owner: int, *values: float) -> list[float]:
        """Return the values of rank `owner` on all ranks."""
        array = np.array(values) if self.communicator.rank == owner else np.zeros(len(values))
        self.communicator.all_reduce(array)
        return [float(value) for value in array]
