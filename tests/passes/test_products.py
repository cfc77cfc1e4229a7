"""The passes that hoist, trim and merge products, on small graphs."""

from __future__ import annotations

import re

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.compiler.pipeline import Passes
from cavs.compiler.weights import weight_of
from cavs.ir import VERTEX, Graph, apply, constant
from cavs.ir.interpret import Inputs, interpret
from cavs.passes.access import is_view
from cavs.passes.differentiate import differentiate
from cavs.passes.hoist_products_to_child import hoist_products_to_child
from cavs.passes.merge_products import merge_products
from cavs.passes.simplify import simplify
from cavs.passes.split_gradients import split_gradients
from cavs.passes.trim_gradients import trim_gradients
from cavs.passes.trim_products import trim_products
from tests.passes.graphs import (
    by_kind,
    compiled,
    equations,
    simplified,
    traced,
    value,
)
from tests.runtime.trees import Classifier, graph

# ---- at the child ----


@pytest.mark.parametrize("cell", [nn.ChildSumTreeLSTM, nn.TreeGRU, nn.TreeAttention])
def test_a_product_of_gathered_values_moves_to_the_child(cell):
    before = traced(cell(8, 6))
    after = hoist_products_to_child(before)
    assert any(x.endswith("f32[6]@edge") for x in equations(before, "matmul"))
    assert not any("@edge" in x for x in equations(after, "matmul"))
    (slot,) = set(after.slots) - set(before.slots)
    product = after.slots[slot]
    h = next(n for s, n in after.slots.items() if s.name == "h")
    assert product.op.name == "matmul" and product.inputs[0] is h
    # Its cotangent is summed over the parents before it is multiplied.
    back = simplify(differentiate(after))
    assert not any("@edge" in x for x in equations(back, "matmul"))


def test_functions_of_more_than_the_child_stay_at_the_edge():
    class Mixed(cavs.VertexFunction):
        def __init__(self):
            self.state = cavs.State(h=6)
            self.W, self.V, self.U = (cavs.Parameter((6, 6)) for _ in range(3))
            self.b = cavs.Parameter((6,))

        def vertex(self, v):
            child, x = v.gather().h, v.pull("x")[0:6]
            twice = ops.tanh(child @ self.W + self.b) @ self.V  # a function of the child only
            h = ops.tanh(x + (twice + (child * x) @ self.U).sum())
            v.scatter(h=h)
            v.push(h)

    after = hoist_products_to_child(traced(Mixed()))
    (left,) = [x for x in equations(after, "matmul") if "@edge" in x]
    assert "tree.U" in left
    assert len(after.slots) == 3


def test_products_move_only_where_edges_outnumber_vertices():
    rng = np.random.default_rng(0)
    dag = [[], [0], [0, 1], [0, 1, 2], [1, 2, 3]]
    for children, shared in ((dag, True), ([[], [], [0, 1]], False)):
        session = cavs.Session(Classifier(nn.TreeGRU(8, 6)))
        batch = cavs.batch([graph(children, rng)])
        names = [name for name, _ in session.compiled(batch).stages]
        assert ("hoist_products_to_child" in names) is shared
        (variant,) = session.state_dict()["variants"]
        assert variant["shared"] is shared
        # A resumed session runs the same program, whatever its first batch.
        resumed = cavs.Session(Classifier(nn.TreeGRU(8, 6)))
        resumed.load_state_dict(session.state_dict())
        names = [name for name, _ in resumed.compiled(cavs.batch([graph(dag, rng)])).stages]
        assert ("hoist_products_to_child" in names) is shared


# ---- trim_products ----


def trimmed(cell, training=True):
    return simplify(trim_products(by_kind(cell, training)))


