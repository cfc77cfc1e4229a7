"""The state of one named collective: the chunks of an array on their routes.

Sums travel up a tree and results down. A rank adds the sums of the ranks below it to its own
values, in the order of the route, whichever of them comes first: the bits depend on nothing else.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from cavs.distributed.comm.mailbox import Array
from cavs.distributed.comm.messages import DTYPES, as_row
from cavs.distributed.comm.reductions import OPS, combine, complete
from cavs.distributed.comm.topology import Hop, Routes, rerooted

CHUNK = 1 << 20  # bytes that travel as one letter
UP, DOWN = 0, 1  # phases
CONTROL = -1  # step of the collectives by which ranks compare values
_ALL_REDUCE, _BROADCAST, _ALL_GATHER = range(3)


class Key(NamedTuple):
    """The name of a collective, and its time: versions of routes and steps never mix."""

    version: int
    step: int
    name: str

    def __str__(self) -> str:
        if self.step == CONTROL:
            return f"number {self.name} of the agreements"
        return f"{self.name!r} of step {self.step}"


class Signature(NamedTuple):
    """Facts that must agree on all ranks. nbytes: of the array; in an all-gather, of a row."""

    type: int
    op: int
    dtype: int
    nbytes: int
    root: int

    def __str__(self) -> str:
        what = f"{self.nbytes} bytes of {DTYPES[self.dtype]}"
        if self.type == _BROADCAST:
            return f"broadcast of {what} by rank {self.root}"
        if self.type == _ALL_GATHER:
            return f"all-gather of rows of {what}"
        return f"{'' if not self.op else OPS[self.op] + ' '}all-reduce of {what}"


class Owner(Protocol):
    """The part of `NamedCollectives` that a collective uses."""

    rank: int
    size: int

    @property
    def routes(self) -> Routes:
        """The routes of collectives that are launched now."""

    def post(
        self, to: int, phase: int, key: Key, words: Sequence[int], arrays: Sequence[Array]
    ) -> None:
        """Send a letter."""

    def forget(self, collective: Collective, result: Any) -> None:
        """Free the state of a collective that is done, and hand out its result."""


class Collective:
    """A collective that this rank has launched, of the user's `array`."""

    type = _ALL_REDUCE

    def __init__(self, owner: Owner, key: Key, array: Array, *, op: int = 0, root: int = 0) -> None:
        self.owner, self.rank, self.key, self.array = owner, owner.rank, key, array
        flat = as_row(array)
        self.signature = Signature(
            self.type, op, DTYPES.index(flat.dtype.name), self._signature_bytes(), root
        )
        self.parts = self._cut(flat)
        self.hops = [self._hop(i) for i in range(len(self.parts))]
        self.left = set(range(len(self.parts)))

    def _signature_bytes(self) -> int:
        return self.array.nbytes

    def _cut(self, flat: Array) -> list[Array]:
        each = max(CHUNK // flat.itemsize, 1)
        return [flat[i : i + each] for i in range(0, max(flat.size, 1), each)]

    def _hop(self, chunk: int) -> Hop:
        return self.owner.routes.of_chunk(self.key.name, chunk).hop(self.rank)

    @abstractmethod
    def begin(self) -> None:
        """Send what this rank alone can send."""

    def up(self, chunk: int, source: int, arrays: Sequence[Array]) -> None:
        """Take the sum of `source` and of the ranks below it."""

    def down(self, chunk: int, arrays: Sequence[Array]) -> None:
        """Take the result, pass it on, and end with the last chunk."""
        if arrays:
            self._overwrite(chunk, arrays)
        for target in self.hops[chunk].targets:
            self.send(target, DOWN, chunk)
        self.left.discard(chunk)
        if not self.left:
            self.owner.forget(self, self._result())

    def _overwrite(self, chunk: int, arrays: Sequence[Array]) -> None:
        part = self.parts[chunk]
        part[...] = arrays[0].view(part.dtype)

    def _result(self) -> Any:
        return self.array

    def send(self, to: int, phase: int, chunk: int) -> None:
        """Send a letter of this collective."""
        words = [chunk, *self.signature]
        self.owner.post(to, phase, self.key, words, self._payload(chunk))

    def _payload(self, chunk: int) -> Sequence[Array]:
        return [self.parts[chunk].view(np.uint8)]

    def awaited(self) -> list[int]:
        """Return the neighbours whose letters are due."""
        return [p for p in {self.hops[chunk].parent for chunk in tuple(self.left)} if p is not None]


class Broadcast(Collective):
    """The array of a root, which sends it down the route, turned round to begin there."""

    type = _BROADCAST

    def _hop(self, chunk: int) -> Hop:
        route = self.owner.routes.of_chunk(self.key.name, chunk)
        down = rerooted(route.down, self.signature.root)
        return route._replace(up=down, down=down).hop(self.rank)

    def begin(self) -> None:
        if self.rank == self.signature.root:
            for chunk in range(len(self.parts)):
                self.down(chunk, ())


class _Upwards(Collective):
    """A collective whose chunks travel up, where ranks combine them in a fixed order."""

    def begin(self) -> None:
        self.waiting: list[dict[int, Sequence[Array]]] = [{} for _ in self.parts]
        self.added = [0] * len(self.parts)
        for chunk in range(len(self.parts)):
            self._advance(chunk)

    def up(self, chunk: int, source: int, arrays: Sequence[Array]) -> None:
        self.waiting[chunk][source] = arrays
        self._advance(chunk)

    def _advance(self, chunk: int) -> None:
        """Combine what has come, as far as the order allows; then send it on."""
        hop, waiting = self.hops[chunk], self.waiting[chunk]
        for source in hop.sources[self.added[chunk] :]:
            if source not in waiting:
                return
            self._add(chunk, waiting.pop(source))
            self.added[chunk] += 1
        if hop.parent is not None:
            self.send(hop.parent, UP, chunk)
        else:
            self._total(chunk)
            self.down(chunk, ())

    @abstractmethod
    def _add(self, chunk: int, arrays: Sequence[Array]) -> None:
        """Combine the values of ranks below with those of this rank."""

    def _total(self, chunk: int) -> None:
        """Complete the result at the root."""

    def awaited(self) -> list[int]:
        found: set[int | None] = set()
        for chunk in tuple(self.left):
            due = set(self.hops[chunk].sources[self.added[chunk] :]) - set(self.waiting[chunk])
            found |= due or {self.hops[chunk].parent}
        return sorted(r for r in found if r is not None)


class AllReduce(_Upwards):
    """A reduction, in place."""

    def _add(self, chunk: int, arrays: Sequence[Array]) -> None:
        part = self.parts[chunk]
        combine(OPS[self.signature.op], part, arrays[0].view(part.dtype), part)

    def _total(self, chunk: int) -> None:
        complete(OPS[self.signature.op], self.parts[chunk], self.owner.size)


class AllGather(_Upwards):
    """The arrays of all ranks, in one chunk, with the ranks and rows of its parts in `heads`."""

    type = _ALL_GATHER

    def _signature_bytes(self) -> int:
        return self.array.itemsize * math.prod(self.array.shape[1:])

    def _cut(self, flat: Array) -> list[Array]:
        self.heads = np.array([self.rank, len(self.array)], np.int64)
        self.data = [flat.view(np.uint8)]
        return [flat]

    def _add(self, chunk: int, arrays: Sequence[Array]) -> None:
        self.heads = np.concatenate([self.heads, arrays[0]])
        self.data.append(arrays[1])

    def _payload(self, chunk: int) -> Sequence[Array]:
        if len(self.data) > 1:
            self.data = [np.concatenate(self.data)]
        return [self.heads, self.data[0]]

    def _overwrite(self, chunk: int, arrays: Sequence[Array]) -> None:
        self.heads, self.data = arrays[0], [arrays[1]]

    def _result(self) -> list[Array]:
        whole = np.concatenate(self.data)
        found, at = {}, 0
        for rank, rows in self.heads.reshape(-1, 2).tolist():
            end = at + rows * self.signature.nbytes
            shape = rows, *self.array.shape[1:]
            found[rank] = whole[at:end].view(self.array.dtype).reshape(shape)
            at = end
        return [found[rank] for rank in range(self.owner.size)]
