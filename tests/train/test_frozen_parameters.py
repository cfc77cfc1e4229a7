"""Parameters that are frozen and thawed while a model is trained."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import nn, ops, optim
from cavs.errors import CheckpointError


class Classifier(cavs.Model):
    def __init__(self):
        self.embedding = nn.Embedding(10, 4)
        self.cell = nn.LSTM(4, 4)
        self.output = nn.Linear(4, 3)

    def loss(self, batch):
        h = self.cell(batch.graph, x=self.embedding(batch["token"]))
        return ops.cross_entropy(self.output(h), batch["label"])


def chains(seed=0):
    rng = np.random.default_rng(seed)
    features = [{"token": rng.integers(0, 10, n), "label": rng.integers(0, 3, n)} for n in (5, 9)]
    return cavs.batch([cavs.Graph.chain(len(f["token"]), features=f) for f in features])


OPTIMIZERS = {
    "sgd": lambda: optim.SGD(lr=0.1),
    "momentum": lambda: optim.SGD(lr=0.1, momentum=0.9),
    "adagrad": lambda: optim.Adagrad(lr=0.1, initial=0.25),
    "adam": lambda: optim.Adam(lr=0.01),
}


def values(model):
    return {name: p.value.copy() for name, p in model.parameters().items()}


@pytest.mark.parametrize("name", ["embedding.weight", "cell.U", "output.bias"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_thawed_parameter_starts_with_fresh_states(optimizer, name):
    model, batch = Classifier(), chains()
    parameter = model.parameters()[name]
    parameter.trainable = False
    trainer, before = cavs.Trainer(model, OPTIMIZERS[optimizer]()), parameter.value.copy()
    for _ in range(3):
        trainer.step(batch)
    assert (parameter.value == before).all()
    parameter.trainable = True
    other = Classifier()
    for key, value in values(model).items():
        other.parameters()[key].value = value
    trainer.step(batch)
    moved = parameter.value - before
    assert np.abs(moved).max() > 0
    if optimizer != "adam":  # Adam counts steps from the beginning of the run
        cavs.Trainer(other, OPTIMIZERS[optimizer]()).step(batch)
        np.testing.assert_allclose(
            parameter.value, other.parameters()[name].value, rtol=1e-6, atol=1e-8
        )
    parameter.trainable = False
    still = parameter.value.copy()
    trainer.step(batch)
    assert (parameter.value == still).all()


@pytest.mark.parametrize("now", [True, False])
def test_resuming_with_other_parameters_frozen(now, tmp_path):
    batch, path = chains(), tmp_path / "c.safetensors"
    model = Classifier()
    model.cell.U.trainable = not now
    trainer = cavs.Trainer(model, optim.Adam(lr=0.01))
    trainer.step(batch)
    trainer.save(path)
    other = Classifier()
    other.cell.U.trainable = now
    again = cavs.Trainer(other, optim.Adam(lr=0.01))
    again.resume(path)
    assert all((values(other)[k] == v).all() for k, v in values(model).items())
    before = other.cell.U.value.copy()
    again.step(batch)
    assert (other.cell.U.value != before).any() == now
    other.cell.U.trainable = model.cell.U.trainable = True
    trainer.step(batch), trainer.step(batch), again.step(batch)
    if not now:  # the state from before freezing was kept
        saved = dict(zip(other.parameters(), again.states, strict=True))["cell.U"]
        assert np.abs(saved[0]).max() > 0


@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name != "sgd"])
def test_resuming_drops_states_of_parameters_frozen_in_the_file(optimizer, tmp_path):
    batch, path = chains(), tmp_path / "c.safetensors"
    model = Classifier()
    model.cell.U.trainable = False
    trainer = cavs.Trainer(model, OPTIMIZERS[optimizer]())
    trainer.step(batch)
    trainer.save(path)

    def thawed():
        model.cell.U.trainable = True
        trainer.step(batch), trainer.step(batch)
        return values(model)

    first = thawed()
    model.cell.U.trainable = False
    trainer.resume(path)
    second = thawed()
    assert all((second[name] == value).all() for name, value in first.items())


def test_states_of_another_optimizer_are_still_refused(tmp_path):
    batch, path = chains(), tmp_path / "c.safetensors"
    trainer = cavs.Trainer(Classifier(), optim.SGD(lr=0.1))
    trainer.step(batch)
    trainer.save(path)
    with pytest.raises(CheckpointError):
        cavs.Trainer(Classifier(), optim.Adam(lr=0.1)).resume(path)


class Tied(cavs.Model):
    """Reads its table by rows everywhere, and as a matrix where vertices have children."""

    def __init__(self):
        self.embedding, self.output = nn.Embedding(6, 4), nn.Linear(4, 3)
        self.cell = TiedCell(self.embedding.weight)

    def loss(self, batch):
        h = self.cell(batch.graph, x=self.embedding(batch["token"]))
        return ops.cross_entropy(self.output(h), batch["label"])


class TiedCell(cavs.VertexFunction):
    def __init__(self, table):
        self.state = cavs.State(h=4)
        self.table = table

    def vertex(self, v):
        scores = ops.softmax(v.gather().h.sum() @ self.table.T)
        h = ops.tanh(v.pull("x") + scores @ self.table)
        v.scatter(h=h)
        v.push(h)


LEAVES = cavs.batch([cavs.Graph([[], []], {"token": [1, 2], "label": [0, 1]})])
CHAIN = cavs.batch([cavs.Graph.chain(3, features={"token": [1, 2, 3], "label": [0, 1, 0]})])
DECAYING = [optim.AdamW(lr=0.01, weight_decay=0.1), optim.SGD(lr=0.1, momentum=0.9)]


@pytest.mark.parametrize("make", [Classifier, Tied])
@pytest.mark.parametrize("optimizer", DECAYING, ids=["decay", "momentum"])
def test_updates_do_not_depend_on_what_a_program_was_compiled_for(make, optimizer):
    """In a batch of leaves the recurrent matrix has no gradient: decay and momentum apply."""
    found = []
    for met in ([], [CHAIN]):
        model = make()
        model.initialize(0)
        session = cavs.Session(model)
        for batch in met:
            session.gradients(batch)
        trainer = cavs.Trainer(model, optimizer, session=session)
        for arrays in trainer.states:
            for array in arrays:
                array[...] = 0.5
        before = values(model)
        trainer.step(LEAVES)
        found.append({name: value - before[name] for name, value in values(model).items()})
    for name, moved in found[0].items():
        assert np.abs(moved).max() > 0, name
        np.testing.assert_allclose(moved, found[1][name], rtol=1e-5, atol=1e-8, err_msg=name)


def test_thawing_after_a_session_of_another_dtype():
    model, batch = Classifier(), chains()
    model.cell.U.trainable = False
    trainer = cavs.Trainer(model, optim.Adam(lr=0.01))
    trainer.step(batch)
    cavs.Session(model, dtype=np.float64).gradients(batch)
    model.cell.U.trainable = True
    trainer.step(batch)
    cavs.Session(model, dtype=np.float64).gradients(batch)
    other = cavs.Trainer(model, optim.Adam(lr=0.01), session=trainer.session)
    other.step(batch)
    for arrays in (*trainer.states, *other.states):
        assert all(array.dtype == np.float32 for array in arrays)
