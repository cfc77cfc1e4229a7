"""Every rank gets every gradient and applies it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from cavs.distributed.comm.common_memory import address_of
from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.compression import Compressor, flatten, run, unflatten, weighed
from cavs.distributed.sync.exchange import (
    GAP,
    Array,
    Exchange,
    Gradients,
    Part,
    Piece,
    pack,
    sum_rows,
    wait_parts,
)


class DenseAllReduce(Exchange):
    """A group of dense parts in one all-reduce.

    Where the engine has them side by side, in its memory itself; otherwise in a copy.
    """

    def __init__(
        self, parts: Sequence[Part], values: Sequence[Array], gradients: Gradients
    ) -> None:
        super().__init__([p.parameter for p in parts], values)
        self.memory = {p: gradients.gradient_view(p)[1] for p in self.parameters}
        block = gradients.gradient_block()
        start = address_of(block)

        def begin(part: Part) -> int:
            at = address_of(self.memory[part.parameter]) - start
            return at // block.itemsize + part.offset

        self.parts = sorted(parts, key=begin)
        begins = [begin(part) for part in self.parts]
        ends = [b + p.size for b, p in zip(begins, self.parts, strict=True)]
        # Between two gradients nothing lies; within one, parts that other exchanges reduce.
        near = all(
            b == e
            or (
                left.end == self.memory[left.parameter].size
                and right.offset == 0
                and 0 <= (b - e) * block.itemsize < GAP
            )
            for e, b, (left, right) in zip(ends, begins[1:], pairwise(self.parts), strict=False)
        )
        self.in_place = near and all(part.rows == 1 for part in self.parts)
        if self.in_place:
            self.buffer = block[begins[0] : ends[-1]]
            places = [b - begins[0] for b in begins]
        else:
            sizes = [part.size for part in self.parts]
            self.buffer = np.empty(sum(sizes), block.dtype)
            places = [0, *np.cumsum(sizes)[:-1].tolist()]
        self.pieces = [
            part.piece(self.buffer[at : at + part.size])
            for part, at in zip(self.parts, places, strict=True)
        ]

    def wait(self, gradients: Gradients) -> bool:
        """See `Exchange`."""
        return wait_parts(self.parts, gradients)

    def reduce(self, gradients: Gradients, usable: bool, c: Communicator) -> list[Piece]:
        """See `Exchange`."""
        if not self.in_place:
            pack(self.parts, self.memory, self.buffer)
        c.all_reduce(self.buffer)
        return self.pieces


class CompressedAllReduce(Exchange):
    """One dense part through a compressor, which may remember what it held back."""

    def __init__(
        self,
        part: Part,
        values: Sequence[Array],
        gradients: Gradients,
        compressor: Compressor,
        seed: int,
    ) -> None:
        super().__init__([part.parameter], values)
        self.part, self.compressor = part, compressor
        self.memory = gradients.gradient_view(part.parameter)[1]
        self.state = compressor.start(part.shape, self.memory.dtype, seed=seed)
        self.coming = self.state

    def reduce(self, gradients: Gradients, usable: bool, c: Communicator) -> list[Piece]:
        """See `Exchange`."""
        gradient = self.part.view(self.memory).reshape(self.part.shape)
        result = run(self.compressor, gradient, self.state, c)
        self.coming = result.state
        return [self.part.piece(np.ascontiguousarray(result.total))]

    def commit(self) -> None:
        """See `Exchange`."""
        self.state = self.coming

    def memory_of(self) -> dict[str, Array]:
        """See `Exchange`."""
        return {f"{self.part.offset}.{k}": a for k, a in flatten(self.state).items()}

    def remember(self, arrays: Mapping[str, Array]) -> None:
        """See `Exchange`."""
        prefix = f"{self.part.offset}."
        mine = {k.removeprefix(prefix): a for k, a in arrays.items() if k.startswith(prefix)}
        known = flatten(self.state)
        if {k: a.shape for k, a in mine.items()} == {k: a.shape for k, a in known.items()}:
            self.state = self.coming = unflatten(self.state, mine)

    def weigh(self, by: float) -> None:
        """See `Exchange`."""
        self.state, self.coming = weighed(self.state, by), weighed(self.coming, by)

    def inherit(self, old: Sequence[Exchange]) -> None:
        """See `Exchange`."""
        for other in old:
            if isinstance(other, CompressedAllReduce) and other.part == self.part:
                self.state, self.coming = other.state, other.coming


class SparseAllGather(Exchange):
    """The touched rows of a table, from all ranks to all."""

    def __init__(self, parameter: int, values: Sequence[Array]) -> None:
        super().__init__([parameter], values)

    def reduce(self, gradients: Gradients, usable: bool, c: Communicator) -> list[Piece]:
        """See `Exchange`."""
        (parameter,) = self.parameters
        rows, values = touched(gradients, parameter, usable)
        found, total = sum_rows(c.all_gather(rows), c.all_gather(values))
        return [Piece(parameter, total, found)]


def touched(gradients: Gradients, parameter: int, usable: bool) -> tuple[Array, Array]:
    """Rows and values of a sparse gradient; no rows if the run failed."""
    rows, values = gradients.gradient_view(parameter)
    assert rows is not None
    return (rows, values) if usable else (rows[:0], values[:0])
