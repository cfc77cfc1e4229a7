"""Operations in the background: one thread, first come, first served."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from cavs.distributed.comm.interfaces import Handle

T = TypeVar("T")


class Job(Handle[T]):
    """An operation and, once it ran, its result or `error`.

    queued: where no thread runs jobs, those that `wait` runs, in order, until this one has run.
    """

    def __init__(
        self,
        operation: Callable[..., T],
        arguments: tuple[Any, ...],
        queued: deque[Job[Any]] | None = None,
    ) -> None:
        self._operation, self._arguments, self._queued = operation, arguments, queued
        self._finished = threading.Event()
        self._result: T | None = None
        self.error: BaseException | None = None

    @property
    def done(self) -> bool:
        return self._finished.is_set()

    def run(self) -> None:
        """Run the operation and keep what came of it."""
        # A handle may be kept for longer than what the operation was given.
        arguments, self._arguments = self._arguments, ()
        try:
            self._result = self._operation(*arguments)
        except BaseException as error:  # carried to whoever waits, whatever it is
            self.error = error
        finally:
            self._finished.set()

    def ends_within(self, seconds: float) -> bool:
        """Wait for at most `seconds`; return True if it has run."""
        return self._finished.wait(seconds)

    def wait(self) -> T:
        while self._queued and not self.done:
            self._queued.popleft().run()
        self._finished.wait()
        if self.error is not None:
            raise self.error
        return self._result  # type: ignore[return-value]


class Progress:
    """A thread that runs jobs in the order they were given."""

    def __init__(self) -> None:
        self._jobs: queue.Queue[Job[Any] | None] = queue.Queue()
        self._thread: threading.Thread | None = None

    @property
    def idle(self) -> bool:
        """True if every job has run."""
        return self._jobs.unfinished_tasks == 0

    def is_here(self) -> bool:
        """True on the thread that runs jobs."""
        return threading.current_thread() is self._thread

    def start(self, operation: Callable[..., T], arguments: tuple[Any, ...]) -> Job[T]:
        """Queue a job; the first starts the thread."""
        if self._thread is None:
            # A daemon: a peer that hangs must not keep this process alive.
            self._thread = threading.Thread(target=self._loop, name="cavs-progress", daemon=True)
            self._thread.start()
        job = Job(operation, arguments)
        self._jobs.put(job)
        return job

    def _loop(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()
            self._jobs.task_done()
        self._jobs.task_done()

    def close(self) -> None:
        """Let the thread end after the jobs it has."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(timeout=5)
            self._thread = None
