"""Device memory from an allocator in Python: its errors, and when it gets blocks back."""

from __future__ import annotations

import ctypes
import gc
import sys
from dataclasses import replace

import numpy as np
import pytest

import cavs
from cavs import nn
from cavs.cuda import Device
from cavs.errors import DeviceError
from tests.runtime.trees import Classifier, treebank


class TwinMemory:
    """The twin's memory; its calls leave no context current, as a pool of several GPUs may.

    fails: number of the allocation that fails. stubborn: blocks are never released.
    """

    def __init__(self, twin, fails=0, stubborn=False):
        self.calls, self.fails, self.stubborn = twin.calls, fails, stubborn
        self.twin, self.blocks, self.asked, self.pending = twin, {}, 0, 0

    def allocate(self, nbytes):
        self.asked += 1
        if self.asked == self.fails:
            raise DeviceError(f"no room for {nbytes} bytes")
        address = ctypes.c_uint64()
        size = ctypes.c_size_t(max(nbytes, 1))
        assert self.calls.cuMemAlloc_v2(ctypes.byref(address), size) == 0
        assert self.calls.cuCtxSetCurrent(None) == 0
        self.blocks[address.value] = nbytes
        return address.value

    def release(self, pointer):
        del self.blocks[pointer]
        self.pending += self.twin.pending()
        if self.stubborn:
            raise DeviceError("this block stays")
        context = ctypes.c_void_p()
        assert self.calls.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        assert self.calls.cuCtxSetCurrent(context) == 0
        assert self.calls.cuMemFree_v2(ctypes.c_uint64(pointer)) == 0

    def used(self):
        return sum(self.blocks.values())

    def stream(self):
        raise AssertionError("the engine makes its own")


class Scarce:
    """Memory in which the allocation with a given number fails."""

    def __init__(self, memory, fails=0):
        self.memory, self.fails, self.asked, self.blocks = memory, fails, 0, set()

    def allocate(self, nbytes):
        self.asked += 1
        if self.asked == self.fails:
            raise DeviceError(f"no room for {nbytes} bytes")
        address = self.memory.allocate(nbytes)
        self.blocks.add(address)
        return address

    def release(self, pointer):
        self.blocks.remove(pointer)
        self.memory.release(pointer)


def loss_on(device):
    model = Classifier(nn.ChildSumTreeLSTM(8, 6))
    model.initialize(1, np.float32)
    return cavs.Session(model, device=device).gradients(treebank(4), seed=5)[0]


def on(twin, memory):
    return Device(twin.library, 0, "sm_90", twin.compiler, memory)


def test_the_allocator_provides_all_memory_and_gets_it_back(twin):
    gc.collect()  # objects of earlier tests
    before = twin.allocations()
    memory = TwinMemory(twin)
    assert loss_on(on(twin, memory)) == pytest.approx(loss_on("cpu"), rel=1e-5)
    gc.collect()
    assert memory.asked > 0
    assert memory.blocks == {}
    assert memory.used() == 0
    assert twin.allocations() == before


def test_memory_is_released_after_its_last_use(twin):
    twin.adversarial(3)  # the twin runs operations as late as possible
    whole = TwinMemory(twin)
    loss_on(on(twin, whole))
    gc.collect()
    assert whole.pending == 0
    for nth in range(1, whole.asked + 1, 3):  # an error leaves work that was not waited for
        memory = TwinMemory(twin, fails=nth)
        with pytest.raises(DeviceError):
            loss_on(on(twin, memory))
        gc.collect()
        assert memory.pending == 0


def test_a_failed_allocation_raises_the_allocators_error_and_leaks_nothing(twin):
    whole = TwinMemory(twin)
    loss_on(on(twin, whole))
    for nth in range(1, whole.asked + 1):
        memory = TwinMemory(twin, fails=nth)
        with pytest.raises(DeviceError, match="no room for"):
            loss_on(on(twin, memory))
        gc.collect()
        assert memory.blocks == {}
    assert loss_on("cpu") > 0


def test_out_of_memory_on_a_device(device):
    whole, expected = Scarce(device.memory), loss_on("cpu")
    assert loss_on(replace(device, memory=whole)) == pytest.approx(expected, rel=1e-5)
    for nth in range(2, whole.asked + 1, 4):
        memory = Scarce(device.memory, fails=nth)
        with pytest.raises(DeviceError, match="no room for"):
            loss_on(replace(device, memory=memory))
        gc.collect()
        assert memory.blocks == set()
    assert loss_on(replace(device, memory=Scarce(device.memory))) == pytest.approx(
        expected, rel=1e-5
    )


def test_an_error_of_release_is_reported_but_not_fatal(twin, monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda it: reported.append(str(it.exc_value)))
    memory = TwinMemory(twin, stubborn=True)
    assert loss_on(on(twin, memory)) > 0
    gc.collect()
    assert memory.blocks == {}
    assert {text.splitlines()[0] for text in reported} == {"this block stays"}
