"""Ranks as threads with arrays in the twin's memory, for tests written for NumPy arrays."""

from __future__ import annotations

import contextlib
import functools

import numpy as np
import pytest

from cavs.distributed.comm import (
    DeviceArray,
    NCCLCommunicator,
    SingleCommunicator,
    run_threads,
)
from tests.cuda.cupy_on_twin import DEVICES
from tests.cuda.nccl_stand_in import StandIn
from tests.cuda.twin import Twin, missing
from tests.patience import patience


@contextlib.contextmanager
def stand_in(twin):
    """A stand-in for NCCL; at the end all groups must be closed."""
    nccl = StandIn(twin)
    twin.set("devices", DEVICES)
    with pytest.MonkeyPatch.context() as patch:
        nccl.install(patch)
        yield nccl
        nccl.close()
    assert not nccl.open, "not all groups were freed"


@contextlib.contextmanager
def device_ranks():
    """Like `run_threads`, with a device of the twin for the arrays of each rank."""
    if reason := missing():
        pytest.skip(reason)
    twin = Twin()
    twin.reset()
    with stand_in(twin) as nccl:
        yield functools.partial(run_devices, nccl)
    twin.check_guards()
    twin.reset()


def run_devices(nccl, size, work, *, timeout=60.0):
    def on_device(control):
        c = NCCLCommunicator(control, control.rank)
        with ended(c):
            return work(OnDevice(c, nccl))

    return run_threads(size, on_device, timeout=timeout)


@contextlib.contextmanager
def ended(c):
    """Close a communicator, or abort it if the test fails."""
    try:
        yield
    except BaseException:
        c.abort()
        raise
    c.close()


def alone(work):
    """Run `work(communicator)` on one rank with device 1."""
    c = NCCLCommunicator(SingleCommunicator(), 1)
    c.timeout = patience(20)
    with ended(c):
        return work(c)


class Array:
    """An array of another library on a device."""

    def __init__(self, at, shape, typestr="<f8", **more):
        self.__cuda_array_interface__ = {
            **{"shape": shape, "typestr": typestr, "data": (at, False), "version": 3},
            **more,
        }


class OnDevice:
    """A communicator for NumPy arrays, which are copied to the device for each operation."""

    def __init__(self, c, nccl):
        self.c, self.nccl = c, nccl

    def put(self, x):
        return DeviceArray(self.nccl.put(self.c.ordinal, x), x.shape, str(x.dtype))

    def get(self, x):
        if isinstance(x, list):
            return [self.get(one) for one in x]
        return self.nccl.get(x.address, x.shape, x.dtype) if isinstance(x, DeviceArray) else x

    def split(self, color, key=0):
        return OnDevice(self.c.split(color, key), self.nccl)

    def share(self, value):
        return self.c._control.share(value)

    def __getattr__(self, name):
        found = getattr(self.c, name)
        return functools.partial(self._call, found) if callable(found) else found

    def _call(self, operation, *arguments):
        placed = []

        def there(x):
            if isinstance(x, list | tuple):
                return type(x)(map(there, x))
            if not isinstance(x, np.ndarray):
                return x
            placed.append((x, self.put(x)))
            return placed[-1][1]

        result = operation(*map(there, arguments))
        for x, at in placed:
            x[...] = self.get(at)
        return self.get(result)
