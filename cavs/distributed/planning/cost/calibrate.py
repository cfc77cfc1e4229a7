"""Measures latency, bandwidth and the speed of sums through a communicator."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cavs.distributed.cluster.resources import Network
from cavs.errors import ConfigError

_PINGS = 30
_LARGE = 1 << 22  # bytes
_REPEATS = 5
_FLOOR = 1e-9  # seconds; clocks have ends


class _Communicator(Protocol):
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def all_reduce(self, array: NDArray[Any]) -> None: ...
    def common_memory(self, nbytes: int) -> NDArray[Any] | None: ...
    def send(self, array: NDArray[Any], to: int) -> None: ...
    def receive(self, array: NDArray[Any], source: int) -> None: ...


def calibrate(
    communicator: _Communicator,
    addresses: Sequence[str],
    network: Network | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Network:
    """`network` with what was measured in place of what it says; the same on all ranks.

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
    measured: dict[str, float] = {}
    for name, prefix in (("near", "local_"), ("far", "")):
        pair = _pair(addresses, near=name == "near")
        if pair is not None:
            latency, bandwidth = _measure(communicator, pair, clock)
            measured |= {f"{prefix}latency": latency, f"{prefix}bandwidth": bandwidth}
    network = dataclasses.replace(network, **measured)
    latency = network.local_latency
    return dataclasses.replace(
        network,
        reduce_bandwidth=_sums(communicator, addresses, network, clock),
        common_bandwidth=_sums_in_common(communicator, latency, clock),
    )


def cards(
    communicator: _Communicator,
    addresses: Sequence[str],
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Bytes a second of every node's network card, where there are three nodes or more; else {}.

    The same on all ranks, which all call it. Nodes exchange messages with the one before and the
    one behind, many pairs at once: the faster of both is what a card reaches. A card between two
    slower ones is not told from them.
    """
    nodes = list(dict.fromkeys(addresses))
    if (count := len(nodes)) < 3:
        return {}
    first = [addresses.index(node) for node in nodes]
    found = np.zeros(count)  # links of each node with the next one
    array = np.zeros(_LARGE // 8)
    for turn in range(3):  # three rounds, so that no node uses two links at once
        communicator.all_reduce(np.zeros(1))  # ranks begin together
        for i in range(count):
            here = 2 if i == count - 1 and count % 2 else i % 2
            pair = first[i], first[(i + 1) % count]
            if here == turn and communicator.rank in pair:
                seconds = _ping(communicator, pair, array, _REPEATS, clock)
                found[i] = _LARGE / seconds if communicator.rank == pair[0] else 0.0
    communicator.all_reduce(found)
    return {node: float(max(found[i], found[i - 1])) for i, node in enumerate(nodes)}


def _pair(addresses: Sequence[str], *, near: bool) -> tuple[int, int] | None:
    """The first two ranks on one node, or on two."""
    for first, address in enumerate(addresses):
        for second in range(first + 1, len(addresses)):
            if (address == addresses[second]) == near:
                return first, second
    return None


def _measure(
    communicator: _Communicator, pair: tuple[int, int], clock: Callable[[], float]
) -> tuple[float, float]:
    """Seconds a message and bytes a second between two ranks; all ranks learn both."""
    small = _ping(communicator, pair, np.zeros(1), _PINGS, clock)
    large = _ping(communicator, pair, np.zeros(_LARGE // 8), _REPEATS, clock)
    small, large = _agree(communicator, pair[0], small, large)
    return small, _LARGE / max(large - small, _FLOOR)


def _ping(
    communicator: _Communicator,
    pair: tuple[int, int],
    array: NDArray[Any],
    count: int,
    clock: Callable[[], float],
) -> float:
    """Half of the fastest round trip; 0 on ranks that do not take part."""
    first, second = pair
    best = math.inf
    for _ in range(count if communicator.rank in pair else 0):
        begin = clock()
        if communicator.rank == first:
            communicator.send(array, second)
            communicator.receive(array, second)
        else:
            communicator.receive(array, first)
            communicator.send(array, first)
        best = min(best, clock() - begin)
    return max(best / 2, _FLOOR) if communicator.rank in pair else 0.0


def _sums(
    communicator: _Communicator,
    addresses: Sequence[str],
    network: Network,
    clock: Callable[[], float],
) -> float:
    """Bytes a second that a rank adds: what an all-reduce takes beyond its messages."""
    seconds = _all_reduce(communicator, np.zeros(_LARGE // 8), clock)
    n = communicator.size
    far = len(set(addresses)) > 1
    links = [network.local_bandwidth] if len(set(addresses)) < n else []
    links += [network.bandwidth] if far else []
    latency = network.latency if far else network.local_latency
    messages = 2 * (n - 1) / n * _LARGE / min(links) + 2 * (n - 1) * latency
    rest = seconds - messages
    return _LARGE * (n - 1) / n / rest if rest > _FLOOR else math.inf


def _sums_in_common(
    communicator: _Communicator, latency: float, clock: Callable[[], float]
) -> float:
    """Bytes a second of an all-reduce in memory that all ranks see; 0 where there is none."""
    memory = communicator.common_memory(_LARGE)
    if memory is None:
        return 0.0
    seconds = _all_reduce(communicator, memory.view(np.float64), clock)
    meetings = 2 * math.ceil(math.log2(communicator.size))
    return _LARGE / max(seconds - meetings * latency, _FLOOR)


def _all_reduce(
    communicator: _Communicator, array: NDArray[Any], clock: Callable[[], float]
) -> float:
    """Seconds that the sum of `array` takes; the same on all ranks."""
    best = math.inf
    for _ in range(_REPEATS):
        communicator.all_reduce(np.zeros(1))  # ranks begin together
        begin = clock()
        communicator.all_reduce(array)
        best = min(best, clock() - begin)
    (seconds,) = _agree(communicator, 0, best)
    return seconds


def _agree(communicator: _Communicator, owner: int, *values: float) -> tuple[float, ...]:
    """The values of rank `owner` on all ranks."""
    array = np.array(values) if communicator.rank == owner else np.zeros(len(values))
    communicator.all_reduce(array)
    return tuple(array.tolist())
