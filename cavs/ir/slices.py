"""Slices of traced values."""

from __future__ import annotations

from typing import Any

from cavs.errors import TraceError, user_line
from cavs.ir.types import TensorType

OF_CHILDREN = "fold the children by .sum(), .mean() or .max(); v.gather(k) reads one of them"


def last_slice(t: TensorType, key: Any) -> slice:
    """Return the slice of the last axis of a value that ``key`` asks for, as NumPy reads it.

    An ellipsis may precede it, or a full slice for the rows of the batch and each axis before the
    last. TraceError for anything else.
    """
    last = key
    if isinstance(key, tuple) and key:
        *leading, last = key
        axes = len(t.shape) - 1 + (t.domain.base != "one")
        every = len(leading) == axes and all(_is_full(k) for k in leading)
        if not every and not (len(leading) == 1 and leading[0] is Ellipsis):
            last = None
    if isinstance(last, slice) and last.step in (None, 1):
        return last
    hint = "write value[a:b], or value[..., a:b]"
    if t.domain.base == "edge":
        hint += f"; {OF_CHILDREN}"
    raise TraceError(
        f"a traced value takes a slice of its last axis, not {_index_text(key)}: {t}",
        where=user_line(),
        hint=hint,
    )


def _is_full(key: object) -> bool:
    return isinstance(key, slice) and (key.start, key.stop, key.step) == (None, None, None)


def _index_text(key: object) -> str:
    """Return an index as the user writes it between brackets."""
    if isinstance(key, tuple) and key:
        return ", ".join(map(_index_text, key))
    if isinstance(key, slice):
        start, stop, step = (
            "" if k is None else f"{k!r:.30}" for k in (key.start, key.stop, key.step)
        )
        return f"{start}:{stop}" + f":{step}" * (step != "")
    return "..." if key is Ellipsis else f"{key!r:.60}"
