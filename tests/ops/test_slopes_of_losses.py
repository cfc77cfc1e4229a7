"""Cross entropies weighed in every way: the gradient of a row takes its cotangent as an operand."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.compiler.pipeline import Passes
from tests.oracle import assert_close, reference

WIDTH, CLASSES, CLOSE = 5, 4, 1e-11
ALL_OFF = Passes(**dict.fromkeys(vars(Passes()), False))


class Cell(cavs.VertexFunction):
    """A sum, of which backward reads nothing; edges have values of their own."""

    def __init__(self, pushed):
        self.state = cavs.State(h=WIDTH)
        self.pushed = pushed

    def vertex(self, v):
        children = v.gather().h
        h = v.pull("x") + 0.5 * children.sum()
        v.scatter(h=h)
        v.push(ops.tanh(children * v.pull("x")) if self.pushed == "edge" else h)


class Lost(Cell):
    """Children hand up what they lose: a cotangent is the sum over parents."""

    def vertex(self, v):
        before = v.gather().h.sum()
        rows = ops.cross_entropy(v.pull("x")[0:CLASSES], v.pull("label"), "none")
        h = 0.3 * before + ops.reshape(rows, (1,))
        v.scatter(h=h)
        v.push(h)


class Weighed(cavs.Model):
    def __init__(self, way, cell=Cell, pushed="vertex"):
        self.word = nn.Embedding(7, WIDTH)
        self.cell, self.output = cell(pushed), nn.Linear(WIDTH, CLASSES)
        self.scale = cavs.Parameter((1,), init=[0.7])
        self.way = way

    def loss(self, batch):
        names = ("label",) if isinstance(self.cell, Lost) else ()
        x = self.word(batch["token"])
        return self.way(self, batch, self.cell(batch.graph, x=x, **{n: batch[n] for n in names}))


def rows(m, b, h, label="label"):
    return ops.cross_entropy(m.output(h), b[label], "none")


def at_graphs(m, b, h):
    return ops.cross_entropy(m.output(ops.sum_graph(h)), b["topic"], "none")


def of_graphs(value):
    """By number, so that the sums over the rows of each graph stay sums."""
    return ops.sum_rows(ops.tanh(ops.sum_graph(value)))


# A loss, and where the slope is found: map and array of the operand, or None without one.
SELF, ONE = ("self", "none"), ("one", "none")
WAYS = {
    "nothing": (lambda m, b, h: ops.cross_entropy(m.output(h), b["label"], "sum"), None),
    "a number": (lambda m, b, h: -3 * ops.cross_entropy(m.output(h), b["label"], "sum"), ONE),
    "a mean": (lambda m, b, h: ops.cross_entropy(m.output(h), b["label"]), ONE),
    "a parameter": (
        lambda m, b, h: (
            ops.reshape(m.scale, ()) * ops.cross_entropy(m.output(h), b["label"], "sum")
        ),
        ONE,
    ),
    "a feature": (
        lambda m, b, h: ops.sum_rows(rows(m, b, h) * b["weight"]),
        ("index", "order"),
    ),
    "an expression": (
        lambda m, b, h: ops.mean_rows(rows(m, b, h), b["weight"] * b["weight"] + 1.0),
        SELF,
    ),
    "a value next to others": (
        lambda m, b, h: ops.sum_rows(rows(m, b, h) * ops.reshape(ops.tanh(h)[2:3], ())),
        SELF,
    ),
    "weights of graphs": (
        lambda m, b, h: ops.sum_rows(rows(m, b, h) * b["share"]),
        ("index", "graph_of"),
    ),
    "values of graphs": (lambda m, b, h: of_graphs(rows(m, b, h)), ("index", "graph_of")),
    "graphs": (lambda m, b, h: ops.sum_rows(at_graphs(m, b, h) * b["share"]), SELF),
    "graphs by vertices": (
        lambda m, b, h: ops.sum_rows(at_graphs(m, b, h) * b["weight"]),
        SELF,  # a sum over the vertices of each
    ),
    "some of the rows": (
        lambda m, b, h: ops.sum_rows(rows(m, b, h, "some") * b["weight"]),
        ("index", "present_order"),
    ),
    "the mean of some": (lambda m, b, h: ops.cross_entropy(m.output(h), b["some"]), ONE),
    "some, by graphs": (
        lambda m, b, h: ops.sum_rows(rows(m, b, h, "some") * b["share"]),
        ("index", "present"),
    ),
    "rows squared": (lambda m, b, h: ops.sum_rows(ops.square(rows(m, b, h))), SELF),
    "edges": (lambda m, b, h: ops.mean_rows(rows(m, b, h, "kind"), b["weight"]), SELF),
    "edges by vertices": (
        lambda m, b, h: ops.sum_rows(rows(m, b, h, "kind") * b["weight"]),
        ("index", "parent"),
    ),
    "edges by graphs": (
        lambda m, b, h: ops.sum_rows(rows(m, b, h, "kind") * b["share"]),
        ("index", "parent"),
    ),
    "parents": (lambda m, b, h: ops.sum_rows(ops.square(h).sum(-1)), SELF),
    "the logits themselves": (lambda m, b, h: ops.cross_entropy(h, b["label"]), ONE),
}


def model_of(name):
    way, _ = WAYS[name]
    cell = Lost if name == "parents" else Cell
    model = Weighed(way, cell, "edge" if name.startswith("edges") else "vertex")
    model.initialize(1, np.float64)
    return model


def batch_of(seed=0):
    """Leaves have other features than vertices with children; some rows have no label."""
    rng = np.random.default_rng(seed)
    made = []
    for children in [[[], [], [0, 1], [2, 0, 1]], [[]], [[], [0], [1, 1]]]:
        n, edges = len(children), sum(map(len, children))
        vertices = {
            "token": rng.integers(0, 7, n),
            "label": rng.integers(0, CLASSES, n),
            "some": np.where(np.arange(n) % 3 == 0, -1, rng.integers(0, CLASSES, n)),
            "weight": rng.normal(size=n),
        }
        graphs = {"share": rng.normal(), "topic": int(rng.integers(0, CLASSES))}
        made.append(
            cavs.Graph(
                children,
                vertices,
                edge_features={"kind": rng.integers(-1, CLASSES, edges)},
                graph_features=graphs,
            )
        )
    return cavs.batch(made)


def check(model, batch, **options):
    """Loss and gradients are those of the oracle."""
    _, expected = reference(model, batch)
    session = cavs.Session(model, dtype=np.float64, **options)
    loss, gradients = session.gradients(batch)
    assert_close(loss, expected["loss"], CLOSE, "loss")
    assert gradients
    for name, g in gradients.items():
        assert_close(g, expected.get(f"grad:{name}", np.zeros(g.shape)), CLOSE, name)
    return session


def slopes(session, batch):
    """The gradients of cross entropies that are computed."""
    return [
        i for i in session.compiled(batch).program.instructions if i.type == "cross_entropy_grad"
    ]


@pytest.mark.parametrize("passes", [None, ALL_OFF], ids=["optimised", "plain"])
@pytest.mark.parametrize("way", WAYS)
def test_weighed_losses(way, passes):
    model, batch = model_of(way), batch_of()
    session = check(model, batch, passes=passes)
    found = slopes(session, batch)
    assert found
    for i in found if passes is None else ():
        where = [o[3:5] for o in i.inputs[1:]]
        assert where == ([] if WAYS[way][1] is None else [WAYS[way][1]])


def test_what_is_zero_is_not_computed():
    model, batch = model_of("nothing"), batch_of()
    model.way = lambda m, b, h: 0.0 * ops.cross_entropy(m.output(h), b["label"])
    assert slopes(check(model, batch), batch) == []


def test_gradients_lie_over_logits_that_nothing_else_reads():
    model, batch = model_of("the logits themselves"), batch_of()
    session = check(model, batch)
    (i,) = slopes(session, batch)
    assert i.out[:3] == i.inputs[0][:3]


@pytest.mark.parametrize("slope", [np.inf, np.nan])
@pytest.mark.parametrize("name", ["some of the rows", "a feature"])
def test_slopes_that_are_not_finite_go_through_as_in_a_product(name, slope):
    model, batch = model_of(name), batch_of()
    model.scale.value[:] = slope
    model.way = lambda m, b, h: ops.reshape(m.scale, ()) * ops.sum_rows(rows(m, b, h) * b["weight"])
    with np.errstate(invalid="ignore"):
        _, expected = reference(model, batch)
    _, gradients = cavs.Session(model, dtype=np.float64).gradients(batch)
    np.testing.assert_array_equal(
        np.isfinite(gradients["output.bias"]), np.isfinite(expected["grad:output.bias"])
    )
    assert not np.isfinite(gradients["output.bias"]).any()
