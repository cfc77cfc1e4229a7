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
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np

from cavs.distributed.comm.hang_detection import PendingWait, Said, Wait, WaitRegister
from cavs.distributed.comm.interfaces import Array, LostPeerError
from cavs.distributed.comm.mailbox import Letter, Mailbox, decode
from cavs.distributed.comm.mpi.library import errors_of_ulfm
from cavs.distributed.comm.mpi.requests import CALLS

T = TypeVar("T", bound=tuple[Any, ...])
# Bytes of a message, and of those under way to a rank: on a slow link, operations of the ranks wait
# behind all that is on its way.
PIECE, WINDOW = 1 << 17, 1 << 18
_SHORTEST, _LONGEST = 20e-6, 1e-3  # seconds between two polls
_BUSY = 200e-6  # the longest while a letter is under way
_FLUSH = 5.0  # seconds that a closing rank waits until its letters have left
_MORE, _LAST = 1, 2  # tags of the pieces of a letter
_ASK, _ANSWER, _FOUND = 1, 2, 3  # tags of questions about waits, and of what ranks reply
_LISTEN = 0.1  # seconds between two looks at what others ask
_GRACE = 3.0  # seconds that others have to answer
_PAUSE = 1e-3  # seconds between two looks for answers


class _Messages:
    """Bytes sent between any ranks of `comm`, which nothing else uses; raises errors of MPI.

    sending: those of this process in which messages wait for others to leave.
    """

    sending: ClassVar[weakref.WeakSet[_Messages]] = weakref.WeakSet()

    def __init__(self, mpi: Any, comm: Any) -> None:
        self.mpi, self.comm = mpi, comm
        self._waiting: dict[int, deque[tuple[int, Any]]] = {}  # tags and pieces, by rank
        # Requests and the memory they read, by rank.
        self._leaving: dict[int, deque[tuple[Any, Any]]] = defaultdict(deque)
        self._coming: dict[int, deque[tuple[Any, int, Array]]] = defaultdict(deque)

    def send(self, to: int, tag: int, *pieces: Any) -> None:
        """Begin to send `pieces` of memory, one message each, in the order of the calls."""
        with CALLS:
            self._waiting.setdefault(to, deque()).extend((tag, piece) for piece in pieces)
            self._advance(to)
            if self._waiting:
                self.sending.add(self)

    def _advance(self, to: int) -> None:
        """Send what waits for rank `to`, as far as the window allows."""
        waiting, leaving = self._waiting.get(to, deque()), self._leaving[to]
        try:
            while leaving and _pop_if_ended(leaving):
                pass
            while waiting and sum(len(piece) for _, piece in leaving) < WINDOW:
                tag, piece = waiting.popleft()
                leaving.append((self.comm.Isend([piece, self.mpi.BYTE], to, tag), piece))
        finally:
            if not waiting:
                self._waiting.pop(to, None)

    def is_empty(self) -> bool:
        """True if all messages have left; sends those that wait."""
        with CALLS:
            for to in tuple(self._leaving):
                self._advance(to)
            return not (self._waiting or any(self._leaving.values()))

    @property
    def is_sending(self) -> bool:
        """True if messages wait for others to leave."""
        return bool(self._waiting)

    def next(self) -> tuple[int, int, Array] | None:
        """Return source, tag and bytes of a message that has come, in the order of its source."""
        mpi, status = self.mpi, self.mpi.Status()
        with CALLS:
            self.is_empty()
            while message := self.comm.Improbe(mpi.ANY_SOURCE, mpi.ANY_TAG, status):
                data = np.empty(status.Get_count(mpi.BYTE), np.uint8)
                coming = message.Irecv([data, mpi.BYTE]), status.Get_tag(), data
                self._coming[status.Get_source()].append(coming)
            for source, queue in self._coming.items():
                if queue and (ended := _pop_if_ended(queue)):
                    _, tag, data = ended
                    return source, tag, data
        return None


def _pop_if_ended(queue: deque[T]) -> T | None:
    """Remove and return the first of `queue` if its request has ended; remove one that fails."""
    first = queue.popleft()
    if first[0].Test():
        return first
    queue.appendleft(first)
    return None


