"""Messages outside of the operations: letters, and what ranks ask each other about their waits.

They travel on communicators of their own and are found by polling: nothing here waits inside MPI.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from cavs.distributed.comm.hang_detection import PendingWait, Said, Wait, WaitRegister, WaitResult
from cavs.distributed.comm.interfaces import Array, LostPeerError
from cavs.distributed.comm.mailbox import Letter, Mailbox, decode
from cavs.distributed.comm.mpi.library import errors_of_ulfm
from cavs.distributed.comm.mpi.requests import CALLS

LARGEST = 1 << 30  # bytes a message: MPI counts in 32 bits
_MORE, _LAST = 1, 2  # tags of the pieces of a letter
_SHORTEST, _LONGEST = 20e-6, 1e-3  # seconds between two polls
_FLUSH = 5.0  # seconds that a closing rank waits until its letters have left


class MPIMailbox(Mailbox):
    """The mailbox of a rank that is an MPI process, over a communicator of its own.

    register: the thread that takes letters answers its questions, whatever the process does.
    """

    _pauses = _SHORTEST, _LONGEST

    def __init__(self, mpi: Any, comm: Any, names: Sequence[int], register: WaitRegister) -> None:
        super().__init__(comm.Get_rank(), names)
        self._mpi, self._comm, self._register = mpi, comm, register
        self._leaving: deque[tuple[Any, Array]] = deque()  # requests and the memory they read
        self._coming: dict[int, deque[tuple[Any, Array, bool]]] = defaultdict(deque)
        self._pieces: dict[int, list[Array]] = defaultdict(list)

    def _deliver(self, to: int, coded: Array) -> None:
        pieces = [coded[i : i + LARGEST] for i in range(0, coded.size, LARGEST)]
        try:
            with CALLS:
                for piece in pieces:
                    tag = _LAST if piece is pieces[-1] else _MORE
                    request = self._comm.Isend([piece, self._mpi.BYTE], to, tag)
                    self._leaving.append((request, piece))
        except self._mpi.Exception as error:
            raise LostPeerError(
                f"rank {self.names[self.rank]} writes to rank {self.names[to]}: {error}"
            ) from error

    def _arrived(self) -> Letter | None:
        self._register.listen()
        try:
            with CALLS:
                self._forget_sent()
                for request, piece, source, tag in begin_receives(self._mpi, self._comm):
                    self._coming[source].append((request, piece, tag == _LAST))
                for source, queue in self._coming.items():
                    while queue and queue[0][0].Test():
                        _, piece, last = queue.popleft()
                        self._pieces[source].append(piece)
                        if last:
                            return decode(source, self._whole(source))
        except self._mpi.Exception as error:
            raise LostPeerError(f"rank {self.names[self.rank]} reads its mail: {error}") from error
        return None

    def _forget_sent(self) -> None:
        while self._leaving and self._leaving[0][0].Test():
            self._leaving.popleft()

    def _whole(self, source: int) -> Array:
        pieces = self._pieces.pop(source)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def leave(self) -> None:
        """See `Mailbox`. The others learn of it where MPI has ULFM."""
        with contextlib.suppress(*errors_of_ulfm(self._mpi)), CALLS:
            self._comm.Revoke()
        super().close()

    def close(self) -> None:
        super().close()
        limit = time.monotonic() + _FLUSH
        with contextlib.suppress(self._mpi.Exception):  # to ranks that are gone nothing leaves
            while self._leaving and time.monotonic() < limit:
                with CALLS:
                    self._forget_sent()
                time.sleep(_SHORTEST)


_LISTEN = 0.1  # seconds between two looks at what others ask
_GRACE = 3.0  # seconds that others have to answer
_ASK, _ANSWER, _FOUND = 1, 2, 3
_PAUSE = 1e-3  # seconds between two looks for answers


class MPIWaitRegister(WaitRegister):
    """The waits of this process. names: numbers in the world of the ranks of `comm`, its own."""

    # State of the process:
    _waits: ClassVar[list[PendingWait]] = []
    _found: ClassVar[dict[int | str, WaitResult]] = {}  # by the serial of a wait, or by a group
    _registers: ClassVar[weakref.WeakSet[MPIWaitRegister]] = weakref.WeakSet()
    _listened: ClassVar[float] = 0.0  # when, on the monotonic clock

    def __init__(self, mpi: Any, comm: Any, names: tuple[int, ...]) -> None:
        super().__init__(names[comm.Get_rank()])
        self.waits = self._waits
        self._mpi, self._comm, self._names = mpi, comm, names
        self._leaving: list[tuple[Any, bytes]] = []  # requests and the memory they read
        self._coming: list[tuple[Any, Array, int, int]] = []
        self._questions = itertools.count()
        self._answers: dict[int, dict[int, list[Wait]]] = defaultdict(dict)
        self.missed = False  # True if MPI has reported here that a rank is gone
        with CALLS:
            self._registers.add(self)

    def listen(self) -> None:
        now = time.monotonic()
        if now - MPIWaitRegister._listened > _LISTEN:
            MPIWaitRegister._listened = now
            self._take_all()

    def _take_all(self) -> None:
        with CALLS:
            registers = tuple(self._registers)
        for register in registers:
            register._take()

    def ask(self) -> dict[int, list[Wait]]:
        """See `WaitRegister`. Ends after `_GRACE` seconds at the latest."""
        number = next(self._questions)
        for name in self._names:
            if name != self.number:
                self._send(name, _ASK, number)
        limit = time.monotonic() + _GRACE
        while len(self._answers[number]) < len(self._names) - 1 and time.monotonic() < limit:
            self._take_all()
            time.sleep(_PAUSE)
        return {self.number: self.own(), **self._answers.pop(number)}

    def tell(self, group: str, text: str, stuck: Said) -> None:
        for name, waits in stuck.items():
            self._send(name, _FOUND, [group, [wait.serial for wait in waits], text])

    def told(self, group: str, serial: int) -> WaitResult | None:
        return self._found.pop(serial, None) or self._found.get(group)

    def revoke(self) -> None:
        """Stop answering: no rank asks here any more."""
        with CALLS:
            self._registers.discard(self)
            self._comm.Revoke()

    # ---- messages ------------------------------------------------------------------------------

    def _send(self, name: int, tag: int, value: Any) -> None:
        data = json.dumps(value).encode()
        with contextlib.suppress(self._mpi.Exception), CALLS:  # a dead rank needs none
            self._leaving = [(r, text) for r, text in self._leaving if not r.Test()]
            request = self._comm.Isend([data, self._mpi.BYTE], self._names.index(name), tag)
            self._leaving.append((request, data))

    def _take(self) -> None:
        """Answer the questions and keep the answers that are here."""
        try:
            with CALLS:
                arrived = self._arrived()
        except self._mpi.Exception:
            self.missed = True
            # Else MPI would say so every time, and let no other message through.
            with contextlib.suppress(*errors_of_ulfm(self._mpi)), CALLS:
                self._comm.Ack_failed()
            return
        for source, tag, value in arrived:
            if tag == _ASK:
                self._send(source, _ANSWER, [value, self.own()])
            elif tag == _ANSWER:
                number, waits = value
                if number in self._answers:  # else it is too late
                    self._answers[number][source] = [Wait(*wait) for wait in waits]
            else:
                group, serials, text = value
                for key in (*serials, *([group] if group else [])):
                    self._found[key] = WaitResult(source, text)

    def _arrived(self) -> list[tuple[int, int, Any]]:
        self._coming.extend(begin_receives(self._mpi, self._comm))
        here, self._coming = self._coming, []
        found = []
        for request, data, source, tag in here:
            with contextlib.suppress(self._mpi.Exception):  # it has died before all of it came
                if request.Test():
                    found.append((self._names[source], tag, json.loads(data.tobytes())))
                else:
                    self._coming.append((request, data, source, tag))
        return found


def begin_receives(mpi: Any, comm: Any) -> Iterator[tuple[Any, Array, int, int]]:
    """Begin to receive all messages that are here; yield request, memory, source and tag."""
    status = mpi.Status()
    while message := comm.Improbe(mpi.ANY_SOURCE, mpi.ANY_TAG, status):
        data = np.empty(status.Get_count(mpi.BYTE), np.uint8)
        yield message.Irecv([data, mpi.BYTE]), data, status.Get_source(), status.Get_tag()
