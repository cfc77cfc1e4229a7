"""Allocators for tests: the driver's, and a pool."""

import ctypes
from typing import ClassVar

from cavs.errors import DeviceError


class DriverMemory:
    """The driver's memory, called from Python. at: number of the allocation that raises `error`."""

    def __init__(self, twin, at=0, error=None):
        self.twin, self.at, self.error, self.count = twin, at, error, 0

    def allocate(self, nbytes):
        self.count += 1
        if self.count == self.at:
            raise self.error
        address = ctypes.c_uint64()
        found = self.twin.calls.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(nbytes))
        if found:  # every call after a fault returns it
            raise DeviceError(f"cuMemAlloc_v2 of {nbytes} bytes returned {found}")
        return address.value

    def release(self, pointer):
        assert self.twin.calls.cuMemFree_v2(ctypes.c_uint64(pointer)) == 0


class Pool(DriverMemory):
    """An allocator that reuses released blocks at once, as CuPy's pool does."""

    opened: ClassVar = []

    def __init__(self, twin):
        super().__init__(twin)
        self.sizes, self.free, self.closed = {}, [], False
        self.opened.append(self)

    def allocate(self, nbytes):
        for at in self.free:
            if self.sizes[at] >= nbytes:
                self.free.remove(at)
                return at
        at = super().allocate(nbytes)
        self.sizes[at] = nbytes
        return at

    def release(self, pointer):
        if self.closed:  # a device that has failed refuses
            self.twin.calls.cuMemFree_v2(ctypes.c_uint64(pointer))
        else:
            self.free.append(pointer)

    @classmethod
    def close_all(cls):
        """Free the blocks of every pool, those in use when they are released.

        The twin checks the guard bytes of all live blocks before and after each test.
        """
        while cls.opened:
            cls.opened.pop().close()

    def close(self):
        calls, before, context = self.twin.calls, ctypes.c_void_p(), ctypes.c_void_p()
        calls.cuCtxGetCurrent(ctypes.byref(before))
        calls.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        calls.cuCtxSetCurrent(context)
        self.closed = True
        while self.free:
            super().release(self.free.pop())
        calls.cuCtxSetCurrent(before)
