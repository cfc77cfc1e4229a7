"""Each pass on a small graph, before and after, read off the printed equations."""

from __future__ import annotations

import re

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.compiler.pipeline import Passes, compile_graph
from cavs.compiler.weights import weight_of
from cavs.frontend.batch import Feature
from cavs.frontend.model import trace_model
from cavs.ir import VERTEX, Graph, apply, constant
from cavs.ir.interpret import Inputs, interpret
from cavs.ir.printer import number, print_graph, print_node
from cavs.passes.access import is_view
from cavs.passes.at_child import at_child
from cavs.passes.differentiate import differentiate, split_gradients
from cavs.passes.merge_products import merge_products
from cavs.passes.simplify import simplify
from cavs.passes.specialise import Kind, specialise
from cavs.passes.trim import trim, trim_gradients
from tests.runtime.trees import Classifier, graph, treebank

SCHEMA = {
    "token": Feature("vertex", "int", (), True),
    "a": Feature("vertex", "float", (6,)),
    "b": Feature("vertex", "float", (6,)),
    "label": Feature("vertex", "int"),
}
LEAF, INNER = 2, 1  # keys of kinds: a word and no children; children and no word


def equations(graph, op=None, kind=None):
    """Equations without names and lines, of one operator or kind of vertex."""
    names = number(graph)
    lines = []
    for n in graph.nodes():
        if (op is None or n.op.name == op) and (kind is None or n.type.domain.kind == kind):
            named = {x: x.attr("parameter").name for x in n.inputs if x.op.name == "parameter"}
            lines.append(print_node(n, {**names, **named}).split(" = ", 1)[1])
    return lines


def traced(cell=None, training=True, rate=0.0):
    model = Classifier(cell, rate=rate)
    return simplify(trace_model(model, SCHEMA, training=training))


def by_kind(cell=None, training=True):
    graph = traced(cell)
    if training:
        graph = simplify(differentiate(graph))
    return simplify(specialise(graph, [Kind.of(k, ("token",)) for k in (INNER, LEAF)]))


def value(name):
    """A feature as a value: rows of 6 floats."""
    where = {"dtype": "f32", "shape": (6,), "optional": False}
    return apply("feature", name=name, domain=VERTEX, **where)


def simplified(node):
    """What one value becomes."""
    return simplify(Graph({"y": node})).outputs["y"]


# ---- at the child ----


@pytest.mark.parametrize("cell", [nn.ChildSumTreeLSTM, nn.TreeGRU, nn.TreeAttention])
def test_a_product_of_gathered_values_moves_to_the_child(cell):
    before = traced(cell(8, 6))
    after = at_child(before)
    assert any(x.endswith("f32[6]@edge") for x in equations(before, "matmul"))
    assert not any("@edge" in x for x in equations(after, "matmul"))
    (slot,) = set(after.slots) - set(before.slots)
    product = after.slots[slot]
    h = next(n for s, n in after.slots.items() if s.name == "h")
    assert product.op.name == "matmul" and product.inputs[0] is h
    # Its cotangent is summed over the parents before it is multiplied.
    back = simplify(differentiate(after))
    assert not any("@edge" in x for x in equations(back, "matmul"))


def test_what_depends_on_more_than_the_child_stays_at_the_edge():
    class Mixed(cavs.VertexFunction):
        def __init__(self):
            self.state = cavs.State(h=6)
            self.W, self.V, self.U = (cavs.Parameter((6, 6)) for _ in range(3))
            self.b = cavs.Parameter((6,))

        def vertex(self, v):
            child, x = v.gather().h, v.pull("x")[0:6]
            twice = ops.tanh(child @ self.W + self.b) @ self.V  # of the child alone
            h = ops.tanh(x + (twice + (child * x) @ self.U).sum())
            v.scatter(h=h)
            v.push(h)

    after = at_child(traced(Mixed()))
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
        assert ("at_child" in names) is shared
        (variant,) = session.state_dict()["variants"]
        assert variant["shared"] is shared
        # What resumes runs the same program, whatever batch comes first.
        resumed = cavs.Session(Classifier(nn.TreeGRU(8, 6)))
        resumed.load_state_dict(session.state_dict())
        names = [name for name, _ in resumed.compiled(cavs.batch([graph(dag, rng)])).stages]
        assert ("at_child" in names) is shared


