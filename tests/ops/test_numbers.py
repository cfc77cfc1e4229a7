"""The number of the greatest element, and products over children, also of zeros."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import ops
from cavs.compiler.pipeline import Passes
from cavs.errors import ShapeError, TraceError
from tests.oracle import assert_close, numeric_slope, reference, slope_of

ALL_OFF = Passes(**dict.fromkeys(vars(Passes()), False))


class Greatest(cavs.Model):
    def __init__(self):
        self.w = cavs.Parameter(1, init="ones")

    def forward(self, batch):
        return ops.argmax(batch["x"] * self.w)

    def loss(self, batch):
        return ops.mean_squared_error(self.forward(batch) * self.w, 0.0)


@pytest.mark.parametrize("width", [1, 7, 300, 3000])
@pytest.mark.parametrize("passes", [None, ALL_OFF])
def test_the_first_of_the_greatest_elements(width, passes):
    rng = np.random.default_rng(width)
    x = rng.integers(0, 5, (6, width)) - 9.0  # many ties
    batch = cavs.batch([cavs.Graph([[]] * 6, {"x": x})])
    found = cavs.Session(Greatest(), passes=passes).predict(batch)["output"]
    np.testing.assert_array_equal(found, x.argmax(-1))


def test_no_gradient_passes_through_a_number_of_an_element():
    batch = cavs.batch([cavs.Graph([[]], {"x": [[1.0, 3.0, 2.0]]})])
    loss, gradients = cavs.Session(Greatest()).gradients(batch)
    assert loss == 1 and gradients["w"] == [2.0]  # the factor's own


def test_the_greatest_element_of_rows_with_two_axes_and_of_nan():
    class Model(cavs.Model):
        def forward(self, batch):
            return {"axes": ops.argmax(batch["a"]), "nan": ops.argmax(batch["x"] / batch["y"])}

    a = np.random.default_rng(0).normal(size=(3, 4, 5)).astype("f4")
    x, y = np.array([[1.0, 0, 2], [0, 0, 1], [3, 1, 1]]), np.array([[1.0, 0, 1]] * 3)
    session = cavs.Session(Model())
    finite = cavs.batch([cavs.Graph([[]] * 3, {"a": a, "x": x, "y": y + (y == 0)})])
    found = session.predict(finite)
    np.testing.assert_array_equal(found["axes"], a.argmax(-1))
    np.testing.assert_array_equal(found["nan"], x.argmax(-1))
    batch = cavs.batch([cavs.Graph([[]] * 2, {"a": a[:2], "x": x[:2], "y": y[:2]})])
    np.testing.assert_array_equal(session.predict(batch)["nan"], [1, 1])  # as NumPy: 0 / 0


class Products(cavs.VertexFunction):
    def __init__(self):
        self.state = cavs.State(h=2)
        self.w = cavs.Parameter(2, init=[0.5, -2.0])

    def vertex(self, v):
        child = v.gather().h
        h = v.pull("x") * self.w * child.prod()
        v.scatter(h=h)
        v.push(h + (child * v.pull("x")).prod())


class Model(cavs.Model):
    def __init__(self):
        self.cell = Products()

    def forward(self, batch):
        return self.cell(batch.graph, x=batch["x"])

    def loss(self, batch):
        return ops.mean_squared_error(self.forward(batch), 0.25)


def batch_of(zeros):
    """A tree over 4 leaves of which some have zeros, a chain and a lone vertex."""
    rng = np.random.default_rng(3)
    x = rng.uniform(0.5, 2.0, (6, 2))
    for vertex, column in zeros:
        x[vertex, column] = 0.0
    tree = cavs.Graph([[], [], [], [], [0, 1, 2], [4, 3, 3]], {"x": x})
    return cavs.batch(
        [tree, cavs.Graph.chain(3, features={"x": x[:3]}), cavs.Graph([[]], {"x": x[:1]})]
    )


@pytest.mark.parametrize("zeros", [[], [(1, 0)], [(0, 1), (2, 1)], [(3, 0), (3, 1), (0, 0)]])
@pytest.mark.parametrize("passes", [None, ALL_OFF])
def test_products_over_children_with_zeros(zeros, passes):
    model, batch = Model(), batch_of(zeros)
    model.initialize(0, np.float64)
    session = cavs.Session(model, dtype=np.float64, passes=passes)
    _, expected = reference(model, batch)
    loss, gradients = session.gradients(batch)
    assert_close(loss, expected["loss"], 1e-12, "loss")
    assert_close(gradients["cell.w"], expected["grad:cell.w"], 1e-12, "w")
    direction = {"cell.w": np.array([0.3, -0.7])}
    exact = slope_of({"cell.w": expected["grad:cell.w"]}, direction)
    assert exact == pytest.approx(numeric_slope(model, batch, direction), rel=1e-6)


def test_the_gradient_of_a_factor_that_is_zero():
    """It is the product of the others: here of 3 and 5, and 0 where another is zero, too."""

    class Cell(cavs.VertexFunction):
        def __init__(self):
            self.state = cavs.State(h=1)
            self.w = cavs.Parameter(1, init="zeros")

        def vertex(self, v):
            v.scatter(h=v.pull("x") + v.pull("mark") * self.w)
            v.push(v.gather().h.prod())

    class Sum(cavs.Model):
        def __init__(self):
            self.cell = Cell()

        def loss(self, batch):
            return ops.sum_rows(
                self.cell(batch.graph, x=batch["x"], mark=batch["mark"])[0:1].sum(-1)
            )

    for others, slope in (([3.0, 5.0], 15.0), ([0.0, 5.0], 0.0)):
        x = np.array([0.0, *others, 0.0])[:, None]
        mark = np.array([1.0, 0, 0, 0])[:, None]
        graph = cavs.Graph([[], [], [], [0, 1, 2]], {"x": x, "mark": mark})
        _, gradients = cavs.Session(Sum()).gradients(cavs.batch([graph]))
        assert gradients["cell.w"] == [slope]


def test_products_inside_a_row_and_over_parents_are_refused():
    class Row(Model):
        def forward(self, batch):
            return batch["x"].prod(-1)

    class Parents(Model):
        def forward(self, batch):
            return self.cell(batch.graph.reversed(), x=batch["x"])

    with pytest.raises(ShapeError, match=r"over the children(.|\n)*ops\.exp\(ops\.log"):
        cavs.Session(Row()).predict(batch_of([]))
    with pytest.raises(TraceError, match=r"takes a product over parents(.|\n)*Graph\.reversed"):
        cavs.Session(Parents()).predict(batch_of([]))
