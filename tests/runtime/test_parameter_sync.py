"""Sessions follow parameters that are written from Python."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.train import load_parameters, safetensors


class Scorer(cavs.Model):
    """A packed weight, and a bias, which is not packed."""

    def __init__(self):
        self.output = nn.Linear(3, 2)

    def forward(self, batch):
        return self.output(batch["x"])

    def loss(self, batch):
        return ops.cross_entropy(self.forward(batch), batch["label"])

    @staticmethod
    def copy_of(model):
        made = Scorer()
        for name, parameter in model.parameters().items():
            made.parameters()[name].value = parameter.current()
        return made


@pytest.fixture
def batch():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((4, 3)).astype("f4")
    return cavs.batch([cavs.Graph([[]] * 4, {"x": rows, "label": [0, 1, 1, 0]})])


def assigned(model, value, path):
    model.output.weight.value = value


def written_in_place(model, value, path):
    model.output.weight.value[...] = value


def drawn(model, value, path):
    model.initialize(5)


def loaded(model, value, path):
    tensors = {"output.weight": value, "output.bias": np.ones(2, "f4")}
    safetensors.write(path, tensors, {})
    load_parameters(model, path)


def kept(model, value, path):
    array = model.output.weight._value  # an array that was read long ago
    array[...] = value
    model.output.weight.written()


@pytest.mark.parametrize("write", [assigned, written_in_place, drawn, loaded, kept])
def test_sessions_read_what_was_written(write, batch, tmp_path):
    model = Scorer()
    sessions = [cavs.Session(model), cavs.Session(model)]
    trainer = cavs.Trainer(model, cavs.optim.SGD(lr=1e-30), session=sessions[0])
    for session in sessions:
        session.predict(batch), session.gradients(batch)
    trainer.evaluate([batch])
    value = np.arange(6, dtype="f4").reshape(3, 2)
    write(model, value, tmp_path / "w.safetensors")
    fresh = cavs.Session(model)
    expected = fresh.predict(batch)["output"]
    if write is not drawn:
        bias = model.output.bias._value
        np.testing.assert_allclose(expected, batch["x"] @ value + bias, rtol=1e-5)
    loss, gradients = fresh.gradients(batch)
    for session in sessions:
        assert (session.predict(batch)["output"] == expected).all()
        found = session.gradients(batch)
        assert found[0] == loss
        assert all((found[1][k] == gradients[k]).all() for k in gradients)
    assert trainer.evaluate([batch])["loss"] == pytest.approx(loss, rel=1e-6)
    assert trainer.step(batch) == loss


def test_weights_are_packed_again_only_if_written(batch):
    session = cavs.Session(Scorer())
    session.set_profiling(True)
    packing = []
    for _ in range(4):
        session.predict(batch)
        packing.append(session.report(training=False)["pack_seconds"])
    assert packing[0] > 0 and len(set(packing[1:])) == 1


def test_arrays_stay_the_same_objects():
    model = Scorer()
    array = model.output.weight.value
    model.initialize(3)
    model.output.weight.value = np.ones((3, 2))
    assert model.output.weight.value is array and (array == 1).all()


def test_a_session_in_float64_leaves_training_as_it_is(batch, tmp_path):
    """Created, run and trained between the steps of another: both use the current values."""
    models = [Scorer(), Scorer()]
    for model in models:
        model.initialize(1)
    plain, checked = (cavs.Trainer(m, cavs.optim.SGD(lr=0.5)) for m in models)
    other = cavs.Session(models[1], dtype=np.float64)  # before the first step, too
    for i in range(4):
        assert checked.step(batch) == plain.step(batch)
        if i % 2:
            loss, gradients = other.gradients(batch)
            expected = cavs.Session(Scorer.copy_of(models[0]), dtype=np.float64).gradients(batch)
            assert loss == expected[0] and gradients["output.weight"].dtype == np.float64
        elif i:
            other = cavs.Session(models[1], dtype=np.float64)
    for trainer, name in ((plain, "a"), (checked, "b")):
        cavs.Session(trainer.model, dtype=np.float64)
        trainer.save(tmp_path / name)
        cavs.Session(trainer.model, dtype=np.float64)
        trainer.resume(tmp_path / name)
        cavs.Session(trainer.model, dtype=np.float64)
        trainer.load(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_model_drawn_again_in_another_dtype(batch):
    model = Scorer()
    trainer = cavs.Trainer(model, cavs.optim.SGD(lr=0.5))
    trainer.step(batch)
    model.initialize(3, np.float64)
    before = model.output.weight.value.copy()
    trainer.step(batch)
    assert not np.allclose(model.output.weight.value, before)
