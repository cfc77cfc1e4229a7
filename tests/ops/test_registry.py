"""Every operator of the registry, by one case each: value, gradient, batching. No case, no pass.

The interpreter computes an operator by its NumPy ``evaluate``, row by row; the engine must agree on
random rows with and without the passes, and so must the gradient with finite differences.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

import cavs
from cavs import ops
from cavs.compiler.pipeline import Passes
from cavs.ir import EDGE, REGISTRY, VERTEX, Domain, apply
from tests.compiled_once import compiled_once
from tests.oracle import assert_close, numeric_slope, reference, slope_of

__all__ = ["compiled_once"]  # for all tests of this file

WIDTH = 5
LABELLED = Domain("present", "label")
ALL_OFF = Passes(**dict.fromkeys(vars(Passes()), False))


def unary(name, positive=False):
    return lambda e: apply(name, e.positive if positive else e.x)


def binary(name):
    return lambda e: apply(name, e.x, e.positive)


# In the vertex function. e.x: in the recurrence; e.y: not; e.positive > 0.1; e.child: edge rows;
# e.v: the vertex; e.W: a parameter (5, 5). An edge value is summed over the children.
INSIDE = {
    "add": binary("add"),
    "sub": binary("sub"),
    "mul": binary("mul"),
    "div": binary("div"),
    "maximum": binary("maximum"),
    "minimum": binary("minimum"),
    "greater": lambda e: e.y * apply("greater", e.x, e.y),
    "greater_equal": lambda e: e.y * apply("greater_equal", e.x, e.y),
    "equal": lambda e: e.y * apply("equal", e.x, ops.maximum(e.x, e.y)),
    "where": lambda e: ops.where(e.x > e.y, e.x, e.positive),
    "neg": unary("neg"),
    "exp": unary("exp"),
    "log": unary("log", positive=True),
    "tanh": unary("tanh"),
    "sigmoid": unary("sigmoid"),
    "sqrt": unary("sqrt", positive=True),
    "sin": unary("sin"),
    "cos": unary("cos"),
    "abs": unary("abs"),
    "relu": unary("relu"),
    "softplus": unary("softplus"),
    "power": lambda e: e.positive**1.7,
    "stop_gradient": lambda e: e.y * apply("stop_gradient", e.x),
    "constant": lambda e: e.x * 3.5,
    "broadcast": lambda e: e.child * apply("broadcast", e.y, shape=(WIDTH,), domain=EDGE),
    "uniform": lambda e: e.x * apply("uniform", stream=3, shape=(WIDTH,), domain=VERTEX),
    "gather": lambda e: ops.tanh(e.child),
    "gather_grad": lambda e: e.child * e.y,
    "sum_children": lambda e: e.child.sum(),
    "max_children": lambda e: e.child.max(),
    "product_children": lambda e: e.child.prod(),
    "nth_child": lambda e: e.v.gather(1).h * e.y,
    "to_nth_child": lambda e: apply("to_nth_child", e.x, k=1) * e.child,
    "num_children": lambda e: e.x * apply("num_children"),
    "push": lambda e: ops.square(e.x),
    "merge": lambda e: e.child.sum() + e.x,
    "matmul": lambda e: e.x @ e.W,
    "matmul_tn": lambda e: ops.tanh(e.y @ e.W),
    "transpose": lambda e: e.x @ apply("transpose", e.W),
    "rows": lambda e: e.x[1:4] @ apply("rows", e.W, start=1, stop=4),
    "pad_rows": lambda e: ops.tanh(e.y[0:2] @ apply("rows", e.W, start=3, stop=5)),
    "parameter": lambda e: e.x * e.bias,
    "feature": lambda e: e.v.pull("a") * e.x,
    "sum_axis": lambda e: ops.square(e.x).sum(-1),
    "max_axis": lambda e: e.x.max(-1),
    "column_number": lambda e: e.x * apply("column_number", size=WIDTH),
    "slice": lambda e: e.x[1:4] * e.y[0:3],
    "pad": lambda e: apply("pad", e.x, start=2, size=9),
    "concat": lambda e: ops.concat([e.x, e.y, e.x[0:2]]),
    "reshape": lambda e: ops.tanh(ops.reshape(ops.concat([e.x, e.y]), (2, WIDTH)) * e.y).sum(-1),
    "keep_axis": lambda e: e.x * apply("keep_axis", e.x.max(-1)),
}
# Around it: h are the pushed rows.
OUTSIDE = {
    "lookup": lambda m, b, h: h * ops.lookup(m.table, b["token"]),
    "lookup_grad": lambda m, b, h: ops.tanh(ops.lookup(m.table, b["token"])),
    "cross_entropy_rows": lambda m, b, h: ops.cross_entropy(h, b["label"], reduction="none"),
    "cross_entropy_grad": lambda m, b, h: ops.cross_entropy(2.0 * h, b["label"]),
    "count_present": lambda m, b, h: h * apply("count_present", b["label"]),
    "count_rows": lambda m, b, h: h * apply("count_rows", base="vertex"),
    "replica_scale": lambda m, b, h: h * apply("replica_scale"),
    "sum_vertices": lambda m, b, h: ops.tanh(ops.sum_graph(h)),
    "max_vertices": lambda m, b, h: ops.softmax_graph(h) * ops.tanh(ops.max_graph(h)),
    "sum_members": lambda m, b, h: ops.tanh(ops.sum_roots(h)),
    "to_members": lambda m, b, h: (
        h * apply("to_members", ops.tanh(ops.sum_graph(h)), members="roots")
    ),
    "take": lambda m, b, h: apply("place", ops.tanh(apply("take", h, domain=LABELLED))),
    "place": lambda m, b, h: h * apply("place", ops.tanh(apply("take", h, domain=LABELLED))),
    "sum_rows": lambda m, b, h: apply("sum_rows", ops.tanh(h)),
}
OVER_ALL_ROWS = {
    "sum_rows",
    "count_present",
    "count_rows",
    "cross_entropy_grad",
}  # one value for the batch
# Whole recurrences, which no executor of the CPU runs: tests/cuda/lstm/test_lstm.py; and what no
# other runs, where a step would hold much: tests/compiler/test_edge_cotangents.py. Types of
# vertices: tests/compiler/test_typed_vertices.py. Those along links of samples:
# tests/compiler/test_structures.py. Rows of distinct indices, in larger batches:
# tests/passes/test_deduplicate_lookups.py.
LINKED = {"take_linked", "sum_linked", "sum_readers", "max_readers", "take_pairs", "sum_pairs"}
ELSEWHERE = LINKED | {
    "lstm",
    "lstm_grad",
    "lstm_weight_grad",
    "gather_out",
    "sum_out",
    "merge_types",
    "take_distinct",
}
BY_ROW_NUMBER = {"uniform"}  # a row of the batch draws other numbers than the row alone


class Env:
    """The values that cases are written with."""

    def __init__(self, cell, v):
        self.v, self.W, self.bias = v, cell.W, cell.bias
        self.child = v.gather().h
        self.y = v.pull("b") * cell.scale_b + 0.1
        self.x = v.pull("a") * cell.scale_a + 0.5 * self.child.sum()
        self.positive = ops.softplus(v.pull("b") * cell.scale_b) + 0.1


class Cell(cavs.VertexFunction):
    def __init__(self, case):
        self.case = case
        self.state = cavs.State(h=WIDTH)
        self.W = cavs.Parameter((WIDTH, WIDTH), init="xavier")
        self.bias, self.scale_a, self.scale_b = (
            cavs.Parameter(WIDTH, init=lambda rng, shape: rng.normal(1, 0.5, shape))
            for _ in range(3)
        )

    def vertex(self, v):
        e = Env(self, v)
        value = self.case(e)
        v.scatter(h=ops.tanh(e.x))
        v.push(value.sum() if value.type.domain.base == "edge" else value)


class Single(cavs.Model):
    """A model with one operator under test."""

    def __init__(self, name):
        self.cell = Cell(INSIDE.get(name, lambda e: e.x))
        self.around = OUTSIDE.get(name, lambda m, b, h: h)
        self.table = cavs.Parameter((4, WIDTH), init="xavier")

    def forward(self, batch):
        h = self.cell(batch.graph, a=batch["a"], b=batch["b"])
        return {"value": self.around(self, batch, h)}

    def loss(self, batch):
        return ops.mean_squared_error(self.forward(batch)["value"], 0.3)


def graphs(seed):
    rng = np.random.default_rng(seed)
    shapes = [[[], [], [0, 1], [2, 0, 1]], [[]], [[], [0], [1, 1]]]
    return [
        cavs.Graph(
            children,
            {
                "a": rng.normal(size=(len(children), WIDTH)),
                "b": rng.normal(size=(len(children), WIDTH)),
                "token": rng.integers(-1, 4, len(children)),
                "label": rng.integers(-1, WIDTH, len(children)),
            },
        )
        for children in shapes
    ]


def case_of(name):
    if name not in INSIDE and name not in OUTSIDE:
        pytest.fail(f"operator {name!r} has no case in {__name__}: add one")
    model = Single(name)
    model.initialize(1, np.float64)
    return model


def test_there_is_no_case_without_an_operator():
    assert set(INSIDE) | set(OUTSIDE) <= set(REGISTRY)
    assert not set(INSIDE) & set(OUTSIDE)


def test_an_operator_without_a_case_fails():
    with pytest.raises(pytest.fail.Exception, match="has no case"):
        case_of("a new operator")


@functools.cache
def references(name):
    """Return the results of a case on a batch: in training, and of the forward pass alone."""
    model, batch = case_of(name), cavs.batch(graphs(0))
    return reference(model, batch, seed=5, step=2), reference(model, batch, training=False)


# Those of one operator stand one behind the other: what is compiled does not depend on the dtype.
@pytest.mark.parametrize(
    ("dtype", "tolerance", "passes"),
    [(np.float64, 1e-12, None), (np.float64, 1e-12, ALL_OFF), (np.float32, 2e-5, None)],
    ids=["float64", "float64-no-passes", "float32"],
)
@pytest.mark.parametrize("name", sorted(set(REGISTRY) - ELSEWHERE))
def test_engine_equals_evaluate(name, dtype, tolerance, passes):
    model, batch = case_of(name), cavs.batch(graphs(0))
    (traced, expected), (forward, rows) = references(name)
    session = cavs.Session(model, dtype=dtype, passes=passes)
    occurs = {n.op.name for g in (traced, forward) for n in g.nodes()}
    compiled = cavs.Session(model, dtype=dtype).compiled(batch, record=False)
    assert name in occurs | {n.op.name for n in compiled.graph.nodes()}, "the case misses it"
    value = session.evaluate(batch).outputs["value"]
    if forward.outputs["value"].type.domain.base == "one":
        (value,) = value  # the engine gives a value of the batch as its one row
    assert_close(value, rows["value"], tolerance, "value")
    loss, gradients = session.gradients(batch, seed=5, step=2)
    assert_close(loss, expected["loss"], tolerance, "loss")
    for parameter, g in gradients.items():
        none = np.zeros(g.shape)
        assert_close(g, expected.get(f"grad:{parameter}", none), tolerance, parameter)


@pytest.mark.parametrize(
    "name",
    sorted(n for n, op in REGISTRY.items() if op.vjp and n not in ELSEWHERE | {"stop_gradient"}),
)
def test_gradient_equals_finite_differences(name):
    model, batch = case_of(name), cavs.batch(graphs(1))
    _, expected = reference(model, batch)
    rng = np.random.default_rng(2)
    direction = {k: rng.normal(size=p.shape) for k, p in model.parameters().items()}
    reached = {k: expected[f"grad:{k}"] for k in direction if f"grad:{k}" in expected}
    exact = slope_of(reached, direction)
    assert reached and abs(exact) > 1e-6
    assert exact == pytest.approx(numeric_slope(model, batch, direction), rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("name", sorted(set(REGISTRY) - OVER_ALL_ROWS - BY_ROW_NUMBER - ELSEWHERE))
def test_a_batch_equals_its_graphs_stacked(name):
    model, made = case_of(name), graphs(3)
    session = cavs.Session(model, dtype=np.float64)
    together = session.predict(cavs.batch(made))["value"]
    one_by_one = np.concatenate([session.predict(cavs.batch([g]))["value"] for g in made])
    assert_close(together, one_by_one, 1e-12, name)
