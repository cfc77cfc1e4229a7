"""The text of a program names how each operand is read."""

from __future__ import annotations

import numpy as np

import cavs
from cavs import ops
from cavs.ir import apply


class Cell(cavs.VertexFunction):
    """Reads its own value at the edge to the second child alone."""

    def __init__(self):
        self.state = cavs.State(h=3)

    def vertex(self, v):
        x = ops.tanh(v.pull("x"))
        h = (apply("to_nth_child", x, k=1) * v.gather().h).sum() + x
        v.scatter(h=h)
        v.push(h)


class Model(cavs.Model):
    def __init__(self):
        self.cell = Cell()

    def forward(self, batch):
        h = self.cell(batch.graph, x=batch["x"])
        return h * apply("column_number", size=3)

    def loss(self, batch):
        return ops.sum_rows(self.forward(batch)).sum(-1)


def program():
    graph = cavs.Graph([[], [], [0, 1]], {"x": np.ones((3, 3))})
    return cavs.explain(Model(), cavs.batch([graph])).program


def test_a_value_of_the_parent_at_one_of_its_children():
    assert " of the parent if child 1" in program()


def test_numbers_of_columns():
    assert "column" in program()
