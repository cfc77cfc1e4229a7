"""Interning: equal objects are one object, as long as it is referenced."""

from __future__ import annotations

import threading
from typing import Any, Generic, TypeVar
from weakref import ref

T = TypeVar("T")


class _Kept(ref[T]):
    __slots__ = ("key",)
    key: Any


class Interned(Generic[T]):
    """Objects by key. A WeakValueDictionary is slower, and every new node is looked up here.

    lock: held from `get` to `put`, so that no two threads create the same object.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._kept: dict[Any, _Kept[T]] = {}
        self._callback = self._forget  # one bound method for all references

    def get(self, key: Any) -> T | None:
        """Return the object of `key` if it is still referenced."""
        kept = self._kept.get(key)
        return None if kept is None else kept()

    def put(self, key: Any, value: T) -> None:
        """Store `value` under `key`."""
        kept = self._kept[key] = _Kept(value, self._callback)
        kept.key = key

    def _forget(self, kept: _Kept[T]) -> None:
        with self.lock:  # another object may have replaced it
            if self._kept.get(kept.key) is kept:
                del self._kept[kept.key]
