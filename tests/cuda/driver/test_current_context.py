"""Every call of cavs restores the context that another library had made current on the thread."""

from __future__ import annotations

import ctypes
import gc
import threading
from dataclasses import replace

import numpy as np
import pytest

import cavs
from cavs.distributed.comm import NCCLCommunicator, run_threads
from cavs.errors import DeviceError
from tests.cuda.allocators import DriverMemory
from tests.cuda.nccl_threads import ended
from tests.cuda.tagger import SGD, STATES, single, tagger, trainer_on, values


class Contexts:
    """The contexts of two devices; yields a function that returns the thread's current one."""

    def __init__(self, twin):
        self.twin = twin
        twin.set("devices", 2)
        twin.calls.cuInit(0)
        self.of = [ctypes.c_void_p(), ctypes.c_void_p()]
        for ordinal, context in enumerate(self.of):
            assert twin.calls.cuDevicePrimaryCtxRetain(ctypes.byref(context), ordinal) == 0
        assert self.of[0].value != self.of[1].value

    def enter(self, ordinal):
        context = None if ordinal is None else self.of[ordinal]
        assert self.twin.calls.cuCtxSetCurrent(context) == 0

    @property
    def current(self):
        found = ctypes.c_void_p()
        assert self.twin.calls.cuCtxGetCurrent(ctypes.byref(found)) == 0
        return {None: None, **{c.value: i for i, c in enumerate(self.of)}}[found.value]


@pytest.fixture
def contexts(twin):
    made = Contexts(twin)
    before = made.current
    yield made
    made.enter(before)


class Watching(DriverMemory):
    """The driver's memory; records the current context of each call, and leaves another one."""

    def __init__(self, twin, contexts):
        super().__init__(twin)
        self.contexts, self.seen = contexts, set()

    def allocate(self, nbytes):
        self.seen.add(self.contexts.current)
        address = super().allocate(nbytes)
        self.contexts.enter(0)
        return address

    def release(self, pointer):
        self.seen.add(self.contexts.current)
        super().release(pointer)


@pytest.mark.parametrize("theirs", [None, 0])
def test_the_context_of_the_caller_is_current_after_every_call(twin, twin_device, contexts, theirs):
    memory = Watching(twin, contexts)
    there = replace(twin_device, ordinal=1, memory=memory, cublas_lt=twin.cublaslt)
    contexts.enter(theirs)

    def same(done):
        assert contexts.current == theirs
        return done

    assert same(there.native).multiprocessors > 0
    session = same(cavs.Session(tagger(), dtype=np.float64, device=there))
    pending = same(session.launch(single(4), SGD, STATES))
    same(pending.loss)
    same(session.evaluate(single(2)))
    same(session.gradients(single(3)))
    same(values(session.model))
    same(session.set_profiling(True))
    same(session.step(single(2), SGD, STATES))
    same(session.report())
    same(session.invalidate())
    with pytest.raises(cavs.errors.FeatureError):
        session.step(single(2, tokens=99), SGD, STATES)
    same(None)
    for p in session.parameters.values():
        p.copies = []
    del session, pending
    same(gc.collect())
    assert memory.seen == {1}, "work of GPU 1 was done while another one was current"


def test_a_launch_that_fails_leaves_the_context_of_the_caller(twin, twin_device, contexts):
    contexts.enter(1)
    session = cavs.Session(tagger(), dtype=np.float64, device=replace(twin_device, memory=None))
    session.evaluate(single(2))
    twin.highest_grid(0)
    with pytest.raises(DeviceError, match="cuLaunchKernel"):
        session.evaluate(single(3))
    assert contexts.current == 1


def test_each_thread_keeps_its_context(twin, twin_device, contexts):
    session, found = cavs.Session(tagger(), dtype=np.float64, device=twin_device), {}
    contexts.enter(0)

    def work(theirs):
        contexts.enter(theirs)
        for i in (2, 4, 3):
            session.launch(single(i), SGD, STATES).loss  # noqa: B018
            found.setdefault(theirs, set()).add(contexts.current)

    threads = [threading.Thread(target=work, args=[theirs]) for theirs in (None, 0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {theirs: {theirs} for theirs in (None, 0, 1)}
    assert contexts.current == 0


def test_groups_of_ranks_initialise_no_other_gpu(nccl, contexts):
    nccl.twin.set("devices", 3)

    def work(theirs):
        def on_device(control):
            contexts.enter(theirs)
            c = NCCLCommunicator(control, control.rank + 1)
            with ended(c):
                c.start(c.barrier).wait()
            return contexts.current if theirs is not None else None

        found = run_threads(2, on_device)
        return found, nccl.set_up

    assert work(None) == ([None, None], {1, 2})
    assert work(0) == ([0, 0], {0, 1, 2})


def test_training_next_to_another_library(twin, twin_device, contexts):
    trainer, host = trainer_on(replace(twin_device, ordinal=1)), trainer_on("cpu")
    for theirs, i in ((None, 2), (0, 4), (1, 3)):
        contexts.enter(theirs)
        expected = host.step(single(i))
        assert trainer.step(single(i)) == pytest.approx(expected, rel=1e-11)
