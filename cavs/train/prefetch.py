"""Iteration whose items a background thread computes, a few ahead of the consumer."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import deque
from collections.abc import Generator, Iterator
from typing import Generic, TypeVar

from cavs.errors import CavsError

T = TypeVar("T")


class _Channel(Generic[T]):
    """State shared by the thread and the consumer; the thread holds no reference to the latter."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.changed = threading.Condition()
        self.items: deque[T] = deque()
        self.error: BaseException | None = None
        self.finished = False  # the thread has computed all items or failed
        self.closed = False  # the consumer takes no more items
        self.thread: threading.Thread | None = None

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.items.clear()
            self.changed.notify_all()
        thread = self.thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()


# A daemon thread inside native code would crash the interpreter at exit, so threads end before.
_open: weakref.WeakSet[_Channel[object]] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for channel in list(_open):
        channel.close()


def _produce(channel: _Channel[T], items: Iterator[T]) -> None:
    try:
        while True:
            with channel.changed:
                while len(channel.items) >= channel.depth and not channel.closed:
                    channel.changed.wait()
                if channel.closed:
                    return
            try:
                item = next(items)
            except StopIteration:
                return
            with channel.changed:
                channel.items.append(item)
                channel.changed.notify_all()
    except BaseException as error:  # raised by the consumer
        channel.error = error
    finally:
        with channel.changed:
            channel.finished = True
            channel.changed.notify_all()


def prefetch(items: Iterator[T], depth: int) -> Generator[T]:
    """Yield `items`, computed by a thread, at most `depth` ahead.

    An exception in `items` is raised here, after the items before it. The thread ends with the
    iteration: after the last item, when it is closed or dropped, or at interpreter exit.
    ``depth=0`` computes them in the caller.
    """
    if depth == 0:
        yield from items
        return
    channel: _Channel[T] = _Channel(depth)
    channel.thread = threading.Thread(
        target=_produce, args=(channel, items), name="cavs-prefetch", daemon=True
    )
    _open.add(channel)  # type: ignore[arg-type]
    channel.thread.start()
    try:
        while True:
            with channel.changed:
                while not channel.items and not channel.finished:
                    channel.changed.wait(1.0)
                    if not channel.thread.is_alive() and not channel.finished:
                        raise CavsError(
                            "the thread that prepares batches is not in this process",
                            hint="a forked process must start an iteration of its own",
                        )
                if not channel.items:
                    break
                item = channel.items.popleft()
                channel.changed.notify_all()
            yield item
            del item
        if channel.error is not None:
            raise channel.error
    finally:
        channel.close()
