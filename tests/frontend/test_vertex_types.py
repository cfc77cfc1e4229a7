"""Cells with a vertex function for each type: their inputs, what they push, and their errors."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.errors import FeatureError, GraphError, ShapeError, TraceError
from tests.oracle import agrees, drawn
from tests.runtime.plans import Plan, PlanCost, plan, plans

RNG = np.random.default_rng(0)
TREE = plan([[], [], [0], [2, 1]], ["scan", "scan", "filter", "join"], RNG, name="tree")


class Model(cavs.Model):
    """A model that computes the sum over graphs of what ``call(cell, batch)`` returns."""

    def __init__(self, cell, call):
        self.cell, self.call = cell, call

    def forward(self, batch):
        return self.call(self.cell, batch)

    def loss(self, batch):
        out = self.forward(batch)
        return ops.sum_rows(ops.tanh(out if isinstance(out, cavs.ir.Node) else out["h"]))


def run(cell, call=lambda cell, batch: cell(batch.graph), graphs=(TREE,)):
    model = drawn(Model(cell, call), 0.5)
    return cavs.Session(model, dtype=np.float64).predict(cavs.batch(list(graphs)))


def marked(name, function):
    """Return another function that does the same, for a type."""

    @cavs.vertex(name)
    @functools.wraps(function)
    def vertex(self, v):
        function(self, v)

    return vertex


def cell_of(**functions):
    """Return a cell with functions by the name of their type."""

    def init(self):
        self.state = cavs.State(h=2)
        self.w = {t: cavs.Parameter((2, 2)) for t in functions}

    body = {f"{t}_vertex": marked(t, f) for t, f in functions.items()}
    return type("Own", (cavs.VertexFunction,), {"__init__": init, **body})()


def leaf(self, v):
    h = ops.tanh(v.pull("table") @ self.w["scan"])
    v.scatter(h=h)
    v.push(h)


def inner(self, v):
    h = ops.tanh(v.gather().h.sum() @ self.w["filter"])
    v.scatter(h=h)
    v.push(h)


def test_functions_of_types_equal_the_oracle():
    rng = np.random.default_rng(1)
    agrees(drawn(PlanCost(), 0.5), cavs.batch([TREE, *plans(20, rng)]))


def test_types_of_one_function():
    class Gate(cavs.VertexFunction):
        def __init__(self):
            self.state = cavs.State(h=1)
            self.seen = []

        @cavs.vertex("one", "two")
        def gate(self, v):
            self.seen.append(v.type)
            h = v.gather().h.sum() + (1.0 if v.type == "one" else 10.0)
            v.scatter(h=h)
            v.push(h)

    cell = Gate()
    graph = cavs.Graph([[], [0], [1]], types=["one", "two", "one"])
    found = run(cell, graphs=[graph])["output"]
    assert found.ravel().tolist() == [1.0, 11.0, 12.0] and set(cell.seen) == {"one", "two"}


def test_subclasses_replace_functions():
    class Changed(Plan):
        @cavs.vertex("scan")
        def constant(self, v):
            h = ops.tanh(self.scan.bias)
            v.scatter(h=h)
            v.push(h)

    call = lambda cell, batch: cell(batch.graph, filter=batch["filter"])  # noqa: E731
    found = run(Changed(3), call)["output"]
    np.testing.assert_array_equal(found[0], found[1])


class Sized(cavs.VertexFunction):
    """Pushes a number at each vertex of the type "one"."""

    def __init__(self):
        self.state = cavs.State(h=1)

    @cavs.vertex("one")
    def at_one(self, v):
        self.give(v, 1.0)

    @cavs.vertex("two")
    def at_two(self, v):
        self.give(v, 2.0)

    def give(self, v, value):
        h = v.gather().h.sum() * 0.0 + value
        v.scatter(h=h)
        v.push(h)


def test_a_method_that_overrides_one_runs_at_its_types():
    class Overridden(Sized):
        def at_one(self, v):
            self.give(v, 3.0)

        @cavs.vertex("three")
        def at_two(self, v):
            self.give(v, 4.0)

    graph = cavs.Graph([[], [0], [1]], types=["one", "three", "one"])
    assert run(Overridden(), graphs=[graph])["output"].ravel().tolist() == [3.0, 4.0, 3.0]
    with pytest.raises(GraphError, match='has the type "two"; Overridden'):
        run(Overridden(), graphs=[cavs.Graph([[]], types=["two"])])


def test_means_over_vertices_of_a_type():
    x = np.array([[1.0], [3.0]])
    typed = {"one": {"x": np.zeros((2, 1))}, "two": {"x": x}}
    graph = cavs.Graph([[], [], [0, 1], [2]], typed, types=["one", "two", "two", "one"])
    lacks = cavs.Graph([[]], {"one": {"x": [[5.0]]}}, types=["one"])

    def call(cell, batch):
        mean = ops.mean_graph(batch["two"]["x"])
        return {"h": cell(batch.graph), "mean": mean, "rows": ops.mean_rows(batch["two"]["x"])}

    found = run(Sized(), call, [graph, lacks])
    assert found["mean"].tolist() == [[2.0], [0.0]] and found["rows"].ravel().tolist() == [2.0]


def test_features_of_types_need_a_cell_with_types():
    class NoCell(cavs.Model):
        def forward(self, batch):
            return ops.sum_graph(batch["two"]["x"])

    graph = cavs.Graph([[], [0]], {"two": {"x": [[4.0]]}}, types=["one", "two"])
    with pytest.raises(TraceError, match="no cell with vertex functions of types"):
        cavs.Session(NoCell()).predict(cavs.batch([graph]))


def test_a_type_that_pushes_nothing_has_zeros():
    def silent(self, v):
        v.scatter(h=ops.tanh(v.gather().h.sum() @ self.w["filter"]))

    def named(self, v):
        h = v.pull("table")
        v.scatter(h=h)
        v.push(h=h, more=2.0 * h)

    cell = cell_of(scan=named, filter=silent, join=inner_named)
    out = run(cell, lambda cell, batch: vars(cell(batch.graph, scan=batch["scan"])))
    table = TREE.typed_features["scan"]["table"]
    np.testing.assert_allclose(out["h"][:2], table)
    np.testing.assert_allclose(out["more"][:2], 2.0 * table)
    assert not out["h"][2].any() and not out["more"][2:].any() and out["h"][3].any()


def inner_named(self, v):
    h = ops.tanh(v.gather().h.sum() @ self.w["join"])
    v.scatter(h=h)
    v.push(h=h)


def plain(cell, batch):
    return cell(batch.graph, scan=batch["scan"])


def scaled(v):
    scale = ops.reshape(v.num_children, (1,))
    h = (v.gather().h * scale).sum()
    v.scatter(h=h)
    v.push(h)


def pushed_edges(v):
    v.scatter(h=v.gather().h.sum())
    v.push(v.gather().h)


WRONG = {
    "never scatters": (
        {"scan": leaf, "filter": inner, "join": lambda self, v: v.push(v.gather(0).h)},
        plain,
        TraceError,
        r"never calls scatter",
    ),
    "shapes of pushes": (
        {
            "scan": leaf,
            "filter": inner,
            "join": lambda self, v: (v.scatter(h=v.gather(1).h), v.push(v.gather(0).h[0:1])),
        },
        plain,
        ShapeError,
        r"Own pushes as f32\[2\]@vertex.scan at 'scan', as f32\[1\]@vertex.join at 'join'",
    ),
    "pushes with and without names": (
        {"scan": leaf, "filter": inner, "join": inner_named},
        plain,
        TraceError,
        r"pushes one value without a name at some types, and h at others",
    ),
    "input of no type": (
        {"scan": leaf, "filter": inner, "join": inner},
        lambda cell, batch: cell(batch.graph, scan=batch["scan"], jion={"x": 1.0}),
        FeatureError,
        r"called with jion=\{\.\.\.\}, the inputs of a type of vertices; it has types scan, filter",
    ),
    "input that its type never reads": (
        {"scan": leaf, "filter": inner, "join": inner},
        lambda cell, batch: cell(batch.graph, scan={"table": batch["scan"]["table"], "y": 1.0}),
        FeatureError,
        r"Own is called with y, which Own.leaf never reads; it reads table",
    ),
    "value of another type": (
        {"scan": leaf, "filter": inner, "join": lambda self, v: v.scatter(h=v.pull("table"))},
        lambda cell, batch: cell(batch.graph, table=batch["scan"]["table"]),
        FeatureError,
        r"a value of vertices of the type 'scan' is read at those of the type 'join'",
    ),
    "values of two types": (
        {"scan": leaf, "filter": inner, "join": inner},
        lambda cell, batch: batch["scan"]["table"] + batch["filter"]["less"],
        ShapeError,
        r"vertices of the types 'filter' and 'scan' cannot be combined",
    ),
    "unknown feature of a type": (
        {"scan": leaf, "filter": inner, "join": inner},
        lambda cell, batch: batch["scan"]["tabel"],
        FeatureError,
        r"no feature 'tabel' of vertices of type 'scan' in the data; there are table",
    ),
    "value of a type as a prediction": (
        {"scan": leaf, "filter": inner, "join": inner},
        lambda cell, batch: {"h": ops.tanh(batch["scan"]["table"])},
        TraceError,
        r"forward returned .*@vertex.scan for 'h', a value of vertices of the type 'scan' alone",
    ),
    "a value of the vertex at its edges, top-down": (
        {"scan": leaf, "filter": inner, "join": lambda self, v: scaled(v)},
        lambda cell, batch: cell(batch.graph.reversed(), scan=batch["scan"]),
        TraceError,
        r"needs a value of its own vertex, which has the type 'join'",
    ),
    "values of edges, top-down": (
        {"scan": leaf, "filter": inner, "join": lambda self, v: pushed_edges(v)},
        lambda cell, batch: cell(batch.graph.reversed(), scan=batch["scan"]),
        TraceError,
        r"on a reversed graph and pushes a value of edges at vertices of the type 'join'",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_of_functions_and_inputs(name):
    functions, call, error, message = WRONG[name]
    with pytest.raises(error, match=message):
        run(cell_of(**functions), call)


def test_errors_of_declarations():
    with pytest.raises(TraceError, match=r"cavs.vertex takes names of types, found <function"):
        cavs.vertex(leaf)
    with pytest.raises(TraceError, match=r"takes names of types, found None"):
        cavs.vertex()
    double = type("Twice", (Plan,), {"a": marked("x", leaf), "b": marked("x", inner)})
    with pytest.raises(TraceError, match=r"Twice has two vertex functions for the type 'x'"):
        run(double(2))
    both = type("Both", (Plan,), {"vertex": inner})
    with pytest.raises(TraceError, match=r"Both has a method vertex and vertex functions for scan"):
        run(both(2))


def test_vertices_that_a_cell_has_no_function_for():
    session = cavs.Session(PlanCost())
    session.predict(cavs.batch([TREE]))
    sort = plan([[], [0]], ["scan", "sort"], RNG, name="s")
    with pytest.raises(GraphError) as caught:
        session.predict(cavs.batch([TREE, sort]))
    assert 'vertex 1 of graph 1 "s" has the type "sort"; Plan has vertex functions for scan' in str(
        caught.value
    )
    assert '@cavs.vertex("sort")' in str(caught.value) and caught.value.vertex == 1


def test_more_children_than_the_function_of_a_type_reads():
    wide = plan([[], [], [0, 1], [2]], ["scan", "scan", "filter", "join"], RNG, name="w")
    with pytest.raises(
        GraphError,
        match=r'vertex 2 of graph 0 "w" has 2 children; Plan reads 1 by gather\(k\) at vertices of '
        r'type "filter"',
    ):
        cavs.Session(PlanCost()).predict(cavs.batch([wide]))
    fewer = plan([[], [0]], ["scan", "join"], RNG)  # the second child is zeros
    agrees(drawn(PlanCost(), 0.5), cavs.batch([fewer]))


def test_graphs_without_types_and_cells_without_functions():
    untyped = cavs.Graph([[]], {"x": [[1.0, 2.0]]}, name="u")
    cell = cell_of(
        scan=lambda self, v: (v.scatter(h=v.gather().h.sum() + v.pull("x")), v.push(1.0))
    )
    with pytest.raises(GraphError, match=r'graph 0 "u" has no types of vertices; Own has a'):
        run(cell, lambda cell, batch: cell(batch.graph, x=batch["x"]), [untyped])
    with pytest.raises(GraphError, match=r'vertex 0 of graph 0 "tree" has the type "scan"; .* has'):
        run(nn.ChildSumTreeLSTM(1, 2), lambda c, b: c(b.graph, x=b["cost"]), [TREE])
    with pytest.raises(
        FeatureError, match=r"scan=\{\.\.\.\}, .* has one function for all vertices"
    ):
        run(nn.ChildSumTreeLSTM(2, 2), lambda c, b: c(b.graph, scan=b["scan"]))