@pytest.mark.parametrize(
    ("cell", "gates", "read"),
    [(nn.ChildSumTreeLSTM, 4, 3), (nn.TreeGRU, 3, 2), (nn.TreeAttention, 2, 1)],
)
def test_a_leaf_multiplies_by_the_columns_it_reads(cell, gates, read):
    def sizes(graph):
        found = [n for n in graph.nodes() if n.op.name == "matmul" and n.type.domain.kind == 1]
        return [n.inputs[1].shape for n in found]

    assert sizes(by_kind(cell(8, 6))) == [(8, 6 * gates), (6 * gates, 8)]
    graph = trimmed(cell(8, 6))
    assert sizes(graph) == [(8, 6 * read), (6 * read, 8)]  # forward, and its cotangent
    terms = trim_gradients(split_gradients(graph)).outputs
    (term,) = [n for key, n in terms.items() if key.startswith("grad:tree.W")]
    assert term.shape == (8, 6 * gates) and term.inputs[1].shape == (6 * read,)


def test_zeros_next_to_values_are_not_multiplied():
    a, zero = value("a"), 0.0 * value("b")
    W = cavs.Parameter((18, 4))
    graph = simplify(trim_products(simplify(Graph({"y": ops.concat([a, zero, a]) @ W}))))
    (product,) = [n for n in graph.nodes() if n.op.name == "matmul"]
    assert product.inputs[0].shape == (12,) and product.inputs[1].shape == (12, 4)
    w = weight_of(product.inputs[1], [W.name])
    assert [(p[1], p[4:]) for p in w.pieces] == [(0, (6, 4, 0, 0)), (48, (6, 4, 6, 0))]


def test_columns_read_nowhere_are_cut_and_the_others_keep_their_order():
    a, W = value("a"), cavs.Parameter((6, 10))
    y = a @ W
    graph = Graph({"y": ops.tanh(y[6:9]), "z": ops.exp(y[1:3]), "both": y[7:8] + y[1:2]})
    found = simplify(trim_products(graph))
    (product,) = [n for n in found.nodes() if n.op.name == "matmul"]
    cut = [(n.attr("start"), n.attr("stop")) for n in product.inputs[1].inputs]
    assert product.shape == (5,) and cut == [(1, 3), (6, 9)]
    assert found.outputs["z"].inputs[0].attr("start") == 0
    assert found.outputs["y"].inputs[0].attr("start") == 2
    whole = Graph({"y": y, "z": y[1:3]})
    assert trim_products(whole).outputs["y"].shape == (10,)


def test_a_gradient_is_summed_in_the_windows_that_are_not_zero():
    a, b, zero = value("a"), value("b"), 0.0 * value("b")
    d = ops.concat([a[0:2], zero, b, zero[0:1]])
    product, bias = apply("matmul_tn", ops.concat([zero, a]), d), apply("sum_rows", d)
    graph = simplify(Graph({"grad:W#0": product, "grad:b#0": bias}))
    found = trim_gradients(graph)
    windows = [(n.op.name, n.attr("at"), n.shape) for n in found.outputs.values()]
    assert windows == [
        ("matmul_tn", (6, 0), (12, 15)),
        ("matmul_tn", (6, 8), (12, 15)),
        ("sum_rows", (0,), (15,)),
        ("sum_rows", (8,), (15,)),
    ]
    assert "grad:W#0.1" in found.outputs
    rng = np.random.default_rng(0)
    features = {n: rng.normal(size=(3, 6)) for n in "ab"}
    inputs = Inputs([0, 0, 0, 0], [], [0, 0, 0], features)
    before, after = interpret(graph, inputs), interpret(found, inputs)
    for name in ("grad:W#0", "grad:b#0"):
        parts = [v for k, v in after.items() if k.startswith(name)]
        assert np.array_equal(sum(parts), before[name])
    # A product with another reader stays whole.
    shared = Graph({"grad:W#0": product, "y": product})
    assert trim_gradients(simplify(shared)).outputs == simplify(shared).outputs


def test_rows_stay_those_of_a_kind_where_zeros_alone_said_so():
    a, W = value("a"), cavs.Parameter((8, 4))
    kind = VERTEX.of_kind(1)
    zero = apply("broadcast", constant(0.0), shape=(2,), domain=kind)
    joined = ops.concat([zero, a])
    (product,) = trim_products(Graph({"y": joined @ W})).nodes()[-1:]
    assert product.type.domain == kind and product.inputs[0].inputs[0] is a
    (total,) = trim_gradients(Graph({"grad:b#0": apply("sum_rows", joined)})).outputs.values()
    assert total.inputs[0].type.domain == kind
    assert is_view(total.inputs[0]) and not is_view(
        apply("broadcast", a, shape=(6,), domain=VERTEX)
    )


