"""Ctrl-C on ranks: noted at once, and raised when all of them can stop at the same step."""

from __future__ import annotations

import atexit
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from weakref import WeakSet

from cavs.distributed.comm.launcher_pipe import report

_PATIENCE = 5.0  # seconds that a signal between two calls of a training waits for the next one
_LATE = 1.0  # seconds in which a signal may come after the stop that it asked for


class RankInterrupt:
    """Defers SIGINT in the main thread of a rank.

    Outside of a training it is a `KeyboardInterrupt` at once, and so is a second one. Within a call
    of a training, or between two of them, `requested` is set: the ranks agree in their next step
    that all of them stop.
    """

    def __init__(self) -> None:
        self.installed = self.requested = False
        self.trainings: WeakSet[object] = WeakSet()  # begun and not closed
        self._depth = 0  # calls of a training that are running
        self._cleared = -1.0
        self._waits = False  # a timer is set

    def install(self) -> None:
        """Handle SIGINT from now on, unless the program has a handler of its own."""
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            signal.signal(signal.SIGINT, self._handle)
            atexit.register(self.clear)
            self.installed = True

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Defer the signal until the end of the block, and beyond it while a training goes on."""
        if not self.installed:
            yield
            return
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self.requested and self._depth == 0:
                self._wait()

    def clear(self) -> None:
        """Note that all ranks stop for the signal, which may reach this one later."""
        if self.requested:
            report("stops")
        else:
            self._cleared = time.monotonic()
        self.requested = False
        if self._waits:  # the timer would kill a process that is ending, as handlers are removed
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            self._waits = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if time.monotonic() < self._cleared + _LATE:
            self._cleared = -1.0
        elif self.requested or not (self._depth or self.trainings):
            self.clear()
            raise KeyboardInterrupt
        else:
            self.requested = True
            report("defers")
            if self._depth == 0:
                self._wait()

    def _wait(self) -> None:
        """Let the signal act if no call of the training follows soon."""
        if threading.current_thread() is threading.main_thread() and signal.getsignal(
            signal.SIGALRM
        ) in (signal.SIG_DFL, self._expire):
            signal.signal(signal.SIGALRM, self._expire)
            signal.setitimer(signal.ITIMER_REAL, _PATIENCE)
            self._waits = True

    def _expire(self, number: int, frame: FrameType | None) -> None:
        if self.requested and self._depth == 0:
            self.clear()
            raise KeyboardInterrupt


INTERRUPT = RankInterrupt()  # the only one in a process


@contextmanager
def begin_before_interrupt() -> Iterator[None]:
    """Raise `KeyboardInterrupt` at the end of the block: other ranks wait in MPI for this one."""
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    came = list[int]()
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt
