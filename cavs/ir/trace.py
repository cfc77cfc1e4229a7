"""What is true while user code is being traced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from cavs.errors import TraceError, user_line
from cavs.ir.graph import Slot
from cavs.ir.node import Node


@dataclass
class Trace:
    """One run of user code on symbolic values."""

    training: bool
    slots: dict[Slot, Node] = field(default_factory=dict)
    memo: dict[Any, Any] = field(default_factory=dict)
    streams: int = 0

    def next_stream(self) -> int:
        """A number for each random operator of the model."""
        self.streams += 1
        return self.streams - 1


_stack: list[Trace] = []


def current_trace() -> Trace:
    """The trace in progress; TraceError outside of one."""
    if not _stack:
        raise TraceError(
            "this call only means something inside Model.loss, Model.forward or a vertex function",
            where=user_line(),
            hint="call it there; cavs traces these functions once",
        )
    return _stack[-1]


@contextmanager
def tracing(training: bool) -> Iterator[Trace]:
    """Makes a new trace the current one."""
    _stack.append(Trace(training))
    try:
        yield _stack[-1]
    finally:
        _stack.pop()
