"""First attempts in a model or cell: each works, or an error says what to write."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.errors import FeatureError, ShapeError, TraceError
from tests.frontend.test_trace_errors import Classifier, good, line_in, passing_x, trace


def gathered_state_itself(f, v):
    v.gather() + v.pull("x")  # here


def gathered_state_on_the_left(f, v):
    v.gather() @ f.U  # here


def gathered_state_as_argument(f, v):
    ops.tanh(v.gather(0))  # here


def loop_over_children(f, v):
    for _ in v.gather():  # here
        pass


def child_by_name(f, v):
    v.gather("h")  # here


def scatter_by_place(f, v):
    v.scatter(v.gather().h.sum())  # here


def folded_at_once(f, v):
    v.gather().sum()  # here


def child_by_index(f, v):
    _ = v.gather()[0].h  # here


def children_one_by_one(f, v):
    for _ in v.gather().h:  # here
        pass


def first_of_the_children(f, v):
    v.gather().h[0]  # here


def folded_by_axis(f, v):
    v.gather().h.sum(0)  # here


def method_of_a_tensor(f, v):
    v.pull("x").tanh()  # here


def view_of_a_tensor(f, v):
    v.pull("x").view(1, 3)  # here


def another_method(f, v):
    v.pull("x").cumsum()  # here


def numbers_of_a_tensor(f, v):
    v.pull("x").detach().numpy()  # here


def mask_of_integers(f, v):
    ops.equal(v.pull("kind"), 1)  # here


def concat_of_two(f, v):
    ops.concat(v.pull("x"), v.pull("x"))  # here


def push_of_two(f, v):
    v.push(v.pull("x"), v.pull("x"))  # here


def weight_on_the_left(f, v):
    f.W @ v.pull("x")  # here


def product_of_rows(f, v):
    v.pull("x") @ v.pull("x")  # here


def mean_of_the_batch(f, v):
    h = v.pull("x") @ f.W + ops.mean_rows(v.gather().h)  # here
    v.scatter(h=h)
    v.push(h)


def sum_of_the_graph(f, v):
    h = v.pull("x") @ f.W + ops.sum_graph(v.gather().h.sum())  # here
    v.scatter(h=h)
    v.push(h)


def loss_of_the_batch(f, v):
    h = v.pull("x") @ f.W + v.gather().h.sum()
    v.scatter(h=h)
    v.push(ops.cross_entropy(h, v.pull("label")))  # here


def no_last_axis(f, v):
    v.pull("x").sum(keepdims=True)  # here


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (folded_at_once, r"has h(.|\n)*v.gather\(\).h.sum\(\)"),
        (child_by_index, r"no state 0(.|\n)*v.gather\(0\).h"),
        (children_one_by_one, r"cannot be iterated(.|\n)*v.gather\(k\) reads one"),
        (first_of_the_children, r"not 0(.|\n)*v.gather\(k\) reads one"),
        (folded_by_axis, r"axis 0 (.|\n)*or the children without axis"),
        (method_of_a_tensor, r"no 'tanh'(.|\n)*write ops.tanh\(x\)"),
        (view_of_a_tensor, r"no 'view'(.|\n)*write ops.reshape\(x, shape\)"),
        (another_method, r"no 'cumsum'(.|\n)*hint: operators, .sum\(\)"),
        (numbers_of_a_tensor, r"no 'detach'(.|\n)*write ops.stop_gradient\(x\)"),
        (mask_of_integers, r"equal(.|\n)*so a mask, 0.0 or 1.0"),
        (concat_of_two, r"one list(.|\n)*ops.concat\(\[a, b\]\)"),
        (push_of_two, r"one value(.|\n)*v.push\(h=h, c=c\)"),
        (weight_on_the_left, r"right side(.|\n)*write x @ W"),
        (product_of_rows, r"right side(.|\n)*ops.dot\(x, y\)"),
        (mean_of_the_batch, r"one vertex, \[sum_rows\](.|\n)*fold the children"),
        (
            sum_of_the_graph,
            r"one vertex, \[sum_vertices\](.|\n)*values of all vertices outside, and pull",
        ),
        (loss_of_the_batch, r"one vertex, \[(sum_rows|count_present)\]"),
        (no_last_axis, r"keepdims with axis None(.|\n)*axis=-1"),
        (gathered_state_itself, r"has the values h(.|\n)*v.gather\(\).h"),
        (gathered_state_on_the_left, r"has the values h(.|\n)*v.gather\(\).h"),
        (gathered_state_as_argument, r"has the values h(.|\n)*v.gather\(\).h"),
        (loop_over_children, r"has the values h(.|\n)*v.gather\(\).h"),
        (child_by_name, r"gather\('h'\) is not the number(.|\n)*v.gather\(0\).h"),
        (scatter_by_place, r"by name(.|\n)*v.scatter\(h=...\)"),
    ],
)
def test_guesses_at_the_primitives(body, text):
    def call(model, batch):
        inputs = {name: batch[name] for name in ("label", "relation")}
        return model.cell(batch.graph, x=batch["dense"], kind=batch["label"], **inputs)

    with pytest.raises(TraceError, match=text) as caught:
        trace(Classifier(body, call))
    assert caught.value.where == line_in(body, "# here")


def test_a_state_without_a_name():
    with pytest.raises(TraceError, match=r"by name(.|\n)*State\(h=128\)") as caught:
        cavs.State(150)
    assert caught.value.where.startswith("test_first_attempts.py:")


def test_inputs_by_position():
    def call(model, batch):
        return ops.cross_entropy(model.cell(batch.graph, batch["dense"]), batch["label"])

    with pytest.raises(TraceError, match=r"by name(.|\n)*cell\(batch.graph, x=...\)"):
        trace(Classifier(good, call))


def test_the_number_of_a_child_may_come_from_numpy():
    def body(f, v):
        h = ops.tanh(v.pull("x") @ f.W + v.gather(np.int64(1)).h)
        v.scatter(h=h)
        v.push(h)

    assert "loss" in trace(Classifier(body, passing_x)).outputs


OUTSIDE = cavs.Parameter((4, 4))


class Holder:
    """Not a cavs.Module: its parameters are not found."""

    def __init__(self):
        self.weight = cavs.Parameter((4, 4))


@pytest.mark.parametrize(
    "other", [lambda: OUTSIDE, lambda: cavs.Parameter((4, 4)), lambda: Holder().weight]
)
def test_a_parameter_that_the_model_does_not_hold(other):
    def body(f, v):
        h = ops.tanh(v.pull("x") @ f.W + v.gather().h.sum() @ other())
        v.scatter(h=h)
        v.push(h)

    with pytest.raises(TraceError, match=r"shape \[4, 4\] that it does not hold") as caught:
        trace(Classifier(body, passing_x))
    assert caught.value.where.startswith("test_first_attempts.py:")
    assert "attribute of Classifier" in caught.value.hint


def test_parameters_in_lists_of_lists():
    class Deep(Classifier):
        def __init__(self):
            super().__init__(good, call=Deep.through)
            self.layers = [[nn.Linear(4, 4)], {"last": (nn.Linear(4, 2),)}]

        def through(self, batch):
            h = self.cell(batch.graph, x=batch["dense"])
            first, last = self.layers[0][0], self.layers[1]["last"][0]
            return ops.cross_entropy(last(ops.tanh(first(h))), batch["label"])

    model = Deep()
    assert {"layers.0.0.weight", "layers.1.last.0.bias"} <= set(model.parameters())
    assert "loss" in trace(model).outputs
    assert repr(model) == "Deep(6 parameters, 58 numbers)"


def test_lines_of_a_prompt():
    """Input typed into Python or IPython has a line too; a notebook's cells are files."""
    typed = """
def body(f, v):
    v.scatter(h=v.pull("x") @ f.U)
"""
    for name in ("<stdin>", "<ipython-input-3-abc>"):
        scope = {}
        exec(compile(typed, name, "exec"), scope)
        with pytest.raises(ShapeError) as caught:
            trace(Classifier(scope["body"]))
        assert caught.value.where == f"{name}:3"


