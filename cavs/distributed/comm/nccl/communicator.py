"""The operations of a communicator on GPUs of one rank each, in their own memory, by NCCL.

A training sums its gradients by `NCCLGroup.sum_ranges` alone, on a stream of the engine: the other
operations are for programs that keep arrays of their own on the ranks' GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cavs.cuda.memory import CupyMemory
from cavs.distributed.comm.interfaces import Communicator, Operations
from cavs.distributed.comm.messages import check_parts, check_rank, cuts
from cavs.distributed.comm.nccl.device_array import DeviceArray, OnDevice
from cavs.distributed.comm.nccl.group import NCCLGroup, Peers
from cavs.distributed.comm.reductions import check_op
from cavs.distributed.comm.topology import binomial
from cavs.errors import ConfigError, DeviceError

_AVERAGE = 4  # ncclAvg, for which CuPy has no name
_Part = tuple[DeviceArray, int]  # and the rank it goes to or comes from


class NCCLCommunicator(NCCLGroup, Operations[OnDevice]):
    """Operations of the ranks of `control`, each with GPU number `ordinal` of its process.

    Arrays are what `DeviceArray.of` takes, on that GPU; results are `DeviceArray`s. They are passed
    as addresses, without a copy, after what their streams have been given; shapes that ranks have
    to tell each other go over `control`. Sums have an order of NCCL's own. Ranks that both send
    before they receive wait for each other: `exchange` does both at once.

    ConfigError for an array that is not contiguous, not on this GPU or of a type that NCCL does not
    add. After a CommunicationError or DeviceError the group is given up. `sum_ranges` is not called
    while other operations are under way.
    """

    overlaps = True

    def __init__(self, control: Communicator, ordinal: int) -> None:
        self._owned: Communicator | None = None  # `control`, if it was made for this group
        self._memory: CupyMemory | None = None
        self._one: DeviceArray | None = None
        super().__init__(control, ordinal)

    # ---- operations ----------------------------------------------------------------------------

    def all_reduce(self, array: OnDevice, op: str = "sum") -> None:
        check_op(op, DeviceArray.of(array).dtype)
        number = _AVERAGE if op == "mean" else getattr(self._nccl, f"NCCL_{op.upper()}")
        name = "all-reduce" if op == "sum" else f"{op} all-reduce"
        own = self._in_place(name, "allReduce", array, number)
        self.sent_bytes += 2 * (self.size - 1) * own.nbytes // self.size

    def reduce(self, array: OnDevice, root: int) -> None:
        check_rank(root, self.size)
        to = f" to rank {self.names[root]}"
        own = self._in_place("reduce", "reduce", array, self._nccl.NCCL_SUM, root, where=to)
        self.sent_bytes += own.nbytes if self.rank != root else 0

    def broadcast(self, array: OnDevice, root: int) -> None:
        check_rank(root, self.size)
        by = f" by rank {self.names[root]}"
        own = self._in_place("broadcast", "broadcast", array, root, where=by)
        self.sent_bytes += len(binomial(self.rank, root, self.size)[1]) * own.nbytes

    def _in_place(
        self, name: str, call: str, array: OnDevice, *more: int, where: str = ""
    ) -> DeviceArray:
        """Run a `call` of NCCL that reads and writes all of an array."""
        own = self._own(array)
        arguments = own.address, own.address, own.size, self.code(own.dtype), *more
        self._run(
            f"{name} of {own.nbytes} bytes{where}",
            [own],
            lambda comm, stream: getattr(comm, call)(*arguments, stream),
        )
        return own

    def reduce_scatter(self, array: OnDevice, counts: Sequence[int]) -> DeviceArray:
        own = self._own(array)
        parts, code, add = self._cut(own, counts), self.code(own.dtype), self._nccl.NCCL_SUM
        mine = parts[self.rank]

        def calls(comm: Any, stream: int) -> None:
            if len(set(counts)) == 1:
                comm.reduceScatter(own.address, mine.address, mine.size, code, add, stream)
                return
            for root, part in enumerate(parts):
                if part.size:
                    comm.reduce(part.address, part.address, part.size, code, add, root, stream)

        self._run(f"reduce-scatter of {own.nbytes} bytes", [own], calls)
        self.sent_bytes += own.nbytes - mine.nbytes
        return mine

    def all_gather_into(self, array: OnDevice, counts: Sequence[int]) -> None:
        own = self._own(array)
        parts = self._cut(own, counts)
        self._gather(parts[self.rank], parts, own)

    def all_gather(self, array: OnDevice) -> list[DeviceArray]:
        own = self._own(array)
        rows, inner = [told[0] for told in self._rows([own])], own.shape[1:]
        whole = self._new((sum(rows), *inner), own.dtype)
        parts = self._cut(whole, [n * math.prod(inner) for n in rows])
        self._gather(own, parts, whole)
        return [replace(part, shape=(n, *inner)) for n, part in zip(rows, parts, strict=True)]

    def _gather(self, mine: DeviceArray, parts: Sequence[DeviceArray], whole: DeviceArray) -> None:
        """Send `mine` of every rank to all, into `parts` of `whole`."""
        code = self.code(whole.dtype)

        def calls(comm: Any, stream: int) -> None:
            if len({part.size for part in parts}) == 1:
                comm.allGather(mine.address, whole.address, mine.size, code, stream)
                return
            for root, part in enumerate(parts):
                source = mine if root == self.rank else part
                if part.size:
                    comm.broadcast(source.address, part.address, part.size, code, root, stream)

        self._run(f"all-gather of {whole.nbytes} bytes", [mine, whole], calls)
        # Around a ring a rank passes on all but what the next one has.
        self.sent_bytes += whole.nbytes - parts[(self.rank + 1) % self.size].nbytes

    def all_to_all(self, parts: Sequence[OnDevice]) -> list[DeviceArray]:
        check_parts(parts, self.size)
        mine = [self._own(part) for part in parts]
        own = mine[self.rank]
        rows = [told[self.rank] for told in self._rows(mine)]
        got = [
            own if r == self.rank else self._new((n, *own.shape[1:]), own.dtype)
            for r, n in enumerate(rows)
        ]
        others = [r for r in range(self.size) if r != self.rank]
        sends, receives = ([(of[r], r) for r in others if of[r].size] for of in (mine, got))
        self._transfer("all-to-all", sends, receives, None)
        return got

    def send(self, array: OnDevice, to: int) -> None:
        own = self._own(array, to)
        name = f"send of {own.nbytes} bytes to rank {self.names[to]}"
        self._transfer(name, [(own, to)], [], [to])

    def receive(self, array: OnDevice, source: int) -> None:
        own = self._own(array, source)
        name = f"receive of {own.nbytes} bytes from rank {self.names[source]}"
        self._transfer(name, [], [(own, source)], [source])

    def exchange(
        self, sends: Sequence[tuple[OnDevice, int]], receives: Sequence[tuple[OnDevice, int]]
    ) -> None:
        out, into = ([(self._own(a, r), r) for a, r in of] for of in (sends, receives))
        to, sources = ({r for _, r in of} for of in (out, into))
        ends, starts = (sorted(self.names[r] for r in of) for of in (to, sources))
        name = f"exchange to ranks {ends} and from {starts}"
        self._transfer(name, out, into, sorted(to | sources))

    def _transfer(
        self, name: str, sends: Sequence[_Part], receives: Sequence[_Part], peers: Peers
    ) -> None:
        """Send and receive arrays, each with the rank it goes to or comes from, all at once."""

        def calls(comm: Any, stream: int) -> None:
            for own, to in sends:
                comm.send(own.address, own.size, self.code(own.dtype), to, stream)
            for own, source in receives:
                comm.recv(own.address, own.size, self.code(own.dtype), source, stream)

        self._run(name, [own for own, _ in (*sends, *receives)], calls, peers)
        self.sent_bytes += sum(own.nbytes for own, _ in sends)

    def barrier(self) -> None:
        if self._one is None:
            self._one = self._new((1,), "uint8")
        self.all_reduce(self._one)

    # ---- groups --------------------------------------------------------------------------------

    def split(self, color: int, key: int = 0) -> NCCLCommunicator:
        """See `Operations`. All ranks call it; DeviceError on all of a group that fails."""
        control = self._control.split(color, key)
        part, failed = None, None
        try:
            part = NCCLCommunicator(control, self.ordinal)
        except DeviceError as error:  # the others must learn of it
            failed = error
        wrong = list(filter(None, control.share("" if failed is None else failed.what)))
        if part is None or wrong:
            if part is not None:
                part.abort()
            control.close()
            raise failed or DeviceError(wrong[0])
        part._owned, part.timeout = control, self.timeout
        return part

    def close(self) -> None:
        """See `Operations`. Free what NCCL holds, once all that was started has ended."""
        try:
            super().close()
        finally:
            if self._owned is not None:
                self._owned.close()

    # ---- arrays --------------------------------------------------------------------------------

    def _own(self, array: OnDevice, peer: int | None = None) -> DeviceArray:
        """Return an array as a DeviceArray; ConfigError if it cannot be sent."""
        if peer is not None:
            check_rank(peer, self.size, self.rank)
        own = DeviceArray.of(array)
        if own.size:
            runtime, at = self.cuda.runtime, own.address
            device = self.call(lambda: runtime.pointerGetAttributes(at).device)
            if device != self.ordinal:
                where = "the host" if device < 0 else f"cuda:{device}"
                raise ConfigError(
                    f"an array is in the memory of {where}, but rank {self._name} sends from "
                    f"cuda:{self.ordinal}",
                    hint=f"move it there, as with cupy.cuda.Device({self.ordinal})",
                )
        self.code(own.dtype)
        return own

    def _cut(self, own: DeviceArray, counts: Sequence[int]) -> list[DeviceArray]:
        return [own.cut(begin, end) for begin, end in cuts(counts, own.size, self.size)]

    def _rows(self, arrays: Sequence[DeviceArray]) -> list[list[int]]:
        """Return the rows of the arrays of every rank; ConfigError on all if more differs."""
        told = self._control.share([[a.dtype, *a.shape] for a in arrays])
        forms = {(dtype, *shape[1:]) for rank in told for dtype, *shape in rank}
        if len(forms) > 1 or not arrays[0].shape:
            raise ConfigError(
                f"arrays of ranks differ in more than their first axis: {sorted(map(str, forms))}",
                hint="arrays of one type, and of rows of one shape",
            )
        return [[shape[0] for _, *shape in rank] for rank in told]

    def _new(self, shape: tuple[int, ...], dtype: str) -> DeviceArray:
        """Return new memory of this GPU; DeviceError if there is no room."""
        if self._memory is None:
            self._memory = CupyMemory(self.ordinal)
        like = DeviceArray(0, shape, dtype)
        block = _Block(self._memory, self._memory.allocate(like.nbytes))
        return DeviceArray(block.address, shape, dtype, owner=block)


class _Block:
    """Memory that is freed with its last reference."""

    def __init__(self, memory: CupyMemory, address: int) -> None:
        self.address, self._memory = address, memory

    def __del__(self) -> None:
        self._memory.release(self.address)
