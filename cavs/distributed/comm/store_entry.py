"""Arrays that a store keeps: their form in letters, and their reduction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cavs.distributed.comm.mailbox import Array, Letter
from cavs.distributed.comm.messages import dtype_code
from cavs.distributed.comm.reductions import combine, complete

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


def arrays_of(head: list[Any], letter: Letter) -> dict[Name, Array]:
    """Return the arrays of a letter by name. head: see `packed`."""
    return {
        name: data.view(np.dtype(dtype)).reshape(shape)
        for (name, dtype, shape), data in zip(head[1], letter.arrays[1:], strict=True)
    }


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
