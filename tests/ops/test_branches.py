"""The gradient of ``where`` is that of the branch taken, whatever the other one's slope is.

The same cell is written twice: plainly, and so that the branch not taken is computed at 1.0, where
every slope is finite. Both have one gradient.
"""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import ops
from cavs.compiler.pipeline import Passes
from cavs.ir import REGISTRY
from tests.compiled_once import programs_shared
from tests.oracle import assert_close, reference

WIDTH = 5
ALL_OFF = Passes(**dict.fromkeys(vars(Passes()), False))

# Every elementwise operator that is not total: a function of one value that uses it, a value at
# which it or its slope is infinite or NaN, and the values at which both are finite.
SINGULAR = {
    "div": (lambda x: (x + 1.0) / x, 0.0, lambda x: x != 0),
    "exp": (ops.exp, 1000.0, lambda x: x < 80),
    "log": (ops.log, 0.0, lambda x: x > 0),
    "sqrt": (ops.sqrt, 0.0, lambda x: x > 0),
    "power": (lambda x: x**0.3, 0.0, lambda x: x > 0),
}
# Total operators of values that may be infinite.
COMPOSED = {
    "log below 0": (ops.log, -1.0, lambda x: x > 0),
    "tanh of a root": (lambda x: ops.tanh(ops.sqrt(x)), -1.0, lambda x: x > 0),
    "a product with a logarithm": (lambda x: x * ops.log(x), 0.0, lambda x: x > 0),
    "an entropy": (lambda x: (x * ops.log(x)).sum(-1) * x, 0.0, lambda x: np.all(x > 0, -1)),
    "the largest": (lambda x: ops.log(x).max(-1) * x, -1.0, lambda x: np.all(x > 0, -1)),
    "a softmax": (lambda x: ops.log_softmax(ops.log(x)), 0.0, lambda x: np.all(x > 0, -1)),
    "a constant": (lambda x: (x - 1.0) * np.inf * x, 1.0, lambda x: x < 0),
    "a nested choice": (
        lambda x: ops.where(x > 0.5, ops.log(x), ops.sqrt(x)),
        0.0,
        lambda x: x > 0,
    ),
    "an ELU": (lambda x: ops.elu(1.0 / x), 0.0, lambda x: x != 0),
}
FUNCTIONS = SINGULAR | COMPOSED


def test_every_operator_with_an_infinite_slope_has_a_case():
    partial = {n for n, op in REGISTRY.items() if op.elementwise and op.vjp and not op.total}
    assert partial == set(SINGULAR)


# Cells; ``f`` is guarded by the mask in "safe" ones. own, sum, kids: 1 where the own value of a
# vertex, the sum over its children, or the value of each child is a good one.
def of_inputs(cell, v, f):
    x = v.pull("a") * cell.scale
    out = ops.where(v.pull("own"), f(x, "own"), x) + 0.1 * v.gather().h.sum()
    return out, out


def of_a_sum(cell, v, f):
    x = v.pull("a") * cell.scale
    return ops.where(v.pull("sum"), f(v.gather().h.sum(), "sum"), x), x


def of_each_child(cell, v, f):
    x = v.pull("a") * cell.scale
    own = v.gather().own
    each = ops.where(own, f(v.gather().h, own), v.gather().h)
    return each.sum() + x, x


def at_the_child(cell, v, f):
    x = v.pull("a") * cell.scale
    return ops.where(v.pull("kids"), v.gather().h.sum(), x), f(x, "own")


def of_a_product(cell, v, f):
    x = v.pull("a") * cell.scale
    out = ops.where(v.pull("all"), f(x, "all") @ cell.W, x) + 0.1 * v.gather().h.sum()
    return out, out


# Each with the features that it reads.
CELLS = {
    of_inputs: ("a", "own"),
    of_a_sum: ("a", "sum"),
    of_each_child: ("a", "own"),
    at_the_child: ("a", "own", "kids"),
    of_a_product: ("a", "all"),
}


class Cell(cavs.VertexFunction):
    def __init__(self, body, function, safe):
        self.body, self.function, self.safe = body, function, safe
        self.state = cavs.State(h=WIDTH, **{"own": WIDTH} if body is of_each_child else {})
        self.scale = cavs.Parameter(WIDTH, init="ones")
        if body is of_a_product:
            self.W = cavs.Parameter((WIDTH, WIDTH), init="xavier")

    def vertex(self, v):
        def f(x, mask):
            mask = v.pull(mask) if isinstance(mask, str) else mask
            return self.function(ops.where(mask, x, 1.0) if self.safe else x)

        out, h = self.body(self, v, f)
        v.scatter(h=h, **{"own": v.pull("own")} if self.body is of_each_child else {})
        v.push(out)


class Model(cavs.Model):
    def __init__(self, *arguments):
        self.cell, self.features = Cell(*arguments), CELLS[arguments[0]]

    def loss(self, batch):
        y = self.cell(batch.graph, **{n: batch[n] for n in self.features})
        return ops.mean_rows(ops.square(y).sum(-1))


