"""Cotangents of edges that a child can compute for each of its parents, and those it cannot."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import ops
from cavs.frontend.batch import Feature
from cavs.frontend.model import trace_model
from cavs.passes.backward.sum_cotangents_at_child import (
    edge_cotangent_slots,
    sum_cotangents_at_child,
)
from cavs.passes.differentiate import differentiate
from cavs.passes.simplify import simplify
from tests.oracle import agrees, drawn

SCHEMA = {"x": Feature("vertex", "float", (4,))}


class Cell(cavs.VertexFunction):
    """Pushes what ``read`` makes of two states of each child, summed."""

    def __init__(self, read):
        self.read = read
        self.state = cavs.State(h=4, g=4)
        self.W, self.V = cavs.Parameter((4, 4)), cavs.Parameter((4, 4))

    def vertex(self, v):
        child, x = v.gather(), v.pull("x")
        v.scatter(h=ops.tanh(x @ self.W), g=ops.tanh(x @ self.V))
        v.push(self.read(child.h, ops.stop_gradient(child.g)).sum())


class Model(cavs.Model):
    def __init__(self, read, slope):
        self.cell, self.slope = Cell(read), slope

    def loss(self, batch):
        return ops.sum_rows(self.slope(self.cell(batch.graph, x=batch["x"]))).sum(-1)


CASES = {
    "a function of parent and child": (lambda h, g: h * g, ops.tanh, True),
    "a function of the child alone": (lambda h, g: h * ops.tanh(g), lambda x: x, False),
    "a value that the child has scattered": (lambda h, g: h * g, lambda x: x, False),
}


@pytest.mark.parametrize("case", CASES)
def test_sums_of_cotangents(case):
    read, slope, moved = CASES[case]
    model = Model(read, slope)
    graph = simplify(differentiate(trace_model(model, SCHEMA, training=True)))
    slots = edge_cotangent_slots(graph)
    wanted = {slot for slot in slots if slot[1] == "h"}
    assert len(wanted) == 1 < len(slots)  # that of g is zero
    found = sum_cotangents_at_child(graph, wanted)
    assert (found is not graph) is moved
    assert any(n.op.name == "sum_out" for n in found.nodes()) is moved
    assert sum_cotangents_at_child(graph, ()) is graph


@pytest.mark.parametrize("case", CASES)
def test_gradients_equal_the_oracle(case):
    read, slope, _ = CASES[case]
    x = np.random.default_rng(0).normal(size=(5, 4))
    batch = cavs.batch([cavs.Graph([[], [], [0, 1], [1, 2], [2, 2, 0]], {"x": x})])
    agrees(drawn(Model(read, slope), 0.5), batch)
