"""GPUs of one rank each as a group of CuPy's NCCL: how it is made, and how it ends.

NCCL starts on a stream and goes on by itself; nothing here waits for another rank, but to make the
group. Errors are found when the stream is waited for, or at the next call; `abort` ends operations
that other ranks never join.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from cavs.cuda.driver import newest_cuda
from cavs.cuda.libraries import find_driver, fitting_major, install_line
from cavs.cuda.memory import current_gpu
from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.comm.nccl.device_array import SIZES
from cavs.distributed.comm.progress import Job, Progress
from cavs.errors import CommunicationError, ConfigError, DeviceError, ProcessLocal

_GLANCE = 0.05  # seconds between two looks at how far the ranks are in making a group
# NcclError and CUDARuntimeError are the first; CuPy looks names up in a table without NCCL's newest
# errors, in progress (7) and timeout (8).
ERRORS = (RuntimeError, KeyError)
T = TypeVar("T")


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


class NCCLGroup(ProcessLocal):
    """The ranks of `control`, each with GPU number `ordinal` of its process.

    control: a communicator on the host, which carries NCCL's unique id. All ranks make one
    together, and all of them fail if one has not joined within the timeout of `control`. Methods
    raise `DeviceError`; after one, `abort` is all that is left to do.
    """

    def __init__(self, control: Communicator, ordinal: int) -> None:
        self._cupy, self._nccl = load_nccl()
        self.cuda: Any = self._cupy.cuda
        self.rank, self.size, self.ordinal = control.rank, control.size, ordinal
        self.names, self.timeout = control.names, control.timeout
        self._name = self.names[self.rank]  # number of this rank in the world
        self.sent_bytes = 0  # by the formulas of rings
        self._comm: Any = None
        self._given_up, self._changing = False, threading.Lock()
        own, failed = None, ""
        try:
            own = self._nccl.get_unique_id() if control.rank == 0 else None
        except ERRORS as error:
            failed = _text(error)
        code = type(own).__name__  # bytes, or of older CuPys a tuple
        numbers, code, failed = control.share([own and list(own), code, failed])[0]
        if numbers is None:
            raise DeviceError(f"NCCL on rank {self.names[0]} makes no id: {failed}")
        unique = bytes(numbers) if code == "bytes" else tuple(numbers)
        progress = Progress()  # NCCL waits in C for those that do not come
        job = progress.start(self.call, (lambda: self._join(unique),))
        try:
            late = self._late(job, control)
        except CommunicationError:
            self._give_up()
            raise
        if job.done:
            progress.close()
            job.wait()  # raises what kept this rank from it
        if late:
            self._give_up()
            raise DeviceError(
                f"NCCL on rank {self._name}: ranks {late} have not joined the group of {self.size} "
                f"within {control.timeout:g} s",
                hint="NCCL_DEBUG=INFO tells more; collectives='mpi' does without",
            )
        if not job.done:  # because of one that failed: it tells the others
            self._give_up()

    def _late(self, job: Job[None], control: Communicator) -> list[int]:
        """Wait until all ranks have joined or one has failed; return the names of late ones."""
        end = time.monotonic() + control.timeout
        while True:
            done = job.ends_within(_GLANCE)
            joined = done and self._comm is not None
            told = np.array([joined, done and not joined, time.monotonic() > end], np.float64)
            control.all_reduce(told)
            if told[0] == self.size or told[1]:
                return []
            if told[2]:
                return [self.names[r] for r, here in enumerate(control.share(joined)) if not here]

    def _join(self, unique: bytes | tuple[int, ...]) -> None:
        made = self._nccl.NcclCommunicator(self.size, unique, self.rank)
        with self._changing:
            if not self._given_up:
                self._comm = made
                return
        made.abort()

    def _give_up(self) -> None:
        """Leave the group, whether or not the others complete it."""
        with self._changing:
            self._given_up = True
        self.abort()

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

    @property
    def alive(self) -> bool:
        """True if the group has been neither given up nor closed."""
        return self._comm is not None

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
        """End pending operations, which others may never join; nothing may be called after it."""
        comm, self._comm = self._comm, None
        if comm is not None:
            self.call(comm.abort)

    def close(self) -> None:
        """Free what NCCL holds, once all that was started has ended."""
        comm, self._comm = self._comm, None
        if comm is not None:
            self.call(comm.destroy)

    def call(self, work: Callable[[], T]) -> T:
        """Return `work()` with this rank's GPU current; errors of CuPy become a DeviceError."""
        try:
            with current_gpu(self._cupy, self.ordinal):
                return work()
        except ERRORS as error:
            raise DeviceError(
                f"NCCL on rank {self._name}, cuda:{self.ordinal}: {_text(error)}",
                hint="NCCL_DEBUG=INFO tells more; collectives='mpi' does without",
            ) from error