def test_zeros_of_leaves_are_not_stored():
    names = [b.name for b in compiled(nn.TreeGRU(8, 6)).program.buffers]
    assert not any(n.startswith("broadcast") for n in names)
    off = compiled(nn.TreeGRU(8, 6), Passes(trim_products=False)).program
    assert any(b.name.startswith("broadcast") for b in off.buffers)


# ---- merge products ----


def test_products_of_one_input_become_one():
    class Two(cavs.VertexFunction):
        def __init__(self):
            self.state = cavs.State(h=6)
            self.W, self.V = (cavs.Parameter((8, 6)) for _ in range(2))

        def vertex(self, v):
            x = v.pull("x")
            h = ops.tanh(x @ self.W) * ops.sigmoid(x @ self.V) + v.gather().h.sum()
            v.scatter(h=h)
            v.push(h)

    before = traced(Two())
    after = simplify(merge_products(before))
    widths = [re.search(r"f32\[(\d+)\]", x)[1] for x in equations(after, "matmul")]
    assert len(equations(before, "matmul")) == 3 and sorted(widths) == ["12", "5"]


def test_a_sum_of_products_becomes_one_longer_product():
    a = value("a")
    W, V = cavs.Parameter((6, 4)), cavs.Parameter((6, 4))
    y = Graph({"y": a @ W + value("b") @ V})
    (product,) = equations(simplify(merge_products(y)), "matmul")
    assert product.endswith("f32[4]@vertex")
    joined = simplify(merge_products(y)).outputs["y"]
    assert joined.op.name == "matmul" and joined.inputs[0].shape == (12,)
    assert len(equations(y, "matmul")) == 2


def products(node):
    """Widths of the left sides of the products left in a value."""
    joined = simplify(merge_products(Graph({"y": node})))
    return sorted(n.inputs[0].shape[0] for n in joined.nodes() if n.op.name == "matmul")


def test_terms_of_a_sum_need_not_be_neighbours():
    a, b, c = (value(n) for n in "abc")
    W, V = cavs.Parameter((6, 6)), cavs.Parameter((6, 6))
    assert products(a @ W + (c + ops.tanh(c)) + b @ V) == [12]
    assert products(a @ W + (c + (ops.exp(c) + b @ V))) == [12]
    inner = c + b @ V  # read elsewhere too, so a value of its own
    assert products(a @ W + inner + ops.tanh(inner)) == [6, 6]
    twice = a @ W
    assert products(twice + b @ V + twice) == [6, 6]
    assert products(ops.tanh(twice) + (twice + b @ V)) == [6, 6]


def test_columns_of_a_sum_of_products_are_a_sum_of_products():
    a, b, c = (value(n) for n in "abc")
    W, V = cavs.Parameter((6, 12)), cavs.Parameter((6, 12))
    total = simplified(ops.concat([c, c]) + a @ W + b @ V)
    i, o = ops.split(total, 2)
    assert products(simplified(ops.tanh(i) * ops.sigmoid(o))) == [12]
    x, y = a @ W, b @ V  # the second columns are not added
    assert products(ops.tanh(x[0:6] + y[0:6]) * x[6:12] * y[6:12]) == [6, 6]


def test_a_product_is_not_merged_with_one_it_depends_on():
    a, b = value("a"), value("b")
    U, V, W = (cavs.Parameter((6, 6)) for _ in range(3))
    r = ops.sigmoid(a @ U + b @ V)  # as a reset gate: one product
    n = ops.tanh(b + (r * a) @ W)
    assert products(r * a + n) == [6, 12]
    cotangent = r @ W + (a + n) + n @ U  # n needs r, and both are there when the sum is made
    assert products(cotangent) == [6, 12, 12]
