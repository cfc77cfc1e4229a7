"""What a first user may try in a model or cell: each guess works, or is told what to write."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.errors import ShapeError, TraceError
from tests.frontend.test_errors import Classifier, good, line_in, passing_x, trace


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


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (gathered_state_itself, r"has the values h(.|\n)*v.gather\(\).h"),
        (gathered_state_on_the_left, r"has the values h(.|\n)*v.gather\(\).h"),
        (gathered_state_as_argument, r"has the values h(.|\n)*v.gather\(\).h"),
        (loop_over_children, r"has the values h(.|\n)*v.gather\(\).h"),
        (child_by_name, r"gather\('h'\) is not the number(.|\n)*v.gather\(0\).h"),
        (scatter_by_place, r"by name(.|\n)*v.scatter\(h=...\)"),
    ],
)
def test_guesses_at_the_primitives(body, text):
    with pytest.raises(TraceError, match=text) as caught:
        trace(Classifier(body))
    assert caught.value.where == line_in(body, "# here")


def test_a_state_without_a_name():
    with pytest.raises(TraceError, match=r"by name(.|\n)*State\(h=128\)") as caught:
        cavs.State(150)
    assert caught.value.where.startswith("test_guesses.py:")


def test_inputs_by_place():
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
    """No cavs.Module: nobody looks for parameters here."""

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
    assert caught.value.where.startswith("test_guesses.py:")
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
    """What is typed into Python or IPython has a line too; a notebook's cells are files."""
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


def test_the_structure_is_unknown_while_tracing():
    def call(model, batch):
        return model.cell(batch.graph, x=batch["dense"] * batch.graph.num_levels)

    with pytest.raises(TraceError, match=r"no 'num_levels'(.|\n)*give what else") as caught:
        trace(Classifier(good, call))
    assert caught.value.where == line_in(call, "num_levels")
