"""A stream on which operations are handed to NCCL, and handles that say how far it has come.

A thread hands them over: NCCL may wait in there for ranks that it has not spoken to yet. Whoever
waits looks at an event behind the operation, and gives the group up if it does not come.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from cavs.distributed.comm.interfaces import Communicator, Handle
from cavs.distributed.comm.nccl.device_array import DeviceArray
from cavs.distributed.comm.nccl.group import NCCLGroup
from cavs.distributed.comm.progress import Job, Progress
from cavs.errors import CommunicationError, DeviceError

T = TypeVar("T")
Calls = Callable[[Any, int], None]  # takes CuPy's communicator and a stream
Peers = Sequence[int] | None  # the ranks that an operation is with; None: all
_SHORTEST, _LONGEST = 20e-6, 1e-3  # seconds between two looks at an event
_GLANCE = 1.0  # seconds between two looks at what NCCL has met


@dataclass(frozen=True, eq=False)
class StreamRequest:
    """An operation that the thread hands over; what comes of that is an event behind it.

    peers: the ranks that have to do their part in it, or in those before it.
    """

    name: str
    handing: Job[Any]
    peers: Sequence[int]


class NCCLStream:
    """One operation after another of `group`, behind what the streams of their arrays were given.

    An operation may take `group.timeout` seconds from when it is waited for. control: what ranks
    tell of such waits goes over it.
    """

    def __init__(self, group: NCCLGroup, control: Communicator) -> None:
        self._group, self._cuda, self._control = group, group.cuda, control
        self._stream = group.call(lambda: self._cuda.Stream(non_blocking=True))
        self._launches = Progress()
        self._last: StreamRequest | None = None
        self._turn, self._waits = threading.RLock(), True
        self._kept: list[DeviceArray] = []  # arrays that NCCL may still access
        self._peers: set[int] = set()  # one for each pending operation
        self._broken: CommunicationError | DeviceError | None = None

    def start(self, operation: Callable[..., T], arguments: tuple[Any, ...]) -> Started[T]:
        """Run `operation`, which calls `run`, without waiting for anything that it hands over."""
        with self._turn:
            before, self._waits = self._waits, False
            try:
                job = Job(operation, arguments)
                job.run()
            finally:
                self._waits = before
            return Started(self, job, self._last)

    def run(
        self, name: str, arrays: Sequence[DeviceArray], calls: Calls, peers: Peers = None
    ) -> None:
        """Run `calls` on CuPy's communicator and a stream, as one operation.

        arrays: what it reads and writes. peers: see `Peers`.
        """
        with self._turn:
            if self._broken is not None:
                raise self._broken
            group, stream, runtime = self._group, self._stream.ptr, self._cuda.runtime
            comm = group.comm
            streams = sorted({array.stream for array in arrays})
            before = group.call(lambda: [self._mark(at) for at in streams])

            def launch() -> Any:
                for event in before:
                    runtime.streamWaitEvent(stream, event.ptr)
                group.grouped(lambda: calls(comm, stream))
                return self._mark(stream)

            self._kept += arrays
            self._peers.update(range(group.size) if peers is None else peers)
            others = sorted(self._peers - {group.rank})
            last = self._last = StreamRequest(
                name, self._launches.start(group.call, (launch,)), others
            )
            waits = self._waits
        if waits:
            self.finish(last)

    def _mark(self, stream: int) -> Any:
        """Return an event behind all that a stream has been given."""
        event = self._cuda.Event(disable_timing=True)
        self._cuda.runtime.eventRecord(event.ptr, stream)
        return event

    def reached(self, last: StreamRequest | None) -> bool:
        """True if `finish` would return, or raise, at once."""
        if last is None or not self._group.alive:
            return True
        job = last.handing
        return job.done and (job.error is not None or self._group.call(lambda: job.wait().done))

    def finish(self, last: StreamRequest | None) -> None:
        """Wait for the end of an operation.

        CommunicationError if it does not come in time, DeviceError if NCCL says why: the group is
        given up then, and whatever is asked of it later raises the same.
        """
        if last is not None:
            try:
                if not self.reached(last):
                    self._wait(last)
                if self._broken is not None:
                    raise self._broken
                _ = self._group.comm  # DeviceError if another thread has given it up
                last.handing.wait()
            except (CommunicationError, DeviceError) as error:
                if self._broken is None:
                    self._broken = error
                    self._group.abort()
                raise
        with self._turn:
            if last is self._last:
                self._kept.clear()
                self._peers.clear()

    def _wait(self, last: StreamRequest) -> None:
        begin = look = time.monotonic()
        pause = _SHORTEST
        with self._control.waiting(last.name, lambda: last.peers) as waiting:
            while not self.reached(last):
                if last.handing.ends_within(pause):
                    time.sleep(pause)
                pause = min(2 * pause, _LONGEST)
                now = time.monotonic()
                if now - begin > self._group.timeout:
                    raise waiting.hung(self._group.timeout, f"for NCCL in {last.name}")
                if now - look > _GLANCE:
                    self._group.check()
                    waiting.look()
                    look = now

    def close(self) -> None:
        """End the thread, once all that was started has ended or been given up."""
        try:
            if self._group.alive:
                self.finish(self._last)
        finally:
            self._launches.close()


class Started(Handle[T]):
    """A `Handle` of what was handed to NCCL."""

    def __init__(self, stream: NCCLStream, job: Job[T], last: StreamRequest | None) -> None:
        self._stream, self._job, self._last = stream, job, last

    @property
    def done(self) -> bool:
        return self._job.error is not None or self._stream.reached(self._last)

    def wait(self) -> T:
        result = self._job.wait()  # it has run: raises what it raised
        self._stream.finish(self._last)
        return result
