"""After a kernel fault the device is lost, and the model goes on on the CPU."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace

import numpy as np
import pytest

import cavs
from cavs import nn
from cavs.cuda.device import Device
from cavs.errors import DeviceError, DeviceWarning
from tests import lstm_cells
from tests.cuda.tagger import close, graphs, single, tagger, trainer_on, values

FAULT = "ILLEGAL_ADDRESS"


@pytest.fixture
def broken(twin):
    """A device, and a function that breaks it for good at its nth launch from then on."""
    yield Device(twin.library, 0, "sm_90", twin.compiler, None), twin.fail_launch
    assert twin.fault() != ""


def after_steps(device, *batches):
    """A trainer that has evaluated once, then taken steps that the host has not seen."""
    trainer = trainer_on(device)
    trainer.session.evaluate(single(2))
    for i in batches:
        trainer.step(single(i))
    return trainer


def on_host(model):
    """Read the host's arrays without asking the device."""
    assert all(p.copies == [] for p in model.parameters().values())
    return values(model)


@pytest.mark.parametrize("nth", [1, 4, 25])
@pytest.mark.parametrize("ahead", [False, True])
def test_training_resumes_on_the_cpu_from_the_last_download(broken, nth, ahead, tmp_path):
    device, fail = broken
    trainer, host = trainer_on(device), trainer_on("cpu")
    for i in (2, 4):
        trainer.step(single(i))
        host.step(single(i))
    read = values(trainer.model)  # downloads step 2
    trainer.step(single(3))
    fail(nth)
    with pytest.raises(DeviceError, match=FAULT) as error:
        for _ in range(3):
            (trainer.launch if ahead else trainer.step)(single(5))
        trainer.land()
    assert "steps are lost with it: parameters and optimiser states on the host are of step 2" in (
        error.value.what
    )
    assert trainer.steps == 2
    for k, value in on_host(trainer.model).items():
        np.testing.assert_array_equal(value, read[k])
    close(trainer, host)
    trainer.save(tmp_path / "a.safetensors")
    second = trainer_on("cpu", tagger())
    second.resume(tmp_path / "a.safetensors")
    assert second.steps == 2
    rest = trainer_on("cpu", trainer.model)  # the model itself, in a new session
    assert rest.session.evaluate(single(5)).loss == host.session.evaluate(single(5)).loss
    for i in (3, 5):
        second.step(single(i))
        host.step(single(i))
    close(second, host, 1e-12)


def test_downloaded_steps_are_not_lost(broken):
    device, fail = broken
    trainer, host = trainer_on(device), trainer_on("cpu")
    for each in (trainer, host):
        each.step(single(2))
    values(trainer.model)
    fail(2)
    with pytest.raises(DeviceError, match=FAULT) as error:
        trainer.step(single(4))
    assert "lost" not in error.value.what
    assert trainer.steps == 1
    close(trainer, host)


@pytest.mark.parametrize(
    "read",
    [
        lambda t: next(iter(t.parameters.values())).value,
        lambda t: cavs.Session(t.model, dtype=np.float64),
        lambda t: copy.deepcopy(t.model),
    ],
    ids=["value", "session", "copy"],
)
def test_the_first_read_of_parameters_reports_the_lost_steps(broken, read, tmp_path):
    device, fail = broken
    trainer, initial = after_steps(device, 2, 4, 3), values(tagger())
    fail()
    with pytest.raises(DeviceError, match=FAULT):
        trainer.session.evaluate(single(2))
    with pytest.warns(DeviceWarning, match="3 steps of training since the last download") as warned:
        read(trainer)
    assert len(warned) == 1 and "device='cpu'" in warned[0].message.hint
    for k, value in on_host(trainer.model).items():
        np.testing.assert_array_equal(value, initial[k])
    with pytest.raises(DeviceError, match=r"(?s)3 of 3 steps are lost.*those before the first"):
        trainer.save(tmp_path / "a.safetensors", progress={"epoch": 3})
    assert list(tmp_path.iterdir()) == []
    trainer.save(tmp_path / "a.safetensors")
    assert trainer.steps == 0


