"""Gradients of tables as the rows that a batch reads: ``ForwardRun.backward(..., sparse=True)``."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import nn
from tests.oracle import assert_close

FORMS = ([[], [0], [1]], [[]], [[], [0, 0], [1, 0]], [[], []])


class Words(cavs.Model):
    """Two tables, of which a product reads the second one, too, and one that no row is read of."""

    def __init__(self):
        self.read, self.tied, self.idle = (nn.Embedding(9, 3) for _ in range(3))
        self.cell = nn.ChildSumTreeLSTM(3, 3)

    def forward(self, batch):
        x = self.read(batch["word"]) + self.tied(batch["word"])
        return self.cell(batch.graph, x=x) @ self.tied.weight.T


@pytest.fixture
def batch():
    rng = np.random.default_rng(3)
    return cavs.batch(
        [cavs.Graph(children, {"word": rng.integers(-1, 7, len(children))}) for children in FORMS]
    )


@pytest.fixture
def session():
    model = Words()
    model.initialize(1, np.float64)
    return cavs.Session(model, dtype=np.float64)


def both(session, batch):
    """Return dense gradients, and those with sparse tables, for the same cotangents."""
    found = []
    for sparse in (False, True):
        run = session.forward(batch)
        d = np.random.default_rng(0).normal(size=run.outputs["output"].shape)
        found.append(run.backward({"output": d}, sparse=sparse))
    return found


def test_rows_of_a_table_equal_the_dense_gradient(session, batch):
    dense, found = both(session, batch)
    assert dense.tables == {} and set(found.tables) == {"read.weight"}
    rows, values = found.tables["read.weight"]
    read = np.unique(batch["word"][batch["word"] >= 0])
    np.testing.assert_array_equal(rows, read)
    whole = np.zeros((9, 3))
    whole[rows] = values
    assert_close(whole, dense.parameters["read.weight"], 1e-12, "read.weight")


def test_other_parameters_have_dense_gradients(session, batch):
    dense, found = both(session, batch)
    assert set(found.parameters) == set(dense.parameters) - {"read.weight"}
    for name, g in found.parameters.items():
        assert_close(g, dense.parameters[name], 1e-12, name)
    assert not found.parameters["idle.weight"].any()


def test_a_frozen_table_has_no_rows(session, batch):
    session.model.read.weight.trainable = False
    _, found = both(session, batch)
    assert found.tables == {} and "read.weight" not in found.parameters


def test_a_model_without_parameters_has_no_backward_stage():
    """All of its program runs forward; cotangents reach nothing."""

    class Fixed(cavs.Model):
        def forward(self, batch):
            return batch["x"] * 2.0

    rows = np.arange(6.0).reshape(3, 2)
    run = cavs.Session(Fixed(), dtype=np.float64).forward(
        cavs.batch([cavs.Graph.chain(3, features={"x": rows})])
    )
    np.testing.assert_array_equal(run.outputs["output"], 2 * rows)
    assert run.backward({"output": np.ones((3, 2))}) == ({}, {}, {})
    assert run.finished
