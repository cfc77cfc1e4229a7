"""Cotangents multiplied at the child: which ones, with which values, in which programs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.compiler.pipeline import Passes
from cavs.frontend.model import trace_model
from cavs.ir import EDGE, FLOAT, VERTEX, Graph, Slot, Structure, apply
from cavs.ir.interpret import interpret
from cavs.passes.backward.hoist_cotangent_products import hoist_cotangent_products
from cavs.passes.backward.hoist_cotangent_scales import hoist_cotangent_scales
from cavs.passes.backward.share_cotangents import share_cotangents
from cavs.passes.differentiate import differentiate
from cavs.passes.simplify import simplify
from tests.oracle import assert_close, inputs_of, reference
from tests.passes.graphs import SCHEMA
from tests.runtime.trees import Classifier, graph, treebank

# Vertices that are first and second children of others, of several, twice of one, and roots.
SHAPES = [[[], [], [0, 1], [2, 0], [1, 2], [3, 4], [3, 3]], [[]], [[], [0, 0]], [[], [], [1, 0]]]


def batch_of(shapes=SHAPES):
    rng = np.random.default_rng(0)
    return cavs.batch([graph(children, rng) for children in shapes])


def differentiated(model):
    """The loss of a model and its gradients."""
    traced = trace_model(model, SCHEMA, training=True)
    loss = Graph({"loss": traced.outputs["loss"]}, traced.slots)
    return simplify(differentiate(loss))


class Wide(cavs.VertexFunction):
    """Three children, of which each gives two states to one product."""

    def __init__(self):
        self.state = cavs.State(h=6, g=2)
        self.U = cavs.Parameter((24, 6))
        self.V = cavs.Parameter((6, 2))

    def vertex(self, v):
        children = [v.gather(k) for k in range(3)]
        joined = ops.concat([x for c in children for x in (c.g, c.h)])
        h = ops.tanh(joined @ self.U + v.pull("x")[0:6])
        v.scatter(h=h, g=h @ self.V)
        v.push(h)


CELLS = {"tree-fc": lambda: nn.TreeFC(8), "three children": Wide}


@pytest.mark.parametrize("name", CELLS)
def test_the_interpreter_sees_no_difference(name):
    model = Classifier(CELLS[name](), 8)
    model.initialize(0, np.float64)
    before = differentiated(model)
    after = hoist_cotangent_products(before, shared=False)
    assert after != before
    wide = [[[], [], [], [0, 1, 2], [3, 3, 0], [1, 3, 4]]] if name != "tree-fc" else []
    batch = batch_of(SHAPES + wide)
    expected, found = (interpret(g, inputs_of(batch)) for g in (before, after))
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert_close(found[key], values, 1e-12, key)


class Total(cavs.VertexFunction):
    """Reads the sum of the children, or of a product of each child: ``relu`` of each."""

    def __init__(self, relu):
        self.relu = relu
        self.state = cavs.State(h=8)
        self.U = cavs.Parameter((8, 8))

    def vertex(self, v):
        h = v.gather().h
        read = ops.relu(h @ self.U).sum() if self.relu else h.sum() @ self.U
        y = ops.tanh(read + v.pull("x"))
        v.scatter(h=y)
        v.push(y)


@pytest.mark.parametrize("relu", [False, True])
def test_what_all_children_read_is_a_row_of_the_parent(relu):
    """And its product moves where that is asked for; one of every edge's own moves always."""
    model = Classifier(Total(relu), 8)
    model.initialize(0, np.float64)
    before = differentiated(model)
    alike = share_cotangents(before)
    assert [s.alike for s in alike.slots if s.backward] == [not relu]
    assert (alike is before) == relu
    kept, moved = (hoist_cotangent_products(alike, shared=a) for a in (False, True))
    assert (kept is alike) != relu and moved is not alike
    batch = batch_of()
    expected = interpret(before, inputs_of(batch))
    for graph_ in (alike, kept, moved):
        found = interpret(graph_, inputs_of(batch))
        assert found.keys() == expected.keys()
        for key, values in expected.items():
            assert_close(found[key], values, 1e-12, key)


def test_what_is_no_narrower_than_its_product_stays():
    """Five gates for two states; and a value scattered next to a product of one."""
    for cell in (nn.BinaryTreeLSTM(8, 6), nn.GRU(8, 6), nn.RNTN(8)):
        before = differentiated(Classifier(cell, 8))
        assert hoist_cotangent_products(before, shared=False) is before


class Many(cavs.VertexFunction):
    """One product of so many children."""

    def __init__(self, arity):
        self.arity = arity
        self.state = cavs.State(h=8)
        self.U = cavs.Parameter((8 * arity, 8))

    def vertex(self, v):
        joined = ops.concat([v.gather(k).h for k in range(self.arity)])
        h = ops.tanh(joined @ self.U + v.pull("x"))
        v.scatter(h=h)
        v.push(h)