def test_the_structure_is_unknown_in_a_trace():
    def call(model, batch):
        return model.cell(batch.graph, x=batch["dense"] * batch.graph.num_levels)

    with pytest.raises(TraceError, match=r"no 'num_levels'(.|\n)*give everything else") as caught:
        trace(Classifier(good, call))
    assert caught.value.where == line_in(call, "num_levels")


def test_keepdims():
    def body(f, v):
        x = v.pull("x")
        kept = [getattr(x, fold)(-1, keepdims=True) for fold in ("sum", "mean", "max", "min")]
        assert all(k.shape == (1,) for k in kept)
        h = ops.tanh((x - kept[1]) @ f.W + v.gather().h.sum())
        v.scatter(h=h)
        v.push(h)

    assert "loss" in trace(Classifier(body, passing_x)).outputs


def test_hasattr_and_copies():
    """hasattr and copying work as on any object."""

    def body(f, v):
        assert not hasattr(v.pull("x"), "tanh") and not hasattr(v.pull("x"), "__deepcopy__")
        good(f, v)

    assert "loss" in trace(Classifier(body)).outputs
    for name in ("_hidden", "__deepcopy__"):
        with pytest.raises(AttributeError) as caught:
            trace(Classifier(lambda f, v, name=name: getattr(v.pull("x"), name)))
        assert type(caught.value) is AttributeError
    for name in ("grad", "numpy"):
        with pytest.raises(AttributeError, match=f"parameter has no '{name}'(.|\\n)*.value is its"):
            getattr(cavs.Parameter(3), name)


def test_missing_attributes_of_other_objects_keep_their_error():
    with pytest.raises(AttributeError, match="'int' object has no attribute 'tanh'") as caught:
        trace(Classifier(lambda f, v: (3).tanh))
    assert type(caught.value) is AttributeError


