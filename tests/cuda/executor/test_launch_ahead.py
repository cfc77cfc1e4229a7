"""Training steps launched ahead of their outcome give the CPU's results, in any order."""

from __future__ import annotations

import ctypes
import gc
import threading
from dataclasses import replace

import numpy as np
import pytest

import cavs
from cavs.cuda.device import Device
from cavs.errors import ConfigError, DeviceError
from tests.cuda.tagger import (
    SGD,
    STATES,
    close,
    single,
    tagger,
    trainer_on,
    values,
)
from tests.oracle import assert_close


def test_a_launch_does_not_wait(twin, twin_device):
    data = [single(4), single(2), single(3)]
    session = cavs.Session(tagger(), dtype=np.float64, device=twin_device)
    for batch in data:
        session.step(batch, SGD, STATES)
    gc.collect()  # memory of dropped sessions is freed now
    twin.reset()
    twin.adversarial(0)  # in issue order
    first = session.launch(data[0], SGD, STATES)
    of_first = twin.operations()
    second = session.launch(data[1], SGD, STATES)
    assert all(o.ran < 0 for o in twin.operations() if o.kind != "synchronize")
    copies = [o for o in twin.operations() if o.kind == "copy" and o.name == "to device"]
    assert len(copies) == 2
    assert len({o.stream for o in copies}) == 1
    assert copies[0].stream not in {o.stream for o in twin.launches()}
    assert np.isfinite(first.loss)
    ran = [o.ran >= 0 for o in twin.operations() if o.kind != "synchronize"]
    before = sum(o.kind != "synchronize" for o in of_first)
    assert all(ran[:before])
    assert not any(ran[before:]), "the first step's loss waits for the second step"
    assert np.isfinite(second.loss)


def test_the_host_may_write_parameters_after_a_launch(twin, twin_device):
    host = cavs.Session(tagger(), dtype=np.float64)
    session = cavs.Session(tagger(), dtype=np.float64, device=twin_device)
    arrays = [p.value for p in session.parameters.values()]
    for i in range(3):
        if i == 2:
            values(session.model)
            session.invalidate()
        pending = session.launch(single(4), SGD, STATES)
        for array in arrays:
            array[...] = np.nan
        assert pending.loss == pytest.approx(host.step(single(4), SGD, STATES).loss, rel=1e-11)


@pytest.mark.parametrize("seed", range(4))
def test_steps_launched_alone_or_after_another(device, shuffle, seed):
    shuffle(seed)
    good, bad, last = single(2), single(4, bad=[4]), single(3)
    host = cavs.Session(tagger(), dtype=np.float64)
    session = cavs.Session(tagger(), dtype=np.float64, device=device)

    def step(batch, **options):
        return session.launch(batch, SGD, STATES, **options)

    first = step(good)
    second = step(bad, after=first)
    third = step(last, after=second)
    fourth = step(last, after=third)
    assert [s.applied for s in (first, second, third, fourth)] == [True, False, False, False]
    fifth = step(last, after=fourth)  # the failure is known by now
    assert not fifth.applied
    assert step(last, after=first).applied
    assert np.isnan(step(bad).grad_norm)
    sixth = step(good)  # depends on no other step
    assert sixth.applied
    losses = [host.step(b, SGD, STATES).loss for b in (good, last, good)]
    assert [first.loss, sixth.loss] == pytest.approx([losses[0], losses[2]], rel=1e-11)
    assert third.loss == fourth.loss == fifth.loss == pytest.approx(losses[1], rel=1e-11)
    for k, value in values(session.model).items():
        assert_close(value, values(host.model)[k], 1e-11, k)


@pytest.mark.parametrize("seed", range(8))
def test_a_run_behind_two_steps(device, shuffle, seed):
    data = [single(i) for i in (4, 2, 5, 6, 3, 4)]
    host, session = (cavs.Session(tagger(), dtype=np.float64, device=d) for d in ("cpu", device))
    for batch in data:  # everything has its final size
        host.step(batch, SGD, STATES)
        session.step(batch, SGD, STATES)
    shuffle(seed)
    for _ in range(3):
        losses = [host.step(batch, SGD, STATES).loss for batch in data[:2]]
        steps = [session.launch(batch, SGD, STATES) for batch in data[:2]]
        for batch in data[2:]:
            loss, wanted = host.gradients(batch)
            found, gradients = session.gradients(batch)
            assert found == pytest.approx(loss, rel=1e-10)
            for k, g in gradients.items():
                assert_close(g, wanted[k], 1e-10, k)
        assert [step.loss for step in steps] == pytest.approx(losses, rel=1e-10)


def test_a_step_after_one_of_another_model_is_refused(device):
    sessions = [cavs.Session(tagger(), dtype=np.float64, device=device) for _ in range(2)]
    other = sessions[0].launch(single(2), SGD, STATES)
    with pytest.raises(ValueError, match="other parameters"):
        sessions[1].launch(single(2), SGD, STATES, after=other)


def test_recompilation_keeps_earlier_updates(device):
    host, trainer, watched = trainer_on("cpu"), trainer_on(device), trainer_on(device)
    for i in (1, 2, 0):  # no vertex of the first has children
        assert trainer.step(single(i)) == pytest.approx(host.step(single(i)), rel=1e-11)
        for step in watched.launch(single(i)):
            assert np.isfinite(step.outcome.loss)
        assert all(np.isfinite(p.value).all() for p in watched.parameters.values())
    close(trainer, host)
    watched.land()
    close(watched, host)


