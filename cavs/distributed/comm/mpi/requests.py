"""Pending messages of MPI, and the detection of those that no operation here receives.

The tag of a message says what it is: a number, its dtype and its size. One that is not what a rank
expects stays where it is, where the rank finds it once it has waited for a while. Open MPI writes
past the end of an array that is too short for what it receives.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from cavs.distributed.comm.interfaces import Array
from cavs.distributed.comm.messages import LABELS, Code, Message, Mismatch, label_of

# Bytes a message. Over TCP, Open MPI asks the receiver before it sends a larger one than its eager
# limit, and the answer waits behind what the receiver itself is sending: both directions of a slow
# link then take turns. Receives are posted first here, so that no rank needs to ask.
PIECE = 4 << 20
CALLS = threading.RLock()  # held for each call of MPI by whichever thread makes it
_NUMBERS = 3  # at least, before the numbers repeat
_MORE = PIECE + 1  # stands for the size of a piece that another one follows


class Channel:
    """Messages over `comm`, which nothing else uses.

    Messages from one rank to another are numbered, so that one that is never received does not let
    another take its place.
    """

    def __init__(self, mpi: Any, comm: Any) -> None:
        self.mpi, self.comm, self._labels = mpi, comm, len(LABELS)
        # Where an MPI has few tags, sizes differ by a rest; those of Open MPI suffice for all.
        tags: int = mpi.COMM_WORLD.Get_attr(mpi.TAG_UB) + 1
        self._sizes = min(_MORE + 1, tags // (_NUMBERS * self._labels))
        self._numbers = tags // (self._labels * self._sizes)
        ranks: int = comm.Get_size()
        self.sent, self.received = [0] * ranks, [0] * ranks  # the last number, by the other rank

    def pieces(
        self, code: Code, array: Array, counts: list[int], peer: int
    ) -> Iterator[tuple[Array, int]]:
        """Yield the bytes of an array as messages with their tags, at least one message."""
        data, label = array.reshape(-1).view(np.uint8), label_of(code, array)
        for begin in range(0, max(data.size, 1), PIECE):
            piece, left = data[begin : begin + PIECE], data.size - begin
            number = counts[peer] = (counts[peer] + 1) % self._numbers
            size = _MORE if left > PIECE else left
            yield piece, (number * self._labels + label) * self._sizes + size % self._sizes

    def read(self, tag: int) -> tuple[int, int, bool]:
        """Return number and label of a message, and True if another piece follows."""
        rest, size = divmod(tag, self._sizes)
        return *divmod(rest, self._labels), size == _MORE % self._sizes


class Requests:
    """Messages sent and received at once.

    timed: True to note when each message ended, up to the interval of `test`.
    """

    def __init__(
        self,
        channel: Channel,
        code: Code,
        sends: Sequence[Message],
        receives: Sequence[Message],
        *,
        timed: bool = False,
    ) -> None:
        self._channel, self._mpi = channel, channel.mpi
        self._testall = channel.mpi.Request.Testall
        self._requests: list[Any] = []  # receives first, as in `messages`
        self.messages: tuple[Message, ...] = (*receives, *sends)
        self._ends: dict[int, float] | None = {} if timed else None  # by request
        self._begun, self._looked = time.perf_counter(), False
        self._tags: list[int] = []  # one for each receive
        self._found: Mismatch | None = None
        self._code, self._receives, self._sends = code, receives, sends

    def post(self) -> None:
        """Hand all messages to MPI; raises the errors of MPI."""
        channel, code, requests = self._channel, self._code, self._requests
        comm, byte = channel.comm, channel.mpi.BYTE
        with CALLS:
            for array, source in self._receives:
                for piece, tag in channel.pieces(code, array, channel.received, source):
                    requests.append(comm.Irecv([piece, byte], source, tag))
                    self._tags.append(tag)
            for array, to in self._sends:
                for piece, tag in channel.pieces(code, array, channel.sent, to):
                    requests.append(comm.Isend([piece, byte], to, tag))

    def test(self) -> bool:
        """Return True if all have ended; raises the errors of MPI."""
        if self._ends is None:
            with CALLS:
                return bool(self._testall(self._requests))
        with CALLS:
            ended = self._mpi.Request.Testsome(self._requests)
        now = time.perf_counter() if self._looked else self._begun
        self._looked = True
        self._ends.update(dict.fromkeys(ended or (), now))
        return len(self._ends) == len(self._requests)

    def times(self) -> list[float]:
        """Return when each receive ended, if it was timed: `_begun` if at the first look."""
        ends, found = self._ends or {}, list[float]()
        for i, (begin, _) in enumerate(self._posted()[: len(self._tags)] if ends else ()):
            if begin == 0:
                found.append(0.0)
            found[-1] = max(found[-1], ends[i])
        return found

    def mismatch(self) -> Mismatch | None:
        """Return another message than the expected one, if one has come and was seen twice.

        Until then the expected message may still be on its way.
        """
        channel, posted, status = self._channel, self._posted(), self._mpi.Status()
        found: Mismatch | None = None
        with CALLS:
            first: dict[int, int] = {}  # by source, whose next message MPI matches with it
            for i in self._open():
                if i < len(self._tags):
                    first.setdefault(posted[i][1][1], i)
            for source, i in first.items():
                if not self._ask(channel.comm.Iprobe, source, self._mpi.ANY_TAG, status):
                    continue
                own, (begin, (array, _)) = self._tags[i], posted[i]
                (number, label, more), (due, wanted, _) = map(channel.read, (status.tag, own))
                if status.tag != own and number == due:
                    nbytes = begin + status.count
                    found = Mismatch(source, nbytes, label, array.nbytes, wanted, more)
        before, self._found = self._found, found
        return found if found == before else None

    def _posted(self) -> list[tuple[int, Message]]:
        """Return where in its array, in bytes, each request begins, and its message."""
        return [
            (begin, message)
            for message in self.messages
            for begin in range(0, max(message[0].nbytes, 1), PIECE)
        ]

    def pending(self) -> list[int]:
        """Return the ranks whose messages have not ended."""
        posted = self._posted()
        with CALLS:
            return list({posted[i][1][1] for i in self._open()})

    def _open(self) -> list[int]:
        """Return the numbers of the requests that have not ended; a query without effect."""
        return [i for i, request in enumerate(self._requests) if not self._ask(request.Get_status)]

    def _ask(self, query: Callable[..., Any], *arguments: Any) -> bool:
        """Return the answer of MPI; False if a peer is gone."""
        try:
            return bool(query(*arguments))
        except self._mpi.Exception:
            return False