def test_errors_inside_of_properties_stay():
    wrong = cavs.Parameter(3, init=lambda rng, shape: rng.standard_norml(shape))
    with pytest.raises(AttributeError, match="standard_norml"):
        _ = wrong.value


class Reader(cavs.VertexFunction):
    """Reads a value that the model has computed outside of it and stored in an attribute."""

    def __init__(self):
        self.state = cavs.State(h=4)

    def vertex(self, v):
        h = ops.tanh(self.context + v.gather().h.sum())
        v.scatter(h=h)
        v.push(h)


@pytest.mark.parametrize("make", [ops.sum_graph, ops.mean_rows])
def test_sums_that_are_computed_outside_of_the_cell(make):
    class Two(Classifier):
        def __init__(self):
            super().__init__(good)
            self.reader = Reader()

        def loss(self, batch):
            x = batch["dense"] - make(batch["dense"])
            self.reader.context = self.cell(batch.graph, x=x, relation=batch["relation"])
            return ops.cross_entropy(self.reader(batch.graph), batch["label"])

    assert "loss" in trace(Two()).outputs


def test_sizes_that_are_no_tuple():
    with pytest.raises(ShapeError, match=r"Parameter\(4, 5\) has 2(.|\n)*one tuple") as caught:
        cavs.Parameter(4, 5)
    assert caught.value.where.startswith("test_first_attempts.py:")


def test_a_model_that_is_called():
    model, batch = Classifier(good), cavs.batch([cavs.Graph([[]], {"dense": np.zeros((1, 3))})])
    with pytest.raises(TraceError, match=r"not called(.|\n)*Session\(model\).predict\(batch\)"):
        model(batch)
    with pytest.raises(TraceError, match=r"computes with symbols(.|\n)*evaluate\(batch\)"):
        model.loss(batch)
    assert not hasattr(batch, "graph")


@pytest.mark.parametrize("given", [lambda b: b, lambda b: b["dense"]])
def test_a_model_that_is_called_by_another_one(given):
    inner = Classifier(good)

    def call(m, b):
        return ops.mean_rows(inner(given(b)).sum(-1))

    with pytest.raises(TraceError, match=r"not called(.|\n)*another model.*\.forward\(") as caught:
        trace(Classifier(good, call))
    assert caught.value.where == line_in(call, "inner(")
    assert "Session" not in str(caught.value)


def test_attributes_that_a_symbolic_batch_lacks():
    def call(model, batch):
        assert not hasattr(batch, "num_vertices") and not hasattr(batch.graph, "roots")
        return ops.sum_rows(batch["dense"]) / batch.num_graphs

    with pytest.raises(TraceError, match=r"no 'num_graphs'(.|\n)*ops.mean_graph") as caught:
        trace(Classifier(good, call))
    assert caught.value.where == line_in(call, "num_graphs")


def test_labels_of_graphs():
    class Whole(cavs.Model):
        def __init__(self):
            self.tree = nn.ChildSumTreeLSTM(3, 4)

        def forward(self, batch):
            return self.tree(batch.graph, x=batch["dense"])

        def loss(self, batch):
            return ops.cross_entropy(self.forward(batch), batch["y"])

    graph = cavs.Graph([[]], {"dense": np.zeros((1, 3))}, graph_features={"y": 1})
    with pytest.raises(ShapeError, match=r"labels of every graph(.|\n)*ops.sum_roots\(h\)"):
        cavs.Session(Whole()).evaluate(cavs.batch([graph]))


def test_labels_by_another_name():
    from cavs.train import metrics

    batch = cavs.batch([cavs.Graph([[]], {"y": [1]})])
    with pytest.raises(FeatureError, match=r"the labels 'label', but(.|\n)*pass label="):
        metrics.accuracy().measure({"output": np.zeros((1, 2))}, batch)
    with pytest.raises(FeatureError, match=r"has \[\](.|\n)*define forward"):
        metrics.accuracy().measure({}, batch)


@pytest.mark.parametrize(
    ("loss", "shape", "fits"),
    [
        (loss, shape, fits)
        for loss in (ops.mean_squared_error, ops.binary_cross_entropy)
        for shape, fits in (((3,), True), ((1, 3), True), ((3, 1), False), ((1,), False))
    ],
)
def test_targets_of_another_shape(loss, shape, fits):
    class Compared(cavs.Model):
        def loss(self, batch):
            return loss(ops.tanh(batch["x"]), batch["y"])

    features = {"x": np.zeros((2, 3)), "y": np.full((2, *shape), 0.5)}
    batch = cavs.batch([cavs.Graph([[], [0]], features)])
    if fits:
        assert cavs.Session(Compared()).evaluate(batch).loss > 0
        return
    with pytest.raises(ShapeError, match=r"predictions of shape \[3\], targets of shape") as caught:
        cavs.Session(Compared()).evaluate(batch)
    assert caught.value.where == line_in(Compared.loss, "return loss")
