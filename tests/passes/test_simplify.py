"""What partial evaluation must fold away for specialisation to pay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.ir import REGISTRY, VERTEX, apply, constant
from cavs.passes.rules import constant_of
from cavs.passes.simplify import simplify_node
from tests.oracle import assert_close, reference


def of_vertices(value: float) -> Any:
    return apply("broadcast", constant(value), shape=(3,), domain=VERTEX)


def test_where_of_equal_branches_or_a_known_condition() -> None:
    x = apply("feature", name="x", dtype="f32", shape=(3,), domain=VERTEX, optional=False)
    c = x > 0.5
    assert simplify_node(ops.where(c, x, x)) is x
    assert constant_of(simplify_node(ops.where(c, of_vertices(0.0), 0.0))) == 0.0
    assert simplify_node(ops.where(of_vertices(1.0), x, 2.0)) is x
    assert constant_of(simplify_node(ops.where(of_vertices(0.0), x, 2.0))) == 2.0
    assert simplify_node(ops.where(c, x, 0.0)).op is REGISTRY["where"]


class Classifier(cavs.Model):
    """Dropout stands between the embedding and the cell."""

    def __init__(self, rate: float) -> None:
        self.embedding = nn.Embedding(9, 4)
        self.tree = nn.BinaryTreeLSTM(4, 6)
        self.output = nn.Linear(6, 3)
        self.rate = rate

    def loss(self, batch: Any) -> Any:
        x = ops.dropout(self.embedding(batch["token"]), self.rate)
        return ops.cross_entropy(self.output(self.tree(batch.graph, x=x)), batch["label"])


@pytest.fixture
def batch() -> cavs.GraphBatch:
    features = {"token": [3, 5, -1, 2, -1], "label": [0, 1, 2, 0, 1]}
    return cavs.batch([cavs.Graph([[], [], [0, 1], [], [2, 3]], features)])


def test_dropout_of_an_absent_input_costs_no_product(batch: cavs.GraphBatch) -> None:
    def products(rate: float) -> int:
        program = cavs.Session(Classifier(rate)).compiled(batch).program
        return sum(i.kind.startswith("matmul") for i in program.instructions)

    assert products(0.5) == products(0.0)


def test_dropout_of_an_absent_input_equals_the_oracle(batch: cavs.GraphBatch) -> None:
    model = Classifier(0.5)
    model.initialize(1, np.float64)
    _, expected = reference(model, batch, seed=5, step=2)
    session = cavs.Session(model, dtype=np.float64)
    loss, gradients = session.gradients(batch, seed=5, step=2)
    assert_close(loss, expected["loss"], 1e-12, "loss")
    for name, gradient in gradients.items():
        assert_close(gradient, expected[f"grad:{name}"], 1e-12, name)
