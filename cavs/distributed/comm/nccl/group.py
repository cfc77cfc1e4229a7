"""GPUs of one rank each as a group of CuPy's NCCL: how it is made, its operations, and its end.

A thread hands operations to NCCL, which may wait in there for ranks that it has not spoken to yet;
they go on by themselves on a stream. Whoever waits for one looks at an event behind it, and gives
the group up if that does not come: `abort` ends operations that other ranks never join.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from cavs.cuda.driver import newest_cuda
from cavs.cuda.libraries import find_driver, fitting_major, install_line
from cavs.cuda.memory import current_gpu
from cavs.distributed.comm.interfaces import Communicator, Handle
from cavs.distributed.comm.nccl.device_array import SIZES, DeviceArray
from cavs.distributed.comm.progress import Job, Progress
from cavs.errors import CommunicationError, ConfigError, DeviceError, ProcessLocal

T = TypeVar("T")
Calls = Callable[[Any, int], None]  # takes CuPy's communicator and a stream
Peers = Sequence[int] | None  # the ranks that an operation is with; None: all
# NcclError and CUDARuntimeError are the first; CuPy looks names up in a table without NCCL's newest
# errors, in progress (7) and timeout (8).
ERRORS = (RuntimeError, KeyError)
_JOIN_GLANCE = 0.05  # seconds between two looks at how far the ranks are in making a group
_SHORTEST, _LONGEST = 20e-6, 1e-3  # seconds between two looks at an event
_GLANCE = 1.0  # seconds between two looks at errors that NCCL has found
_MORE = "NCCL_DEBUG=INFO tells more; collectives='mpi' does without"


def _text(error: Exception) -> str:
    return f"error {error}, see ncclResult_t" if isinstance(error, KeyError) else str(error)


def load_nccl() -> tuple[ModuleType, ModuleType]:
    """Return CuPy and its NCCL module; DeviceError, with the cure, if one is missing."""
    try:
        import cupy
        from cupy.cuda import nccl
    except Exception as error:  # an import may fail in any way; CuPy's are of several classes
        line = install_line(newest_cuda(find_driver()))
        raise DeviceError(f"NCCL needs CuPy: {error}", hint=line) from error
    if not nccl.available:
        major = fitting_major(newest_cuda(find_driver()))
        raise DeviceError(
            "CuPy finds no NCCL library",
            hint=f"pip install nvidia-nccl-cu{major or ''}, or collectives='mpi'",
        )
    return cupy, nccl


class StreamRequest(NamedTuple):
    """An operation that the thread hands over."""

    name: str
    handing: Job[Any]  # results in an event behind it
    peers: Sequence[int]  # that have to do their part in it, or in those before it


class NCCLGroup(ProcessLocal):
    """The ranks of `control`, each with GPU number `ordinal` of its process.

    control: a communicator on the host, which carries NCCL's unique id, and what ranks tell of
    waits. All ranks make one together, and all of them fail if one has not joined within the
    timeout of `control`. Methods raise `DeviceError`; after one, `abort` is all that is left to do.
    """

    def __init__(self, control: Communicator, ordinal: int) -> None:
        self._cupy, self._nccl = load_nccl()
        self.cuda: Any = self._cupy.cuda
        self.rank, self.size, self.ordinal = control.rank, control.size, ordinal
        self.names, self.timeout = control.names, control.timeout
        self.sent_bytes = 0  # by the formulas of rings
        self._control, self._name = control, self.names[self.rank]
        self._comm: Any = None
        self._stream: Any = None  # created for the first operation: sums of gradients need none
        self._launches = Progress()
        self._last: StreamRequest | None = None
        self._turn, self._waits = threading.RLock(), True
        self._kept: list[DeviceArray] = []  # arrays that NCCL may still access
        self._peers: set[int] = set()  # all that pending operations are with
        self._broken: CommunicationError | DeviceError | None = None
        self._make()

    # ---- the group -----------------------------------------------------------------------------

    def _make(self) -> None:
        """Join the other ranks, or raise on all."""
        own, failed = None, ""
        try:
            own = self._nccl.get_unique_id() if self.rank == 0 else None
        except ERRORS as error:
            failed = _text(error)
        code = type(own).__name__  # bytes, or of older CuPys a tuple
        numbers, code, failed = self._control.share([own and list(own), code, failed])[0]
        if numbers is None:
            raise DeviceError(f"NCCL on rank {self.names[0]} makes no id: {failed}")
        unique = bytes(numbers) if code == "bytes" else tuple(numbers)
        progress = Progress()  # NCCL waits in C for those that do not come

        def join() -> Any:
            return self._nccl.NcclCommunicator(self.size, unique, self.rank)

        job = progress.start(self.call, (join,))
        late, ended = None, False
        try:
            late = self._late(job)
            ended = job.done  # else one has failed, which tells the others
        finally:
            if late or not ended:  # leave the group, whether or not the others complete it
                progress.start(self.call, (lambda: job.wait().abort(),))
        if ended:
            progress.close()
            self._comm = job.wait()  # raises what kept this rank from it
        if late:
            raise DeviceError(
                f"NCCL on rank {self._name}: ranks {late} have not joined the group of {self.size} "
                f"within {self.timeout:g} s",
                hint=_MORE,
            )

    def _late(self, job: Job[Any]) -> list[int]:
        """Wait until all ranks have joined or one has failed; return the names of late ones."""
        control, end = self._control, time.monotonic() + self.timeout
        while True:
            done = job.ends_within(_JOIN_GLANCE)
            joined = done and job.error is None
            told = np.array([joined, done and not joined, time.monotonic() > end], np.float64)
            control.all_reduce(told)
            if told[0] == self.size or told[1]:
                return []
            if told[2]:
                return [self.names[r] for r, here in enumerate(control.share(joined)) if not here]

    @property
    def comm(self) -> Any:
        """CuPy's communicator; DeviceError if the group has been given up."""
        if self._comm is None:
            raise DeviceError(f"NCCL on rank {self._name}: the group of {self.size} was given up")
        return self._comm

    def code(self, dtype: str) -> int:
        """Return NCCL's number for a type; ConfigError if this CuPy has none."""
        number = getattr(self._nccl, f"NCCL_{dtype.upper()}", None) if dtype in SIZES else None
        if number is None:
            known = [name for name in SIZES if hasattr(self._nccl, f"NCCL_{name.upper()}")]
            raise ConfigError(f"NCCL of this CuPy sums {', '.join(known)}, not {dtype}")
        return int(number)

    def grouped(self, launch: Callable[[], None]) -> None:
        """Run calls as one operation, which ends even if a call is refused."""
        self._nccl.groupStart()
        try:
            launch()
        finally:
            self._nccl.groupEnd()

    def check(self) -> None:
        """Raise DeviceError if NCCL has found an error since."""
        self.call(self.comm.check_async_error)

    def abort(self) -> None:
        """End pending operations, which others may never join; every later one raises."""
        comm, self._comm = self._comm, None
        if comm is not None:
            self.call(comm.abort)
        self._launches.close()

    def close(self) -> None:
        """Free what NCCL holds, once all that was started has ended."""
        try:
            if self._comm is not None:
                self._finish(self._last)
        finally:
            self._launches.close()
            comm, self._comm = self._comm, None
            if comm is not None:
                self.call(comm.destroy)

    def call(self, work: Callable[[], T]) -> T:
        """Return `work()` with this rank's GPU current; errors of CuPy become a DeviceError."""
        try:
            with current_gpu(self._cupy, self.ordinal):
                return work()
        except ERRORS as error:
            where = f"NCCL on rank {self._name}, cuda:{self.ordinal}"
            raise DeviceError(f"{where}: {_text(error)}", hint=_MORE) from error

    # ---- operations ----------------------------------------------------------------------------

    def sum_ranges(self, ranges: Sequence[tuple[int, int]], dtype: str, stream: int) -> None:
        """Sum `ranges`, (address on the device, elements), over the ranks, in place.

        They start on `stream`, a driver's handle, after all that it has been given.
        """
        comm, code, add = self.comm, self.code(dtype), self._nccl.NCCL_SUM

        def launch() -> None:
            for at, count in ranges:
                comm.allReduce(at, at, count, code, add, stream)

        self.call(lambda: self.grouped(launch))
        total = sum(count for _, count in ranges) * SIZES[dtype]
        self.sent_bytes += 2 * (self.size - 1) * total // self.size

    def start(self, operation: Callable[..., T], *arguments: Any) -> Started[T]:
        """See `Operations`. Before this returns, `operation` has run, but for the work of GPUs.

        Ranks have exchanged the shapes that they need then.
        """
        with self._turn:
            before, self._waits = self._waits, False
            try:
                job = Job(operation, arguments)
                job.run()
            finally:
                self._waits = before
            return Started(self, job, self._last)

    def _run(
        self, name: str, arrays: Sequence[DeviceArray], calls: Calls, peers: Peers = None
    ) -> None:
        """Run `calls` as one operation, behind what the streams of its arrays were given.

        In `start`, don't wait for it; else for at most `timeout` seconds. arrays: what it reads and
        writes. peers: see `Peers`.
        """
        with self._turn:
            if self._broken is not None:
                raise self._broken
            comm, cuda = self.comm, self.cuda
            if self._stream is None:
                self._stream = self.call(lambda: cuda.Stream(non_blocking=True))
            stream = self._stream.ptr
            streams = sorted({array.stream for array in arrays})
            before = self.call(lambda: [self._mark(at) for at in streams])

            def launch() -> Any:
                for event in before:
                    cuda.runtime.streamWaitEvent(stream, event.ptr)
                self.grouped(lambda: calls(comm, stream))
                return self._mark(stream)

            self._kept += arrays
            self._peers.update(range(self.size) if peers is None else peers)
            handing = self._launches.start(self.call, (launch,))
            last = StreamRequest(name, handing, sorted(self._peers - {self.rank}))
            self._last, waits = last, self._waits
        if waits:
            self._finish(last)

    def _mark(self, stream: int) -> Any:
        """Return an event behind all that a stream has been given."""
        event = self.cuda.Event(disable_timing=True)
        self.cuda.runtime.eventRecord(event.ptr, stream)
        return event

    def _reached(self, last: StreamRequest | None) -> bool:
        """True if `_finish` would return, or raise, at once."""
        if last is None or self._comm is None:
            return True
        job = last.handing
        return job.done and (job.error is not None or self.call(lambda: job.wait().done))

    def _finish(self, last: StreamRequest | None) -> None:
        """Wait for the end of an operation.

        CommunicationError if it does not come in time, DeviceError if NCCL says why: the group is
        given up then, and whatever is asked of it later raises the same.
        """
        if last is not None:
            try:
                if not self._reached(last):
                    self._wait(last)
                if self._broken is not None:
                    raise self._broken
                _ = self.comm  # DeviceError if another thread has given it up
                last.handing.wait()
            except (CommunicationError, DeviceError) as error:
                if self._broken is None:
                    self._broken = error
                    self.abort()
                raise
        with self._turn:
            if last is self._last:
                self._kept.clear()
                self._peers.clear()

    def _wait(self, last: StreamRequest) -> None:
        begin = look = time.monotonic()
        pause = _SHORTEST
        with self._control.waiting(last.name, lambda: last.peers) as waiting:
            while not self._reached(last):
                if last.handing.ends_within(pause):
                    time.sleep(pause)
                pause = min(2 * pause, _LONGEST)
                now = time.monotonic()
                if now - begin > self.timeout:
                    raise waiting.hung(self.timeout, f"for NCCL in {last.name}")
                if now - look > _GLANCE:
                    self.check()
                    waiting.look()
                    look = now


class Started(Handle[T]):
    """A `Handle` of what was handed to NCCL."""

    def __init__(self, group: NCCLGroup, job: Job[T], last: StreamRequest | None) -> None:
        self._group, self._job, self._last = group, job, last

    @property
    def done(self) -> bool:
        return self._job.error is not None or self._group._reached(self._last)

    def wait(self) -> T:
        result = self._job.wait()  # it has run: raises what it raised
        self._group._finish(self._last)
        return result
