"""Errors of a model are reported while tracing: both values, the user's own line, the cure."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import cavs
from cavs import ops
from cavs.errors import (
    CavsError,
    ConfigError,
    DTypeError,
    FeatureError,
    NumericsError,
    ShapeError,
    TraceError,
)
from cavs.frontend.batch import Feature
from cavs.frontend.model import trace_model

SCHEMA = {
    "token": Feature("vertex", "int"),
    "dense": Feature("vertex", "float", (3,)),
    "relation": Feature("edge", "float", (3,)),
    "kind": Feature("edge", "int"),
    "label": Feature("vertex", "int"),
}


class Cell(cavs.VertexFunction):
    """A cell with a given body, so that each test has its own mistake."""

    def __init__(self, body, **state):
        self.state = cavs.State(**(state or {"h": 4}))
        self.W = cavs.Parameter((3, 4))
        self.U = cavs.Parameter((4, 4))
        self.body = body

    def inputs(self):
        """Names of inputs that a body may leave unread."""
        return "x", "relation"

    def vertex(self, v):
        self.inputs()
        self.body(self, v)


class Classifier(cavs.Model):
    def __init__(self, body, call=None, **state):
        self.cell = Cell(body, **state)
        self.call = call

    def loss(self, batch):
        if self.call is not None:
            return self.call(self, batch)
        h = self.cell(batch.graph, x=batch["dense"], relation=batch["relation"])
        return ops.cross_entropy(h, batch["label"])


def good(f, v):
    h = ops.tanh(v.pull("x") @ f.W + v.gather().h.sum() @ f.U)
    v.scatter(h=h)
    v.push(h)


def passing_x(model, batch):
    """Return the loss of a cell that pulls only x."""
    return ops.cross_entropy(model.cell(batch.graph, x=batch["dense"]), batch["label"])


def trace(model):
    return trace_model(model, SCHEMA, training=True)


def line_in(function, text):
    """Return ``file.py:N`` of the line of ``function`` that contains ``text``."""
    lines, first = inspect.getsourcelines(function)
    (offset,) = [i for i, line in enumerate(lines) if text in line]
    return f"{Path(inspect.getfile(function)).name}:{first + offset}"


def wrong_width(f, v):
    v.scatter(h=v.pull("x") @ f.U)  # here


def sum_of_widths(f, v):
    v.scatter(h=v.pull("x") + v.gather().h.sum())  # here


def if_on_value(f, v):
    h = v.gather().h.sum()
    if h > 0:  # here
        v.scatter(h=h)


def loop_over_value(f, v):
    for _ in v.pull("x"):  # here
        pass


def indexed(f, v):
    v.pull("x")[0]  # here


def no_scatter(f, v):  # here
    v.push(v.gather().h.sum())


def no_push(f, v):  # here
    v.scatter(h=v.gather().h.sum())


def scatter_twice(f, v):
    h = v.gather().h.sum()
    v.scatter(h=h)
    v.scatter(h=h)  # here


def push_twice(f, v):
    h = v.gather().h.sum()
    v.push(h)
    v.push(h)  # here


def push_nothing(f, v):
    v.push()  # here


def unread(f, v):  # here
    h = v.pull("x") @ f.W
    v.scatter(h=h)
    v.push(h)


def unknown_state(f, v):
    v.gather().c.sum()  # here


def wrong_state(f, v):
    v.scatter(c=v.gather().h.sum())  # here


def state_of_other_shape(f, v):
    v.scatter(h=v.pull("x"))  # here


def scatter_of_edges(f, v):
    v.scatter(h=v.gather().h)  # here


def unknown_pull(f, v):
    v.pull("word")  # here


def unknown_edge(f, v):
    v.edge("label")  # here


def edge_as_vertex(f, v):
    v.pull("relation")  # here


def vertex_as_edge(f, v):
    v.edge("x")  # here


def negative_child(f, v):
    v.gather(-1)  # here


def a_string(f, v):
    v.scatter(h=v.pull("x") + "1")  # here


def dropout_rate(f, v):
    ops.dropout(v.pull("x"), 1.0)  # here


def uneven_split(f, v):
    ops.split(v.pull("x"), 2)  # here


def axis(f, v):
    v.pull("x").sum(0)  # here


def reduce_vertices(f, v):
    ops.sum_graph(v.gather().h)  # here


IN_CELL = [
    (wrong_width, ShapeError, r"inner sizes differ: f32\[3\] @ f32\[4,4\] \(3 != 4\)"),
    (sum_of_widths, ShapeError, r"sizes differ: f32\[3\] \+ f32\[4\] \(3 != 4\)"),
    (if_on_value, TraceError, "no truth.*where"),
    (loop_over_value, TraceError, "cannot be iterated.*split"),
    (indexed, TraceError, r"slice of its last axis, not 0.*value\[a:b\]"),
    (no_scatter, TraceError, r"Cell.vertex never calls scatter.*v.scatter\("),
    (no_push, TraceError, r"Cell.vertex never calls push.*v.push\("),
    (scatter_twice, TraceError, "scatter is called twice.*at once"),
    (push_twice, TraceError, "push is called twice.*push"),
    (push_nothing, TraceError, r"push takes one value.*v.push\(h\)"),
    (unread, TraceError, "never reads its state h.*gather it"),
    (unknown_state, TraceError, "no state 'c'; the gathered state has h.*State"),
    (wrong_state, TraceError, r"scatter\(c\) does not fit State\(h\).*every declared"),
    (state_of_other_shape, ShapeError, r"h has shape \[3\], its state \[4\].*h=3"),
    (scatter_of_edges, TraceError, r"value of the vertex, not f32\[4\]@edge.*\.sum\(\)"),
    (unknown_pull, FeatureError, r"pull\('word'\): the call passes x, relation.*word="),
    (unknown_edge, FeatureError, r"edge\('label'\): the call passes x, relation.*batch"),
    (edge_as_vertex, FeatureError, r"every edge, not of the vertex.*v.edge\('relation'\)"),
    (vertex_as_edge, FeatureError, r"value of every vertex.*v.pull\('x'\)"),
    (negative_child, TraceError, r"gather\(-1\).*count from 0"),
    (a_string, TraceError, "a str cannot take part.*use numbers"),
    (dropout_rate, ConfigError, "dropout rate 1.0.*0 <= rate < 1"),
    (uneven_split, ShapeError, "3 elements do not divide by 2"),
    (axis, ShapeError, r"axis 0 .* cannot be reduced.*axis=-1"),
    (reduce_vertices, TraceError, "needs vertex values"),
]


@pytest.mark.parametrize(
    ("body", "kind", "message"), IN_CELL, ids=lambda x: getattr(x, "__name__", "")
)
def test_mistakes_in_a_vertex_function(body, kind, message):
    with pytest.raises(kind, match=re.compile(message, re.DOTALL)) as caught:
        trace(Classifier(body))
    assert type(caught.value) is kind
    here = line_in(body, "# here")
    if body in (no_scatter, no_push, unread):  # these name the function that lacks something
        here = line_in(Cell.vertex, "def vertex")
    assert caught.value.where == here


def test_a_shape_error_shows_the_equation_and_the_operands():
    with pytest.raises(ShapeError) as caught:
        trace(Classifier(wrong_width))
    assert str(caught.value).splitlines() == [
        "[matmul] inner sizes differ: f32[3] @ f32[4,4] (3 != 4)",
        "  in %2 = matmul %0, cell.U",
        f"  from {line_in(wrong_width, '# here')}",
        "  hint: %0 is feature 'dense', [3] of f32; cell.U is a parameter of shape [4, 4]",
    ]


def in_loss(call, body=good, **state):
    return Classifier(body, call, **state)


def loss_of_rows(m, b):
    h = m.cell(b.graph, x=b["dense"])
    return ops.cross_entropy(h, b["label"], reduction="none")  # here


def loss_is_none(m, b):  # here
    m.cell(b.graph, x=b["dense"])


def graph_handle(m, b):
    return m.cell(b, x=b["dense"])  # here


def no_feature(m, b):
    return m.cell(b.graph, x=b["words"])  # here


def pulled_integers(m, b):
    return b["token"] * 2.0  # here


def embedded_floats(m, b):
    return ops.lookup(m.cell.W, b["dense"])  # here


def labels_of_edges(m, b):
    h = m.cell(b.graph, x=b["dense"])
    return ops.cross_entropy(h, b["kind"])  # here


def float_labels(m, b):
    return ops.cross_entropy(b["dense"], b["dense"])  # here


def compared_integers(m, b):
    return ops.equal(b["token"], 1)  # here


def int_logits(m, b):
    return ops.cross_entropy(b["token"], b["label"])  # here


def push_two(f, v):
    v.scatter(h=v.gather().h.sum())
    v.push(h=v.pull("x") @ f.W, c=v.num_children)


def several(m, b):
    return Cell(push_two, h=4)(b.graph, x=b["dense"])


def several_as_one(m, b):
    out = several(m, b)
    return out * 2.0  # here


def not_pushed(m, b):
    return several(m, b)["x"]  # here


def no_values(m, b):
    return ops.concat([])  # here


def none_with_the_loss(m, b):
    return ops.mean_rows(b["dense"]).sum(), {"h": None}


def integers_with_the_loss(m, b):
    return ops.mean_rows(b["dense"]).sum(), {"t": b["token"]}


def taken_name_with_the_loss(m, b):
    return ops.mean_rows(b["dense"]).sum(), {"loss": b["dense"]}


def several_with_the_loss(m, b):
    return ops.mean_rows(b["dense"]).sum(), {"h": several(m, b)}


def three_values(m, b):
    return ops.mean_rows(b["dense"]).sum(), {}, {}


IN_LOSS = [
    (none_with_the_loss, TraceError, "loss returned NoneType for 'h'.*{'h': final.h}"),
    (integers_with_the_loss, DTypeError, "loss returned i32.* for 't', not floats"),
    (taken_name_with_the_loss, TraceError, "loss returned a value by the name 'loss', which is ta"),
    (several_with_the_loss, TraceError, "loss returned Pushed for 'h'.*'h': out.h"),
    (three_values, TraceError, "loss returned tuple, not a traced value.*or a pair"),
    (loss_of_rows, ShapeError, r"loss returned f32\[\]@vertex, not one number.*mean_rows"),
    (loss_is_none, TraceError, "loss returned NoneType, not a traced value.*return"),
    (graph_handle, TraceError, r"batch.graph, not SymbolicBatch.*cell\(batch.graph"),
    (no_feature, FeatureError, "no feature 'words' in the data; there are dense, kind"),
    (pulled_integers, DTypeError, "needs floats, not i32: i32.*feature 'token'.*nn.Embedding"),
    (compared_integers, DTypeError, r"\[equal\] needs floats.*give numbers .* as floats"),
    (embedded_floats, DTypeError, "must be an integer feature.*feature 'dense'.*np.int32"),
    (labels_of_edges, ShapeError, "labels of every edge, logits of every vertex"),
    (float_labels, DTypeError, r"labels an integer feature.*np.asarray\(values, np.int32\)"),
    (int_logits, DTypeError, "logits must be floats.*nn.Embedding"),
    (several_as_one, TraceError, "what the cell pushes has the values h, c, and is none.*out.h"),
    (not_pushed, TraceError, r"no pushed value 'x'; what the cell pushes has h, c.*push x="),
    (no_values, ShapeError, "concat of no values"),
]


@pytest.mark.parametrize(
    ("call", "kind", "message"), IN_LOSS, ids=lambda x: getattr(x, "__name__", "")
)
def test_mistakes_in_a_loss(call, kind, message):
    with pytest.raises(kind, match=re.compile(message, re.DOTALL)) as caught:
        trace(in_loss(call))
    assert type(caught.value) is kind
    returned = call in (loss_is_none, three_values) or call.__name__.endswith("_with_the_loss")
    here = line_in(Classifier.loss, "def loss") if returned else line_in(call, "# here")
    assert caught.value.where == here


def test_a_model_without_a_loss():
    class Nothing(cavs.Model):
        pass

    with pytest.raises(TraceError, match="Nothing has no loss"):
        trace(Nothing())


def test_a_cell_without_a_vertex_function():
    class Nothing(cavs.VertexFunction):
        state = cavs.State(h=4)

    def call(model, batch):
        return Nothing()(batch.graph, x=batch["dense"])  # here

    with pytest.raises(TraceError, match=r"Nothing has no vertex\(\)") as caught:
        trace(Classifier(good, call))
    assert "def" not in caught.value.where and "vertex(self, v)" in caught.value.hint


def test_a_loss_of_several_numbers():
    def call(model, batch):
        return ops.mean_rows(passing_h(model, batch))

    def passing_h(model, batch):
        return model.cell(batch.graph, x=batch["dense"], relation=batch["relation"])

    with pytest.raises(ShapeError, match="not one number") as caught:
        trace(Classifier(good, call))
    assert ".sum() or .mean()" in caught.value.hint


def test_a_prediction_that_is_not_traced():
    class Wrong(cavs.Model):
        def forward(self, batch):
            return {"h": 3}

        def loss(self, batch):
            return ops.cross_entropy(batch["dense"], batch["label"])

    with pytest.raises(TraceError, match="forward returned int for 'h'") as caught:
        trace_model(Wrong(), SCHEMA, training=False)
    assert caught.value.where == line_in(Wrong.forward, "def forward")


def test_several_pushed_values():
    class Two(cavs.Model):
        def __init__(self, chosen):
            self.cell, self.chosen = Cell(push_two), chosen

        def forward(self, batch):
            return self.chosen(self.cell(batch.graph, x=batch["dense"]))

    def predictions(chosen):
        return trace_model(Two(chosen), SCHEMA, training=False, with_loss=False).outputs

    assert set(predictions(vars)) == {"h", "c"}
    assert predictions(lambda out: out["h"])["output"].shape == (4,)
    assert predictions(lambda out: out.h)["output"].shape == (4,)
    with pytest.raises(TraceError, match="forward returned Pushed for 'output'") as caught:
        predictions(lambda out: out)
    assert caught.value.hint == "return {'h': out.h, 'c': out.c}, or one of them"


def test_a_cell_without_a_state():
    class Stateless(cavs.VertexFunction):
        def vertex(self, v):
            v.push(v.pull("x"))

    model = in_loss(lambda m, b: Stateless()(b.graph, x=b["dense"]))
    with pytest.raises(TraceError, match=r"Stateless has no state(.|\n)*cavs.State"):
        trace(model)
    with pytest.raises(TraceError, match="a state has values by name"):
        cavs.State()


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: cavs.Parameter(()), ShapeError, "at least one axis"),
        (lambda: cavs.Parameter((3, 0)), ShapeError, r"shape \[3, 0\]"),
        (lambda: cavs.Parameter(3, init="xaver"), ConfigError, "unknown initialiser 'xaver'"),
        (lambda: cavs.Parameter(3, init=[1.0, 2.0]), ShapeError, r"\[3\], .* given \[2\]"),
        (lambda: cavs.Parameter(3, init=["a"] * 3), DTypeError, "holds floats, not <U1"),
        (lambda: cavs.Parameter(3, init=np.nan), NumericsError, r"shape \[3\], is given nan"),
        (lambda: cavs.Parameter(3, init=lambda r, s: r.normal(size=4)).value, ShapeError, r"\[4\]"),
    ],
)
def test_parameters(make, kind, message):
    with pytest.raises(kind, match=message) as caught:
        make()
    assert caught.value.where == line_in(test_parameters, message)


def test_a_new_value_of_another_shape():
    p = cavs.Parameter((2, 3))
    with pytest.raises(
        ShapeError,
        match=r"created at test_trace_errors.py:.* has shape \[2, 3\], the value given \[3, 2\]",
    ) as caught:
        p.value = np.zeros((3, 2))  # here
    assert caught.value.where == line_in(test_a_new_value_of_another_shape, "np.zero" + "s(")


def test_initial_values_are_copied():
    given = np.arange(3, dtype=np.float32)
    p = cavs.Parameter(3, init=given)
    p.value[...] = 7
    assert given.tolist() == [0, 1, 2]


def test_operators_outside_of_a_trace():
    with pytest.raises(TraceError, match=r"only means something inside Model.loss"):
        Cell(good)(None)


def test_every_error_is_one_of_cavs():
    assert all(issubclass(kind, CavsError) for _, kind, _ in [*IN_CELL, *IN_LOSS])
