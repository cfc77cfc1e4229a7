"""Measures latency, bandwidth and the speed of sums through a communicator."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavs.distributed.cluster.resources import Network
from cavs.distributed.comm.interfaces import Communicator
from cavs.errors import ConfigError

_PINGS = 30
_LARGE = 1 << 22  # bytes
_REPEATS = 5
_FLOOR = 1e-9  # seconds; clocks have ends


def calibrate(
    communicator: Communicator,
    addresses: Sequence[str],
    network: Network | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Network:
    """Return `network` with what was measured in place of what it says; the same on all ranks.

    addresses: the node of every rank. All ranks call it; it takes well below a second. Two ranks of
    one node, and two of different ones, exchange small and large messages; then all ranks sum a
    large array, which shows how fast they add, and another in memory that all of them see.
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
            latency, bandwidth = probe.link(pair)
            measured |= {f"{prefix}latency": latency, f"{prefix}bandwidth": bandwidth}
    network = dataclasses.replace(network, **measured)
    return dataclasses.replace(
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
    one behind, many pairs at once: the faster of both is what a card reaches. A card between two
    slower ones is not told from them.
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

    def link(self, pair: tuple[int, int]) -> tuple[float, float]:
        """Return seconds a message and bytes a second between two ranks; all ranks learn both."""
        small, large = self.ping(pair, 8, _PINGS), self.ping(pair, _LARGE, _REPEATS)
        small, large = self._agree(pair[0], small, large)
        return small, _LARGE / max(large - small, _FLOOR)

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
        """Return bytes a second of an all-reduce in memory that all ranks see; 0 without it."""
        memory = self.communicator.common_memory(_LARGE)
        if memory is None:
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
        return self._agree(0, best)[0]

    def _agree(self, owner: int, *values: float) -> list[float]:
        """Return the values of rank `owner` on all ranks."""
        array = np.array(values) if self.communicator.rank == owner else np.zeros(len(values))
        self.communicator.all_reduce(array)
        return [float(value) for value in array]
