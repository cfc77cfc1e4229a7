"""Invalid arguments raise an error of cavs."""

from __future__ import annotations

import re

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.data import parse_tree
from cavs.errors import (
    ConfigError,
    DataError,
    DTypeError,
    FeatureError,
    GraphError,
    NoAttributeError,
    NumericsError,
    ShapeError,
    TraceError,
    line_of,
)
from tests.frontend.test_trace_errors import Classifier, good, trace

V = cavs.Parameter((8, 16), init="ones")
NAN, INF = float("nan"), float("inf")


def traced(body):
    """Trace a cell that computes ``body`` of a row of eight numbers, and a good cell."""

    def vertex(f, v):
        x = v.pull("x") @ f.W
        body(ops.concat([x, x]))
        good(f, v)

    trace(Classifier(vertex))


OPERATORS = [
    (lambda x: ops.bilinear(x, V, x.sum(-1)), ShapeError, r"\[bilinear\].*one axis.*\* y"),
    (lambda x: ops.bilinear(x, V, x[:3]), ShapeError, r"no multiple of 3.*\(8, c \* 3\)"),
    (lambda x: ops.split(x, None), ShapeError, r"\[split\].*whole numbers, not None"),
    (lambda x: ops.split(x, [4.5, 3.5]), ShapeError, r"whole numbers, not \[4.5, 3.5\]"),
    (lambda x: ops.split(x, "a"), ShapeError, "whole numbers, not 'a'"),
    (lambda x: ops.split(x, True), ShapeError, "whole numbers, not True"),
    (lambda x: ops.split(x, x), ShapeError, "whole numbers, not <"),
    (lambda x: ops.split(x, [-1, 9]), ShapeError, r"sizes \[-1, 9\] of 8.*at least 1"),
    (lambda x: ops.split(x, [4, 5]), ShapeError, r"\[4, 5\] add up to 9, not 8"),
    (lambda x: ops.split(x, 3), ShapeError, "8 elements do not divide by 3.*1, 2, 4, 8 equal"),
    (lambda x: ops.split(x, 0), ShapeError, "do not divide by 0"),
    (lambda x: ops.split(x.sum(-1), 1), ShapeError, "a scalar has no axis"),
    (
        lambda x: ops.concat([x, x.sum(-1)]),
        ShapeError,
        r"f32\[8\], f32\[\]\n.*reshape\(x, 1\)",
    ),
    (lambda x: ops.log_softmax(x.sum(-1)), ShapeError, "needs at least one axis.*as it is"),
    (lambda x: x.log_softmax(), NoAttributeError, r"ops.log\(x.softmax\(\)\) over children"),
    (lambda x: x.mean(dim=-1), TraceError, r"mean\(\) does not take dim=.*write axis= for dim="),
    (lambda x: x.sum(-1, keepdim=True), TraceError, "take keepdim=.*keepdims= for keepdim="),
    (lambda x: V.max(axes=-1), TraceError, r"max\(\) does not take axes=.*has axis, keepdims"),
    (lambda x: x.softmax(-1, keepdims=True), TraceError, "softmax.. does not take keepdims="),
    (lambda x: x.min(-1, True, 3), TraceError, r"min\(\) does not take 3 arguments"),
    (lambda x: x.sum("a"), ShapeError, "axis a of a value"),
    (lambda x: x.mean((0, 1)), ShapeError, r"axis \(0, 1\) of a value"),
    (lambda x: x.norm(), NoAttributeError, r"write ops.sqrt\(ops.dot\(x, x\)\)"),
    (lambda x: x != 1, TraceError, r"a traced value != 1 asks.*1.0 - ops.equal"),
    (lambda x: np.float32(1) != x, TraceError, r"a traced value != .* asks.*1.0 - ops.equal"),
    (lambda x: ops.reshape(x, (2, 4)) @ V, ShapeError, r"one axis per row.*V \(n, k\)"),
    (lambda x: ops.reshape(x, (2, 4)).T, ShapeError, r"matrix can be transposed.*\.sum\(-1\)"),
    (lambda x: ops.concat(3), TraceError, r"one list, found 3.*concat\(\[a, b\]\)"),
    (lambda x: ops.concat(V), TraceError, "one list, found Parameter"),
    (lambda x: ops.reshape(x, "ab"), ShapeError, "whole numbers, not 'ab'"),
    (lambda x: ops.reshape(x, "8"), ShapeError, "whole numbers, not '8'"),
    (lambda x: ops.reshape(x, None), ShapeError, "whole numbers, not None"),
    (lambda x: ops.reshape(x, (2.5, 4)), ShapeError, r"not \(2.5, 4\)"),
    (lambda x: ops.reshape(x, (-2, -4)), ShapeError, "must be at least 1"),
    (lambda x: x["a":], TraceError, "bounds of a slice are whole numbers, not 'a'"),
    (lambda x: x[2.0:], TraceError, "whole numbers, not 2.0"),
    (lambda x: x[:x], TraceError, "counts and indexes nothing"),
    (lambda x: x[4:99], ShapeError, "4:99 of 8 elements reaches outside.*0 to 8, or.*-8 to -1"),
    (lambda x: x[-9:], ShapeError, "-9: of 8 elements reaches outside"),
    (lambda x: x[4:4], ShapeError, "4:4 of 8 elements is empty"),
    (lambda x: x.sum(-1)[0:1], ShapeError, "a scalar cannot be sliced.*as it is"),
    (lambda x: x**NAN, TraceError, "finite number, not nan"),
    (lambda x: x**-INF, TraceError, "finite number, not -inf"),
    (lambda x: x * NAN, NumericsError, "combined with nan, so every result is NaN"),
    (lambda x: np.float32(NAN) + x, NumericsError, "combined with .*nan"),
    (lambda x: x + 10**400, NumericsError, "combined with 1000"),
    (lambda x: ops.dot(x, x[:1]), ShapeError, r"\[dot\] rows of one width.*a \* b"),
    (lambda x: ops.dot(x, x[:4]), ShapeError, r"f32\[8\]@vertex, f32\[4\]@vertex"),
    (lambda x: ops.dot(x, 2.0), ShapeError, r"\[dot\]"),
    (lambda x: ops.sum_graph(1.0), TraceError, "needs vertex values.*as it is"),
]


