"""The state of a trace: the run of user code on symbolic values."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from cavs.errors import TraceError, raised_at, user_line
from cavs.ir.graph import Slot
from cavs.ir.node import Node
from cavs.ir.refusals import lacks, no_attribute


@dataclass
class Trace:
    """One run of user code on symbolic values."""

    training: bool
    slots: dict[Slot, Node] = field(default_factory=dict)
    memo: dict[Any, Any] = field(default_factory=dict)
    streams: int = 0

    def next_stream(self) -> int:
        """Return a new number for a random operator of the model."""
        self.streams += 1
        return self.streams - 1


class _Stack(threading.local):
    """The active traces of this thread, innermost last."""

    def __init__(self) -> None:
        self.traces: list[Trace] = []


_stack = _Stack()


def current_trace() -> Trace:
    """Return the active trace; TraceError without one."""
    if not _stack.traces:
        raise TraceError(
            "this call only means something inside Model.loss, Model.forward or a vertex function",
            where=user_line(),
            hint="call it there; cavs traces these functions once",
        )
    return _stack.traces[-1]


def is_tracing() -> bool:
    """True while a trace is active."""
    return bool(_stack.traces)


@contextmanager
def tracing(training: bool) -> Iterator[Trace]:
    """Make a new trace the active one.

    An attribute that nodes lack is explained here rather than by a ``__getattr__`` of `Node`, which
    would slow down every lookup of an attribute, and so compilation.
    """
    _stack.traces.append(Trace(training))
    try:
        yield _stack.traces[-1]
    except AttributeError as error:
        node, name = error.obj, error.name or "_"
        if not isinstance(node, Node) or not lacks(node, name):
            raise
        told = no_attribute(node, name, raised_at(error))
        raise told.with_traceback(error.__traceback__) from None
    finally:
        _stack.traces.pop()
