"""Operations in the background: first come, first served."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from cavs.distributed.comm.interfaces import Handle

T = TypeVar("T")


class Job(Handle[T]):
    """An operation and, once it ran, its result or `error`.

    run_next: where no thread runs jobs, runs the next one; False if there is none.
    """

    run_next: Callable[[], bool] | None = None

    def __init__(self, operation: Callable[..., T], arguments: tuple[Any, ...]) -> None:
        self._operation, self._arguments = operation, arguments
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
        while self.run_next is not None and not self.done and self.run_next():
            pass
        self._finished.wait()
        if self.error is not None:
            raise self.error
        return self._result  # type: ignore[return-value]


class Progress:
    """Jobs, which run in the order they were given: on a thread, or when one is waited for."""

    def __init__(self) -> None:
        self._jobs: queue.Queue[Job[Any] | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._runner: threading.Thread | None = None  # runs a job now

    @property
    def is_free(self) -> bool:
        """True if no job is before the caller: all have run, or it is one itself."""
        return not self._jobs.unfinished_tasks or threading.current_thread() is self._runner

    def start(
        self, operation: Callable[..., T], arguments: tuple[Any, ...], *, threaded: bool = True
    ) -> Job[T]:
        """Queue a job. threaded: False if it runs in its `wait`, where one thread communicates."""
        job = Job(operation, arguments)
        self._jobs.put(job)
        if not threaded:
            job.run_next = self._run_next
        elif self._thread is None:
            # A daemon: a peer that hangs must not keep this process alive.
            self._thread = threading.Thread(target=self._loop, name="cavs-progress", daemon=True)
            self._thread.start()
        return job

    def _loop(self) -> None:
        while self._run_next(block=True):
            pass

    def _run_next(self, *, block: bool = False) -> bool:
        try:
            job = self._jobs.get(block)
        except queue.Empty:
            return False
        before, self._runner = self._runner, threading.current_thread()
        if job is not None:
            job.run()
        self._runner = before
        self._jobs.task_done()
        return job is not None

    def close(self) -> None:
        """Let the thread end after the jobs it has."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(timeout=5)
            self._thread = None
