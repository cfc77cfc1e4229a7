"""Lists of arrays whose sizes a receiver does not know: each begins with the lengths of its arrays.

See `Communicator.send_parts`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from cavs.distributed.comm.mailbox import Array
from cavs.distributed.comm.messages import Code, Message, as_row, check_rank
from cavs.distributed.comm.traffic import Traffic
from cavs.errors import CommunicationError

T = TypeVar("T")
Parts = Sequence[tuple[Sequence[Array], int]]  # arrays, and the rank that they go to
Arrival = tuple[float, float]  # when a rank looked for a message, and when it was there


class PartsExchange(ABC):
    """The part of `Collectives` that sends before others have come."""

    rank: int
    size: int
    names: Sequence[int]
    sent_bytes: int
    traffic: Traffic
    _broken: CommunicationError | None

    @abstractmethod
    def _run(self, code: Code, name: str, operation: Callable[..., T], *arguments: Any) -> T:
        """Run the operation now, or after those in the background."""

    @abstractmethod
    def _exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """Send and receive all, of `_code`; messages between two ranks keep their order."""

    def _begin(self, sends: Sequence[Message]) -> Callable[[], object]:
        """Begin to send all; return the function that waits until they have left."""
        self._exchange(sends, [])
        return lambda: None

    def _receive(self, receives: Sequence[Message]) -> list[float]:
        """Receive all; return when each was there, by `time.perf_counter`.

        The time of the call for those that were there before.
        """
        self._exchange([], receives)
        return [time.perf_counter()] * len(receives)

    def send_parts(
        self, sends: Parts, sources: Sequence[int], like: Sequence[Array]
    ) -> tuple[list[list[Array]], list[list[Arrival]]]:
        """See `Communicator`."""
        for array in (*like, *(array for arrays, _ in sends for array in arrays)):
            as_row(array)
        for rank in (*(to for _, to in sends), *sources):
            check_rank(rank, self.size, self.rank)
        name = f"parts from ranks {sorted({self.names[rank] for rank in sources})}"
        return self._run(Code.SEND, name, self._send_parts, sends, sources, like)

    def _send_parts(
        self, sends: Parts, sources: Sequence[int], like: Sequence[Array]
    ) -> tuple[list[list[Array]], list[list[Arrival]]]:
        if self._broken is not None:
            raise self._broken
        messages = _with_lengths(sends)
        self.sent_bytes += sum(array.nbytes for array, _ in messages)
        try:
            # They leave at once, whether or not other ranks have come here.
            wait_until_sent = self._begin(messages)
            came, arrivals = self._receive_parts(sources, like)
            wait_until_sent()
        except CommunicationError as error:
            self._broken = error
            raise
        for array, to in messages:
            self.traffic.count(self.names[to], sent=array.nbytes)
        for arrays, source in zip(came, sources, strict=True):
            nbytes = 8 * len(like) + sum(array.nbytes for array in arrays)
            self.traffic.count(self.names[source], received=nbytes)
        return came, arrivals

    def _receive_parts(
        self, sources: Sequence[int], like: Sequence[Array]
    ) -> tuple[list[list[Array]], list[list[Arrival]]]:
        lengths = [np.zeros(len(like), np.int64) for _ in sources]
        looked = time.perf_counter()
        heads = self._receive(list(zip(lengths, sources, strict=True)))
        arrivals = [[(looked, at)] for at in heads]
        came = [
            [np.empty((n, *a.shape[1:]), a.dtype) for n, a in zip(own, like, strict=True)]
            for own in lengths
        ]
        parts = [(i, a.reshape(-1)) for i, arrays in enumerate(came) for a in arrays if a.size]
        looked = time.perf_counter()
        ends = self._receive([(part, sources[i]) for i, part in parts])
        for (i, _), at in zip(parts, ends, strict=True):
            arrivals[i].append((looked, at))
        return came, arrivals


def _with_lengths(sends: Parts) -> list[Message]:
    messages: list[Message] = []
    for arrays, to in sends:
        messages.append((np.array([len(array) for array in arrays], np.int64), to))
        messages += [(array.reshape(-1), to) for array in arrays if array.size]
    return messages
