"""A stand-in for CuPy and its NCCL whose ranks are threads with the twin's memory."""

from __future__ import annotations

import ctypes
import sys
import threading
import types

import numpy as np
import pytest


class NcclError(RuntimeError):
    """As NCCL's own class."""


class Group:
    """What the ranks with one id share."""

    def __init__(self, size):
        self.meet, self.parts = threading.Barrier(size), {}


class StandIn:
    """fails: ranks whose next all-reduce does. refuses: those that join no group."""

    available = True
    NCCL_SUM, NCCL_FLOAT32, NCCL_FLOAT64 = 0, 7, 8

    def __init__(self, twin, timeout=20.0):
        self.twin, self.timeout = twin, timeout
        self.types = {self.NCCL_FLOAT32: np.float32, self.NCCL_FLOAT64: np.float64}
        self.calls, self.groups, self.fails = [], {}, set()
        self.lock, self.refuses = threading.Lock(), set()
        self.open = []  # communicators that are neither destroyed nor aborted

    def get_unique_id(self):
        with self.lock:
            return (len(self.groups), 99)

    def groupStart(self):
        self.log("groupStart")

    def groupEnd(self):
        self.log("groupEnd")

    def log(self, *call):
        with self.lock:
            self.calls.append(call)

    def NcclCommunicator(self, size, unique, rank):
        if rank in self.refuses:
            raise NcclError("NCCL_ERROR_SYSTEM_ERROR: no such network")
        with self.lock:
            group = self.groups.setdefault(unique, Group(size))
            self.open.append(Communicator(self, group, rank, size))
            return self.open[-1]

    @property
    def live(self):
        return len(self.open)

    def open_of(self, rank):
        return [c for c in self.open if c.rank == rank]

    def install(self, patch: pytest.MonkeyPatch):
        """As the modules that the package imports."""
        cupy, cuda = types.ModuleType("cupy"), types.ModuleType("cupy.cuda")
        cupy.cuda, cuda.nccl, cuda.Device = cuda, self, self.device
        for name, module in (("cupy", cupy), ("cupy.cuda", cuda), ("cupy.cuda.nccl", self)):
            patch.setitem(sys.modules, name, module)

    def device(self, ordinal):
        return Current(self.twin, ordinal)


class Current:
    """Makes a device current, as CuPy's."""

    def __init__(self, twin, ordinal):
        self.twin, self.ordinal = twin, ordinal

    def __enter__(self):
        context = ctypes.c_void_p()
        assert not self.twin.calls.cuDevicePrimaryCtxRetain(ctypes.byref(context), self.ordinal)
        assert not self.twin.calls.cuCtxSetCurrent(context)

    def __exit__(self, *error):
        pass


class Communicator:
    """An operation has run when it returns: the stream before it, then all ranks."""

    def __init__(self, module, group, rank, size):
        self.module, self.group, self.rank, self.size = module, group, rank, size
        self.met = None  # an error since

    def allReduce(self, source, target, count, kind, operation, stream):
        module, group = self.module, self.group
        module.log("allReduce", self.rank, count, module.types[kind])
        if self.rank in module.fails:
            module.fails.remove(self.rank)
            group.meet.abort()  # others have started theirs, and only a stand-in waits there
            raise NcclError("NCCL_ERROR_SYSTEM_ERROR: unhandled system error")
        handle = ctypes.c_void_p(stream)
        if module.twin.calls.cuStreamSynchronize(handle):
            raise NcclError("NCCL_ERROR_UNHANDLED_CUDA_ERROR: unhandled cuda error")
        assert source == target and operation == module.NCCL_SUM
        number = ctypes.c_float if module.types[kind] is np.float32 else ctypes.c_double
        memory = np.ctypeslib.as_array((number * count).from_address(target))
        try:
            group.parts[self.rank] = memory.copy()
            group.meet.wait(module.timeout)
            total = group.parts[0].copy()
            for rank in range(1, self.size):
                total += group.parts[rank]
            group.meet.wait(module.timeout)
        except threading.BrokenBarrierError:
            return  # given up: what is there is of no use, as on a GPU
        memory[...] = total

    def check_async_error(self):
        if self.met is not None:
            raise NcclError(self.met)

    def abort(self):
        self.module.log("abort", self.rank)
        self.group.meet.abort()
        self._end()

    def destroy(self):
        self.module.log("destroy", self.rank)
        self._end()

    def _end(self):
        with self.module.lock:
            self.module.open.remove(self)