@pytest.mark.parametrize(("call", "kind", "message"), OPERATORS)
def test_operators(call, kind, message):
    with pytest.raises(kind, match=re.compile(message, re.DOTALL)) as caught:
        traced(call)
    assert type(caught.value) is kind
    assert caught.value.where == line_of(call) and caught.value.hint


def test_sizes_that_make_sense():
    shapes = []

    def body(x):
        for sizes in (np.array([2, 4]), (2, 4.0), [-1, 4], (np.int64(2), 4)):
            shapes.append(ops.reshape(x, sizes).shape)
        for parts in ([4.0, 4.0], 2, 2.0, np.array([4, 4]), np.int64(2), (4, 4)):
            shapes.extend(part.shape for part in ops.split(x, parts))

    def cut(x):
        for part in (x[:8], x[-8:], x[4:], x[:-4], x[np.int64(2) : -1], x[0:8:1]):
            shapes.append(part.shape)
        ops.where(x > 0.0, x, -INF)  # infinity is a valid mask
        ops.dot(x, x)

    traced(body)
    assert shapes == [(2, 4)] * 4 + [(4,)] * 12
    shapes.clear()
    traced(cut)
    assert shapes == [(8,), (8,), (4,), (4,), (5,), (8,)]


def test_a_gathered_state_without_effect_is_unread():
    def unused(f, v):
        g = v.gather()
        h = ops.tanh(v.pull("x") @ f.W + g.h.sum() @ f.U)
        assert g.c is not None
        v.scatter(h=h, c=h)
        v.push(h)

    def dropped(f, v):
        v.gather().h.sum()
        v.scatter(h=v.pull("x") @ f.W)
        v.push(v.pull("x") @ f.W)

    for body, states in ((unused, {"h": 4, "c": 4}), (dropped, {"h": 4})):
        name = next(iter(states.keys() - {"h"}), "h")
        with pytest.raises(TraceError, match=f"never reads its state {name}: nothing") as caught:
            trace(Classifier(body, **states))
        assert caught.value.where.startswith("test_trace_errors.py:")  # where vertex is defined