# ---- simplify ----


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda a, b: a + 0.0, lambda a, b: a),
        (lambda a, b: 1.0 * a, lambda a, b: a),
        (lambda a, b: a - (-b), lambda a, b: a + b),
        (lambda a, b: a + 0.0 * b, lambda a, b: a),
        (lambda a, b: ops.where(a > b, 0.0 * a, 0.0 * b), lambda a, b: a * 0.0),
        (lambda a, b: ops.where(constant(1.0), a, b), lambda a, b: a),
        (lambda a, b: ops.concat([a, b])[6:12], lambda a, b: b),
        (lambda a, b: ops.concat([a[0:2], a[2:6]]), lambda a, b: a),
        (lambda a, b: (a + b)[1:3], lambda a, b: a[1:3] + b[1:3]),
        (lambda a, b: ops.reshape(ops.reshape(a, (2, 3)), (6,)), lambda a, b: a),
        (lambda a, b: ops.exp(constant(0.0)) * a, lambda a, b: a),
    ],
)
def test_simplify(make, expected):
    a, b = value("a"), value("b")
    assert simplified(make(a, b)) is simplified(expected(a, b))


def test_the_sum_over_one_row_is_that_row():
    total = apply("sum_rows", value("a"))
    assert simplified(apply("sum_rows", total)) is total


def test_equal_expressions_are_one_node():
    a, b = value("a"), value("b")
    assert ops.tanh(a + b) is ops.tanh(a + b)


def test_cotangents_of_slices_become_one_concatenation():
    before = differentiate(traced(nn.LSTM(8, 6)))
    after = simplify(before)
    assert len(equations(before, "pad")) >= 4  # one for each gate
    assert equations(after, "pad") == []
    assert [x for x in equations(after, "concat") if x.endswith("f32[24]@vertex")]


# ---- differentiate ----


def test_the_gradient_of_gather_is_scatter():
    before = traced(nn.ChildSumTreeLSTM(8, 6))
    after = differentiate(before)
    assert equations(before, "gather_grad") == []
    assert len(equations(after, "gather_grad")) == 2  # of c and h
    assert {repr(s) for s in after.slots if s.backward} == {
        "ChildSumTreeLSTM.c'",
        "ChildSumTreeLSTM.h'",
    }
    text = print_graph(after)
    for name in ("tree.W", "tree.U", "tree.U_f", "tree.b", "embedding.weight", "output.weight"):
        assert f"return grad:{name} = " in text


def test_what_is_not_trained_has_no_gradient():
    model = Classifier()
    model.embedding.weight.trainable = False
    graph = differentiate(trace_model(model, SCHEMA, training=True))
    assert "grad:embedding.weight" not in graph.outputs
    assert equations(simplify(graph), "lookup_grad") == []


# ---- specialise ----


@pytest.mark.parametrize("cell", [nn.BinaryTreeLSTM, nn.ChildSumTreeLSTM, nn.TreeGRU])
def test_leaves_never_multiply_by_the_recurrent_weights(cell):
    graph = by_kind(cell(8, 6), training=False)
    leaf = equations(graph, "matmul", kind=1)
    assert len(leaf) == 1 and "tree.W" in leaf[0]
    assert not any("tree.U" in x for x in leaf)
    assert any("tree.U" in x for x in equations(graph, "matmul", kind=0))
    assert equations(graph, "gather", kind=1) == []


def test_nor_do_their_cotangents():
    graph = by_kind()
    for x in equations(graph, "matmul_tn", kind=None):
        assert "f32[12,30]" not in x or "vertex.1" not in x
    leaf = [n for n in graph.nodes() if n.op.name == "matmul" and n.type.domain.kind == 1]
    assert [n.inputs[1].op.name for n in leaf] == ["parameter", "transpose"]  # W and its transpose
    assert all(equations(Graph({"w": n.inputs[1]}), "parameter") for n in leaf)
    assert "tree.U" not in str([n.inputs[1].inputs or n.inputs[1].attrs for n in leaf])


