"""What is wrong with a model is said while tracing: both values, the user's own line, the cure."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.errors import (
    CavsError,
    ConfigError,
    DTypeError,
    FeatureError,
    GraphError,
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
    """A cell whose body is given, so that each test has its own mistake."""

    def __init__(self, body, **state):
        self.state = cavs.State(**(state or {"h": 4}))
        self.W = cavs.Parameter((3, 4))
        self.U = cavs.Parameter((4, 4))
        self.body = body

    def vertex(self, v):
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


def trace(model):
    return trace_model(model, SCHEMA, training=True)


def line_in(function, text):
    """``file.py:N`` of the line of ``function`` that has ``text``."""
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
    (unknown_state, TraceError, "no state 'c'; the state has h.*State"),
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


def no_values(m, b):
    return ops.concat([])  # here


IN_LOSS = [
    (loss_of_rows, ShapeError, r"loss returned f32\[\]@vertex, not one number.*mean_rows"),
    (loss_is_none, TraceError, "loss returned NoneType, not a traced value.*return"),
    (graph_handle, TraceError, r"batch.graph, not SymbolicBatch.*cell\(batch.graph"),
    (no_feature, FeatureError, "no feature 'words' in the data; there are dense, kind"),
    (pulled_integers, DTypeError, "needs floats, not i32: i32.*feature 'token'"),
    (embedded_floats, DTypeError, "must be an integer feature.*feature 'dense'"),
    (labels_of_edges, ShapeError, "labels of every edge, logits of every vertex"),
    (float_labels, DTypeError, "labels an integer feature"),
    (no_values, ShapeError, "concat of no values"),
]


@pytest.mark.parametrize(
    ("call", "kind", "message"), IN_LOSS, ids=lambda x: getattr(x, "__name__", "")
)
def test_mistakes_in_a_loss(call, kind, message):
    with pytest.raises(kind, match=re.compile(message, re.DOTALL)) as caught:
        trace(in_loss(call))
    assert type(caught.value) is kind
    here = line_in(Classifier.loss, "def loss") if call is loss_is_none else line_in(call, "# here")
    assert caught.value.where == here


def test_a_model_without_a_loss():
    class Nothing(cavs.Model):
        pass

    with pytest.raises(TraceError, match="Nothing has no loss"):
        trace(Nothing())


def test_a_prediction_that_is_no_value():
    class Wrong(cavs.Model):
        def forward(self, batch):
            return {"h": 3}

        def loss(self, batch):
            return ops.cross_entropy(batch["dense"], batch["label"])

    with pytest.raises(TraceError, match="forward returned int for 'h'") as caught:
        trace_model(Wrong(), SCHEMA, training=False)
    assert caught.value.where == line_in(Wrong.forward, "def forward")


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
        (lambda: cavs.Parameter(3, init=[1.0, 2.0]).value, ShapeError, r"\[2\], .* \[3\]"),
        (lambda: cavs.Parameter(3, init=lambda r, s: r.normal(size=4)).value, ShapeError, r"\[4\]"),
    ],
)
def test_parameters(make, kind, message):
    with pytest.raises(kind, match=message) as caught:
        make()
    assert caught.value.where == line_in(test_parameters, message)


def test_a_new_value_of_another_shape():
    p = cavs.Parameter((2, 3))
    with pytest.raises(ShapeError, match=r"shape \[2, 3\], the new value \[3, 2\]") as caught:
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


# ---- batches ----


class Words(cavs.Model):
    def __init__(self, cell=None):
        self.embedding = nn.Embedding(5, 4)
        self.cell = nn.ChildSumTreeLSTM(4, 3) if cell is None else cell
        self.output = nn.Linear(3, 2)

    def forward(self, batch):
        return self.output(self.cell(batch.graph, x=self.embedding(batch["token"])))

    def loss(self, batch):
        return ops.cross_entropy(self.forward(batch), batch["label"])


def tree(tokens=(0, 1, -1), labels=(0, 1, 1), children=((), (), (0, 1)), **more):
    return cavs.Graph(children, {"token": list(tokens), "label": list(labels), **more})


@pytest.mark.parametrize("run", ["gradients", "evaluate"])
def test_a_token_out_of_range(run):
    batch = cavs.batch([tree(), tree(tokens=(1, 5, -1))])
    with pytest.raises(FeatureError) as caught:
        getattr(cavs.Session(Words()), run)(batch)
    assert str(caught.value).startswith(
        "feature 'token' is 5 at vertex 1 of graph 1, but embedding.weight has 5 rows"
    )
    assert "0 to 4" in caught.value.hint


def test_a_label_out_of_range():
    batch = cavs.batch([tree(labels=(0, 1, 2))])
    with pytest.raises(FeatureError, match=r"'label' is 2 at vertex 2 .* 2 classes") as caught:
        cavs.Session(Words()).gradients(batch)
    assert caught.value.where == line_in(Words.loss, "cross_entropy")


def test_a_session_recovers_from_a_bad_batch():
    session = cavs.Session(Words())
    good_batch = cavs.batch([tree()])
    loss = session.evaluate(good_batch).loss
    with pytest.raises(FeatureError):
        session.evaluate(cavs.batch([tree(tokens=(9, 9, 9))]))
    assert session.evaluate(good_batch).loss == loss


def test_features_that_are_not_finite():
    with pytest.raises(FeatureError, match=r"\"dense\" holds nan at vertex 1"):
        tree(dense=[[0.0], [np.nan], [0.0]])


def test_a_feature_missing_in_a_later_batch():
    session = cavs.Session(Words())
    session.evaluate(cavs.batch([tree()]))
    later = cavs.Graph([[]], {"word": [1], "label": [0]})
    with pytest.raises(FeatureError, match=r"no feature 'token'(.|\n)*label, word"):
        session.evaluate(cavs.batch([later]))


def test_a_feature_of_another_dtype_in_a_later_batch():
    session = cavs.Session(Words())
    session.evaluate(cavs.batch([tree()]))
    with pytest.raises(FeatureError, match=r"'token' was int \[\] .* now float \[\] .* vertex"):
        session.evaluate(cavs.batch([tree(tokens=(0.5, 1.0, 2.0))]))


def test_features_the_model_does_not_read_may_go():
    session = cavs.Session(Words())
    with_more = session.evaluate(cavs.batch([tree(weight=[1.0, 2.0, 3.0])])).loss
    assert session.evaluate(cavs.batch([tree()])).loss == with_more


def test_an_arity_the_cell_cannot_take():
    three = tree((0, 1, 2, -1), (0, 1, 1, 1), ((), (), (), (0, 1, 2)))
    batch = cavs.batch([tree(), three])
    with pytest.raises(GraphError, match=r"vertex 3 of graph 1 has 3 children") as caught:
        cavs.Session(Words(nn.BinaryTreeLSTM(4, 3))).evaluate(batch)
    assert "BinaryTreeLSTM reads 2 by gather(k)" in str(caught.value)
    assert "v.gather()" in caught.value.hint and caught.value.vertex == 6
    with pytest.raises(GraphError, match="LSTM reads 1"):
        cavs.Session(Words(nn.LSTM(4, 3))).gradients(cavs.batch([tree()]))
    cavs.Session(Words(nn.ChildSumTreeLSTM(4, 3))).evaluate(batch)


def test_an_empty_batch():
    with pytest.raises(FeatureError, match="an empty batch"):
        cavs.batch([])


def test_every_error_is_one_of_cavs():
    assert all(issubclass(kind, CavsError) for _, kind, _ in [*IN_CELL, *IN_LOSS])
