"""Rates and latencies between ranks, for policies that adapt to the network.

KungFu calls them `comm_rates` and peer latencies (Mai et al., OSDI 2020, section 3.3).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cavs.distributed.comm.mailbox import Array
from cavs.distributed.comm.service import Ranks
from cavs.distributed.comm.store import Store
from cavs.errors import ConfigError

Row = NDArray[np.float64]


class GatheringRanks(Ranks, Protocol):
    """The part of a communicator that rates need."""

    def store(self) -> Store:
        """See `Communicator`."""

    def all_gather(self, array: Array) -> Sequence[Array]:
        """See `Operations`."""


class Rates:
    """Bytes a second to and from each rank, and latencies. All ranks create it together.

    period: seconds between two samples of the counters, which a thread takes; 0 for none, where the
    program calls `sample`. Rows have one number a rank, float64[K]; this rank's own is 0. Arrays
    that NCCL sends are not counted.
    """

    def __init__(self, ranks: GatheringRanks, period: float = 1.0) -> None:
        if not 0 <= period < float("inf"):
            raise ConfigError(f"period is {period} s", hint="give seconds, or 0 for no thread")
        self.rank, self.size = ranks.rank, ranks.size
        self._ranks, self._store = ranks, ranks.store()
        self._lock = threading.Lock()
        self._at, self._before = time.monotonic(), ranks.traffic.totals(ranks.names)
        self._rates: Row = np.zeros((2, self.size))
        self._ended = threading.Event()
        if period:
            args = (period,)
            threading.Thread(target=self._loop, args=args, name="cavs-rates", daemon=True).start()

    def _loop(self, period: float) -> None:
        while not self._ended.wait(period):
            self.sample()

    def sample(self) -> None:
        """Compute the rates since the last sample."""
        with self._lock:
            now, totals = time.monotonic(), self._ranks.traffic.totals(self._ranks.names)
            seconds = max(now - self._at, 1e-9)
            self._rates = (np.array(totals) - np.array(self._before)) / seconds
            self._at, self._before = now, totals

    def egress_rates(self) -> Row:
        """Return the bytes a second sent to each rank in the last period."""
        return self._row(0)

    def ingress_rates(self) -> Row:
        """Return the bytes a second received from each rank in the last period."""
        return self._row(1)

    def comm_rates(self) -> Row:
        """Return the bytes a second exchanged with each rank in the last period."""
        return self.egress_rates() + self.ingress_rates()

    def _row(self, direction: int) -> Row:
        with self._lock:
            row: Row = self._rates[direction].copy()
        return row

    def latencies(self, pings: int = 3, nbytes: int = 0) -> Row:
        """Return the shortest seconds to each rank and back, of so many messages to each.

        nbytes: size of a message; large ones show how fast a link is. The other ranks answer while
        they compute. Ranks that call it together begin with different ones.
        """
        row = np.zeros(self.size)
        for step in range(1, self.size):
            rank = (self.rank + step) % self.size
            row[rank] = min(self._store.ping(rank, nbytes) for _ in range(max(pings, 1)))
        return row

    def request_seconds(self) -> Row:
        """Return the mean seconds from request to reply of the store, by rank; 0 without any."""
        return self._store.request_seconds()

    def request_counts(self) -> NDArray[np.int64]:
        """Return the number of requests of the store that each rank has answered."""
        return self._store.request_counts()

    def latency_matrix(self, pings: int = 3, nbytes: int = 0) -> Row:
        """Return the latencies of all ranks, float64[K, K], row by rank; all ranks call it."""
        return self.matrix(self.latencies(pings, nbytes))

    def rate_matrix(self) -> Row:
        """Return `comm_rates` of all ranks, float64[K, K], row by rank; all ranks call it."""
        return self.matrix(self.comm_rates())

    def matrix(self, row: Row) -> Row:
        """Return the rows of all ranks, the same matrix on all; all ranks call it."""
        return np.concatenate(self._ranks.all_gather(row.reshape(1, self.size)))

    def close(self) -> None:
        """End the thread; the last rates stay."""
        self._ended.set()
