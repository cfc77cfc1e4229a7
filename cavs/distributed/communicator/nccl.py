"""Sums over GPUs of one rank each, in their own memory, through CuPy's NCCL.

NCCL starts on a stream and goes on by itself; nothing here waits for another rank, but to make the
group. What fails is found when the stream is waited for, or at the next call, and `abort` ends what
others never join.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from cavs.cuda.driver import newest_cuda
from cavs.cuda.libraries import find_driver, fitting_major, install_line
from cavs.distributed.communicator.progress import Job, Progress
from cavs.distributed.communicator.protocol import Communicator
from cavs.errors import CommunicationError, ConfigError, DeviceError

_GLANCE = 0.05  # seconds between two looks at how far the ranks are in making a group
_TYPES = {"float32": ("NCCL_FLOAT32", 4), "float64": ("NCCL_FLOAT64", 8)}


def load_nccl() -> tuple[ModuleType, ModuleType]:
    """CuPy and its NCCL module. DeviceError, with the cure, if one is missing."""
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


class NCCLCommunicator:
    """The ranks of `control`, each with GPU number `ordinal` of its process.

    control: a communicator on the host, which carries NCCL's unique id. All ranks make one
    together, and all of them fail if one has not joined within the timeout of `control`. Methods
    raise `DeviceError`; after one, `abort` is all that is left to do.
    """

    def __init__(self, control: Communicator, ordinal: int) -> None:
        self._cupy, self._nccl = load_nccl()
        self.rank, self.size, self.ordinal = control.rank, control.size, ordinal
        self.sent_bytes = 0  # by the formula of a ring
        self._comm: Any = None
        self._given_up, self._changing = False, threading.Lock()
        own, failed = None, ""
        try:
            own = list(self._nccl.get_unique_id()) if control.rank == 0 else None
        except RuntimeError as error:  # as NcclError is
            failed = str(error)
        unique, failed = control.share([own, failed])[0]
        if unique is None:
            raise DeviceError(f"NCCL on rank 0 makes no id: {failed}")
        progress = Progress()  # NCCL waits in C for those that do not come
        job = progress.start(self._call, (lambda: self._join(tuple(unique)),))
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
                f"NCCL on rank {self.rank}: ranks {late} have not joined the group of {self.size} "
                f"within {control.timeout:g} s",
                hint="NCCL_DEBUG=INFO tells more; collectives='mpi' does without",
            )
        if not job.done:  # because of one that failed: it tells the others
            self._give_up()

    def _late(self, job: Job[None], control: Communicator) -> list[int]:
        """Waits until all ranks have joined or one has failed; the ranks that take too long."""
        end = time.monotonic() + control.timeout
        while True:
            done = job.ends_within(_GLANCE)
            joined = done and self._comm is not None
            told = np.array([joined, done and not joined, time.monotonic() > end], np.float64)
            control.all_reduce(told)
            if told[0] == self.size or told[1]:
                return []
            if told[2]:
                return [r for r, here in enumerate(control.share(joined)) if not here]

    def _join(self, unique: tuple[int, ...]) -> None:
        comm = self._nccl.NcclCommunicator(self.size, unique, self.rank)
        with self._changing:
            if not self._given_up:
                self._comm = comm
                return
        comm.abort()

    def _give_up(self) -> None:
        """Whatever becomes of the group, this rank is not in it."""
        with self._changing:
            self._given_up = True
        self.abort()

    def all_reduce(self, ranges: Sequence[tuple[int, int]], dtype: str, stream: int) -> None:
        """Sums over the ranks, in place, of `ranges`: (address on the device, elements).

        They start on `stream`, a driver's handle, after all that it has been given.
        """
        if dtype not in _TYPES:
            raise ConfigError(f"NCCL sums {', '.join(_TYPES)}, not {dtype}")
        name, size = _TYPES[dtype]
        kind, add = getattr(self._nccl, name), self._nccl.NCCL_SUM

        def launch() -> None:
            self._nccl.groupStart()
            for at, count in ranges:
                self._comm.allReduce(at, at, count, kind, add, stream)
            self._nccl.groupEnd()

        self._call(launch)
        total = sum(count for _, count in ranges) * size
        self.sent_bytes += 2 * (self.size - 1) * total // self.size

    def check(self) -> None:
        """DeviceError if NCCL has met an error since."""
        self._call(self._comm.check_async_error)

    def abort(self) -> None:
        """Ends what is under way, which others may never join; nothing may be called after it."""
        comm, self._comm = self._comm, None
        if comm is not None:
            self._call(comm.abort)

    def close(self) -> None:
        """Frees what NCCL holds, once all that was started has ended."""
        comm, self._comm = self._comm, None
        if comm is not None:
            self._call(comm.destroy)

    def _call(self, work: Any) -> None:
        """`work()` with this rank's GPU current, its errors in our words."""
        try:
            with self._cupy.cuda.Device(self.ordinal):
                work()
        except RuntimeError as error:  # NcclError and CUDARuntimeError are
            raise DeviceError(
                f"NCCL on rank {self.rank}, cuda:{self.ordinal}: {error}",
                hint="NCCL_DEBUG=INFO tells more; collectives='mpi' does without",
            ) from error
