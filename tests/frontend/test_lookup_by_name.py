"""Objects of a trace that are read by name: structures, links, features of types, values."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.errors import FeatureError, TraceError
from cavs.frontend.values import Values
from tests.runtime.plans import Plan, plan

RNG = np.random.default_rng(0)


class Traced(cavs.Model):
    """A model that shows its symbolic batch to ``look``."""

    def __init__(self, look, **layers):
        self.look = look
        vars(self).update(layers)

    def loss(self, batch):
        return self.look(self, batch)


def trace(look, batch, **layers):
    return cavs.Session(Traced(look, **layers)).evaluate(batch).loss


def two_structures():
    words = cavs.Graph.chain(2, {"x": np.ones((2, 3))})
    chars = cavs.Graph.chains([2, 1], {"x": np.ones((3, 3))})
    links = {"spelling": cavs.Link("words", "chars", [1, 2])}
    return cavs.batch([cavs.Sample(words=words, chars=chars, links=links)])


def test_structures_are_listed():
    def look(model, batch):
        assert sorted(batch.graphs) == ["chars", "words"]
        assert len(batch.graphs) == 2 and "chars" in batch.graphs
        return sum(ops.sum_rows(graph["x"]).sum(-1) for graph in batch.graphs.values())

    assert trace(look, two_structures()) == 2 * 3 + 3 * 3


def test_a_link_is_a_tuple_too():
    def look(model, batch):
        link = batch.link("spelling")
        assert link[0] == "spelling" and link[1:3] == ("words", "chars") and link[3] is True
        with pytest.raises(FeatureError, match="link 'spelling' has no feature 'weight'"):
            link["weight"]
        return ops.sum_rows(ops.take(batch.graphs["chars"]["x"], link)).sum(-1)

    assert trace(look, two_structures()) == 2 * 3


def test_features_of_a_type_are_listed():
    tree = plan([[], [], [0], [2, 1]], ["scan", "scan", "filter", "join"], RNG)

    def look(model, batch):
        scans = batch["scan"]
        assert list(scans) == ["table"] and len(scans) == 1
        assert "table" in scans and "less" not in scans
        h = model.plan(batch.graph, scan=dict(scans), filter=dict(batch["filter"]))
        return ops.sum_rows(ops.sum_roots(h)).sum(-1)

    assert np.isfinite(trace(look, cavs.batch([tree]), plan=Plan(3)))


class Indices(cavs.VertexFunction):
    """Pushes at one type an integer feature, at the other one floats."""

    def __init__(self):
        self.state = cavs.State(h=1)

    @cavs.vertex("leaf")
    def leaf(self, v):
        v.scatter(h=1.0 + 0.0 * v.gather().h.sum())
        v.push(v.pull("word"))

    @cavs.vertex("inner")
    def inner(self, v):
        h = v.gather().h.sum()
        v.scatter(h=h)
        v.push(h)


def test_integers_are_not_pushed_at_a_type():
    graph = cavs.Graph([[], [0]], {"leaf": {"word": [3]}}, types=["leaf", "inner"])

    def look(model, batch):
        return ops.sum_rows(model.cell(batch.graph, leaf=batch["leaf"])).sum(-1)

    with pytest.raises(TraceError, match=r"Indices pushes at 'leaf' as i32.*integers") as raised:
        trace(look, cavs.batch([graph]), cell=Indices())
    assert "outside of the cell already" in raised.value.hint


X = cavs.batch([cavs.Graph.chain(3, features={"x": np.ones((3, 4))})])


def test_objects_of_a_trace_have_no_hidden_attributes():
    """Libraries ask for protocols by attributes like __deepcopy__ or _repr_html_."""

    class Asked(nn.GRU):
        def vertex(self, v):
            children = v.gather()
            for name in ("__deepcopy__", "__array_interface__"):
                with pytest.raises(AttributeError, match=name) as raised:
                    getattr(children, name)
                assert type(raised.value) is AttributeError
            super().vertex(v)

    def look(model, batch):
        for of in (batch, batch.graph):
            with pytest.raises(AttributeError, match="_repr_html_") as raised:
                of._repr_html_  # noqa: B018
            assert type(raised.value) is AttributeError
        return ops.sum_rows(model.cell(batch.graph, x=batch["x"])).sum(-1)

    assert np.isfinite(trace(look, X, cell=Asked(4, 4)))


def test_values_by_name_outside_of_a_cell():
    h = cavs.Parameter((2, 2)).T
    values = Values({"h": h})
    assert values.h is values["h"] is copy.copy(values).h is h
    with pytest.raises(TraceError, match="no value 'c'; these values has h") as raised:
        values["c"]
    assert raised.value.hint == "name one of its values, values.h"


class Both(cavs.VertexFunction):
    """Pushes two values by name."""

    def __init__(self, size):
        self.state = cavs.State(h=size)

    def vertex(self, v):
        h = ops.tanh(v.pull("x") + v.gather().h.sum())
        v.scatter(h=h)
        v.push(h=h, square=h * h)


@pytest.mark.parametrize("stack", [nn.Stacked, lambda cells: nn.Bidirectional(*cells)])
def test_layers_of_a_stack_push_one_value(stack):
    def look(model, batch):
        return ops.sum_rows(model.stack(batch.graph, x=batch["x"])).sum(-1)

    with pytest.raises(TraceError, match="pushes h, square, which are several values") as raised:
        trace(look, X, stack=stack([Both(4), Both(4)]))
    assert "v.push(h)" in raised.value.hint
