"""Collectives built on one primitive: send some arrays and receive others, then go on.

They are written once and run on MPI and on threads alike. MPI has collectives of its own, but its
non-blocking ones are slower than these on shared memory, and its blocking ones cannot name a peer
that hangs. Sums have one order, whatever the timing.
"""

from __future__ import annotations

import json
import socket
import threading
from abc import ABC
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from cavs.distributed.comm.common_memory import CommonMemory, map_common
from cavs.distributed.comm.hang_detection import Known, Peers, PendingWait, WaitRegister, nothing
from cavs.distributed.comm.interfaces import Array, Communicator, Handle
from cavs.distributed.comm.messages import (
    REDUCTIONS,
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
from cavs.distributed.comm.named import NamedCollectives
from cavs.distributed.comm.parts import PartsExchange
from cavs.distributed.comm.progress import Progress
from cavs.distributed.comm.rates import Rates
from cavs.distributed.comm.reductions import check_op, combine, complete
from cavs.distributed.comm.service import Service
from cavs.distributed.comm.store import Store
from cavs.distributed.comm.topology import Topology, Tree, binomial, children
from cavs.distributed.comm.traffic import Traffic
from cavs.errors import CommunicationError, ProcessLocal

T = TypeVar("T")
S = TypeVar("S", NamedCollectives, Store, Rates)

TREE_CHUNK = 1 << 18  # bytes that go up and down a tree at once
_NEAR = 1 << 15  # elements whose sum stays in a core's cache until all ranks have it
SMALL = 1 << 14  # bytes; below, the number of messages counts more than their size


class Collectives(ProcessLocal, PartsExchange, Communicator, ABC):
    """Base class of communicators: the operations, by means of `_exchange`.

    names: numbers of the ranks in the world. group: a name that no other group has, the same on all
    ranks. register: shares the waits of this rank.
    """

    _pickling_hint = "every rank has its own: start ranks with cavs launch, not from Python"

    def __init__(
        self, rank: int, names: Sequence[int], timeout: float, register: WaitRegister, group: str
    ) -> None:
        self.rank, self.size = rank, len(names)
        self.names: Sequence[int] = tuple(names)
        self.timeout, self.overlaps, self.sent_bytes = timeout, True, 0
        self.pool: Any = None
        self._register, self._group = register, group
        self._progress = Progress()
        self._turn = threading.RLock()
        self._scratch = np.empty(0, np.uint8)
        self._common: list[CommonMemory] = []
        self._by_host: list[Collectives] = []  # see `_split_by_host`
        self._topology: Topology | None = None
        self.tree: Tree | None = None
        self._services: dict[type, NamedCollectives | Store | Rates] = {}
        self.traffic = Traffic()
        self._broken: CommunicationError | None = None
        self.operations = 0  # begun so far: what ranks compare when one of them hangs
        self.operation, self._code = "nothing yet", Code.BARRIER

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
        for open_part in (*reversed(self._services.values()), *self._by_host):
            open_part.close()
        self._progress.close()

    def _send(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        if self._broken is not None:  # its messages would meet the wrong operations of others
            raise self._broken
        self.sent_bytes += sum(array.nbytes for array, _ in sends)
        try:
            self._exchange(sends, receives)
            for array, to in sends:
                self.traffic.count(self.names[to], sent=array.nbytes)
            for array, source in receives:
                self.traffic.count(self.names[source], received=array.nbytes)
        except CommunicationError as error:
            self._broken = error
            raise

    def _temporary(self, like: Array) -> Array:
        """Return memory shaped as `like`, reused: fresh pages cost more than the sum."""
        if self._scratch.nbytes < like.nbytes:
            self._scratch = np.empty(like.nbytes, np.uint8)
        return self._scratch[: like.nbytes].view(like.dtype).reshape(like.shape)

    # ---- operations ----------------------------------------------------------------------------

    def all_reduce(self, array: Array, op: str = "sum") -> None:
        flat = as_row(array)
        check_op(op, flat.dtype.name)
        name = f"{'' if op == 'sum' else f'{op} '}all-reduce of {flat.nbytes} bytes"
        self._run(REDUCTIONS.get(op, Code.TREE), name, self._all_reduce, flat, op)

    def _all_reduce(self, flat: Array, op: str = "sum") -> None:
        if self.size == 1 or flat.size == 0:
            return
        if flat.nbytes <= SMALL or flat.size < self.size:
            self._tree_all_reduce(flat, op)
        elif self.tree is not None:
            self._reduce_along(self.tree, flat, op)
        elif everyone := self._in_common(flat):
            self._code = REDUCTIONS.get(op, Code.COMMON)
            self._reduce_in_common(everyone, flat, op)
        else:
            self._code = REDUCTIONS.get(op, Code.RING)
            counts = even_counts(flat.size, self.size)
            parts = self._cut(flat, counts)
            self._scatter_sums(parts, op)
            self._ring(parts, 0)
        complete(op, flat, self.size)

    def _tree_all_reduce(self, flat: Array, op: str = "sum") -> None:
        """Reduce up a binomial tree to rank 0 and send the result down: 2 log2 N steps."""
        other = self._temporary(flat)
        step = 1
        while step < self.size:
            if self.rank % (2 * step) == step:
                self._send([(flat, self.rank - step)], [])
                break
            if self.rank + step < self.size:
                self._send([], [(other, self.rank + step)])
                combine(op, flat, other, flat)
            step *= 2
        self._tree_broadcast(flat, 0)

    def _reduce_along(self, tree: Tree, flat: Array, op: str) -> None:
        """Reduce up a tree that was set, in the order of children, and send the result down."""
        below, parent = children(tree, self.rank), tree[self.rank]
        rows = range(0, flat.size, max(TREE_CHUNK // flat.itemsize, 1))
        chunks = [flat[begin : begin + rows.step] for begin in rows]
        for chunk in chunks:
            other = self._temporary(chunk)
            for child in below:
                self._send([], [(other, child)])
                combine(op, chunk, other, chunk)
            if parent != self.rank:
                self._send([(chunk, parent)], [])
        for chunk in chunks:
            if parent != self.rank:
                self._send([], [(chunk, parent)])
            self._send([(chunk, child) for child in below], [])

    def _tree_broadcast(self, flat: Array, root: int) -> None:
        """Send down a binomial tree below `root`: log2 N steps."""
        parent, below = binomial(self.rank, root, self.size)
        if parent is not None:
            self._send([], [(flat, parent)])
        for child in below:
            self._send([(flat, child)], [])

    # ---- common memory -------------------------------------------------------------------------

    def common_memory(self, nbytes: int) -> Array | None:
        self._common = [common for common in self._common if common.is_alive]
        if self.size == 1 or len(self.topology.teams) == self.size:
            return None
        local = self._split_by_host()[0]
        found: list[Array] | None = [np.zeros(nbytes, np.uint8)]
        if local.size > 1:
            found = map_common(local.rank, nbytes, local.share)
        if local is not self and not all(self.share(found is not None)):
            return None
        if found is None:
            return None
        self._common.append(CommonMemory(found, local.rank))
        return found[local.rank]

    def _split_by_host(self) -> list[Collectives]:
        """Return the group of the ranks of this host and, on its first, that of the first ranks."""
        if len(self.topology.teams) == 1:
            return [self]
        if not self._by_host:
            host = next(i for i, team in enumerate(self.topology.teams) if self.rank in team)
            local = self.split(host)
            first = self.split(min(local.rank, 1))
            groups = [local] if local.rank else [local, first]
            self._by_host = [group for group in groups if isinstance(group, Collectives)]
        return self._by_host

    def _in_common(self, flat: Array) -> list[Array]:
        """Return `flat` in the memory of every rank of the host; nothing if it is not there."""
        return next(filter(None, (common.like(flat) for common in self._common)), [])

    def _reduce_in_common(self, everyone: Sequence[Array], flat: Array, op: str) -> None:
        """Reduce inside each host, between the first ranks of hosts, and copy inside again."""
        if len(everyone) == self.size:
            self._sum_in_common(everyone, everyone, op)
            return
        before = sum(group.sent_bytes for group in self._by_host)
        try:
            local, *first = self._by_host
            code, name = self._code, self.operation
            if local.size > 1:
                local._run(code, name, local._sum_in_common, everyone, everyone[:1], op)
            for group in first:
                group.all_reduce(flat, "sum" if op == "mean" else op)
            if local.size > 1:
                local._run(code, name, local._copy_in_common, everyone[0], flat)
        except CommunicationError as error:
            self._broken = error
            raise
        finally:
            self.sent_bytes += sum(group.sent_bytes for group in self._by_host) - before

    def _sum_in_common(self, everyone: Sequence[Array], into: Sequence[Array], op: str) -> None:
        """Each rank reduces one part of all, in the order of ranks, and writes it to `into`."""
        n, size = self.size, everyone[0].nbytes
        begin, end = offsets(even_counts(everyone[0].size, n))[self.rank]
        self._synchronise()
        for at in range(begin, end, _NEAR):
            parts = [array[at : min(at + _NEAR, end)] for array in everyone]
            total = self._temporary(parts[0])
            combine(op, parts[0], parts[1], total)
            for part in parts[2:]:
                combine(op, total, part, total)
            for array in into:
                array[at : min(at + _NEAR, end)] = total
        self._synchronise()
        # Bytes that others read here, and that this rank wrote to them.
        written = n - 1 if len(into) == n else min(self.rank, 1)
        self._count_in_common((n - 1 + written) * size // n)

    def _copy_in_common(self, source: Array, target: Array) -> None:
        """Copy the array of the first rank to the others."""
        self._synchronise()
        if self.rank:
            target[...] = source
        self._synchronise()
        self._count_in_common(0 if self.rank else (self.size - 1) * source.nbytes)

    def _count_in_common(self, nbytes: int) -> None:
        """Count bytes that all other ranks read here, or that this rank wrote to theirs."""
        self.sent_bytes += nbytes
        each = nbytes // max(self.size - 1, 1)
        for rank in self._others():
            self.traffic.count(self.names[rank], sent=each, received=each)

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

    def _scatter_sums(self, parts: Sequence[Array], op: str = "sum") -> None:
        """Part p starts at rank p + 1 and is complete when it reaches rank p."""
        self._ring(parts, 1, op)

    def _ring(self, parts: Sequence[Array], first: int, op: str = "") -> None:
        """Pass parts from rank to rank, in place, beginning with part rank - `first`.

        op: the reduction by which each rank combines its own part with what it passes on, if any.
        """
        n = self.size
        to, source = (self.rank + 1) % n, (self.rank - 1) % n
        for step in range(first, first + n - 1):
            mine, coming = parts[(self.rank - step) % n], parts[(self.rank - step - 1) % n]
            into = self._temporary(coming) if op else coming
            self._send([(mine, to)] if mine.size else [], [(into, source)] if coming.size else [])
            if op:
                combine(op, coming, into, coming)

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
        self._run(Code.BROADCAST, name, self._tree_broadcast, flat, root)

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

    # ---- services ------------------------------------------------------------------------------

    @property
    def topology(self) -> Topology:
        if self._topology is None:
            self._topology = Topology(self.share(self._host()))
        return self._topology

    def _host(self) -> str:
        return socket.gethostname()

    def named(self) -> NamedCollectives:
        return self._service(NamedCollectives)

    def store(self) -> Store:
        return self._service(Store)

    def rates(self) -> Rates:
        return self._service(Rates)

    @property
    def service_bytes(self) -> int:
        services = [s for s in self._services.values() if isinstance(s, Service)]
        return sum(service.sent_bytes for service in services)

    def _service(self, cls: type[S]) -> S:
        if cls not in self._services:
            self._services[cls] = cls(self)
        return self._services[cls]  # type: ignore[return-value]

    def leave(self) -> None:
        for group in self._by_host:
            group.leave()