class MPIMailbox(Mailbox):
    """The mailbox of a rank that is an MPI process, over a communicator of its own.

    register: the thread that takes letters answers its questions, whatever the process does.
    """

    @property
    def _pauses(self) -> tuple[float, float]:  # type: ignore[override]
        return _SHORTEST, _BUSY if self._messages.is_sending or self._pieces else _LONGEST

    def __init__(self, mpi: Any, comm: Any, names: Sequence[int], register: WaitRegister) -> None:
        super().__init__(comm.Get_rank(), names)
        self._mpi, self._messages, self._register = mpi, _Messages(mpi, comm), register
        self._pieces: dict[int, list[Array]] = defaultdict(list)

    def _deliver(self, to: int, coded: Array) -> None:
        *pieces, last = (coded[i : i + PIECE] for i in range(0, coded.size, PIECE))
        try:
            with CALLS:  # letters of two threads do not mix
                self._messages.send(to, _MORE, *pieces)
                self._messages.send(to, _LAST, last)
        except self._mpi.Exception as error:
            raise LostPeerError(
                f"rank {self.names[self.rank]} writes to rank {self.names[to]}: {error}"
            ) from error

    def _arrived(self) -> Letter | None:
        self._register.listen()
        try:
            while found := self._messages.next():
                source, tag, piece = found
                pieces = self._pieces[source]
                pieces.append(piece)
                if tag == _LAST:
                    del self._pieces[source]
                    whole = piece if len(pieces) == 1 else np.concatenate(pieces)
                    self.traffic.count(self.names[source], received=whole.nbytes)
                    return decode(source, whole)
        except self._mpi.Exception as error:
            if self.outlives and self._acknowledge():
                return None
            raise LostPeerError(f"rank {self.names[self.rank]} reads its mail: {error}") from error
        return None

    def _acknowledge(self) -> bool:
        """Let messages of any rank be found again after a death; False without ULFM."""
        try:
            with CALLS:
                self._messages.comm.Ack_failed()
        except errors_of_ulfm(self._mpi):
            return False
        return True

    def lost(self) -> set[int]:
        comm = self._messages.comm
        try:
            with CALLS:
                dead = comm.Get_failed()
                ranks = dead.Translate_ranks(None, comm.Get_group())
        except errors_of_ulfm(self._mpi):
            return set()
        return set(ranks)

    def leave(self) -> None:
        """See `Mailbox`. The others learn of it where MPI has ULFM."""
        with contextlib.suppress(*errors_of_ulfm(self._mpi)), CALLS:
            self._messages.comm.Revoke()
        super().close()

    def close(self) -> None:
        super().close()
        limit = time.monotonic() + _FLUSH
        with contextlib.suppress(self._mpi.Exception):  # to ranks that are gone nothing leaves
            while not self._messages.is_empty() and time.monotonic() < limit:
                time.sleep(_SHORTEST)


class MPIWaitRegister(WaitRegister):
    """The waits of this process, which other ranks of a world ask for on `comm`.

    A world and its parts share it. Whoever waits, in whatever group, answers the questions in all
    worlds of its process. names: numbers in the world of the ranks of `comm`.
    """

    # State of the process:
    _waits: ClassVar[list[PendingWait]] = []
    _found: ClassVar[dict[int | str, str]] = {}  # see `told`; by the serial of a wait, or by group
    _registers: ClassVar[weakref.WeakSet[MPIWaitRegister]] = weakref.WeakSet()
    _listened: ClassVar[float] = 0.0  # when, on the monotonic clock

    def __init__(self, mpi: Any, comm: Any, names: tuple[int, ...]) -> None:
        super().__init__(names[comm.Get_rank()])
        self.waits = self._waits
        self._mpi, self._messages, self._names = mpi, _Messages(mpi, comm), names
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
            for messages in tuple(_Messages.sending):  # their threads may be elsewhere
                with contextlib.suppress(messages.mpi.Exception):  # it finds out itself
                    messages.is_empty()
                if not messages.is_sending:
                    _Messages.sending.discard(messages)
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

    def told(self, group: str, serial: int) -> str:
        return self._found.pop(serial, "") or self._found.get(group, "")

    def revoke(self) -> None:
        """Stop answering: no rank asks here any more."""
        with CALLS:
            self._registers.discard(self)
            self._messages.comm.Revoke()

    def _send(self, name: int, tag: int, value: Any) -> None:
        with contextlib.suppress(self._mpi.Exception):  # a dead rank needs none
            self._messages.send(self._names.index(name), tag, json.dumps(value).encode())

    def _take(self) -> None:
        """Answer the questions and keep the answers that are here."""
        try:
            while found := self._messages.next():
                source, tag, data = found
                self._read(self._names[source], tag, json.loads(data.tobytes()))
        except self._mpi.Exception:
            self.missed = True
            # Else MPI would say so every time, and let no other message through.
            with contextlib.suppress(*errors_of_ulfm(self._mpi)), CALLS:
                self._messages.comm.Ack_failed()

    def _read(self, source: int, tag: int, value: Any) -> None:
        if tag == _ASK:
            self._send(source, _ANSWER, [value, self.own()])
        elif tag == _ANSWER:
            number, waits = value
            if number in self._answers:  # else it is too late
                self._answers[number][source] = [Wait(*wait) for wait in waits]
        else:
            group, serials, text = value
            for key in (*serials, *([group] if group else [])):
                self._found[key] = f"{text}, as rank {source} found out"
