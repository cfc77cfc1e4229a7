"""Parts of parameters and gradients, as a lowering groups and exchanges send and apply them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavs._engine import Executor
from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.strategy import NodeConfig, Shard, Variable

Array = NDArray[Any]
# Gradients of a step. ``wait_gradient`` returns False if the run failed; ``gradient_view`` returns
# touched rows, or None, and values; ``gradient_block`` returns the memory of all dense gradients.
Gradients = Executor
Memory = Sequence[Array] | Mapping[int, Array]  # flat, by the number of the parameter
BUCKET = 4 << 20  # bytes of dense gradients that travel together where no group says otherwise
GAP = 2 * 64  # bytes; the engine leaves less than that between two gradients


class Scope(Enum):
    """Ranks whose gradients a piece holds, and hence how it counts in the update.

    SUM: of all ranks, so that it is the same on all of them. OWN: of this rank alone, which stands
    for the whole batch: its mean over the ranks is the gradient of the batch. SHARE: this rank's
    share of the gradient of the batch: its sum over the ranks is that gradient.
    """

    SUM = "sum"
    OWN = "own"
    SHARE = "share"


@dataclass(frozen=True)
class Piece:
    """A gradient for the optimiser: by default summed over the ranks.

    values, rows, stride, offset: as the engine's ``apply`` takes them. owned: this rank alone
    applies it; otherwise all do.
    """

    parameter: int
    values: Array
    rows: Array | None = None
    stride: int | None = None
    offset: int = 0
    owned: bool = False
    scope: Scope = Scope.SUM

    def as_tuple(self) -> tuple[int, Array | int, Array | None, int | None, int]:
        """Return the arguments of the engine."""
        return self.parameter, self.values, self.rows, self.stride, self.offset

    def put(self, flat: Array) -> None:
        """Write the values into a flat array of the parameter's elements; not of a table's rows."""
        width = self.values.shape[-1]
        rows = flat.reshape(1, -1) if self.values.ndim == 1 else flat.reshape(-1, self.stride or 1)
        rows[:, self.offset : self.offset + width] = self.values

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


#: A gradient of one rank: parameter, part or None for all of it, rows of a table or None, values.
Local = tuple[int, Part | None, Array | None, Array]


def part_of(parameter: int, shape: Sequence[int], shard: Shard) -> Part:
    """Return the part that a shard of a parameter of `shape` is."""
    inner = math.prod(shape[shard.axis + 1 :])
    stride = math.prod(shape[shard.axis :])
    rows = math.prod(shape[: shard.axis])
    width = (shard.stop - shard.start) * inner
    return Part(parameter, rows, width, stride, shard.start * inner, tuple(shard.shape))


@dataclass(frozen=True)
class Member:
    """A parameter, or a shard or slab of it, in a lowering.

    parameter: its number. turn: its place in the order in which gradients are done. variable: of
    the whole parameter; sparse if its gradient is rows in the program at hand.
    """

    parameter: int
    turn: int
    leaf: NodeConfig
    shard: Shard
    variable: Variable
    part: Part

    @staticmethod
    def of(parameter: int, turn: int, leaf: NodeConfig, shard: Shard, variable: Variable) -> Member:
        """Return the member of a shard, or of a whole parameter."""
        part = part_of(parameter, variable.shape, shard)
        return Member(parameter, turn, leaf, shard, variable, part)

    @property
    def nbytes(self) -> int:
        """Bytes of its values."""
        return self.part.size * self.variable.itemsize

    def slabs(self, size: int) -> list[Member]:
        """Return the slabs of `size` elements that become final one after the other."""
        return [replace(self, part=part) for part in self.part.slabs(size)]


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


def pack(parts: Sequence[Part], memory: Memory, dtype: Any, out: Array | None = None) -> Array:
    """Return a copy of the parts, one after the other; in `out` if that is given."""
    if out is None:
        out = np.empty(size_of(parts), dtype)
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


def send_rows(c: Communicator, rows: Array, values: Array, to: Array) -> tuple[Array, Array]:
    """Send row i to rank ``to[i]`` of `c`, none to -1; return the sum of those received here."""
    chosen = chosen_rows(to, range(c.size))
    return sum_rows(
        c.all_to_all([rows[i] for i in chosen]), c.all_to_all([values[i] for i in chosen])
    )


def chosen_rows(to: Array, ranks: Iterable[int]) -> list[Array]:
    """Return the rows i with ``to[i]`` equal to each of `ranks`."""
    return [np.flatnonzero(to == r) for r in ranks]


def touched(gradients: Gradients, parameter: int, usable: bool) -> tuple[Array, Array]:
    """Return rows and values of a sparse gradient; no rows if the run failed."""
    rows, values = gradients.gradient_view(parameter)
    assert rows is not None
    return (rows, values) if usable else (rows[:0], values[:0])


def tables(members: Iterable[Member]) -> tuple[list[tuple[Member, ...]], list[Member]]:
    """Split members into the shards of each table, and dense ones."""
    found: dict[int, list[Member]] = {}
    dense: list[Member] = []
    for member in members:
        if member.variable.sparse:
            found.setdefault(member.parameter, []).append(member)
        else:
            dense.append(member)
    return [tuple(sorted(table, key=lambda m: m.shard.start)) for table in found.values()], dense


def buckets(
    members: Iterable[Member], nbytes: Callable[[Member], int] = lambda member: member.nbytes
) -> list[tuple[Member, ...]]:
    """Fill buckets of at most `BUCKET` bytes in order; a larger member has one to itself."""
    found: list[list[Member]] = []
    size = 0
    for member in members:
        if not found or size + nbytes(member) > BUCKET:
            found.append([])
            size = 0
        found[-1].append(member)
        size += nbytes(member)
    return [tuple(bucket) for bucket in found]
