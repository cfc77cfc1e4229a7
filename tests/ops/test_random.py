"""Random numbers: distributions, gradients by reparameterisation, the same on every path."""

from __future__ import annotations

import math

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.errors import ShapeError, TraceError
from cavs.passes.merge_vertices import why_separate
from tests.oracle import assert_close, reference, traced

ROWS = 20_000
DRAWS = {
    "uniform": (ops.uniform, lambda x: np.clip(x, 0, 1)),
    "normal": (ops.normal, lambda x: 0.5 * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))),
    "gumbel": (ops.gumbel, lambda x: np.exp(-np.exp(-x))),
}


class Draw(cavs.Model):
    def __init__(self, draw):
        self.draw = draw

    def forward(self, batch):
        return self.draw(like=batch["x"])


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_distribution_is_that_of_the_name(name, dtype):
    draw, cumulative = DRAWS[name]
    batch = cavs.batch([cavs.Graph([[]] * ROWS, {"x": np.zeros((ROWS, 1))})])
    session = cavs.Session(Draw(draw), dtype=dtype)
    found = session.predict(batch, seed=3)["output"].ravel()
    assert np.isfinite(found).all()
    distance = np.abs(cumulative(np.sort(found)) - (np.arange(ROWS) + 0.5) / ROWS).max()
    assert distance < 2.2 / np.sqrt(ROWS)  # Kolmogorov and Smirnov: beyond with 1e-4
    other = session.predict(batch, seed=3, step=1)["output"].ravel()
    assert abs(np.corrcoef(found, other)[0, 1]) < 5 / np.sqrt(ROWS)
    np.testing.assert_array_equal(session.predict(batch, seed=3)["output"].ravel(), found)


def test_the_extreme_uniform_numbers_give_finite_ones():
    """The numbers are multiples of 2**-24 from 0 to below 1."""
    for u in (0.0, 1.0 - 2.0**-24):
        with np.errstate(all="raise"):
            x = np.float32(1.0) - np.float32(u)
            assert np.isfinite(np.sqrt(-2 * np.log(x)))
            assert np.isfinite(-np.log(np.maximum(-np.log(x), np.float32(2.0**-25))))


class Autoencoder(cavs.VertexFunction):
    """A cell that draws its state, and a number for each edge."""

    def __init__(self):
        self.state = cavs.State(h=3)
        self.mean, self.spread = nn.Linear(3, 3), nn.Linear(3, 3)
        self.scale = cavs.Parameter(3, init="ones")

    def vertex(self, v):
        child = v.gather().h
        x = v.pull("x") + ops.gumbel(child, 0.1 * self.scale).sum()
        h = ops.tanh(ops.normal(self.mean(x), ops.exp(0.1 * self.spread(x))))
        v.scatter(h=h)
        v.push(ops.uniform(h, 2.0 * h + self.scale))


class Model(cavs.Model):
    def __init__(self):
        self.cell = Autoencoder()
        self.shift = cavs.Parameter(3, init="ones")

    def forward(self, batch):
        h = self.cell(batch.graph, x=batch["x"])
        return ops.sum_graph(h) * ops.normal(self.shift, self.shift)  # one draw for the batch

    def loss(self, batch):
        return ops.mean_squared_error(ops.normal(self.forward(batch)), 0.0)


def batch_of():
    x = np.random.default_rng(0).normal(size=(6, 3))
    tree = cavs.Graph([[], [], [0, 1], [2], [2, 0], []], {"x": x})
    return cavs.batch([tree, tree, cavs.Graph([[]], {"x": x[:1]})])


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 2e-5)])
def test_values_and_gradients_equal_the_oracle(dtype, tolerance):
    model, batch = Model(), batch_of()
    model.initialize(2, np.float64)
    _, expected = reference(model, batch, seed=7, step=5)
    for serial in (False, True):
        session = cavs.Session(model, dtype=dtype)
        session.set_serial(serial)
        loss, gradients = session.gradients(batch, seed=7, step=5)
        assert_close(loss, expected["loss"], tolerance, "loss")
        for name, g in gradients.items():
            assert np.any(g != 0)
            assert_close(g, expected[f"grad:{name}"], tolerance, name)


def test_any_number_of_threads_gives_the_same_bits():
    model, batch = Model(), batch_of()
    before, found = cavs.num_threads(), []
    try:
        for threads in (1, 2):
            cavs.set_num_threads(threads)
            found.append(cavs.Session(model).gradients(batch, seed=1)[1])
    finally:
        cavs.set_num_threads(before)
    for name in found[0]:
        np.testing.assert_array_equal(found[0][name], found[1][name])


def test_vertices_that_draw_are_never_merged():
    batch = batch_of()
    assert "draws random numbers" in why_separate(traced(Model(), batch, training=False))

    class Outside(cavs.Model):
        """Random numbers of graphs, whose vertices may be merged."""

        def __init__(self):
            self.cell = nn.GRU(3, 3)

        def forward(self, batch):
            return ops.normal(ops.sum_roots(self.cell(batch.graph, x=batch["x"])))

        def loss(self, batch):
            return ops.mean_squared_error(self.forward(batch), 0.0)

    assert why_separate(traced(Outside(), batch, training=False)) == ""
    rows = cavs.Session(Model()).predict(batch)["output"]
    assert (rows[0] != rows[1]).all()  # two equal graphs


def test_what_cannot_be_drawn():
    class Numbers(cavs.Model):
        def forward(self, batch):
            return batch["x"] * ops.normal(0.0, 2.0)

    class Shapes(cavs.Model):
        def forward(self, batch):
            return ops.uniform(batch["x"], like=batch["y"])

    batch = cavs.batch([cavs.Graph([[]], {"x": np.zeros((1, 3)), "y": np.zeros((1, 2))})])
    with pytest.raises(TraceError, match=r"\[normal\] of numbers alone(.|\n)*like=x") as caught:
        cavs.Session(Numbers()).predict(batch)
    assert caught.value.where.startswith("test_random.py:")
    with pytest.raises(ShapeError, match="3"):
        cavs.Session(Shapes()).predict(batch)
    with pytest.raises(TraceError, match=r"inside Model\.loss"):
        ops.gumbel(like=cavs.Parameter(3))
