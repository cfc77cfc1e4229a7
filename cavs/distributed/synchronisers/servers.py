"""Parameters that one rank owns: gradients go to it, it updates, values come from it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cavs.distributed.communicator.protocol import Communicator
from cavs.distributed.synchronisers.all_reduce import touched
from cavs.distributed.synchronisers.exchange import (
    Array,
    Exchange,
    Gradients,
    Memory,
    Part,
    Piece,
    pack,
    sum_rows,
    unpack,
)


class DenseServers(Exchange):
    """Dense parts with an owner each, in one message to every owner."""

    def __init__(
        self, owned: Sequence[tuple[Part, int]], values: Sequence[Array], gradients: Gradients
    ) -> None:
        super().__init__([part.parameter for part, _ in owned], values)
        self.memory = {p: gradients.gradient_view(p)[1] for p in self.parameters}
        self.owned = list(owned)

    def of(self, rank: int) -> list[Part]:
        """The parts that `rank` owns."""
        return [part for part, owner in self.owned if owner == rank]

    def _packed(self, rank: int, memory: Memory) -> Array:
        parts = self.of(rank)
        out = np.empty(sum(p.size for p in parts), self.values[0].dtype)
        pack(parts, memory, out)
        return out

    def reduce(self, gradients: Gradients, usable: bool, c: Communicator) -> list[Piece]:
        """See `Exchange`."""
        received = c.all_to_all([self._packed(r, self.memory) for r in range(c.size)])
        total = np.zeros_like(received[c.rank])
        for gradient in received:
            total += gradient
        pieces, at = [], 0
        for part in self.of(c.rank):
            pieces.append(part.piece(total[at : at + part.size], owned=True))
            at += part.size
        return pieces

    def distribute(self, c: Communicator) -> None:
        """See `Exchange`."""
        self._from_owners(self.values, c)

    def collect(self, states: Sequence[Sequence[Array]], c: Communicator) -> None:
        """See `Exchange`."""
        for i in range(max(len(states[p]) for p in self.parameters)):
            flat = [arrays[i].reshape(-1) if len(arrays) > i else np.empty(0) for arrays in states]
            self._from_owners(flat, c)

    def _from_owners(self, memory: Memory, c: Communicator) -> None:
        mine = self._packed(c.rank, memory)
        for r, packed in enumerate(c.all_to_all([mine] * c.size)):
            if r != c.rank:
                unpack(self.of(r), packed, memory)


class SparseServers(Exchange):
    """The touched rows of a table to the owners of its rows, and the new rows from them to all.

    ranges: the rows [start, stop) of each shard, and its owner.
    """

    def __init__(
        self, parameter: int, values: Sequence[Array], ranges: Sequence[tuple[int, int, int]]
    ) -> None:
        super().__init__([parameter], values)
        self.parameter, self.ranges = parameter, list(ranges)
        self.width = values[parameter].size // max(stop for _, stop, _ in ranges)
        self.moved: Array = np.empty(0, np.int32)
        self.ever: set[int] = set()

    def reduce(self, gradients: Gradients, usable: bool, c: Communicator) -> list[Piece]:
        """See `Exchange`."""
        rows, values = touched(gradients, self.parameter, usable)
        owner = np.full(len(rows), -1)
        for start, stop, rank in self.ranges:
            owner[(rows >= start) & (rows < stop)] = rank
        chosen = [np.flatnonzero(owner == r) for r in range(c.size)]
        found, total = sum_rows(
            c.all_to_all([rows[i] for i in chosen]), c.all_to_all([values[i] for i in chosen])
        )
        self.moved = found
        return [Piece(self.parameter, total, found, owned=True)]

    def distribute(self, c: Communicator) -> None:
        """See `Exchange`."""
        self._from_owners(self.moved, self.values[self.parameter], c)

    def commit(self) -> None:
        """See `Exchange`."""
        self.ever.update(self.moved.tolist())

    def inherit(self, old: Sequence[Exchange]) -> None:
        """See `Exchange`."""
        for other in old:
            if isinstance(other, SparseServers) and other.parameter == self.parameter:
                self.ever = other.ever

    def collect(self, states: Sequence[Sequence[Array]], c: Communicator) -> None:
        """See `Exchange`."""
        rows = np.array(sorted(self.ever), np.int32)
        for state in states[self.parameter]:
            self._from_owners(rows, state.reshape(-1), c)

    def _from_owners(self, rows: Array, flat: Array, c: Communicator) -> None:
        table = flat.reshape(-1, self.width)
        every = c.all_to_all([rows] * c.size)
        values = c.all_to_all([table[rows]] * c.size)
        for r in range(c.size):
            if r != c.rank:
                table[every[r]] = values[r]
