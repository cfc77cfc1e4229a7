"""Counters of the bytes that a rank exchanges with each other rank."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class Traffic:
    """Bytes of arrays sent to and received from other ranks, by their numbers in the world.

    A communicator, its parts and its mailboxes count together. Any thread may count.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: Counter[int] = Counter()
        self._received: Counter[int] = Counter()

    def count(self, name: int, sent: int = 0, received: int = 0) -> None:
        """Add bytes exchanged with rank `name` of the world."""
        with self._lock:
            self._sent[name] += sent
            self._received[name] += received

    def totals(self, names: Sequence[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the bytes sent to and received from each of `names` so far, two float64[K]."""
        with self._lock:
            found = [[counter[n] for n in names] for counter in (self._sent, self._received)]
        sent, received = np.array(found, np.float64).reshape(2, len(names))
        return sent, received
