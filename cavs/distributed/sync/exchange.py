"""One unit of communication: some parts of parameters, whose gradients travel together."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.strategy.partition import Shard

Array = NDArray[Any]
Memory = Sequence[Array] | Mapping[int, Array]  # flat, by the number of the parameter
GAP = 2 * 64  # bytes; the engine leaves less than that between two gradients


class Gradients(Protocol):
    """The engine's side of a step in parts (`cavs._engine.Executor`)."""

    def wait_gradient(self, parameter: int, begin: int = 0, end: int | None = None) -> bool:
        """Whether its elements [begin, end) are final; waits until they are."""
        ...

    def gradient_slab(self, parameter: int) -> int:
        """How many elements of it become final together."""
        ...

    def gradient_view(self, parameter: int) -> tuple[Array | None, Array]:
        """Touched rows, or None, and values; the engine's memory."""
        ...

    def gradient_block(self) -> Array:
        """The memory of all dense gradients."""
        ...


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
        """As the engine takes it."""
        return self.parameter, self.values, self.rows, self.stride, self.offset

    def share(self, rank: int, ranks: int) -> Piece:
        """The part of it that `rank` looks at where each of `ranks` has the same piece."""
        begin, end = (len(self.values) * r // ranks for r in (rank, rank + 1))
        rows = None if self.rows is None else self.rows[begin:end]
        values = self.values[begin:end]
        return Piece(self.parameter, values, rows, self.stride, self.offset, self.owned)


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
        """Elements."""
        return self.rows * self.width

    @property
    def end(self) -> int:
        """The element behind the last."""
        return self.offset + (self.rows - 1) * self.stride + self.width

    def slabs(self, size: int) -> list[Part]:
        """The same elements, cut where multiples of `size` are; itself where it has rows."""
        if self.rows > 1:
            return [self]
        cuts = range(self.offset // size * size + size, self.end, size)
        ends = [self.offset, *cuts, self.end]
        return [
            replace(self, width=end - begin, offset=begin, shape=(end - begin,))
            for begin, end in pairwise(ends)
        ]

    def view(self, flat: Array) -> Array:
        """The part of a parameter's memory, [rows, width]."""
        if self.rows == 1:
            return flat[self.offset : self.offset + self.width].reshape(1, -1)
        columns = slice(self.offset, self.offset + self.width)
        return flat.reshape(self.rows, self.stride)[:, columns]

    def piece(self, values: Array, owned: bool = False) -> Piece:
        """The piece for contiguous `values` of this part."""
        if self.rows == 1:
            return Piece(self.parameter, values.reshape(-1), None, 1, self.offset, owned)
        rows = values.reshape(self.rows, self.width)
        return Piece(self.parameter, rows, None, self.stride, self.offset, owned)


def part_of(parameter: int, shape: Sequence[int], shard: Shard) -> Part:
    """Where a shard of a parameter of `shape` lies."""
    inner = math.prod(shape[shard.axis + 1 :])
    stride = math.prod(shape[shard.axis :])
    rows = math.prod(shape[: shard.axis])
    width = (shard.stop - shard.start) * inner
    return Part(parameter, rows, width, stride, shard.start * inner, tuple(shard.shape))


class Exchange(ABC):
    """Reduces the gradients of some parts.

    `parameters`: by number; `reduce` is called once they are final. `values`: the parameters'
    memory, flat, by number. everyone: whether ranks that compute nothing take part, too.
    """

    everyone: ClassVar[bool] = False

    def __init__(self, parameters: Sequence[int], values: Sequence[Array]) -> None:
        self.parameters = tuple(dict.fromkeys(parameters))
        self.values = values

    def wait(self, gradients: Gradients) -> bool:
        """Until the gradients of all parts are final; whether the run went well so far."""
        return all([gradients.wait_gradient(p) for p in self.parameters])

    @abstractmethod
    def reduce(self, gradients: Gradients, usable: bool, c: Communicator) -> list[Piece]:
        """The sums over ranks of what this rank is to apply.

        usable: whether the run that made the gradients succeeded. If not, this rank still takes
        part, with anything, so that the others are not left waiting.
        """

    def distribute(self, c: Communicator) -> None:  # noqa: B027  (nothing to do for most)
        """After the update: brings the new values to ranks that did not apply it."""

    def collect(self, states: Sequence[Sequence[Array]], c: Communicator) -> None:  # noqa: B027
        """Brings all ranks the optimiser states that this rank alone does not hold."""

    def commit(self) -> None:  # noqa: B027
        """The step was applied: what the exchange remembers of it may replace what it knew."""

    def memory_of(self) -> dict[str, Array]:
        """What this rank remembers from step to step, for a checkpoint."""
        return {}

    def remember(self, arrays: Mapping[str, Array]) -> None:  # noqa: B027
        """Takes back what `memory_of` gave; nothing of a form that it does not know."""

    def weigh(self, by: float) -> None:  # noqa: B027
        """Gradients are means over another number of ranks: what is held back is to count `by`."""

    def inherit(self, old: Sequence[Exchange]) -> None:  # noqa: B027
        """Takes over what the exchanges of the program compiled before remember."""


def wait_parts(parts: Sequence[Part], gradients: Gradients) -> bool:
    """Until these parts of gradients are final; whether the run went well so far."""
    return all([gradients.wait_gradient(p.parameter, p.offset, p.end) for p in parts])


def pack(parts: Sequence[Part], memory: Memory, out: Array) -> None:
    """The parts side by side into `out`; `memory` is flat, by parameter."""
    at = 0
    for part in parts:
        out[at : at + part.size].reshape(part.rows, part.width)[...] = part.view(
            memory[part.parameter]
        )
        at += part.size


def unpack(parts: Sequence[Part], packed: Array, memory: Memory) -> None:
    """The inverse of `pack`."""
    at = 0
    for part in parts:
        values = packed[at : at + part.size].reshape(part.rows, part.width)
        part.view(memory[part.parameter])[...] = values
        at += part.size


def sum_rows(rows: Sequence[Array], values: Sequence[Array]) -> tuple[Array, Array]:
    """Sparse gradients of all ranks as one: rows ascending, terms added in the order of ranks.

    The rows of one rank are different from each other.
    """
    found, places = np.unique(np.concatenate(rows), return_inverse=True)
    total = np.empty((len(found), *values[0].shape[1:]), values[0].dtype)
    begun = np.zeros(len(found), np.bool_)
    at = 0
    for own, part in zip(rows, values, strict=True):
        to = places[at : at + len(own)]
        again = begun[to]
        total[to[~again]] = part[~again]
        total[to[again]] += part[again]
        begun[to] = True
        at += len(own)
    return found, total
