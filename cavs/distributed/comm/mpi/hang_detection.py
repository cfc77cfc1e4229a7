"""How ranks that are MPI processes ask each other what they wait for.

Questions and answers travel on a communicator of their own, which a world and all its parts share.
Whoever waits, in whatever group, looks at those of all worlds of its process. Nothing here waits
inside MPI.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import time
import weakref
from collections import defaultdict
from typing import Any, ClassVar

from cavs.distributed.comm.hang_detection import PendingWait, Said, Wait, WaitRegister, WaitResult
from cavs.distributed.comm.interfaces import Array
from cavs.distributed.comm.mpi.library import errors_of_ulfm
from cavs.distributed.comm.mpi.requests import CALLS, begin_receives

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
