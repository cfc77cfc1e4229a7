"""Parts of parameters and of their gradients, as exchanges send, sum and apply them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavs._engine import Executor
from cavs.distributed.strategy.partition import Shard

Array = NDArray[Any]
# Gradients of a step. ``wait_gradient`` returns False if the run failed; ``gradient_view`` returns
# touched rows, or None, and values; ``gradient_block`` returns the memory of all dense gradients.
Gradients = Executor
Memory = Sequence[Array] | Mapping[int, Array]  # flat, by the number of the parameter
GAP = 2 * 64  # bytes; the engine leaves less than that between two gradients


@dataclass(frozen=True)
class Piece:
    """A reduced gradient for the optimiser: summed over the ranks.

    values, rows, stride, offset: as the engine's ``apply`` takes them. owned: this rank alone
    applies it; otherwise all do.
    """

    parameter: int
    values: Array
    rows: Array | None = None
    stride: int | None = None
    offset: int = 0
    owned: bool = False

    def as_tuple(self) -> tuple[int, Array | int, Array | None, int | None, int]:
        """Return the arguments of the engine."""
        return self.parameter, self.values, self.rows, self.stride, self.offset

    def share(self, rank: int, ranks: int) -> Piece:
        """Return the share of `rank` where each of `ranks` has the same piece."""
        begin, end = (len(self.values) * r // ranks for r in (rank, rank + 1))
        rows = None if self.rows is None else self.rows[begin:end]
        return replace(self, values=self.values[begin:end], rows=rows)


@dataclass(frozen=True)
class Part:
    """A shard of parameter `parameter` in its flat memory.

    Row i of `rows` is the `width` elements from ``offset + i * stride``.
    """

    parameter: int
    rows: int
    width: int
    stride: int
    offset: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.rows * self.width

    @property
    def end(self) -> int:
        """Index of the element after the last."""
        return self.offset + (self.rows - 1) * self.stride + self.width

    def slabs(self, size: int) -> list[Part]:
        """Return the same elements cut at multiples of `size`; the part itself if it has rows."""
        if self.rows > 1:
            return [self]
        cuts = range(self.offset // size * size + size, self.end, size)
        ends = [self.offset, *cuts, self.end]
        return [
            replace(self, width=end - begin, offset=begin, shape=(end - begin,))
            for begin, end in pairwise(ends)
        ]

    def view(self, flat: Array) -> Array:
        """Return a view of the part in a parameter's memory, [rows, width]."""
        return flat.reshape(self.rows, self.stride)[:, self.offset : self.offset + self.width]

    def piece(self, values: Array, owned: bool = False) -> Piece:
        """Return the piece for contiguous `values` of this part."""
        if self.rows == 1:
            return Piece(self.parameter, values.reshape(-1), None, 1, self.offset, owned)
        rows = values.reshape(self.rows, self.width)
        return Piece(self.parameter, rows, None, self.stride, self.offset, owned)


def part_of(parameter: int, shape: Sequence[int], shard: Shard) -> Part:
    """Return the part that a shard of a parameter of `shape` is."""
    inner = math.prod(shape[shard.axis + 1 :])
    stride = math.prod(shape[shard.axis :])
    rows = math.prod(shape[: shard.axis])
    width = (shard.stop - shard.start) * inner
    return Part(parameter, rows, width, stride, shard.start * inner, tuple(shard.shape))


def wait_parts(parts: Sequence[Part], gradients: Gradients) -> bool:
    """Wait until these parts of gradients are final; return False if the run failed."""
    return all([gradients.wait_gradient(p.parameter, p.offset, p.end) for p in parts])


def joined_ranges(
    parts: Sequence[Part], starts: Mapping[int, int], sizes: Mapping[int, int], itemsize: int
) -> list[tuple[int, int]]:
    """Return the memory of parts without rows: address and elements, joined where consecutive.

    Two parts are joined if nothing but an unused gap between two gradients separates them; a gap
    within a gradient is reduced by other exchanges. starts, sizes: the address and the number of
    elements of the gradient of each parameter.
    """
    found: list[tuple[int, int]] = []
    ends_gradient = False  # True if the previous part does
    for part in sorted(parts, key=lambda p: starts[p.parameter] + p.offset * itemsize):
        begin = starts[part.parameter] + part.offset * itemsize
        gap = begin - (found[-1][0] + found[-1][1] * itemsize) if found else GAP
        if gap == 0 or (ends_gradient and part.offset == 0 and gap < GAP):
            found[-1] = found[-1][0], (begin - found[-1][0]) // itemsize + part.size
        else:
            found.append((begin, part.size))
        ends_gradient = part.end == sizes[part.parameter]
    return found


def unpacked(parts: Sequence[Part], packed: Array) -> Iterator[tuple[Part, Array]]:
    """Yield each part with its elements, [rows, width], in an array of one after the other."""
    at = 0
    for part in parts:
        yield part, packed[at : at + part.size].reshape(part.rows, part.width)
        at += part.size


def pack(parts: Sequence[Part], memory: Memory, out: Array) -> Array:
    """Copy the parts into `out`, one after the other, and return it."""
    for part, values in unpacked(parts, out):
        values[...] = part.view(memory[part.parameter])
    return out


def unpack(parts: Sequence[Part], packed: Array, memory: Memory) -> None:
    """The inverse of `pack`."""
    for part, values in unpacked(parts, packed):
        part.view(memory[part.parameter])[...] = values


def size_of(parts: Sequence[Part]) -> int:
    """Return the number of elements of all parts."""
    return sum(part.size for part in parts)


def values_of(parameters: Mapping[str, Any]) -> list[Array]:
    """Return the memory of parameters, flat, by number."""
    return [p.current().reshape(-1) for p in parameters.values()]


def sum_rows(rows: Sequence[Array], values: Sequence[Array]) -> tuple[Array, Array]:
    """Sum the sparse gradients of all ranks: rows ascending, terms in the order of ranks.

    The rows of one rank are distinct.
    """
    found, positions = np.unique(np.concatenate(rows), return_inverse=True)
    total = np.empty((len(found), *values[0].shape[1:]), values[0].dtype)
    begun = np.zeros(len(found), np.bool_)
    at = 0
    for own, part in zip(rows, values, strict=True):
        to = positions[at : at + len(own)]
        again = begun[to]
        total[to[~again]] = part[~again]
        total[to[again]] += part[again]
        begun[to] = True
        at += len(own)
    return found, total


def touched(gradients: Gradients, parameter: int, usable: bool) -> tuple[Array, Array]:
    """Return rows and values of a sparse gradient; no rows if the run failed."""
    rows, values = gradients.gradient_view(parameter)
    assert rows is not None
    return (rows, values) if usable else (rows[:0], values[:0])