CHILDREN = [[], [], [], [0, 1], [2], [3, 4], [5]]


def batch_of(bad, good, seed=0):
    """Trees with ``bad`` values at some elements, and which choices those allow."""
    rng = np.random.default_rng(seed)
    graphs = []
    for _ in range(3):
        a = rng.uniform(0.6, 1.4, (len(CHILDREN), WIDTH))
        a[rng.random(a.shape) < 0.3] = bad
        a[rng.random(len(a)) < 0.3] = bad
        total = np.array([a[c].sum(0) if c else np.zeros(WIDTH) for c in CHILDREN])
        own = np.broadcast_to(np.reshape(good(a), (len(a), -1)), a.shape).astype(float)
        kids = np.array([own[c].all(0) if c else np.ones(WIDTH) for c in CHILDREN], float)
        sums = np.broadcast_to(np.reshape(good(total), (len(a), -1)), a.shape).astype(float)
        whole = np.repeat(own.all(-1, keepdims=True), WIDTH, -1).astype(float)
        features = {"a": a, "own": own, "sum": sums, "kids": kids, "all": whole}
        graphs.append(cavs.Graph(CHILDREN, {n: x.astype(np.float32) for n, x in features.items()}))
    return cavs.batch(graphs)


def gradients(body, function, batch, safe, dtype, passes=None, **options):
    model = Model(body, function, safe)
    model.initialize(0, dtype)
    session = cavs.Session(model, dtype=dtype, passes=passes, **options)
    return model, session.gradients(batch)


def check(body, name, dtype, passes=None, **options):
    function, bad, good = FUNCTIONS[name]
    batch = batch_of(bad, good)
    model, (loss, found) = gradients(body, function, batch, False, dtype, passes, **options)
    _, (safe_loss, safe) = gradients(body, function, batch, True, dtype, passes, **options)
    tolerance = 1e-11 if dtype is np.float64 else 2e-5
    assert_close(loss, safe_loss, tolerance, "loss")
    for key, g in safe.items():
        assert np.isfinite(g).all()
        assert_close(found[key], g, tolerance, key)
    assert np.any(found["cell.scale"] != 0)
    return model, batch, found


@pytest.mark.parametrize("body", CELLS, ids=lambda body: body.__name__)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_those_of_the_branch_taken(body, name):
    with programs_shared():
        for dtype in (np.float32, np.float64):
            model, batch, found = check(body, name, dtype)
    with np.errstate(all="ignore"):
        _, expected = reference(model, batch)
    for key, g in found.items():
        assert_close(g, expected[f"grad:{key}"], 1e-11, key)


@pytest.mark.parametrize("body", CELLS, ids=lambda body: body.__name__)
def test_gradients_without_passes(body):
    check(body, "log", np.float64, ALL_OFF)


class OfGraphs(cavs.Model):
    """Choices outside the cell: over vertices, and over graphs."""

    def __init__(self):
        self.w = cavs.Parameter((4, 2), init=[[0.0, 1.0], [2.0, 0.5], [0.0, 0.0], [0.0, 0.0]])

    def loss(self, batch):
        x = ops.lookup(self.w, batch["i"])
        whole = ops.sum_graph(x)
        rows = ops.where(x > 0.0, ops.log(x), 0.0)
        return ops.sum_rows(rows.sum(-1)) + ops.sum_rows(
            ops.where(whole > 0.0, 1.0 / whole, 0.0).sum(-1)
        )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_outside_of_a_cell(dtype):
    graphs = [cavs.Graph([[], [0]], {"i": i}) for i in ([0, 1], [2, 3])]
    session = cavs.Session(OfGraphs(), dtype=dtype)
    _, found = session.gradients(cavs.batch(graphs))
    both = -1 / np.array([2.0, 1.5]) ** 2
    expected = [[both[0], 1 + both[1]], [0.5 + both[0], 2 + both[1]], [0, 0], [0, 0]]
    assert_close(found["w"], expected, 1e-6 if dtype is np.float32 else 1e-12, "w")


class Labels(cavs.Model):
    """A loss of rows that are no numbers, where it does not count."""

    def __init__(self):
        self.w = cavs.Parameter((2, 3), init=[[0.0, 1.0, 2.0], [1.0, 2.0, 3.0]])

    def loss(self, batch):
        x = ops.log(ops.lookup(self.w, batch["i"]))
        rows = ops.cross_entropy(x, batch["label"], "none")
        return ops.sum_rows(ops.where(batch["counts"], rows, 0.0))


def test_a_loss_that_does_not_count():
    features = {"i": [0, 1], "label": [0, 1], "counts": np.array([0, 1], np.float32)}
    graphs = [cavs.Graph([[], []], features)]
    _, found = cavs.Session(Labels(), dtype=np.float64).gradients(cavs.batch(graphs))
    p = np.array([1.0, 2.0, 3.0]) / 6  # softmax of logarithms
    expected = (p - [0, 1, 0]) / [1.0, 2.0, 3.0]
    assert_close(found["w"], [[0, 0, 0], expected], 1e-12, "w")