@pytest.mark.parametrize("top_down", [False, True])
def test_a_state_is_read_if_it_reaches_a_scatter_or_a_push(top_down):
    def scattered(f, v):
        child = v.gather()
        h = ops.tanh(v.pull("x") @ f.W + child.h.sum() @ f.U)
        v.scatter(h=h, c=child.c.sum() + h)  # c alone reads c
        v.push(h)

    def pushed(f, v):
        first = v.gather(0)
        h = ops.tanh(v.pull("x") @ f.W)
        v.scatter(h=h, c=h)
        v.push(h=h + first.h, of_edges=v.gather().c)

    def called(m, b):
        graph = b.graph.reversed() if top_down else b.graph
        h = m.cell(graph, x=b["dense"])
        return ops.cross_entropy(h if body is scattered else h.h, b["label"])

    for body in (scattered, pushed):
        trace(Classifier(body, called, h=4, c=4))


GRAPH = cavs.Graph([[], [0], [1]], name="g")
BATCH = cavs.batch([GRAPH, GRAPH])

VALUES = [
    (lambda: BATCH.select([4]), FeatureError, "no graph 4 in a batch of 2 graphs.*0 to 1"),
    (lambda: BATCH.select([-1]), FeatureError, "no graph -1"),
    (lambda: BATCH.select([True, False]), FeatureError, "no graph True.*np.flatnonzero"),
    (lambda: BATCH.select(1.5), FeatureError, "no graph 1.5"),
    (lambda: GRAPH.children("a"), GraphError, r"no vertex 'a'; vertices are 0..2"),
    (lambda: GRAPH.children(1.0), GraphError, "no vertex 1.0"),
    (lambda: GRAPH.children(True), GraphError, "no vertex True"),
    (lambda: GRAPH.children(3), GraphError, "no vertex 3"),
    (lambda: parse_tree(b"(3 It)"), DataError, r"b'\(3 It\)' is no text.*decode"),
    (lambda: parse_tree(None), DataError, "None is no text"),
    (lambda: cavs.Parameter(2, init=lambda r, s: "x").value, DTypeError, "holds floats, not <U1"),
    (lambda: cavs.Parameter(2, init=lambda r, s: None).value, DTypeError, "not object"),
    (lambda: cavs.Parameter(2, init=[[1], [1, 2]]), ShapeError, "rows of unequal length"),
    (lambda: cavs.Parameter(2).initialize(0, np.int32), ConfigError, "dtype is .*int32.*float32"),
    (lambda: cavs.Parameter(2).initialize(0, "no"), ConfigError, "dtype is 'no'"),
    (lambda: cavs.Parameter(2).convert(np.float16), ConfigError, "dtype is .*float16"),
    (lambda: cavs.Parameter(2, trainable="no"), ConfigError, "trainable is 'no'.*True or False"),
    (lambda: cavs.Parameter((2, 2), sparse=1), ConfigError, "sparse is 1"),
    (lambda: cavs.Parameter(4, sparse=True), ShapeError, r"sparse parameter of shape \[4\].*two"),
    (lambda: cavs.Parameter((True, 2)), ShapeError, r"shape \[True, 2\]"),
    (lambda: cavs.State(h=True), ShapeError, r"'h' of shape \[True\]"),
    (lambda: cavs.State(as_node=8), TraceError, "cannot be called 'as_node'.*_values, as_node"),
    (lambda: cavs.State(_values=8), TraceError, "cannot be called '_values': the gathered state"),
    (lambda: cavs.State(__h=8), TraceError, "names with __ in front"),
    (lambda: nn.LayerNorm(4, eps=-1), ConfigError, "eps is -1, but must be a number above 0"),
    (lambda: nn.LayerNorm(4, eps=0), ConfigError, "eps is 0"),
    (lambda: cavs.Graph([[]], name=3), GraphError, "a graph is a text, found 3.*name='3'"),
    (lambda: cavs.Graph.chain(2, name=3), GraphError, "a graph is a text, found 3"),
    (lambda: cavs.Graph.chain(True), GraphError, "a whole number of vertices, found True"),
    (lambda: cavs.Graph.chain(2.0), GraphError, "a whole number of vertices, found 2.0"),
    (lambda: cavs.Graph.from_edges("3", []), GraphError, "a whole number of vertices, found '3'"),
    (
        lambda: cavs.Graph.from_edges(3, [(0, 1), (7, 1)]),
        GraphError,
        "edge 1 .* vertex 7 to 1, but",
    ),
    (lambda: cavs.Graph.from_edges(3, [(-1, 1)]), GraphError, "edge 0 goes from vertex -1 to 1"),
]


