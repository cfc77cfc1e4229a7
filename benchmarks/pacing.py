"""Ranks that take a given time to compute, without a core of their own: they sleep."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from cavs._engine import Abandoned
from cavs.distributed.step.synchronous_step import Run


class Paced:
    """An executor whose runs take some seconds longer, unless they are abandoned."""

    def __init__(self, executor: Any, seconds: float) -> None:
        self._executor, self._seconds = executor, seconds
        self._told = threading.Event()

    def run(self, *inputs: Any) -> float:
        """Sleep, then run."""
        if self._told.wait(self._seconds):
            raise Abandoned("the run was abandoned")
        return float(self._executor.run(*inputs))

    def abandon(self) -> None:
        """End the sleep."""
        self._told.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)


@contextlib.contextmanager
def paced(seconds: Callable[[int, int], float]) -> Iterator[None]:
    """Let every run in this process take seconds(graphs, step) longer."""
    go = Run.go

    def slower(self: Run, words: Any, inputs: tuple[Any, ...]) -> None:
        own, graphs = self.executor, 0 if self.part is None else self.part.computed
        self.executor = Paced(own, seconds(graphs, self.update.step))
        try:
            go(self, words, inputs)
        finally:
            self.executor = own

    Run.go = slower  # type: ignore[method-assign]
    try:
        yield
    finally:
        Run.go = go  # type: ignore[method-assign]
