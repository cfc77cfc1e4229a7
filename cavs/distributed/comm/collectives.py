"""Collectives built on one primitive: send some arrays and receive others, then go on.

They are written once and run on MPI and on threads alike. MPI has collectives of its own, but its
non-blocking ones are slower than these on shared memory, and its blocking ones cannot name a peer
that hangs. Sums have one order, whatever the timing.
"""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from cavs.distributed.comm.common_memory import CommonMemory, map_common
from cavs.distributed.comm.hang_detection import Known, Peers, PendingWait, WaitRegister, nothing
from cavs.distributed.comm.interfaces import Array, Communicator, Handle
from cavs.distributed.comm.messages import (
    Code,
    Message,
    as_row,
    check_parts,
    check_rank,
    cuts,
    dtype_code,
    even_counts,
    offsets,
)
from cavs.distributed.comm.progress import Progress
from cavs.errors import CommunicationError, ProcessLocal

T = TypeVar("T")

_NEAR = 1 << 15  # elements whose sum stays in a core's cache until all ranks have it
SMALL = 1 << 14  # bytes; below, the number of messages counts more than their size


class Collectives(ProcessLocal, Communicator, ABC):
    """Base class of communicators: the operations, by means of `_exchange`.

    names: numbers of the ranks in the world. group: a name that no other group has, the same on all
    ranks. register: shares the waits of this rank.
    """

    _pickling_hint = "every rank has its own: start ranks with cavs launch, not from Python"

    def __init__(
        self, rank: int, names: Sequence[int], timeout: float, register: WaitRegister, group: str
    ) -> None:
        self.rank, self.size, self.names = rank, len(names), tuple(names)
        self.timeout, self.overlaps, self.sent_bytes = timeout, True, 0
        self._register, self._group = register, group
        self._progress = Progress()
        self._turn = threading.RLock()
        self._scratch = np.empty(0, np.uint8)
        self._common: list[CommonMemory] = []
        self._broken: CommunicationError | None = None
        self.operations = 0  # begun so far: what ranks compare when one of them hangs
        self.operation, self._code = "nothing yet", Code.BARRIER

    @abstractmethod
    def _exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """Send and receive all, of `_code`; messages between two ranks keep their order."""

    # ---- waits ---------------------------------------------------------------------------------

    def waiting(
        self, operation: str, peers: Peers | None = None, known: Known = nothing
    ) -> PendingWait:
        return self._waiting(operation, peers or self._others, known, aside=True)

    def _waiting(
        self, operation: str, peers: Peers, known: Known = nothing, *, aside: bool = False
    ) -> PendingWait:
        """aside: True if it is none of the operations, which ranks count."""
        group, begun = (f"{self._group} aside", 0) if aside else (self._group, self.operations)

        def named() -> list[int]:
            return [self.names[r] for r in peers()]

        return PendingWait(self._register, group, begun, operation, named, self._check_alive, known)

    def _others(self) -> list[int]:
        return [r for r in range(self.size) if r != self.rank]

    def _check_alive(self) -> None:
        """Raise LostPeerError if a rank of the group is known to have died."""

    # ---- order ---------------------------------------------------------------------------------

    def start(self, operation: Callable[..., T], *arguments: Any) -> Handle[T]:
        return self._progress.start(operation, arguments, threaded=self.overlaps)

    def _run(self, code: Code, name: str, operation: Callable[..., T], *arguments: Any) -> T:
        """Run the operation now, or after those in the background."""
        if not self._progress.is_free:
            queued: Handle[T] = self.start(self._run, code, name, operation, *arguments)
            return queued.wait()
        with self._turn:
            self.operations += 1
            self.operation, self._code = name, code
            return operation(*arguments)

    def close(self) -> None:
        self._progress.close()

    def _send(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        if self._broken is not None:  # its messages would meet the wrong operations of others
            raise self._broken
        self.sent_bytes += sum(array.nbytes for array, _ in sends)
        try:
            self._exchange(sends, receives)
        except CommunicationError as error:
            self._broken = error
            raise

    def _temporary(self, like: Array) -> Array:
        """Return memory shaped as `like`, reused: fresh pages cost more than the sum."""
        if self._scratch.nbytes < like.nbytes:
            self._scratch = np.empty(like.nbytes, np.uint8)
        return self._scratch[: like.nbytes].view(like.dtype).reshape(like.shape)

    # ---- operations ----------------------------------------------------------------------------

    def all_reduce(self, array: Array) -> None:
        flat = as_row(array)
        self._run(Code.TREE, f"all-reduce of {flat.nbytes} bytes", self._all_reduce, flat)

    def _all_reduce(self, flat: Array) -> None:
        if self.size == 1 or flat.size == 0:
            return
        if flat.nbytes <= SMALL or flat.size < self.size:
            self._tree_all_reduce(flat)
            return
        counts = even_counts(flat.size, self.size)
        if everyone := self._in_common(flat):
            self._code = Code.COMMON
            self._sum_in_common(everyone, counts)
            return
        self._code = Code.RING
        parts = self._cut(flat, counts)
        self._scatter_sums(parts)
        self._ring(parts, 0)

    def _tree_all_reduce(self, flat: Array) -> None:
        """Sum up a binomial tree to rank 0 and send the sum down again: 2 log2 N steps."""
        other = self._temporary(flat)
        step = 1
        while step < self.size:
            if self.rank % (2 * step) == step:
                self._send([(flat, self.rank - step)], [])
                break
            if self.rank + step < self.size:
                self._send([], [(other, self.rank + step)])
                flat += other
            step *= 2
        step = 1 << max(self.size - 1, 0).bit_length()
        while (step := step // 2) >= 1:
            if self.rank % (2 * step) == 0 and self.rank + step < self.size:
                self._send([(flat, self.rank + step)], [])
            elif self.rank % (2 * step) == step:
                self._send([], [(flat, self.rank - step)])

    # ---- common memory -------------------------------------------------------------------------

    def common_memory(self, nbytes: int) -> Array | None:
        self._common = [common for common in self._common if common.is_alive]
        found = map_common(self.rank, nbytes, self.share) if self.size > 1 else None
        if found is None:
            return None
        self._common.append(CommonMemory(found, self.rank))
        return found[self.rank]

    def _in_common(self, flat: Array) -> list[Array]:
        """Return `flat` in the memory of every rank; nothing if it is stored elsewhere."""
        return next(filter(None, (common.like(flat) for common in self._common)), [])

    def _sum_in_common(self, everyone: Sequence[Array], counts: Sequence[int]) -> None:
        """Each rank sums one part over all, in the order of ranks, and writes it to all."""
        begin, end = offsets(counts)[self.rank]
        self._synchronise()
        for at in range(begin, end, _NEAR):
            parts = [array[at : min(at + _NEAR, end)] for array in everyone]
            total = self._temporary(parts[0])
            np.add(parts[0], parts[1], out=total)
            for part in parts[2:]:
                total += part
            for part in parts:
                part[...] = total
        self._synchronise()
        # Bytes that others read here, and that this rank wrote to them.
        size, n = everyone[0].nbytes, self.size
        self.sent_bytes += 2 * (n - 1) * size // n

    def _synchronise(self) -> None:
        """Return when all ranks have come here: log2 N steps (Hensgen, Finkel and Manber 1988)."""
        said, heard, step = np.zeros(1, np.uint8), np.zeros(1, np.uint8), 1
        while step < self.size:
            to, source = (self.rank + step) % self.size, (self.rank - step) % self.size
            self._send([(said, to)], [(heard, source)])
            step *= 2

    # ---- parts of arrays -----------------------------------------------------------------------

    def reduce_scatter(self, array: Array, counts: Sequence[int]) -> Array:
        parts = self._cut(array, counts)
        name = f"reduce-scatter of {array.nbytes} bytes"
        self._run(Code.REDUCE_SCATTER, name, self._scatter_sums, parts)
        return parts[self.rank]

    def _cut(self, array: Array, counts: Sequence[int]) -> list[Array]:
        flat = as_row(array)
        return [flat[begin:end] for begin, end in cuts(counts, flat.size, self.size)]

    def _scatter_sums(self, parts: Sequence[Array]) -> None:
        """Part p starts at rank p + 1 and is complete when it reaches rank p."""
        self._ring(parts, 1, add=True)

    def _ring(self, parts: Sequence[Array], first: int, *, add: bool = False) -> None:
        """Pass parts from rank to rank, in place, beginning with part rank - `first`.

        add: True if each rank adds its own part to what it passes on.
        """
        n = self.size
        to, source = (self.rank + 1) % n, (self.rank - 1) % n
        for step in range(first, first + n - 1):
            mine, coming = parts[(self.rank - step) % n], parts[(self.rank - step - 1) % n]
            into = self._temporary(coming) if add else coming
            self._send([(mine, to)] if mine.size else [], [(into, source)] if coming.size else [])
            if add:
                coming += into

    def all_gather_into(self, array: Array, counts: Sequence[int]) -> None:
        parts = self._cut(array, counts)
        self._run(Code.ALL_GATHER, f"all-gather of {array.nbytes} bytes", self._ring, parts, 0)

    def all_gather(self, array: Array) -> list[Array]:
        as_row(array)
        name = f"all-gather of {array.nbytes} bytes"
        return self._run(Code.ALL_GATHER, name, self._all_gather, array)

    def _all_gather(self, array: Array) -> list[Array]:
        rows = np.zeros(self.size, np.int64)
        rows[self.rank] = len(array)
        self._ring(np.split(rows, self.size), 0)
        got = [np.empty((n, *array.shape[1:]), array.dtype) for n in rows.tolist()]
        got[self.rank] = array  # no copy of it, which can take longer than the ring
        self._ring([part.reshape(-1) for part in got], 0)
        return got

    def all_to_all(self, parts: Sequence[Array]) -> list[Array]:
        check_parts(parts, self.size)
        for part in parts:
            dtype_code(part)
        return self._run(Code.ALL_TO_ALL, "all-to-all", self._all_to_all, parts)

    def _all_to_all(self, parts: Sequence[Array]) -> list[Array]:
        others = [r for r in range(self.size) if r != self.rank]
        mine = [np.array([len(part)], np.int64) for part in parts]
        theirs = [np.zeros(1, np.int64) for _ in parts]
        theirs[self.rank][0] = len(parts[self.rank])
        self._send([(mine[r], r) for r in others], [(theirs[r], r) for r in others])
        like = parts[self.rank]
        got = [np.empty((int(n[0]), *like.shape[1:]), like.dtype) for n in theirs]
        got[self.rank] = parts[self.rank]
        self._send(
            [(np.ascontiguousarray(parts[r]), r) for r in others if parts[r].size],
            [(got[r], r) for r in others if got[r].size],
        )
        return got

    def reduce(self, array: Array, root: int) -> None:
        check_rank(root, self.size)
        flat = as_row(array)
        name = f"reduce of {flat.nbytes} bytes to rank {self.names[root]}"
        self._run(Code.REDUCE, name, self._reduce, flat, root)

    def _reduce(self, flat: Array, root: int) -> None:
        if self.rank != root:
            self._send([(flat, root)], [])
            return
        # The order of ranks needs the root's own values in the middle of the sum.
        own = flat.copy()
        other = self._temporary(flat)
        for r in range(self.size):
            if r != root:
                self._send([], [(other, r)])
            term = own if r == root else other
            if r == 0:
                flat[...] = term
            else:
                flat += term

    def broadcast(self, array: Array, root: int) -> None:
        check_rank(root, self.size)
        flat = as_row(array)
        name = f"broadcast of {flat.nbytes} bytes by rank {self.names[root]}"
        self._run(Code.BROADCAST, name, self._broadcast, flat, root)

    def _broadcast(self, flat: Array, root: int) -> None:
        if self.rank == root:
            self._send([(flat, r) for r in range(self.size) if r != root], [])
        else:
            self._send([], [(flat, root)])

    def send(self, array: Array, to: int) -> None:
        check_rank(to, self.size)
        name = f"send to rank {self.names[to]}"
        self._run(Code.SEND, name, self._send, [(as_row(array), to)], [])

    def receive(self, array: Array, source: int) -> None:
        check_rank(source, self.size)
        name = f"receive from rank {self.names[source]}"
        self._run(Code.SEND, name, self._send, [], [(as_row(array), source)])

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        for _, rank in (*sends, *receives):
            check_rank(rank, self.size, self.rank)
        rows = [[(as_row(array), rank) for array, rank in of] for of in (sends, receives)]
        to, sources = (sorted({self.names[r] for _, r in of}) for of in rows)
        self._run(Code.SEND, f"exchange to ranks {to} and from {sources}", self._send, *rows)

    def barrier(self) -> None:
        self._run(Code.BARRIER, "barrier", self._tree_all_reduce, np.zeros(1, np.uint8))

    def share(self, value: Any) -> list[Any]:
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        every = self._run(Code.SHARE, "share", self._all_gather, text)
        return [json.loads(part.tobytes()) for part in every]
