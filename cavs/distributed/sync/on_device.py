"""All-reduce of dense gradients in the memory of the devices: none of them crosses the bus."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.comm.nccl.communicator import NCCLCommunicator
from cavs.distributed.sync.exchange import Exchange
from cavs.distributed.sync.member import Member, Runtime
from cavs.distributed.sync.part import GAP, Array, Gradients, Part, Piece
from cavs.errors import CommunicationError, DeviceError

_GLANCE = 1.0  # seconds between two looks at what NCCL has met


@dataclass(frozen=True)
class DevicePiece(Piece):
    """`count` values of a gradient that stayed on the device."""

    count: int = 0

    def as_tuple(self) -> tuple[int, Array | int, Array | None, int | None, int]:
        """As the engine takes it."""
        return self.parameter, self.count, None, 1, self.offset

    def share(self, rank: int, ranks: int) -> Piece:
        begin, end = (self.count * r // ranks for r in (rank, rank + 1))
        return replace(self, offset=self.offset + begin, count=end - begin)


class DeviceGroup:
    """The devices of the ranks of `control`, from one program to the next.

    None of them is left waiting: all ranks agree that all sums of a step have been started before
    one waits for them, and give the group up together if not.
    """

    def __init__(self, nccl: NCCLCommunicator, control: Communicator) -> None:
        self.nccl, self.control = nccl, control
        self.lost = False  # given up: a new one is to be made

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank has sent to other devices, by the formula of a ring."""
        return self.nccl.sent_bytes

    def finish(self, executor: Any, failed: Exception | None) -> None:
        """Waits for the sums of a step; all ranks call it. failed: what kept this one from them.

        CommunicationError if they do not end in time, which says where the other ranks are;
        DeviceError if NCCL says why. The group is given up then; `failed` is left to the caller.
        """
        missing = np.array([float(failed is not None)])
        try:
            self.control.all_reduce(missing)
        except CommunicationError:
            self.abort()
            raise
        if missing[0]:
            self.abort()
            return
        end = time.monotonic() + self.control.timeout
        try:
            with self.control.waiting("sums by NCCL") as waiting:
                while not executor.wait_collectives(min(_GLANCE, self.control.timeout)):
                    self.nccl.check()
                    waiting.look()
                    if time.monotonic() > end:
                        raise waiting.hung(self.control.timeout, "for NCCL")
        except (CommunicationError, DeviceError):
            self.abort()
            raise

    def abort(self) -> None:
        """Ends what is under way; the group is of no more use."""
        self.lost = True
        self.nccl.abort()

    def close(self) -> None:
        """Frees the group."""
        self.lost = True
        self.nccl.close()


class DeviceAllReduce(Exchange):
    """Dense parts, each of consecutive elements, of gradients that stay on the device."""

    @classmethod
    def build(cls, members: Sequence[Member], runtime: Runtime) -> Exchange:
        return cls([m.part for m in members], runtime.values, runtime.executor, runtime.group)

    def __init__(
        self, parts: Sequence[Part], values: Sequence[Array], executor: Any, group: DeviceGroup
    ) -> None:
        super().__init__([p.parameter for p in parts], values)
        self.executor, self.group = executor, group
        self.dtype = str(values[0].dtype)
        starts = {p: executor.keep_gradient(p) for p in self.parameters}
        self.ranges = _ranges(parts, starts, values)
        self.pieces: list[Piece] = [
            DevicePiece(p.parameter, np.empty(0), None, 1, p.offset, count=p.size) for p in parts
        ]

    def wait(self, gradients: Gradients) -> bool:
        """Until they are launched, not until they are done: the stream waits for that."""
        return all([self.executor.follow_gradient(p) for p in self.parameters])

    def reduce(self, gradients: Gradients, usable: bool, c: Communicator) -> list[Piece]:
        """See `Exchange`; started, not done, when it returns."""
        if self.group.lost:
            raise DeviceError("this step's sums were given up: one of them could not be started")
        self.executor.open_collective()
        try:
            self.group.nccl.sum_ranges(self.ranges, self.dtype, self.executor.collective_stream)
        except DeviceError:
            self.group.lost = True
            raise
        self.executor.close_collective()
        return self.pieces


def _ranges(
    parts: Sequence[Part], starts: Mapping[int, int], values: Sequence[Array]
) -> list[tuple[int, int]]:
    """Addresses and elements; as one where nothing but a gap lies between two parts."""
    size, found = values[0].itemsize, list[tuple[int, int]]()
    whole = False  # True if the part before goes to the end of its gradient
    for part in sorted(parts, key=lambda p: starts[p.parameter] + p.offset * size):
        begin = starts[part.parameter] + part.offset * size
        gap = begin - (found[-1][0] + found[-1][1] * size) if found else GAP
        if gap == 0 or (whole and part.offset == 0 and gap < GAP):
            found[-1] = found[-1][0], (begin - found[-1][0]) // size + part.size
        else:
            found.append((begin, part.size))
        whole = part.end == values[part.parameter].size
    return found