def test_an_absent_input_is_never_multiplied():
    graph = by_kind()
    assert not any("tree.W" in x for x in equations(graph, "matmul", kind=0))
    assert equations(graph, "lookup", kind=0) == []
    assert len(equations(graph, "lookup_grad")) == 1  # of the leaves alone


def test_dropout_of_an_absent_input_is_absent_too():
    class Dropped(Classifier):
        def forward(self, batch):
            x = ops.dropout(self.embedding(batch["token"]), 0.5)
            return self.output(self.tree(batch.graph, x=x))

    graph = simplify(trace_model(Dropped(), SCHEMA, training=True))
    kinds = [Kind.of(k, ("token",)) for k in (INNER, LEAF)]
    found = simplify(specialise(graph, kinds))
    assert not any("tree.W" in x for x in equations(found, "matmul", kind=0))


def test_values_of_both_kinds_meet_in_a_merge():
    graph = by_kind(training=False)
    merged = equations(graph, "merge")
    assert len(merged) == 2 and all("kinds=(0, 1)" in x and "@vertex" in x for x in merged)
    (output,) = [x for x in equations(graph, "matmul") if "output.weight" in x]
    assert output.endswith("f32[5]@vertex")  # around the structure all kinds are one


def test_what_kinds_alone_read_is_computed_by_kind():
    class Everywhere(Classifier):
        def forward(self, batch):
            return self.output(self.tree(batch.graph, x=ops.sigmoid(batch["a"])))

    graph = simplify(trace_model(Everywhere(nn.GRU(6, 6)), SCHEMA, training=False))
    found = simplify(specialise(graph, [Kind.of(k, ()) for k in (0, 1)]))
    assert len(equations(found, "matmul", kind=None)) == 2 + 2  # W, output; U and U_n of kind 1
    assert equations(found, "sigmoid")[0].endswith("@vertex")  # a product reads it whole
    sums = [x for x in equations(found, "add") if "tree.b" in x or "slice" in x]
    assert not any(x.endswith("@vertex") for x in sums)
    biased = [n for n in found.nodes() if n.op.name == "add" and n.type.domain.kind is None]
    assert [n.shape for n in biased] == [(5,)]  # of the output layer


# ---- trim ----


def trimmed(cell, training=True):
    return simplify(trim(by_kind(cell, training)))


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


def test_a_zero_beside_a_value_is_not_multiplied():
    a, zero = value("a"), 0.0 * value("b")
    W = cavs.Parameter((18, 4))
    graph = simplify(trim(simplify(Graph({"y": ops.concat([a, zero, a]) @ W}))))
    (product,) = [n for n in graph.nodes() if n.op.name == "matmul"]
    assert product.inputs[0].shape == (12,) and product.inputs[1].shape == (12, 4)
    w = weight_of(product.inputs[1], [W.name])
    assert [(p[1], p[4:]) for p in w.pieces] == [(0, (6, 4, 0, 0)), (48, (6, 4, 6, 0))]


def test_columns_read_nowhere_are_cut_and_the_others_keep_their_order():
    a, W = value("a"), cavs.Parameter((6, 10))
    y = a @ W
    graph = Graph({"y": ops.tanh(y[6:9]), "z": ops.exp(y[1:3]), "both": y[7:8] + y[1:2]})
    found = simplify(trim(graph))
    (product,) = [n for n in found.nodes() if n.op.name == "matmul"]
    cut = [(n.attr("start"), n.attr("stop")) for n in product.inputs[1].inputs]
    assert product.shape == (5,) and cut == [(1, 3), (6, 9)]
    assert found.outputs["z"].inputs[0].attr("start") == 0
    assert found.outputs["y"].inputs[0].attr("start") == 2
    whole = Graph({"y": y, "z": y[1:3]})
    assert trim(whole).outputs["y"].shape == (10,)


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
    # What something else reads too stays whole.
    shared = Graph({"grad:W#0": product, "y": product})
    assert trim_gradients(simplify(shared)).outputs == simplify(shared).outputs


