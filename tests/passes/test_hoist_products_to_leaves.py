"""Products of numbered children at the leaves: values, remaining products and buffers."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.frontend.model import trace_model
from cavs.ir import Graph
from cavs.ir.interpret import interpret
from cavs.passes.differentiate import differentiate
from cavs.passes.hoist_products_to_leaves import hoist_products_to_leaves, multiplied_children
from cavs.runtime import program_cache
from models.tree_lstm import SentimentClassifier
from tests.oracle import assert_close, inputs_of
from tests.passes.graphs import SCHEMA, traced
from tests.runtime.trees import WORDS, Classifier, graph, treebank


def loss_of(model):
    """The trace of the loss alone."""
    graph = trace_model(model, SCHEMA, training=True)
    return Graph({"loss": graph.outputs["loss"]}, graph.slots)


@pytest.mark.parametrize("cell", [nn.BinaryTreeLSTM(6, 6), nn.TreeFC(6)])
def test_the_interpreter_sees_no_difference(cell):
    """Vertices with two leaves, two others, one of each, or the same child twice."""
    rng = np.random.default_rng(0)
    shapes = [[[], [], [0, 1], [2, 0], [1, 2], [3, 4], [3, 3]], [[]], [[], [0, 0]]]
    batch = cavs.batch([graph(children, rng) for children in shapes])
    model = Classifier(cell, 6, 6)
    model.initialize(0, np.float64)
    before = loss_of(model)
    after = hoist_products_to_leaves(before)
    assert {s.leaf for s in after.slots} == {None, True, False}
    for made in (lambda g: g, differentiate):
        expected = interpret(made(before), inputs_of(batch))
        found = interpret(made(after), inputs_of(batch))
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            assert_close(found[name], values, 1e-12, name)


def test_wide_products_stay():
    assert multiplied_children(traced(nn.BinaryTreeLSTM(8, 6))) == 2
    tensor = trace_model(Classifier(nn.RNTN(6), 6, 6), SCHEMA, training=True)
    assert multiplied_children(tensor) == 0  # the product of its tensor has 12 * 6 columns

    class Gated(cavs.VertexFunction):
        def __init__(self, products):
            self.state = cavs.State(h=6)
            self.U = [cavs.Parameter((6, 24)) for _ in range(products)]

        def vertex(self, v):
            child = v.gather(0).h
            h = ops.tanh(sum(ops.split(child @ U, 4)[0] for U in self.U) + v.pull("x")[0:6])
            v.scatter(h=h)
            v.push(h)

    assert multiplied_children(traced(Gated(2))) == 1
    assert multiplied_children(traced(Gated(3))) == 0  # 72 columns for 6


def test_memory_of_merged_words_and_phrases(monkeypatch):
    """Cotangents of vertices with children are written over gates, one per kind; a part of U is
    packed with U where it starts a panel."""
    model, batch = SentimentClassifier(WORDS, 64, 64, 0.0), treebank(40)
    found = cavs.explain(model, batch)
    assert "hoist_products_to_leaves" in [name for name, _ in found.stages]
    assert found.run.peak_bytes <= 1.2 * found.run.kept_bytes
    joined = [b for b in found.buffers if b.space == "inner" and " > merge" in b.value]
    assert len(joined) == 6 and all("sigmoid" in b.value or "tanh" in b.value for b in joined)
    (products,) = [b for b in found.buffers if b.space == "leaves"]
    assert products.bytes < 4 * products.width * found.run.distinct / 2
    monkeypatch.setattr(program_cache, "MIN_READERS", np.inf)
    without = cavs.explain(model, batch)
    assert "hoist_products_to_leaves" not in [name for name, _ in without.stages]
    assert not any(b.space == "leaves" for b in without.buffers)
