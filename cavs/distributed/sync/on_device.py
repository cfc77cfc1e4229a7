"""All-reduce of dense gradients in the memory of the devices: none of them crosses the bus."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.comm.nccl.communicator import NCCLCommunicator
from cavs.distributed.sync.member import Member, Runtime
from cavs.distributed.sync.part import Array, Gradients, Piece, joined_ranges
from cavs.distributed.sync.synchroniser import Exchange
from cavs.errors import CommunicationError, DeviceError

_GLANCE = 1.0  # seconds between two looks at what NCCL has met


@dataclass(frozen=True)
class DevicePiece(Piece):
    """`count` values of a gradient that stayed on the device."""

    count: int = 0

    def as_tuple(self) -> tuple[int, Array | int, Array | None, int | None, int]:
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

    def finish(self, executor: Any, failed: Exception | None) -> None:
        """Wait for the sums of a step; all ranks call it. failed: the error that stops this one.

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
        """End the sums under way and give the group up."""
        self.lost = True
        self.nccl.abort()

    def close(self) -> None:
        """Free the group."""
        self.lost = True
        self.nccl.close()


class DeviceAllReduce(Exchange):
    """Dense parts, each of consecutive elements, of gradients that stay on the device."""

    def __init__(self, members: Sequence[Member], runtime: Runtime) -> None:
        super().__init__(members, runtime)
        self.executor = runtime.executor
        self.group: DeviceGroup = runtime.group
        dtype = self.values[0].dtype
        starts = {p: self.executor.keep_gradient(p) for p in self.parameters}
        sizes = {p: self.values[p].size for p in self.parameters}
        self.dtype, self.ranges = (
            str(dtype),
            joined_ranges(self.parts, starts, sizes, dtype.itemsize),
        )
        self.pieces: list[Piece] = [
            DevicePiece(p.parameter, np.empty(0), None, 1, p.offset, count=p.size)
            for p in self.parts
        ]

    def wait(self, gradients: Gradients) -> bool:
        """See `Exchange`. Gradients are launched then, not done: the stream waits for that."""
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
