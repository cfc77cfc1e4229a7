"""Each pass on a small graph, before and after, read off the printed equations."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.compiler.merge_gradient_products import merge_gradient_products
from cavs.compiler.pipeline import CompileOptions, Passes, compile_graph
from cavs.compiler.program import (
    Buffer,
    Instruction,
    Operand,
    Program,
    Stage,
    instructions_of,
)
from cavs.frontend.model import trace_model
from cavs.ir import Graph, apply, constant
from cavs.ir.printer import print_graph
from cavs.passes.differentiate import differentiate
from cavs.passes.simplify import simplify
from cavs.passes.specialise import Kind, specialise
from models.tree_lstm import SentimentClassifier
from tests.passes.graphs import (
    INNER,
    LEAF,
    SCHEMA,
    by_kind,
    compiled,
    equations,
    simplified,
    traced,
    value,
)
from tests.runtime import trees
from tests.runtime.trees import WORDS, Classifier, treebank

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
    assert len(equations(after, "gather_grad")) == 2  # for c and h
    assert {repr(s) for s in after.slots if s.backward} == {
        "ChildSumTreeLSTM.c'",
        "ChildSumTreeLSTM.h'",
    }
    text = print_graph(after)
    for name in ("tree.W", "tree.U", "tree.U_f", "tree.b", "embedding.weight", "output.weight"):
        assert f"return grad:{name} = " in text


def test_untrained_parameters_have_no_gradient():
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


def test_cotangents_of_leaves_never_multiply_by_them():
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
    assert len(equations(graph, "lookup_grad")) == 1  # for leaves only


def test_dropout_of_an_absent_input_is_absent_too():
    class Dropped(Classifier):
        def forward(self, batch):
            x = ops.dropout(self.embedding(batch["token"]), 0.5)
            return self.output(self.tree(batch.graph, x=x))

    graph = simplify(trace_model(Dropped(), SCHEMA, training=True))
    kinds = [Kind.of(k, ("token",)) for k in (INNER, LEAF)]
    found = simplify(specialise(graph, kinds))
    assert not any("tree.W" in x for x in equations(found, "matmul", kind=0))


def test_values_of_both_kinds_are_merged():
    graph = by_kind(training=False)
    merged = equations(graph, "merge")
    assert len(merged) == 2 and all("kinds=(0, 1)" in x and "@vertex" in x for x in merged)
    (output,) = [x for x in equations(graph, "matmul") if "output.weight" in x]
    assert output.endswith("f32[5]@vertex")  # around the structure all kinds are one


def test_values_that_only_kinds_read_are_computed_by_kind():
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
    assert [n.shape for n in biased] == [(5,)]  # for the output layer


# ---- partition, lifetimes ----


@pytest.mark.parametrize("kinds", [(INNER, LEAF), (INNER, LEAF, INNER + LEAF)])
@pytest.mark.parametrize("cell", [nn.BinaryTreeLSTM, nn.ChildSumTreeLSTM, nn.TreeGRU])
def test_without_hoist_lazy_every_gradient_of_the_cell_is_summed_in_the_loop(cell, kinds):
    def outside(passes):
        program = compiled(cell(8, 6), passes, kinds=kinds).program
        inside = {i for s in program.stages for body in s.bodies for i in body}
        sums = ("matmul_tn", "sum_rows", "lookup_grad")
        labels = [
            i.label
            for n, i in enumerate(program.instructions)
            if i.type in sums and n not in inside
        ]
        return {x for x in labels if x.split()[-1].startswith(("tree.", "embedding."))}

    assert outside(Passes(hoist_lazy=False)) == set()
    assert len(outside(Passes())) >= 4


def test_without_hoist_eager_inputs_are_multiplied_in_the_loop():
    kinds = (LEAF, INNER + LEAF)  # a word everywhere: one product for all, were it hoisted
    for on, expected in ((True, 0), (False, 1)):
        program = compiled(nn.LSTM(8, 6), Passes(hoist_eager=on), kinds=kinds).program
        (forward,) = [s for s in program.stages if s.type == "loop" and not s.reversed]
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
    sums = [i for i in c.program.instructions if i.type == "matmul_tn"]
    labels = sorted(i.label for i in sums)
    # U by inner vertices, W by leaves: no weight meets both kinds, so each has one product.
    assert labels == ["gradient output.weight", "gradient tree.U", "gradient tree.W"]
    both = compiled(nn.LSTM(8, 6))
    assert [i.label for i in both.program.instructions if i.type == "matmul_tn"].count(
        "gradient tree.U"
    ) == 1


@pytest.mark.parametrize("plan_memory", [True, False])
@pytest.mark.parametrize("cell", [nn.BinaryTreeLSTM, nn.ChildSumTreeLSTM, nn.TreeGRU])
@pytest.mark.parametrize("words", ["at leaves", "everywhere"])
def test_every_parameter_gradient_is_one_product_whatever_kinds_reach_it(cell, plan_memory, words):
    model, rng = Classifier(cell(8, 6)), np.random.default_rng(0)
    children = [[[], [], [], [0, 1], [3, 2]], [[]], [[], [], [], [1, 2], [0, 3]]]
    absent = bool if words == "at leaves" else lambda kids: False
    batch = cavs.batch([trees.graph(kids, rng, absent) for kids in children])
    passes = Passes(plan_memory=plan_memory)
    program = cavs.Session(model, passes=passes).compiled(batch).program
    made = Counter()
    most = 1  # products of a stage
    for stage in program.stages:
        sums = [program.instructions[n] for n in stage.body]
        if stage.type == "global" and sums[0].type == "matmul_tn":
            (label,) = {i.label for i in sums}
            made[label] += 1
            most = max(most, len(sums))
            sizes = [sum(o.width for o in i.inputs[: i.split]) * i.out.width for i in sums]
            assert sizes == sorted(sizes, reverse=True)
    matrices = [name for name, p in model.parameters().items() if len(p.shape) == 2]
    assert made == {f"gradient {n}": 1 for n in matrices if n != "embedding.weight"}
    assert most > 1 or words == "at leaves"


def test_products_wait_for_nothing_that_changes_what_they_read():
    """Two terms of a gradient are one product, unless what the first reads is written meanwhile."""

    def stages(write: int, read: int = 4, between: str = "rows", **rest: bool) -> list[list[int]]:
        program = Program([0], ["W"], [], [], ())
        program.buffers = [
            Buffer("grad", 0, 0, 4, "W"),
            *(Buffer("arena", 0, 2, 4, name) for name in "abcd"),
        ]

        def of(buffer: int) -> Operand:
            return Operand(buffer, 0, 4)

        def product(a: int, b: int) -> Instruction:
            return Instruction("matmul_tn", 2, [of(a), of(b)], of(0), accumulate=True, split=1)

        copy = Instruction("copy", 2, [of(read)], of(write))
        program.instructions = [product(1, 2), copy, product(3, 2)]
        program.stages = [
            Stage("global", body=[0]),
            Stage("rows", 2, body=[1]) if between == "rows" else Stage("loop", bodies=[[1]]),
            Stage("global", body=[2]),
        ]
        merge_gradient_products(program, **rest)
        return [instructions_of(s) for s in program.stages]

    separate, joined = [[0], [1], [2]], [[1], [0, 2]]
    assert stages(3) == joined
    assert stages(1) == stages(2) == stages(0) == separate
    assert stages(3, read=0) == separate  # the gradient, before it is whole
    assert stages(3, between="loop") == joined
    assert stages(0, between="loop") == joined  # sums of tasks are added, too
    assert stages(1, between="loop") == stages(3, read=0, between="loop") == separate
    assert stages(3, between="loop", concurrent=True) == separate


def test_only_recurrent_products_run_a_task_at_a_time():
    c = compiled()
    loops = [b for b in c.partition.bodies if b.loop is not None]
    assert [(b.kind, b.loop.backward) for b in loops] == [(0, False), (0, True)]
    assert all([n.op.name for n in b.nodes].count("matmul") == 1 for b in loops)


@pytest.mark.parametrize(("hoist", "inside"), [(True, 2), (False, 3)])
def test_products_of_inputs_are_hoisted(hoist, inside):
    """With words at inner vertices x W is eager; without the pass it runs a task at a time."""
    c = compiled(nn.ChildSumTreeLSTM(8, 6), Passes(hoist_eager=hoist), kinds=(2, 3))
    forward = [b for b in c.partition.bodies if b.loop and not b.loop.backward]
    assert sum(n.op.name == "matmul" for b in forward for n in b.nodes) == inside


def test_cheap_values_are_recomputed_and_not_stored():
    def stored(passes):
        c = compiled(passes=passes)
        arena = [b for b in c.program.buffers if b.role == "arena"]
        return sum(b.width for b in arena if b.space > 1), c

    with_plan, c = stored(Passes())
    without, _ = stored(Passes(plan_memory=False))
    assert with_plan < without
    names = {b.name.split(".")[0] for b in c.program.buffers if b.role == "arena"}
    assert not names & {"sub", "neg"}  # 1 - z and the like


def test_buffers_that_are_alive_at_once_share_no_memory():
    """No two buffers that are alive at once share memory: the engine lays them out by lifetime."""
    p = compiled().program
    uses = {}
    for at, stage in enumerate(p.stages):
        for n in [*stage.body, *(x for body in stage.bodies for x in body)]:
            i = p.instructions[n]
            touched = {o.buffer for o in i.operands} | {s.buffer for s in i.stores}
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
    values = {b: len(b.value.split(" > ")) for b in run.buffers if b.role == "arena"}
    together = sum(b.bytes * count for b, count in values.items())
    unplanned = Passes(merge_vertices=False, plan_memory=False)
    off = cavs.explain(model, batch, passes=unplanned)
    assert run.run.peak_bytes < 0.9 * together
    assert run.run.peak_bytes < off.run.peak_bytes


def test_sums_into_parts_of_one_gradient_are_neighbours():
    """Each kind of vertices adds to parts of the same matrix and bias: no more turns than kinds."""
    model, batch = SentimentClassifier(WORDS, 8, 8, 0.0), treebank(40)
    program = cavs.Session(model).compiled(batch).program
    for sums, run in groupby(program.stages, lambda stage: stage.type == "global"):
        written = [program.instructions[s.body[0]] for s in run if sums]
        places = [(i.label, i.out[1]) for i in written if i.out is not None]
        turns, seen = 1, set()
        for place in places:
            turns += place in seen
            seen = {place} if place in seen else {*seen, place}
        assert turns == max(Counter(places).values(), default=1)


def test_a_pass_that_is_off_leaves_no_stage():
    names = [n for n, _ in compiled(passes=Passes(specialise=False)).stages]
    assert "specialise" not in names and "merge_products" in names


def test_compiling_twice_gives_the_same_program():
    model = Classifier(nn.TreeGRU(8, 6))
    graph = trace_model(model, SCHEMA, training=True)
    names, options = list(model.parameters()), CompileOptions(training=True)
    programs = [compile_graph(graph, (INNER, LEAF), names, options).program for _ in range(2)]
    assert [vars(i) for i in programs[0].instructions] == [
        vars(i) for i in programs[1].instructions
    ]
    assert np.array_equal(programs[0].kinds, programs[1].kinds)