@pytest.mark.parametrize(("call", "kind", "message"), VALUES)
def test_values(call, kind, message):
    with pytest.raises(kind, match=re.compile(message, re.DOTALL)) as caught:
        call()
    assert type(caught.value) is kind
    assert caught.value.where == line_of(call) and caught.value.hint


def test_a_dangling_child_of_an_edge_blames_its_parent():
    for edges, vertex in (([(7, 1)], 1), ([(1, 7)], 1), ([(7, 8)], 8)):
        with pytest.raises(GraphError) as caught:
            cavs.Graph.from_edges(3, edges)
        assert caught.value.vertex == vertex


def test_selection_by_numpy_integers():
    ids = cavs.batch([GRAPH, GRAPH], ids=[5, 6]).select(np.array([1, 0, 1])).ids
    assert ids == (6, 5, 6)


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (
            lambda v: v.pull(3),
            r"pull\(3\): an input has a name.*passes x, rel.*v.pull\('x'\) reads",
        ),
        (lambda v: v.edge(0), r"edge\(0\): an input has a name.*v.gather\(k\)"),
        (lambda v: v.pull(None), r"pull\(None\)"),
    ],
)
def test_inputs_are_named(read, message):
    with pytest.raises(FeatureError, match=re.compile(message, re.DOTALL)) as caught:
        trace(Classifier(lambda f, v: read(v)))
    assert caught.value.where == line_of(read)


@pytest.mark.parametrize(
    ("k", "shown"),
    [
        *[(k, re.escape(repr(k))) for k in (2**16, 2**31, 2**40, -1, True, 1.0, "0", [0])],
        pytest.param(10**5000, "a number of 16610 bits", id="long"),
        pytest.param(-(10**5000), "a number of 16610 bits", id="below zero, long"),
        (np.float32(1), re.escape(repr(np.float32(1)))),
        (np.bool_(True), re.escape(repr(np.bool_(True)))),
        (np.int64(2**40), re.escape(repr(np.int64(2**40)))),
    ],
)
def test_invalid_child_numbers(k, shown):
    def body(f, v):
        v.gather(k)

    with pytest.raises(TraceError, match=rf"gather\({shown}\) is not .* 0 to 65535") as caught:
        trace(Classifier(body))
    line = int(line_of(body).rpartition(":")[2]) + 1
    assert caught.value.where == f"test_invalid_arguments.py:{line}"
    assert "from 0" in caught.value.hint


def test_the_last_child_that_has_a_number():
    def body(f, v):
        h = ops.tanh(v.pull("x") @ f.W + v.gather(0).h + v.gather(2**16 - 1).h)
        v.scatter(h=h)
        v.push(h)

    def call(m, b):
        return ops.mean_rows(m.cell(b.graph, x=b["dense"]).sum(-1))

    batch = cavs.batch([cavs.Graph.chain(3, features={"dense": np.ones((3, 3))})])
    assert np.isfinite(cavs.Session(Classifier(body, call)).gradients(batch)[0])


@pytest.mark.parametrize(
    "ask",
    [len, list, lambda b: len(b.graph), lambda b: [*b.graph], lambda b: "dense" in b],
)
def test_a_batch_has_no_length_in_a_trace(ask):
    with pytest.raises(TraceError, match=r"batch(\.graph)? has no length and") as caught:
        trace(Classifier(good, lambda m, b: ask(b)))
    assert caught.value.where.startswith("test_invalid_arguments.py:")
    assert "mean_rows" in caught.value.hint


def test_a_batch_in_a_trace_is_true():
    def call(m, b):
        assert b and b.graph
        return ops.mean_rows(m.cell(b.graph, x=b["dense"]).sum(-1))

    trace(Classifier(good, call))


