"""Letters as MPI messages, sent and found by polling: nothing here waits inside MPI."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from cavs.distributed.comm.hang_detection import WaitRegister
from cavs.distributed.comm.interfaces import Array, LostPeerError
from cavs.distributed.comm.mailbox import Letter, Mailbox, decode
from cavs.distributed.comm.mpi.library import errors_of_ulfm
from cavs.distributed.comm.mpi.requests import CALLS, begin_receives

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
