"""Programs read the parameters of their session, also if they are renamed or frozen."""

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.errors import ConfigError
from tests.oracle import assert_close, reference


class Cell(cavs.VertexFunction):
    def __init__(self, size):
        self.state = cavs.State(h=size)
        self.W = cavs.Parameter((size, size))

    def vertex(self, v):
        h = ops.tanh(v.pull("x") + v.gather().h.sum() @ self.W)
        v.scatter(h=h)
        v.push(h)


class Classifier(cavs.Model):
    """Has a W of the shape and last name of its cell's W."""

    def __init__(self):
        self.W = cavs.Parameter((4, 4))
        self.embedding, self.cell, self.output = nn.Embedding(5, 4), Cell(4), nn.Linear(4, 2)

    def loss(self, batch):
        h = self.cell(batch.graph, x=self.embedding(batch["word"]) @ self.W)
        return ops.cross_entropy(self.output(h), batch["label"])


class Other(cavs.Model):
    """Holds two matrices of a `Classifier` with swapped names."""

    def __init__(self, model):
        self.embedding, self.output = model.embedding, model.output
        self.cell = Cell(4)
        self.cell.W, self.W = model.W, model.cell.W

    def loss(self, batch):
        return Classifier.loss(self, batch)


TREE = cavs.batch([cavs.Graph([[], [], [0, 1]], {"word": [1, 2, 3], "label": [0, 1, 0]})])
LEAVES = cavs.batch([cavs.Graph([[], []], {"word": [1, 2], "label": [0, 1]})])


def check(session, batch):
    loss, gradients = session.gradients(batch)
    _, expected = reference(session.model, batch)
    assert_close(loss, expected["loss"], 1e-12, "loss")
    for name, g in gradients.items():
        assert_close(g, expected[f"grad:{name}"], 1e-12, name)


def test_a_cell_is_printed_between_two_compilations():
    session = cavs.Session(Classifier(), dtype=np.float64)
    session.gradients(LEAVES)
    assert "1 parameters" in str(session.model.cell)
    check(session, TREE)


def test_a_cell_is_frozen_and_thawed_by_its_own_names():
    model = Classifier()
    for parameter in model.cell.parameters().values():
        parameter.trainable = False
    session = cavs.Session(model, dtype=np.float64)
    session.gradients(TREE)
    for parameter in model.cell.parameters().values():
        parameter.trainable = True
    check(session, TREE)
    assert model.cell.W.name == "cell.W"


def test_two_models_share_parameters_by_other_names():
    model = Classifier()
    sessions = [cavs.Session(m, dtype=np.float64) for m in (model, Other(model))]
    for batch in (LEAVES, TREE, LEAVES):
        for session in sessions:
            check(session, batch)


def replace(model):
    model.embedding.weight = cavs.Parameter((5, 4), init=0.25, sparse=True)


def test_a_parameter_that_is_replaced_needs_a_new_session(tmp_path):
    model = Classifier()
    session = cavs.Session(model)
    session.gradients(LEAVES)
    replace(model)
    with pytest.raises(ConfigError, match=r"replaced the parameter 'embedding\.weight'") as found:
        session.gradients(TREE)
    assert "test_session_parameters.py" in str(found.value)
    check(cavs.Session(model, dtype=np.float64), TREE)


def test_parameters_that_were_not_trained_are_not_saved(tmp_path):
    model = Classifier()
    trainer = cavs.Trainer(model, cavs.optim.SGD(lr=0.1))
    trainer.step(TREE)
    replace(model)
    path = tmp_path / "c.safetensors"
    with pytest.raises(ConfigError, match="make a new Session or Trainer"):
        trainer.save(path)
    assert not path.exists()


@pytest.mark.parametrize("change", ["lost", "got"])
def test_layers_that_are_added_or_removed(change):
    model = Classifier()
    session = cavs.Session(model)
    session.gradients(LEAVES)
    if change == "lost":
        model.embedding = lambda index: ops.lookup(model.W, index)
    else:
        model.more = nn.Linear(2, 2)
    with pytest.raises(ConfigError, match=f"has {change} the parameter"):
        session.gradients(TREE)