def test_rows_stay_those_of_a_kind_where_zeros_alone_said_so():
    a, W = value("a"), cavs.Parameter((8, 4))
    kind = VERTEX.of_kind(1)
    zero = apply("broadcast", constant(0.0), shape=(2,), domain=kind)
    joined = ops.concat([zero, a])
    (product,) = trim(Graph({"y": joined @ W})).nodes()[-1:]
    assert product.type.domain == kind and product.inputs[0].inputs[0] is a
    (total,) = trim_gradients(Graph({"grad:b#0": apply("sum_rows", joined)})).outputs.values()
    assert total.inputs[0].type.domain == kind
    assert is_view(total.inputs[0]) and not is_view(
        apply("broadcast", a, shape=(6,), domain=VERTEX)
    )


def test_zeros_of_leaves_are_not_stored():
    names = [b.name for b in compiled(nn.TreeGRU(8, 6)).program.buffers]
    assert not any(n.startswith("broadcast") for n in names)
    off = compiled(nn.TreeGRU(8, 6), Passes(trim=False)).program
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


def test_products_of_a_sum_need_not_stand_side_by_side():
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


def test_a_product_that_needs_another_is_not_joined_with_it():
    a, b = value("a"), value("b")
    U, V, W = (cavs.Parameter((6, 6)) for _ in range(3))
    r = ops.sigmoid(a @ U + b @ V)  # as a reset gate: one product
    n = ops.tanh(b + (r * a) @ W)
    assert products(r * a + n) == [6, 12]
    cotangent = r @ W + (a + n) + n @ U  # n needs r, and both are there when the sum is made
    assert products(cotangent) == [6, 12, 12]


# ---- partition, lifetimes ----


def compiled(cell=None, passes=None, training=True, kinds=(INNER, LEAF)):
    model = Classifier(cell)
    graph = trace_model(model, SCHEMA, training=training)
    names = list(model.parameters())
    return compile_graph(
        graph, kinds, names, training=training, passes=passes or Passes(), record=True
    )


@pytest.mark.parametrize("kinds", [(INNER, LEAF), (INNER, LEAF, INNER + LEAF)])
@pytest.mark.parametrize("cell", [nn.BinaryTreeLSTM, nn.ChildSumTreeLSTM, nn.TreeGRU])
def test_without_partition_every_gradient_of_the_cell_is_summed_in_the_loop(cell, kinds):
    def outside(passes):
        program = compiled(cell(8, 6), passes, kinds=kinds).program
        inside = {i for s in program.stages for body in s.bodies for i in body}
        sums = ("matmul_tn", "sum_rows", "lookup_grad")
        labels = [
            i.label
            for n, i in enumerate(program.instructions)
            if i.kind in sums and n not in inside
        ]
        return {x for x in labels if x.split()[-1].startswith(("tree.", "embedding."))}

    assert outside(Passes(partition=False)) == set()
    assert len(outside(Passes())) >= 4


def test_without_partition_inputs_are_multiplied_in_the_loop():
    kinds = (LEAF, INNER + LEAF)  # a word everywhere: one product for all, were it hoisted
    for on, expected in ((True, 0), (False, 1)):
        program = compiled(nn.LSTM(8, 6), Passes(partition=on), kinds=kinds).program
        (forward,) = [s for s in program.stages if s.kind == "loop" and not s.reversed]
        ids = [i for body in forward.bodies for i in body]
        weights = [
            program.instructions[i].weight for i in ids if program.instructions[i].weight >= 0
        ]
        names = [program.parameters[program.weights[w].pieces[0][0]] for w in weights]
        assert names.count("tree.W") == expected


