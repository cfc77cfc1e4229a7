"""Sessions, threads and allocators that share a device, and its state after a failed run."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
import weakref
from dataclasses import replace

import numpy as np
import pytest

import cavs
from cavs import nn
from cavs.cuda.device import Device
from cavs.errors import DeviceError
from tests.cuda.allocators import DriverMemory
from tests.oracle import assert_close
from tests.patience import patience
from tests.runtime.trees import Classifier, treebank


@pytest.fixture
def twin_device(twin):
    yield Device(twin.library, 0, "sm_90", twin.compiler, None)
    assert twin.fault() == ""


def classifier(dtype=np.float64, size=8):
    model = Classifier(nn.ChildSumTreeLSTM(size, 6), input_size=size)
    model.initialize(1, dtype)
    return model


def train(model, device, steps=2, **options):
    session = cavs.Session(model, dtype=np.float64, device=device)
    trainer = cavs.Trainer(model, cavs.optim.Adam(lr=0.01), session=session, **options)
    for seed in range(steps):
        trainer.step(treebank(4, seed))
    return trainer


def values(model):
    return {k: p.value.copy() for k, p in model.parameters().items()}


def test_sessions_of_one_model_share_its_parameters(device):
    batch, model, wanted = treebank(5), classifier(), classifier()
    first = train(model, device)
    host = train(wanted, "cpu")
    expected = host.session.evaluate(batch).loss
    others = [cavs.Session(model, dtype=np.float64, device=d) for d in (device, "cpu")]
    for other in others:
        assert other.evaluate(batch).loss == pytest.approx(expected, rel=1e-11)
    for trainer in (first, host):  # changes them again, for the others as well
        trainer.step(batch)
    expected = host.session.evaluate(batch).loss
    for other in others:
        assert other.evaluate(batch).loss == pytest.approx(expected, rel=1e-11)
    first.step(batch)
    host.step(batch)
    for k, value in values(model).items():
        assert_close(value, wanted.parameters()[k].value, 1e-11, k)


@pytest.mark.parametrize("ahead", [False, True])
def test_sessions_of_another_dtype_do_not_affect_training(device, ahead):
    """Steps may be in flight when a session converts the parameters."""
    models = [classifier(np.float32), classifier(np.float32)]
    plain, checked = (cavs.Trainer(m, cavs.optim.Adam(lr=0.01), device=device) for m in models)
    for i in range(4):
        for trainer in (plain, checked):
            list(trainer.launch(treebank(4, i))) if ahead else trainer.step(treebank(4, i))
        place = (device, "cpu")[i % 2]
        found = cavs.Session(models[1], dtype=np.float64, device=place).evaluate(treebank(5))
        expected = plain.session.evaluate(treebank(5)).loss
        assert found.loss == pytest.approx(expected, rel=1e-5)
    for trainer in (plain, checked):
        list(trainer.land())
    for key, value in values(models[0]).items():
        assert np.array_equal(models[1].parameters()[key].value, value), key


def test_states_live_as_long_as_a_download_may_write_them(device):
    model = classifier()
    trainer = train(model, device)
    states = [weakref.ref(array) for of in trainer.states for array in of]
    assert states
    del trainer
    gc.collect()
    assert all(state() is not None for state in states)
    wanted = classifier()
    train(wanted, "cpu")
    for k, value in values(model).items():
        assert_close(value, wanted.parameters()[k].value, 1e-11, k)


def test_the_next_step_is_correct_after_any_failed_allocation(twin, twin_device):
    batch, wanted = treebank(40), classifier(size=40)
    host = cavs.Session(wanted, dtype=np.float64)
    expected = cavs.Trainer(wanted, cavs.optim.Adam(lr=0.01), session=host).step(batch)
    late = 0
    for at in range(1, 100, 2):
        memory = DriverMemory(twin, at, DeviceError(f"no room for number {at}"))
        model = classifier(size=40)
        where = replace(twin_device, memory=memory, cublas_lt=twin.cublaslt)
        session = cavs.Session(model, dtype=np.float64, device=where)
        trainer = cavs.Trainer(model, cavs.optim.Adam(lr=0.01), session=session)
        twin.adversarial(at)
        try:
            trainer.step(batch)
            break
        except DeviceError as error:
            assert f"number {at}" in error.what
        pending = [o for o in twin.operations() if o.ran < 0]
        assert pending == [], "the run that failed goes on"
        late += bool(twin.launches())
        assert trainer.step(batch) == pytest.approx(expected, rel=1e-11)
        for k, value in values(model).items():
            assert_close(value, wanted.parameters()[k].value, 1e-11, k)
        twin.reset()
    else:
        pytest.fail("a hundred allocations for one batch")
    assert late > 0, "no allocation between launches was tried"


def test_an_allocator_may_leave_another_context(twin, twin_device):
    class Careless(DriverMemory):
        def allocate(self, nbytes):
            address = super().allocate(nbytes)
            assert self.twin.calls.cuCtxSetCurrent(None) == 0
            return address

    session = cavs.Session(
        classifier(), dtype=np.float64, device=replace(twin_device, memory=Careless(twin))
    )
    host = cavs.Session(classifier(), dtype=np.float64)
    batch = treebank(3)
    assert session.evaluate(batch).loss == pytest.approx(host.evaluate(batch).loss, rel=1e-11)


def test_an_interrupt_while_memory_is_released_is_reported(twin, twin_device, monkeypatch):
    class Interrupted(DriverMemory):
        def release(self, pointer):
            super().release(pointer)
            if interrupts:
                raise interrupts.pop()

    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: seen.append(found.exc_type))
    memory, interrupts = Interrupted(twin), []
    session = cavs.Session(
        classifier(), dtype=np.float64, device=replace(twin_device, memory=memory)
    )
    session.evaluate(treebank(2))
    interrupts.append(KeyboardInterrupt)
    session.evaluate(treebank(8))
    assert seen == [KeyboardInterrupt]


def test_any_thread_may_drop_a_session(twin, twin_device):
    model = classifier()
    gc.collect()  # objects of earlier tests
    before = twin.live()
    sessions = [cavs.Session(model, dtype=np.float64, device=twin_device)]
    sessions[0].set_profiling(True)
    sessions[0].evaluate(treebank(3))
    for p in model.parameters().values():
        p.copies = []

    def drop():
        sessions.clear()
        gc.collect()

    thread = threading.Thread(target=drop)
    thread.start()
    thread.join()
    live = twin.live()
    assert (live["pinned"], live["allocations"]) == (before["pinned"], before["allocations"])
    assert live["events"] - before["events"] == 2  # those of the device itself


def test_threads_share_a_device(device, shuffle):
    shuffle(3)
    data = [treebank(n, n) for n in (3, 9, 5)]
    host = cavs.Session(classifier(), dtype=np.float64)
    expected = [host.gradients(batch) for batch in data]
    failures = []

    def work(session):
        try:
            for batch, (loss, wanted) in zip(data * 2, expected * 2, strict=True):
                found, gradients = session.gradients(batch)
                assert found == pytest.approx(loss, rel=1e-11)
                for k, g in gradients.items():
                    assert_close(g, wanted[k], 1e-11, k)
        except Exception as error:
            failures.append(error)

    sessions = [cavs.Session(classifier(), dtype=np.float64, device=device) for _ in range(2)]
    threads = [threading.Thread(target=work, args=[s]) for s in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# A deadlock would hang every thread of its process, so this runs in a process of its own.
ASKING = """
    import threading, time
    from dataclasses import replace
    import numpy as np
    import cavs
    from cavs.cuda.device import Device
    from tests.cuda.allocators import DriverMemory
    from tests.cuda.memory.test_shared_device import classifier
    from tests.cuda.twin import Twin
    from tests.runtime.trees import treebank

    allocating = threading.Event()

    class Slow(DriverMemory):
        def allocate(self, nbytes):
            if large:
                allocating.set()
                time.sleep(0.3)
            return super().allocate(nbytes)

    twin, large = Twin(), False
    device = Device(twin.library, 0, "sm_90", twin.compiler, Slow(twin))
    session = cavs.Session(classifier(), dtype=np.float64, device=device)
    session.evaluate(treebank(2))
    large = True
    thread = threading.Thread(target=session.evaluate, args=[treebank(30)])
    thread.start()
    assert allocating.wait(60)
    {ask}
    thread.join()
    print("answered")
