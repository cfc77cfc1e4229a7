"""Ranks as MPI processes, through mpi4py.

Arrays travel as bytes between pairs of ranks; the sums are made here (see `collectives`). One
thread at a time calls MPI, and none waits inside it while another has work there, so
MPI_THREAD_SERIALIZED is enough; with less, nothing overlaps.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from types import ModuleType, TracebackType
from typing import Any, TypeVar

import numpy as np

from cavs.distributed.communicator.collectives import Collectives, Message
from cavs.distributed.communicator.common_memory import map_common
from cavs.distributed.communicator.mpi_mailbox import MPIMailbox
from cavs.distributed.communicator.protocol import Array, LostPeerError
from cavs.distributed.communicator.started import started
from cavs.distributed.keeper import tell
from cavs.distributed.watch import FINALIZE, INIT, inside
from cavs.errors import CommunicationError, DeviceError

T = TypeVar("T")
MINIMUM = (4, 1)
STANDARD = (3, 0)  # of MPI: matched probes
# Bytes a message. Over TCP, Open MPI asks the receiver before it sends a larger one than its eager
# limit, and the answer waits behind what the receiver itself is sending: both directions of a slow
# link then take turns. Receives are posted first here, so nobody need ask.
PIECE = 4 << 20
_EAGER = "OMPI_MCA_btl_tcp_eager_limit"
_HEADER = 1 << 10
INSTALL = 'pip install "cavs[mpi]"'
_SPINS = 400  # polls before the first pause
# Seconds between two polls: a waiting rank leaves its core to those that compute. At most this part
# of the time waited so far, so that long waits, which are for a peer that computes, cost little.
_SHORTEST, _LONGEST, _PART = 20e-6, 500e-6, 1 / 16
_LISTEN = 0.1  # seconds between two looks at what peers ask
_GRACE = 3.0  # seconds that peers have to answer
_LAST_WORDS = 1.0  # seconds that ranks have to say why they end, when one of them ends all
_ASK, _ANSWER, _FOUND = 1, 2, 3
_CALLS = threading.Lock()  # held for each call of MPI by whichever thread makes it


def load_mpi(timeout: float = 300.0) -> ModuleType:
    """The module ``mpi4py.MPI``, initialised. DeviceError, with the cure, if it cannot be had.

    MPI waits for all ranks then. timeout: seconds that `cavs launch` lets it.
    """
    try:
        version = metadata.version("mpi4py")
    except metadata.PackageNotFoundError:
        raise DeviceError("mpi4py is not installed", hint=INSTALL) from None
    if tuple(int(x) for x in version.split(".")[:2]) < MINIMUM:
        needed = ".".join(map(str, MINIMUM))
        raise DeviceError(f"mpi4py {version} is too old, cavs needs {needed}", hint=INSTALL)
    begins = "mpi4py.MPI" not in sys.modules
    if begins:
        import mpi4py

        mpi4py.rc.thread_level = "serialized"
        os.environ.setdefault(_EAGER, str(PIECE + _HEADER))
    try:
        with inside(INIT, timeout):
            from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise DeviceError(f"mpi4py finds no MPI library: {error}", hint=INSTALL) from error
    if MPI.Get_version() < STANDARD:
        library = MPI.Get_library_version().split(",")[0]
        has, needs = (".".join(map(str, v)) for v in (MPI.Get_version(), STANDARD))
        raise DeviceError(f"{library} implements MPI {has}, cavs needs {needs}", hint=INSTALL)
    if begins:
        atexit.register(tell, "in", FINALIZE, timeout)
    told, size = started(), MPI.COMM_WORLD.Get_size()
    if told is not None and told.ranks not in (None, size):
        raise DeviceError(
            f"{told.by} started {told.ranks} ranks, but the MPI library of mpi4py "
            f"({MPI.Get_library_version().split(',')[0]}) sees {size}",
            hint=told.hint,
        )
    module: ModuleType = MPI
    return module


class MPICommunicator(Collectives):
    """The ranks of an MPI communicator; all of MPI_COMM_WORLD unless `comm` is given.

    timeout: seconds that an operation waits for a peer before it raises, naming it.
    """

    def __init__(self, comm: Any = None, *, timeout: float = 300.0) -> None:
        self._mpi: Any = load_mpi(timeout)
        # Its own messages cannot meet those of the program that uses cavs.
        with inside("MPI_Comm_dup", timeout):
            self._comm: Any = (comm if comm is not None else self._mpi.COMM_WORLD).Dup()
            self._control: Any = self._comm.Dup()
        overlaps = self._mpi.Query_thread() >= self._mpi.THREAD_SERIALIZED
        super().__init__(
            self._comm.Get_rank(), self._comm.Get_size(), timeout=timeout, overlaps=overlaps
        )
        self._answers: dict[int, tuple[int, str]] = {}
        self._found: tuple[int, str] | None = None  # who found out which rank hangs, and that
        self._orphans: list[Message] = []
        names = ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_REVOKED")
        self._lost = {getattr(self._mpi, n) for n in names if hasattr(self._mpi, n)}
        if comm is None and self._size > 1:
            _end_all_on_uncaught_error(self)

    def _exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        comm, byte = self._comm, self._mpi.BYTE
        try:
            with _CALLS:
                requests = [
                    comm.Irecv([piece, byte], source)
                    for array, source in receives
                    for piece in _pieces(array)
                ]
                requests += [
                    comm.Isend([piece, byte], to) for array, to in sends for piece in _pieces(array)
                ]
            self._complete(requests, sorted({r for _, r in (*sends, *receives)}))
        except self._mpi.Exception as error:
            lost = error.Get_error_class() in self._lost or self._lost_anyone()
            # Requests that will not end keep their memory.
            self._orphans += [*sends, *receives]
            kind = LostPeerError if lost else CommunicationError
            raise kind(
                f"rank {self._rank} in {self.operation} with ranks "
                f"{sorted({r for _, r in (*sends, *receives)})}: {error}"
            ) from error

    def _lost_anyone(self) -> bool:
        """Whether a rank has died or another has found that out; only ULFM tells."""
        try:
            return bool(self._comm.Is_revoked() or self._comm.Get_failed().Get_size() > 0)
        except (AttributeError, NotImplementedError, self._mpi.Exception):
            return False

    def _complete(self, requests: list[Any], peers: list[int]) -> None:
        testall = self._mpi.Request.Testall

        def test(requests: list[Any]) -> bool:
            with _CALLS:
                return bool(testall(requests))

        for _ in range(_SPINS):
            if test(requests):
                return
        started = listened = now = time.monotonic()
        while not test(requests):
            time.sleep(min(max(_SHORTEST, (now - started) * _PART), _LONGEST))
            now = time.monotonic()
            if now - listened > _LISTEN:
                listened = now
                with _CALLS:
                    self._listen()
                if self._found is not None:
                    raise self._told(*self._found)
                if now - started > self.timeout:
                    raise self._hung(peers)

    # ---- who hangs -----------------------------------------------------------------------------

    def _listen(self) -> None:
        """Answer peers that ask how far this rank is, and keep what they answer."""
        status = self._mpi.Status()
        while self._control.Iprobe(self._mpi.ANY_SOURCE, self._mpi.ANY_TAG, status):
            source, tag = status.Get_source(), status.Get_tag()
            text = bytearray(status.Get_count(self._mpi.BYTE))
            self._control.Recv([text, self._mpi.BYTE], source, tag)
            if tag == _ASK:
                answer = json.dumps([self.operations, self.operation]).encode()
                self._control.Isend([answer, self._mpi.BYTE], source, _ANSWER).Free()
            elif tag == _FOUND:
                self._found = source, text.decode()
            else:
                count, operation = json.loads(text)
                self._answers[source] = (int(count), str(operation))

    def _hung(self, peers: list[int]) -> CommunicationError:
        """Ask every rank where it is; those that are behind, or silent, are to blame."""
        self._answers.clear()
        others = [r for r in range(self._size) if r != self._rank]
        with _CALLS:
            for r in others:
                self._control.Isend([b"", self._mpi.BYTE], r, _ASK).Free()
        limit = time.monotonic() + _GRACE
        while len(self._answers) < len(others) and time.monotonic() < limit:
            with _CALLS:
                self._listen()
            time.sleep(1e-3)
        behind = [f"rank {r} does not answer" for r in others if r not in self._answers]
        behind += [
            f"rank {r} is still in {operation}"
            for r, (count, operation) in sorted(self._answers.items())
            if count < self.operations
        ]
        found = "; ".join(behind) or f"no answer from ranks {peers}"
        with _CALLS:  # the others need not wait as long
            for r in self._answers:
                self._control.Isend([found.encode(), self._mpi.BYTE], r, _FOUND).Free()
        return CommunicationError(
            f"rank {self._rank} waited {self.timeout:g} s in {self.operation}: {found}",
            hint="look at what that rank does, or pass a longer timeout",
        )

    def _told(self, source: int, found: str) -> CommunicationError:
        return CommunicationError(
            f"rank {self._rank} in {self.operation}: {found}, as rank {source} found out",
            hint="look at what that rank does, or pass a longer timeout",
        )

    # ---- groups --------------------------------------------------------------------------------

    def split(self, color: int, key: int = 0) -> MPICommunicator:
        """See `Communicator`."""
        part = self._run("split", self._all_come, "MPI_Comm_split", self._comm.Split, color, key)
        return MPICommunicator(part, timeout=self.timeout)

    def _map_common(self, nbytes: int) -> list[Array] | None:
        return map_common(self._rank, nbytes, self.share)

    def mailbox(self) -> MPIMailbox:
        """See `Communicator`."""
        if not self._overlaps:
            raise DeviceError(
                "servers that apply gradients as they come need a thread that calls MPI, which "
                "this MPI does not allow (its thread level is below MPI_THREAD_SERIALIZED)",
                hint="use staleness=0 and sync=True, or another MPI",
            )
        comm = self._run("mailbox", self._all_come, "MPI_Comm_dup", self._comm.Dup)
        return MPIMailbox(self._mpi, comm, _CALLS)

    def _all_come(self, name: str, call: Callable[..., T], *arguments: Any) -> T:
        """`call`, in which MPI waits for all ranks and names none, once all are there."""
        self._tree_all_reduce(np.zeros(1, np.uint8))
        with inside(name, self.timeout):
            return call(*arguments)

    def leave(self) -> None:
        """See `Communicator`: by ULFM, which Open MPI's ``mpirun --with-ft ulfm`` switches on."""
        self._surviving(self._comm.Revoke)
        self._surviving(self._control.Revoke)

    def shrink(self) -> MPICommunicator:
        """See `Communicator`."""
        self.leave()
        with inside("MPIX_Comm_shrink", self.timeout):
            left = self._surviving(self._comm.Shrink)
        self.close()
        return MPICommunicator(left, timeout=self.timeout)

    def _surviving(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (AttributeError, NotImplementedError, self._mpi.Exception) as error:
            raise DeviceError(
                f"this MPI cannot go on without a rank: {error}",
                hint="start with: cavs launch --elastic, or mpirun --with-ft ulfm",
            ) from error

    def abort(self, message: str) -> None:
        """See `Communicator`."""
        tell("failed")
        print(f"cavs: rank {self._rank}: {message}", file=sys.stderr, flush=True)
        if self._broken is not None:  # the others find that out now, too
            time.sleep(_LAST_WORDS)
        self._mpi.COMM_WORLD.Abort(1)


def _end_all_on_uncaught_error(communicator: MPICommunicator) -> None:
    """A rank that dies of an exception would leave the others waiting for it at exit."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        if not getattr(error, "agreed", False):
            communicator.abort(f"{kind.__name__}: {error}")

    sys.excepthook = hook


def _pieces(array: Array) -> Iterator[Array]:
    data = array.reshape(-1).view(np.uint8)
    for begin in range(0, data.size, PIECE):
        yield data[begin : begin + PIECE]