def test_launching_on_the_cpu():
    with pytest.raises(ConfigError, match="CPU"):
        cavs.Session(tagger(), dtype=np.float64).launch(single(2), SGD, STATES)
    trainer, batch = trainer_on("cpu"), single(2)
    ((ended, outcome),) = trainer.launch(batch)
    assert ended is batch
    assert np.isfinite(outcome.loss)
    assert trainer.land() == []


@pytest.mark.parametrize("seed", range(1, 5))
def test_reads_wait(device, shuffle, seed, tmp_path):
    shuffle(seed)
    data = [single(i) for i in (2, 4, 0)]
    path = tmp_path / "c.safetensors"

    def run(trainer):
        found, session = [], trainer.session
        trainer.launch(data[0])
        found.append(session.evaluate(data[1]).loss)
        trainer.launch(data[1])
        found += [p.value.sum() for p in trainer.parameters.values()]
        trainer.launch(data[2])
        loss, gradients = session.gradients(data[0])
        found += [loss, *(g.sum() for g in gradients.values())]
        trainer.launch(data[0])
        for p in trainer.parameters.values():  # written values are uploaded
            p.value *= 0.9
        session.invalidate()
        trainer.launch(data[1])
        trainer.save(path)
        found.append(trainer.steps)
        trainer.launch(data[2])
        found.append(trainer.evaluate(data)["loss"])
        trainer.launch(data[2])
        trainer.resume(path)
        found += [trainer.steps, trainer.step(data[0])]
        trainer.launch(data[1])
        other = cavs.Session(trainer.model, dtype=np.float64)
        found.append(other.evaluate(data[2]).loss)
        found += [step.outcome.grad_norm for step in trainer.land()][-1:]
        return found

    host, there = trainer_on("cpu"), trainer_on(device)
    expected, found = run(host), run(there)
    np.testing.assert_allclose(found, [*expected, found[-1]][: len(found)], rtol=1e-9, atol=1e-14)
    close(there, host)


def test_reading_parameters_waits_for_a_step(device):
    trainer, host, other = trainer_on(device), trainer_on("cpu"), single(3)
    other_session = cavs.Session(trainer.model, dtype=np.float64)
    for i in (2, 4, 2):
        host.step(single(i))
        trainer.launch(single(i))
        close(trainer, host)
        expected = host.session.evaluate(other).loss
        assert other_session.evaluate(other).loss == pytest.approx(expected, rel=1e-11)
        host.step(single(i))
        trainer.launch(single(i))
        expected = host.session.evaluate(other).loss
        assert other_session.evaluate(other).loss == pytest.approx(expected, rel=1e-11)


def test_written_parameters_override_a_step_in_flight(device):
    trainer, host = trainer_on(device), trainer_on("cpu")
    written = [p.value for p in trainer.parameters.values()]
    trainer.step(single(2))
    trainer.launch(single(4))
    for value, p in zip(written, host.parameters.values(), strict=True):
        value[...] = p.value
    trainer.session.invalidate()
    for k, value in values(trainer.model).items():
        np.testing.assert_array_equal(value, values(host.model)[k])
    expected = host.session.evaluate(single(3)).loss
    assert trainer.session.evaluate(single(3)).loss == pytest.approx(expected, rel=1e-11)


def test_a_batch_may_be_changed_once_it_is_launched(device):
    trainer, host = trainer_on(device), trainer_on("cpu")
    for i in (2, 4, 3):
        host.step(single(i))
        batch = single(i)
        trainer.launch(batch)
        for features in (batch.features, batch.edge_features, batch.graph_features):
            for array in features.values():
                ctypes.memset(array.ctypes.data, 1, array.nbytes)  # it is read-only
    trainer.land()
    close(trainer, host)


def test_waiting_raises_a_kernel_fault(twin):
    device = Device(twin.library, 0, "sm_90", twin.compiler, None)
    trainer = trainer_on(device)
    trainer.step(single(2))
    twin.fail_launch(3)
    trainer.launch(single(2))
    with pytest.raises(DeviceError, match="ILLEGAL_ADDRESS"):
        trainer.land()
    assert trainer.steps == 0  # the first is lost with the device, see test_fallback_to_cpu.py
    assert trainer.land() == []


def test_a_session_may_be_dropped_with_a_step_in_flight(twin, twin_device):
    twin.adversarial(2)
    batch, model = single(4), tagger()
    gc.collect()
    live = twin.live()["pinned"]
    session = cavs.Session(model, dtype=np.float64, device=replace(twin_device, memory=None))
    session.launch(batch, SGD, STATES)
    pending = session.launch(batch, SGD, STATES)
    del session
    gc.collect()
    host = cavs.Session(tagger(), dtype=np.float64)
    expected = [host.step(batch, SGD, STATES).loss for _ in range(2)]
    assert pending.loss == pytest.approx(expected[1], rel=1e-11)
    for k, value in values(model).items():
        assert_close(value, values(host.model)[k], 1e-11, k)
    del pending
    for p in model.parameters().values():
        p.copies = []
    gc.collect()
    assert twin.live()["pinned"] <= live


def test_one_thread_may_wait_for_a_step_while_others_launch(device):
    host, session = (cavs.Session(tagger(), dtype=np.float64, device=d) for d in ("cpu", device))
    data, found = [single(i) for i in (2, 4, 3, 1, 0)] * 3, {}

    def read(i, step):
        found[i] = step.loss

    threads = []
    for i, batch in enumerate(data):
        threads.append(threading.Thread(target=read, args=[i, session.launch(batch, SGD, STATES)]))
        threads[-1].start()
    for thread in threads:
        thread.join()
    expected = [host.step(batch, SGD, STATES).loss for batch in data]
    assert [found[i] for i in range(len(data))] == pytest.approx(expected, rel=1e-10)
