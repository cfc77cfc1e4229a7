"""A stand-in for the parts of `cupy.cuda` that the package uses, on the twin."""

from __future__ import annotations

import ctypes
import threading
import types

import numpy as np

DEVICES = 8
HOST = -2  # the ordinal that CUDA reports for unknown memory


class Current:
    """A context manager that makes a device current, then restores the previous one, as CuPy's."""

    def __init__(self, devices, ordinal):
        self.devices, self.ordinal = devices, ordinal

    def __enter__(self):
        self.before = self.devices.ordinal()
        self.devices.set(self.ordinal)

    def __exit__(self, *error):
        self.devices.set(self.before)


class Event:
    """An event of the driver."""

    def __init__(self, devices, disable_timing):
        assert disable_timing
        self.devices, self.never, self.handle = devices, False, ctypes.c_void_p()
        assert not devices.twin.calls.cuEventCreate(ctypes.byref(self.handle), 2)

    @property
    def ptr(self):
        return self.handle.value

    @property
    def done(self):
        return not self.never and self.devices.twin.calls.cuEventQuery(self.handle) == 0


class Block:
    """Memory of one device, which stays allocated until `Devices.close`: the twin has enough."""

    def __init__(self, devices, nbytes):
        self.devices, address = devices, ctypes.c_uint64()
        allocate = devices.twin.calls.cuMemAlloc_v2
        if allocate(ctypes.byref(address), ctypes.c_size_t(nbytes)):
            raise MemoryError(f"{nbytes} bytes")
        self.ptr, self.mem = address.value, types.SimpleNamespace(size=nbytes)
        devices.blocks[self.ptr] = (nbytes, devices.ordinal())


class Devices:
    """Memory, streams and events of all devices of the twin.

    never: streams whose last operation never ends. waits: (stream, the event's stream) of each
    wait. set_up: devices that were current once.
    """

    def __init__(self, twin):
        self.twin, self.chosen, self.set_up = twin, threading.local(), set()
        self.blocks, self.streams, self.events = {}, [], {}
        self.never, self.waits = set(), []
        assert not twin.calls.cuInit(0)

    def cuda(self):
        """The stand-in for the module."""
        module = types.ModuleType("cupy.cuda")
        module.Device = lambda ordinal: Current(self, ordinal)
        module.Stream = self._stream
        module.Event = self._event
        module.alloc = lambda nbytes: Block(self, nbytes)
        idle = types.SimpleNamespace(synchronize=lambda: None)
        module.get_current_stream = lambda: idle
        module.runtime = types.SimpleNamespace(
            eventRecord=self._record,
            streamWaitEvent=self._wait,
            pointerGetAttributes=self._attributes,
            getDeviceCount=lambda: DEVICES,
            setDevice=self.set,
        )
        module.driver = types.SimpleNamespace(ctxGetCurrent=self._current)
        return module

    def _context(self, ordinal):
        context = ctypes.c_void_p()
        assert not self.twin.calls.cuDevicePrimaryCtxRetain(ctypes.byref(context), ordinal)
        return context

    def _current(self):
        context = ctypes.c_void_p()
        assert not self.twin.calls.cuCtxGetCurrent(ctypes.byref(context))
        return context.value or 0

    def ordinal(self):
        """The device whose context is current, or else the one that the thread chose last."""
        current = self._current()
        known = (n for n in range(DEVICES) if self._context(n).value == current)
        return next(known) if current else getattr(self.chosen, "ordinal", 0)

    def set(self, ordinal):
        """Set and initialise the device, as cudaSetDevice of CUDA 12 does."""
        self.set_up.add(ordinal)
        self.chosen.ordinal = ordinal
        assert not self.twin.calls.cuCtxSetCurrent(self._context(ordinal))

    def _stream(self, non_blocking):
        assert non_blocking
        handle = ctypes.c_void_p()
        assert not self.twin.calls.cuStreamCreate(ctypes.byref(handle), 1)
        self.streams.append(handle)
        return types.SimpleNamespace(ptr=handle.value)

    def _event(self, disable_timing):
        event = Event(self, disable_timing)
        self.events[event.ptr] = event
        return event

    def _record(self, event, stream):
        self.events[event].never = stream in self.never
        self.events[event].on = stream
        assert not self.twin.calls.cuEventRecord(ctypes.c_void_p(event), ctypes.c_void_p(stream))

    def _wait(self, stream, event):
        self.waits.append((stream, self.events[event].on))
        wait = self.twin.calls.cuStreamWaitEvent
        assert not wait(ctypes.c_void_p(stream), ctypes.c_void_p(event), 0)

    def _attributes(self, address):
        # A copy, since other ranks add items and a garbage collection may remove some.
        for start, (nbytes, device) in self.blocks.copy().items():
            if start <= address < start + nbytes:
                return types.SimpleNamespace(device=device)
        return types.SimpleNamespace(device=HOST)

    # ---- for tests -----------------------------------------------------------------------------

    def put(self, ordinal, values):
        """Copy an array to a device and return its address."""
        values = np.ascontiguousarray(values)
        with Current(self, ordinal):
            block = Block(self, max(values.nbytes, 1))
        ctypes.memmove(block.ptr, values.ctypes.data, values.nbytes)
        return block.ptr

    def get(self, address, shape, dtype):
        """Copy an array from an address, without waiting for work under way."""
        values = np.empty(shape, dtype)
        ctypes.memmove(values.ctypes.data, address, values.nbytes)
        return values

    def close(self):
        """Free everything that was allocated on the twin."""
        calls = self.twin.calls
        with Current(self, 0):
            for address in self.blocks:
                assert not calls.cuMemFree_v2(ctypes.c_uint64(address))
            for event in self.events.values():
                assert not calls.cuEventDestroy_v2(event.handle)
            for stream in self.streams:
                assert not calls.cuStreamDestroy_v2(stream)
