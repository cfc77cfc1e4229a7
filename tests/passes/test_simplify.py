"""Values that simplification must fold for specialisation to pay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.ir import EDGE, REGISTRY, VERTEX, apply, as_node, constant
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


def test_a_transposed_sum_or_gradient_is_one_of_transposed_terms() -> None:
    x, y = (
        apply("feature", name=n, dtype="f32", shape=(4,), domain=VERTEX, optional=False)
        for n in "xy"
    )
    a, b = cavs.Parameter((4, 3)), cavs.Parameter((4, 3))
    assert simplify_node(apply("transpose", apply("matmul_tn", x, y))) is apply("matmul_tn", y, x)
    both = simplify_node(apply("transpose", a + b))
    assert both is apply("transpose", a) + apply("transpose", b)
    assert simplify_node(apply("transpose", apply("transpose", a))) is as_node(a)


def test_pads_that_overlap_or_are_too_many_stay_a_sum() -> None:
    x = apply("feature", name="x", dtype="f32", shape=(4,), domain=VERTEX, optional=False)
    low, high, upper = (apply("pad", x, start=at, size=8) for at in (0, 2, 4))
    assert simplify_node(low + upper).op is REGISTRY["concat"]
    assert simplify_node(low + high).op is REGISTRY["add"]
    total = low + upper
    for _ in range(12):  # 2 ** 13 terms, of which few are different nodes
        total = total + total
    assert simplify_node(total).op is REGISTRY["add"]


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
        return sum(i.type.startswith("matmul") for i in program.instructions)

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


def test_a_product_of_repeated_rows_is_repeated() -> None:
    """One of every vertex instead of every edge; what takes the rows of a kind alone stays."""
    x = apply("broadcast", constant(2.0), shape=(6,), domain=VERTEX) * apply("num_children")
    w = cavs.Parameter((6, 4))
    at_edges = apply("broadcast", x, shape=(6,), domain=EDGE)
    product = simplify_node(apply("matmul", at_edges, w))
    assert (product.op.name, product.type.domain) == ("broadcast", EDGE)
    assert product.inputs[0] is apply("matmul", x, w)
    of_kind = apply("broadcast", x, shape=(6,), domain=VERTEX.of_kind(1))
    assert simplify_node(apply("matmul", of_kind, w)) is apply("matmul", of_kind, w)
    by_graph = apply("sum_vertices", x)
    for at, fewer in ((VERTEX, True), (EDGE, False), (VERTEX.of_kind(1), False)):
        node = apply("matmul", apply("broadcast", by_graph, shape=(6,), domain=at), w)
        assert (simplify_node(node).op.name == "broadcast") is fewer
    rows = at_edges * apply("broadcast", x, shape=(6,), domain=EDGE)
    for pair in ((rows, at_edges), (at_edges, rows)):
        gradient = simplify_node(apply("matmul_tn", *pair))
        assert gradient.inputs == tuple(x if y is at_edges else y for y in pair)
    both = apply("matmul_tn", at_edges, at_edges)
    assert simplify_node(both) is both


class Messages(cavs.VertexFunction):
    """A product for each child, of what has no cotangent of its own there."""

    def __init__(self) -> None:
        self.state = cavs.State(h=6)
        self.U = cavs.Parameter((6, 6))

    def vertex(self, v: Any) -> None:
        h = ops.tanh(v.pull("x") + (ops.maximum(v.gather().h, v.pull("x")) @ self.U).sum())
        v.scatter(h=h)
        v.push(h)


def test_a_cotangent_that_all_edges_share_is_multiplied_once() -> None:
    from tests.oracle import agrees
    from tests.runtime.trees import Classifier, treebank

    model = Classifier(Messages(), 6)
    model.initialize(0, np.float64)
    session, _ = agrees(model, treebank(5))
    program = session.compiled(treebank(5)).program
    backward = [i for i in program.instructions if i.type == "matmul" and i.weight > 0]
    assert not any(i.space % 2 for i in backward)  # none over edges