class Gated(cavs.VertexFunction):
    """Reads its gate in one variant only."""

    def __init__(self, gated):
        self.state = cavs.State(h=3)
        self.gated = gated

    def names(self):
        return ("gate",) if self.gated else ()

    def vertex(self, v):
        h = v.pull("x") + v.gather().h.sum()
        for name in self.names():
            h = h * v.pull(name)
        v.scatter(h=h)
        v.push(h)


def test_an_input_that_a_cell_never_reads():
    def call(m, b):
        return ops.mean_rows(Gated(m.gated)(b.graph, x=b["dense"], zzz=1.0).sum(-1))

    for gated, told in ((False, "it reads x$"), (True, "the call passes x, zzz")):
        model = Classifier(good, call)
        model.gated = gated
        with pytest.raises(FeatureError, match=re.compile(told, re.MULTILINE)) as caught:
            trace(model)
        assert caught.value.where.startswith("test_invalid_arguments.py:")
    model.gated = False
    with pytest.raises(FeatureError, match="Gated is called with zzz, which Gated") as caught:
        trace(model)
    line = int(line_of(call).rpartition(":")[2]) + 1
    assert caught.value.where == f"test_invalid_arguments.py:{line}"
    assert "v.pull('zzz')" in caught.value.hint


@pytest.mark.parametrize("gated", [True, False])
def test_an_input_that_only_variants_of_a_cell_read(gated):
    def call(m, b):
        return ops.mean_rows(Gated(gated)(b.graph, x=b["dense"], gate=b["dense"]).sum(-1))

    trace(Classifier(good, call))


class Overriding(Gated):
    """Calls no method of its base class that names the gate."""

    def vertex(self, v):
        h = v.pull("x") + v.gather().h.sum()
        v.scatter(h=h)
        v.push(h)


class Extending(Gated):
    """Calls its base class."""

    def vertex(self, v):
        super().vertex(v)


class Named(Gated):
    """Calls its base class by name."""

    def vertex(self, v):
        Gated.vertex(self, v)


def gated_by(cell, **inputs):
    def call(m, b):
        return ops.mean_rows(cell(b.graph, x=b["dense"], **{n: b["dense"] for n in inputs}).sum(-1))

    trace(Classifier(good, call))


def test_an_input_that_only_an_overridden_method_names():
    gated_by(Overriding(False))
    with pytest.raises(FeatureError, match="Overriding is called with gate, which Overriding"):
        gated_by(Overriding(False), gate=True)


@pytest.mark.parametrize("cell", [Extending, Named])
@pytest.mark.parametrize("gated", [True, False])
def test_an_input_that_only_variants_of_a_base_class_read(cell, gated):
    gated_by(cell(gated), gate=True)


class Dispatching(Gated):
    """Chooses a method by its name."""

    def vertex(self, v):
        h = getattr(self, "_gated" if self.gated else "_plain")(v) + v.gather().h.sum()
        v.scatter(h=h)
        v.push(h)

    def _plain(self, v):
        return v.pull("x")

    def _gated(self, v):
        return v.pull("x") * v.pull("gate")


@pytest.mark.parametrize("gated", [True, False])
def test_an_input_that_a_method_chosen_by_name_reads(gated):
    gated_by(Dispatching(gated), gate=True)
    with pytest.raises(FeatureError, match="Dispatching is called with zzz, which Dispatching"):
        gated_by(Dispatching(True), gate=True, zzz=True)


def test_pushed_values_that_would_be_hidden():
    def body(f, v):
        v.push(h=v.pull("x"), as_node=v.pull("x"))

    with pytest.raises(TraceError, match="pushed value cannot be called 'as_node'"):
        trace(Classifier(body))


def test_states_and_pushed_values_of_any_other_name():
    names = ("first", "listed", "_h", "sum", "values")
    states = dict.fromkeys(names, 3)

    def body(f, v):
        child = v.gather()
        values = {name: v.pull("x") + getattr(child, name).sum() for name in names}
        v.scatter(**values)
        v.push(**values)

    def call(m, b):
        out = m.cell(b.graph, x=b["dense"])
        return sum((ops.mean_squared_error(getattr(out, n), out[n]) for n in names), 0.0)

    trace(Classifier(body, call, **states))
    assert cavs.State(**{"self": 3}).shapes == {"self": (3,)}
