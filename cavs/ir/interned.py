"""Objects of which equal ones are one object, for as long as anybody has it."""

from __future__ import annotations

import threading
from typing import Any, Generic, TypeVar
from weakref import ref

T = TypeVar("T")


class _Kept(ref[T]):
    __slots__ = ("key",)
    key: Any


class Interned(Generic[T]):
    """By key; a WeakValueDictionary is slower, and this is read for every node that a pass makes.

    lock: held from `get` to `put`, so that no two threads make the same.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._kept: dict[Any, _Kept[T]] = {}

    def get(self, key: Any) -> T | None:
        """The object of `key`, if somebody still has it."""
        kept = self._kept.get(key)
        return None if kept is None else kept()

    def put(self, key: Any, value: T) -> None:
        """`value` is that of `key` from now on."""
        kept = self._kept[key] = _Kept(value, self._forget)
        kept.key = key

    def _forget(self, kept: ref[T]) -> None:
        assert isinstance(kept, _Kept)
        with self.lock:  # another may have been made meanwhile
            if self._kept.get(kept.key) is kept:
                del self._kept[kept.key]