def test_one_parameter_gradient_a_kind_over_the_whole_batch():
    c = compiled()
    loops = [b for b in c.partition.bodies if b.loop is not None]
    assert not any(n.op.name == "matmul_tn" for b in loops for n in b.nodes)
    sums = [i for i in c.program.instructions if i.kind == "matmul_tn"]
    labels = sorted(i.label for i in sums)
    # U by inner vertices, W by leaves: no weight meets both kinds, so each has one product.
    assert labels == ["gradient output.weight", "gradient tree.U", "gradient tree.W"]
    both = compiled(nn.LSTM(8, 6))
    assert [i.label for i in both.program.instructions if i.kind == "matmul_tn"].count(
        "gradient tree.U"
    ) == 1


def test_only_recurrent_products_run_a_task_at_a_time():
    c = compiled()
    loops = [b for b in c.partition.bodies if b.loop is not None]
    assert [(b.kind, b.loop.backward) for b in loops] == [(0, False), (0, True)]
    assert all([n.op.name for n in b.nodes].count("matmul") == 1 for b in loops)


@pytest.mark.parametrize(("hoist", "inside"), [(True, 2), (False, 3)])
def test_products_of_inputs_are_hoisted(hoist, inside):
    """With words at inner vertices x W is eager; without the pass it runs a task at a time."""
    c = compiled(nn.ChildSumTreeLSTM(8, 6), Passes(partition=hoist), kinds=(2, 3))
    forward = [b for b in c.partition.bodies if b.loop and not b.loop.backward]
    assert sum(n.op.name == "matmul" for b in forward for n in b.nodes) == inside


def test_cheap_values_are_computed_again_and_not_kept():
    def stored(passes):
        c = compiled(passes=passes)
        arena = [b for b in c.program.buffers if b.role == "arena"]
        return sum(b.width for b in arena if b.space > 1), c

    with_plan, c = stored(Passes())
    without, _ = stored(Passes(plan_memory=False))
    assert with_plan < without
    names = {b.name.split(".")[0] for b in c.program.buffers if b.role == "arena"}
    assert not names & {"sub", "neg"}  # 1 - z and the like


def test_a_value_read_after_its_stage_keeps_its_place():
    """No two buffers that are alive at once share memory: the engine lays them out by lifetime."""
    p = compiled().program
    uses = {}
    for at, stage in enumerate(p.stages):
        for n in [*stage.body, *(x for body in stage.bodies for x in body)]:
            i = p.instructions[n]
            operands = [*i.inputs, *(load[0] for load in i.loads)]
            touched = {o[0] for o in operands} | {s[0] for s in i.stores}
            if i.out is not None:
                touched.add(i.out[0])
            for b in touched:
                uses.setdefault(b, []).append(at)
    for index, stages in uses.items():
        b = p.buffers[index]
        if b.role not in ("arena", "scratch"):
            continue
        assert b.first <= min(stages) and max(stages) <= b.last, (index, b)
        if b.role == "scratch":  # gone with its chunk of rows
            assert min(stages) == max(stages)
    arena = [b for i, b in enumerate(p.buffers) if b.role == "arena" and i in uses]
    assert any(b.last < len(p.stages) - 1 for b in arena)


def test_the_arena_is_smaller_than_all_its_values_together():
    model, batch = Classifier(input_size=32, hidden_size=32), treebank(20)
    run = cavs.explain(model, batch, passes=Passes(merge_vertices=False))
    together = sum(b.bytes for b in run.buffers if b.role == "arena")
    unplanned = Passes(merge_vertices=False, plan_memory=False)
    off = cavs.explain(model, batch, passes=unplanned)
    assert run.run.peak_bytes < 0.9 * together
    assert run.run.peak_bytes < off.run.peak_bytes


def test_a_pass_that_is_off_leaves_no_stage():
    names = [n for n, _ in compiled(passes=Passes(specialise=False)).stages]
    assert "specialise" not in names and "merge_products" in names


def test_compiling_twice_gives_the_same_program():
    model = Classifier(nn.TreeGRU(8, 6))
    graph = trace_model(model, SCHEMA, training=True)
    programs = [
        compile_graph(graph, (INNER, LEAF), list(model.parameters()), training=True).program
        for _ in range(2)
    ]
    assert [vars(i) for i in programs[0].instructions] == [
        vars(i) for i in programs[1].instructions
    ]
    assert np.array_equal(programs[0].kinds, programs[1].kinds)