@pytest.mark.parametrize(("arity", "moves"), [(8, True), (9, False)])
def test_products_of_more_children_than_rows_are_sorted_by_stay(arity, moves):
    model = Classifier(Many(arity), 8)
    model.initialize(0, np.float64)
    before = differentiated(model)
    assert (hoist_cotangent_products(before, shared=False) is not before) == moves
    shapes = [[*([] for _ in range(9)), list(range(arity)), [9, *range(arity - 1)]]]
    _, expected = reference(model, batch_of(shapes))
    _, gradients = cavs.Session(model, dtype=np.float64).gradients(batch_of(shapes))
    for key, g in gradients.items():
        assert_close(g, expected[f"grad:{key}"], 1e-11, key)


def test_every_kind_of_vertex_agrees_with_the_oracle():
    """Merged words, children of many parents, both numbers of a child; with and without kinds."""
    model = Classifier(nn.TreeFC(8), 8)
    model.initialize(0, np.float64)
    for batch in (batch_of(), treebank(40), batch_of(SHAPES * 30)):
        _, expected = reference(model, batch)
        for switches in (
            {},
            {"specialise": False},
            {"merge_vertices": False},
            {"hoist_eager": False, "hoist_lazy": False},
        ):
            session = cavs.Session(model, dtype=np.float64, passes=replace(Passes(), **switches))
            loss, gradients = session.gradients(batch)
            assert_close(loss, expected["loss"], 1e-11, "loss")
            for key, g in gradients.items():
                assert_close(g, expected[f"grad:{key}"], 1e-11, key)


def test_rows_of_edges_are_no_longer_kept():
    """A state and the cotangent of what tanh is taken of is all that a vertex keeps."""
    model = Classifier(nn.TreeFC(8), 8)
    widths = []
    for on in (True, False):
        session = cavs.Session(model, passes=Passes(merge_vertices=False, hoist_cotangents=on))
        program = session.compiled(batch_of()).program
        loops = [n for n, s in enumerate(program.stages) if s.type == "loop"]
        alive = [b for b in program.buffers if b.role == "arena" and b.first <= loops[-1] <= b.last]
        widths.append(sorted(b.width for b in alive if b.space > 1))
    assert widths == [[8, 8], [8, 8, 16]]  # it is written over the cotangent of the labels


def test_a_multiple_by_one_row_is_made_at_the_child():
    """The query of a vertex without input is a parameter; its products with keys are shared."""
    model = Classifier(nn.TreeAttention(8, 8), 8)
    model.initialize(0, np.float64)
    batch = treebank(40)
    session = cavs.Session(model, dtype=np.float64)
    stages = dict(cavs.explain(model, batch, run=False).stages)
    assert "hoist_cotangent_scales" in stages
    before, after = (
        stages[name].split("slot TreeAttention.product 0' <- ")[1].split("\n")[0]
        for name in ("trim_products", "hoist_cotangent_scales")
    )
    assert f"{before} = " in stages["trim_products"]
    assert ": f32[8]@edge" in stages["trim_products"].split(f"{before} = ")[1].split("\n")[0]
    scaled = stages["hoist_cotangent_scales"].split(f"{after} = ")[1]
    assert ": f32[1]@edge" in scaled.split("\n")[0]
    _, expected = reference(model, batch)
    loss, gradients = session.gradients(batch)
    assert_close(loss, expected["loss"], 1e-11, "loss")
    for key, g in gradients.items():
        assert_close(g, expected[f"grad:{key}"], 1e-11, key)


def test_multiples_stay_where_a_vertex_has_its_own():
    """Here every vertex has an input, so that queries differ."""
    rng = np.random.default_rng(0)
    shapes = [[[], [], [0, 1], [2, 0, 1], [2, 2]]] * 20
    batch = cavs.batch([graph(s, rng, absent=lambda kids: False) for s in shapes])
    stages = dict(cavs.explain(Classifier(nn.TreeAttention(8, 8), 8), batch, run=False).stages)
    assert "trim_products" in stages and "hoist_cotangent_scales" not in stages
    plain = differentiated(Classifier(nn.TreeFC(8), 8))
    assert hoist_cotangent_scales(plain) is plain


def test_a_cotangent_of_vertices_of_one_kind_is_scaled_at_the_child():
    weight = apply("parameter", parameter=cavs.Parameter((8,)))
    d = apply("feature", name="d", dtype=FLOAT, shape=(1,), domain=VERTEX, optional=False)
    slot = Slot("h", Structure("cell"), (8,), backward=True)
    graph = Graph({"grad": apply("gather_grad", slot=slot, domain=EDGE)}, {slot: d * weight})
    scaled = hoist_cotangent_scales(graph)
    ((narrow, source),) = scaled.slots.items()
    assert narrow.shape == (1,) and source is d
    gathered = scaled.outputs["grad"]
    assert gathered.op.name == "mul" and gathered.shape == (8,)
    assert {x.op.name for x in gathered.inputs} == {"gather_grad", "parameter"}
