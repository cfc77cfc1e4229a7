"""Arrays that a store keeps: their form in letters, and their reduction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cavs.distributed.comm.mailbox import Array
from cavs.distributed.comm.messages import dtype_code
from cavs.distributed.comm.reductions import combine, complete

LEAST, MOST = 1 << 14, 1 << 22  # bytes of a part of a large answer
_LONG = 10  # times the pace: a part that takes longer is not followed by a larger one
Name = str | int | None
Value = Array | Sequence[Array] | Mapping[str, Array]


class StoreEntry(NamedTuple):
    """Copies of arrays, never written again. layout: type of the value they are made of."""

    version: int
    layout: str
    arrays: dict[Name, Array]


class StoreRequest(NamedTuple):
    """A request of another rank that has not been answered.

    version: the first that answers it. op: reduction by which `arrays` are combined first, if any.
    """

    rank: int
    number: int
    name: Name
    version: int
    op: str
    arrays: Mapping[Name, Array]


def by_name(value: Value) -> tuple[str, dict[Name, Array]]:
    """Return the layout of a value and its arrays; ConfigError if one cannot be sent."""
    arrays: dict[Name, Array]
    if isinstance(value, Mapping):
        layout, arrays = "mapping", dict(value.items())
    elif isinstance(value, np.ndarray):
        layout, arrays = "array", {None: value}
    else:
        layout, arrays = "sequence", dict(enumerate(value))
    for array in arrays.values():
        dtype_code(array)
    return layout, arrays


def forms(arrays: Mapping[Name, Array]) -> list[list[Any]]:
    """Return name, dtype and shape of every array, as JSON values."""
    return [[name, array.dtype.name, list(array.shape)] for name, array in arrays.items()]


def packed(layout: str, arrays: Mapping[Name, Array]) -> tuple[list[Any], list[Array]]:
    """Return the head and the bytes of arrays, for a letter."""
    data = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays.values()]
    return [layout, forms(arrays)], data


def arrays_of(head: list[Any], data: Sequence[Array]) -> dict[Name, Array]:
    """Return arrays by name, of the bytes of each. head: see `packed`."""
    return {
        name: own.view(np.dtype(dtype)).reshape(shape)
        for (name, dtype, shape), own in zip(head[1], data, strict=True)
    }


class Transfer:
    """A large answer on its way to a rank, in parts, each of which that rank asks for.

    Messages of other operations between the two ranks wait behind one part at most, not behind the
    whole answer. data: its bytes, uint8.
    """

    def __init__(self, version: int, head: list[Any], data: Sequence[Array]) -> None:
        self.version, self.head, self.data = version, head, np.concatenate(data)
        self.sent = 0

    def next(self, nbytes: int) -> Array:
        """Return the next part, of so many bytes or what is left."""
        part = self.data[self.sent : self.sent + nbytes]
        self.sent += part.size
        return part

    @property
    def is_done(self) -> bool:
        """True if all has been sent."""
        return self.sent == self.data.size


class Arrival:
    """The other end of a `Transfer`. pace: seconds that a part may occupy the link.

    A part takes these and a delay: of messages, and of processes that are busy. Parts grow as long
    as larger ones come at a higher rate, which is when the delay takes most of the time.
    """

    def __init__(self, version: int, head: list[Any], nbytes: int, pace: float) -> None:
        self.version, self.head, self.pace = version, head, pace
        self.data, self.taken = np.empty(nbytes, np.uint8), 0
        self._rate = 0.0  # highest so far, in bytes a second

    def take(self, part: Array, seconds: float) -> int:
        """Store a part that took so many seconds; return the bytes to ask for, 0 at the end."""
        self.data[self.taken : self.taken + part.size] = part
        self.taken += part.size
        if self.taken == self.data.size:
            return 0
        rate = part.size / max(seconds, 1e-9)
        grows = rate > 1.25 * self._rate and seconds < _LONG * self.pace
        self._rate = max(self._rate, rate)
        fitting = 2 * part.size if grows else self._rate * self.pace
        return int(min(max(fitting, LEAST), MOST))

    def arrays(self) -> dict[Name, Array]:
        """Return the arrays, once all parts are here."""
        itemsizes = [np.dtype(dtype).itemsize for _, dtype, _ in self.head[1]]
        sizes = [math.prod(form[2]) * n for form, n in zip(self.head[1], itemsizes, strict=True)]
        return arrays_of(self.head, np.split(self.data, np.cumsum(sizes)[:-1]))


def unfit(tag: str, kept: StoreEntry, asked: StoreRequest) -> str:
    """Return what is kept and what was asked for, in words, if these do not match; else ""."""
    if asked.name is not None and asked.name not in kept.arrays:
        return f"{', '.join(map(repr, kept.arrays))} under {tag!r}, not {asked.name!r}"
    own, other = forms(kept.arrays), forms(asked.arrays)
    return f"{own} under {tag!r}, not {other}" if asked.op and own != other else ""


def chosen(kept: StoreEntry, asked: StoreRequest) -> tuple[str, Mapping[Name, Array]]:
    """Return layout and arrays of the answer to a request."""
    if asked.name is None:
        return kept.layout, kept.arrays
    return "array", {None: kept.arrays[asked.name]}


def combined(kept: StoreEntry, asked: StoreRequest) -> StoreEntry:
    """Return the reduction of what is kept and the arrays of a request."""
    results: dict[Name, Array] = {}
    for name, own in kept.arrays.items():
        results[name] = np.empty_like(own)
        combine(asked.op, own, asked.arrays[name], results[name])
        complete(asked.op, results[name], 2)
    return StoreEntry(kept.version + 1, kept.layout, results)


def value_of(layout: str, arrays: dict[Name, Array]) -> Any:
    """Return arrays as they were kept."""
    if layout == "array":
        return next(iter(arrays.values()))
    return arrays if layout == "mapping" else list(arrays.values())