"""


@pytest.mark.parametrize(
    "ask",
    [
        "session.report(training=False)",
        "session.set_profiling(True)",
        "session.invalidate()",
        "[p.value for p in session.parameters.values()]",
    ],
)
def test_asking_while_another_thread_allocates(twin, ask):
    script = textwrap.dedent(ASKING).format(ask=ask)
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        capture_output=True,
        text=True,
        timeout=patience(120),
    )
    assert done.stdout == "answered\n", done.stderr


def test_grids_stay_within_the_limits_of_the_device(twin, twin_device):
    model = Classifier(nn.ChildSumTreeLSTM(70, 70), input_size=70)
    model.initialize(1, np.float64)
    batch = treebank(60)
    loss, wanted = cavs.Session(model, dtype=np.float64).gradients(batch)
    twin.highest_grid(2)
    found, gradients = cavs.Session(model, dtype=np.float64, device=twin_device).gradients(batch)
    assert {max(o.grid[1:]) for o in twin.launches()} == {1, 2}
    assert found == pytest.approx(loss, rel=1e-11)
    for k, g in gradients.items():
        assert_close(g, wanted[k], 1e-10, k)


def test_a_grid_the_device_refuses_is_named(twin, twin_device):
    session = cavs.Session(classifier(), dtype=np.float64, device=twin_device)
    session.evaluate(treebank(2))
    twin.highest_grid(0)
    with pytest.raises(
        DeviceError, match=r"cuLaunchKernel of map_\d+, \d x 1 x 1: .*INVALID_VALUE"
    ):
        session.evaluate(treebank(3))


def test_a_forked_process_gets_an_error(twin, twin_device):
    twin.fail_init(3)
    with pytest.raises(DeviceError, match="NOT_INITIALIZED") as error:
        cavs.Session(classifier(), dtype=np.float64, device=twin_device).evaluate(treebank(2))
    assert "spawn" in error.value.hint