def test_a_checkpoint_names_its_step(broken, tmp_path):
    device, fail = broken
    trainer = after_steps(device, 2)
    fail()
    with pytest.raises(DeviceError, match=FAULT):
        trainer.session.evaluate(single(2))
    with pytest.warns(DeviceWarning, match="1 of 1 steps are lost"):
        trainer.save(tmp_path / "a.safetensors")
    second = trainer_on("cpu", tagger())
    assert second.resume(tmp_path / "a.safetensors").progress["step"] == second.steps == 0


def test_update_host_fails_if_steps_were_lost(broken):
    """Ranks that save together write one step of all of them, or nothing."""
    device, fail = broken
    trainer = after_steps(device, 2, 4)
    fail()
    with pytest.raises(DeviceError, match=FAULT):
        trainer.session.evaluate(single(2))
    for _ in range(2):
        with pytest.raises(DeviceError, match="the GPU has failed, and 2 steps of"):
            trainer.session.download()
    assert trainer.session.lost_steps() == 2
    assert trainer.session.lost_steps() == 0


def test_a_failing_evaluation_reports_the_remaining_step(broken):
    device, fail = broken
    trainer = after_steps(device, 2)
    fail()
    with pytest.raises(DeviceError, match="1 of 1 steps are lost with it"):
        trainer.evaluate([single(2)])
    assert trainer.steps == 0


def test_other_sessions_of_the_model_go_on(broken):
    device, fail = broken
    trainer, other = trainer_on(device), trainer_on(device)
    on_cpu = cavs.Session(trainer.model, dtype=np.float64)
    expected = on_cpu.evaluate(single(2)).loss
    other.step(single(2))
    fail()
    with pytest.raises(DeviceError, match=FAULT):
        trainer.step(single(2))
    assert on_cpu.evaluate(single(2)).loss == expected
    with pytest.warns(DeviceWarning, match="1 step of training"):
        values(other.model)
    with pytest.raises(DeviceError):  # the device itself stays lost
        trainer.session.evaluate(single(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.session.invalidate()
        on_host(trainer.model)


def test_fit_ends_with_the_remaining_step(broken, tmp_path):
    device, fail = broken
    trainer = trainer_on(device)
    loader = cavs.DataLoader(graphs(), batch_size=2)
    checkpoint = tmp_path / "a.safetensors"
    trainer.fit(loader, epochs=1, checkpoint=checkpoint, progress=False)
    reached = trainer.steps
    kept = checkpoint.read_bytes()
    trainer.step(single(2))
    fail(3)
    with pytest.raises(DeviceError, match=rf"1 of {reached + 1} steps.* of step {reached}\n"):
        trainer.fit(loader, epochs=2, checkpoint=checkpoint, progress=False)
    assert checkpoint.read_bytes() == kept
    second = trainer_on("cpu", tagger())
    second.resume(checkpoint)
    for k, value in values(second.model).items():
        np.testing.assert_array_equal(value, on_host(trainer.model)[k])


def test_a_device_without_memory_is_not_lost(twin, twin_device):
    trainer, host = after_steps(replace(twin_device, memory=None), 2), trainer_on("cpu")
    host.step(single(2))
    native = trainer.session._cuda._parameters
    assert native.lost() is None
    twin.memory(twin.used() + 100)
    with pytest.raises(DeviceError, match="OUT_OF_MEMORY") as error:
        trainer.session.evaluate(cavs.batch(graphs((300, 400, 500))))
    assert "lost" not in str(error.value)
    assert native.lost() is None
    close(trainer, host)


@pytest.mark.parametrize("library", ["cublas", "cudnn"])
def test_a_fault_reported_by_a_library_is_that_of_the_kernel(broken, twin, library):
    """The library only knows that it cannot go on, and its cure would be wrong."""
    device, fail = broken
    device = replace(device, cublas_lt=twin.cublaslt, cudnn=twin.cudnn, blas_rows=4)
    model = lstm_cells.Tagger(nn.LSTM)
    model.initialize(1, np.float64)
    choice = "always" if library == "cudnn" else "never"
    session = cavs.Session(model, dtype=np.float64, device=device, cudnn=choice)
    batch = lstm_cells.chains([7, 3, 12])
    session.gradients(batch)
    twin.keep_up()
    fail(2)
    with pytest.raises(DeviceError, match=FAULT) as error:
        session.gradients(batch)
    assert f"a kernel before {library}" in error.value.what
    assert "status" not in error.value.what
    assert "a bug of cavs" in error.value.hint
