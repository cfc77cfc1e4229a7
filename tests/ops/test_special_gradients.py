"""Gradients where a function has a kink or an infinite slope, and gradients that are stopped."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.compiler.pipeline import Passes
from tests.oracle import assert_close, reference


class Pointwise(cavs.Model):
    """The sum over rows of a function of a parameter."""

    def __init__(self, function, values):
        self.function = function
        self.w = cavs.Parameter((1, len(values)), init=[values])

    def loss(self, batch):
        return ops.sum_rows(self.function(ops.lookup(self.w, batch["zero"])).sum(-1))


ONE = cavs.batch([cavs.Graph([[]], {"zero": [0]})])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_small_softplus_is_not_rounded_away(dtype):
    """It is a variance for many: its logarithm and its inverse are finite."""
    values = [-60.0, -17.0, -14.0, -3.0, 0.5, 20.0]
    model = Pointwise(lambda x: ops.log(ops.softplus(x)), values)
    loss, gradients = cavs.Session(model, dtype=dtype).gradients(ONE)
    exact = np.log1p(np.exp(np.array(values)))
    tolerance = 1e-12 if dtype is np.float64 else 1e-5  # that of exp
    assert_close(loss, np.log(exact).sum(), tolerance, "loss")
    slope = 1 / (1 + np.exp(-np.array(values))) / exact
    assert_close(gradients["w"], [slope], tolerance, "gradient")


@pytest.mark.parametrize(
    ("function", "values", "loss", "gradient"),
    [
        (lambda x: x**2.5, [0.0, 4.0], 32.0, [0.0, 20.0]),
        (lambda x: x**1.5, [0.0, 4.0], 8.0, [0.0, 3.0]),
        (lambda x: x**-1.5, [4.0], 0.125, [-1.5 / 32]),
        (ops.absolute, [0.0, -2.0, 3.0], 5.0, [0.0, -1.0, 1.0]),
        (ops.softplus, [0.0, 800.0, -800.0], np.log(2) + 800, [0.5, 1.0, 0.0]),
        (lambda x: ops.stop_gradient(x) * x, [3.0], 9.0, [3.0]),
        (ops.stop_gradient, [3.0], 3.0, [0.0]),
    ],
)
@pytest.mark.parametrize("passes", [Passes(), Passes(simplify=False)], ids=["", "as written"])
def test_at_the_edge(function, values, loss, gradient, passes):
    session = cavs.Session(Pointwise(function, values), dtype=np.float64, passes=passes)
    found, gradients = session.gradients(ONE)
    assert_close(found, loss, 1e-12, "loss")
    assert_close(gradients["w"], [gradient], 1e-12, "gradient")


def test_an_infinite_slope_is_infinite():
    _, gradients = cavs.Session(Pointwise(lambda x: x**0.7, [0.0])).gradients(ONE)
    assert np.isinf(gradients["w"]).all()


class Focal(cavs.Model):
    """Lin et al. 2017: a row without error has neither loss nor gradient."""

    def __init__(self):
        self.w = cavs.Parameter((1, 2), init=[[0.0, 200.0]])

    def loss(self, batch):
        rows = ops.cross_entropy(ops.lookup(self.w, batch["zero"]), batch["label"], "none")
        return ops.mean_rows((1.0 - ops.exp(-rows)) ** 1.5 * rows)


def test_focal_loss_of_a_row_without_error():
    batch = cavs.batch([cavs.Graph([[]], {"zero": [0], "label": [1]})])
    loss, gradients = cavs.Session(Focal()).gradients(batch)
    assert loss == 0 and (gradients["w"] == 0).all()


class TwoTables(cavs.Model):
    """Two tables read by one index and added, and one that is added twice."""

    def __init__(self):
        self.a, self.b = nn.Embedding(5, 3), nn.Embedding(5, 3)
        self.cell = nn.ChildSumTreeLSTM(3, 3)

    def loss(self, batch):
        i = batch["w"]
        x = self.a(i) + self.b(i) + ops.lookup(self.b.weight, i)
        h = self.cell(batch.graph, x=x)
        return ops.mean_rows(ops.square(h).sum(-1))


@pytest.mark.parametrize(
    "passes", [Passes(), Passes(hoist_eager=False, hoist_lazy=False)], ids=["", "by task"]
)
def test_tables_with_one_gradient(passes):
    model = TwoTables()
    model.initialize(1, np.float64)
    batch = cavs.batch([cavs.Graph([[], [0], [1, 0]], {"w": [1, 2, -1]})])
    loss, gradients = cavs.Session(model, dtype=np.float64, passes=passes).gradients(batch)
    _, expected = reference(model, batch)
    assert_close(loss, expected["loss"], 1e-12, "loss")
    for name, g in gradients.items():
        assert_close(g, expected[f"grad:{name}"], 1e-12, name)
    np.testing.assert_allclose(gradients["b.weight"], 2 * gradients["a.weight"], rtol=1e-12)
    before = model.b.weight.value.copy()
    cavs.Trainer(model, cavs.optim.SGD(lr=0.5)).step(batch)
    moved = before - model.b.weight.value
    np.testing.assert_allclose(moved, 0.5 * gradients["b.weight"], rtol=1e-4, atol=1e-6)
