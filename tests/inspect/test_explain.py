"""explain(): the stages, the program and one run, as fields and as text."""

from __future__ import annotations

import re

import numpy as np
import pytest

import cavs
from cavs import nn
from cavs.compiler.pipeline import Passes
from cavs.runtime import program_cache
from tests.runtime.trees import Classifier, graph, treebank


@pytest.fixture(scope="module")
def explained():
    return cavs.explain(Classifier(), treebank(6))


def test_every_stage_has_its_text(explained):
    names = ["trace", "differentiate", "simplify", "specialise", "trim_products"]
    names += ["merge_products", "insert_copies"]
    assert [name for name, _ in explained.stages] == names
    text = dict(explained.stages)
    assert "grad:" not in text["trace"] and "return grad:tree.U" in text["differentiate"]
    assert "vertex.0" in text["specialise"] and "vertex.0" not in text["simplify"]
    printed = str(explained)
    assert repr(explained) == printed  # as a prompt shows it
    for part in (*names, "partition", "program", "cuda", "buffers", "one step", "not batched"):
        assert f"== {part}" in printed


def test_a_model_is_compiled_again_only_for_missing_text(monkeypatch):
    given, recorded = program_cache.compile_graph, []

    def counted(traced, kinds, parameters, options):
        recorded.append(options.record)
        return given(traced, kinds, parameters, options)

    monkeypatch.setattr(program_cache, "compile_graph", counted)
    batch, session = treebank(3), cavs.Session(Classifier())
    assert session.compiled(batch).stages and recorded == [True]
    session.gradients(batch)
    assert session.compiled(batch, record=False).stages and recorded == [True]
    later = cavs.Session(Classifier())
    assert not later.compiled(batch, record=False).stages and recorded == [True, False]
    assert later.compiled(batch).stages and recorded == [True, False, True]


def test_bodies_say_when_they_run_and_why(explained):
    found = {(b.when, b.where) for b in explained.bodies}
    assert ("eager", "vertex.1") in found  # leaves
    assert ("loop", "vertex.0") in found
    assert ("lazy", "vertex") in found  # the output layer
    loops = [b for b in explained.bodies if b.when == "loop"]
    assert len(loops) == 2 and all("a task at a time" in b.why for b in loops)
    assert all(b.nodes.count("matmul") == 1 for b in loops)
    assert not any("matmul_tn" in b.nodes for b in loops)
    sums = [b for b in explained.bodies if "matmul_tn" in b.nodes]
    assert sums and all(b.when == "lazy" and "once over all rows" in b.why for b in sums)


def test_kernels_are_expressions(explained):
    text = explained.program
    assert "of child 0 | " in text and "@ tree.U (12 x 30)" in text
    assert "@ tree.U^T (30 x 12)" in text
    assert "embedding.weight[token] @ tree.W (8 x 18)" in text
    lines = [line for kernel in explained.kernels.values() for line in kernel]
    assert any("sigmoid(" in x and "tree.b[" in x for x in lines)
    assert any("sum(" in x and "of each parent of its child 0)" in x for x in lines)
    assert all(x.count("(") == x.count(")") for x in lines)
    assert explained.cuda.keys() == explained.kernels.keys()
    kernel = re.compile(r"__global__ void __launch_bounds__\(\d+, \d+\) map_\d+\(")
    assert all(kernel.search(x) and x in str(explained) for x in explained.cuda.values())
    stages = [x for x in text.splitlines() if x.startswith("stage ")]
    assert any("loop" in x and "tasks in reverse" in x for x in stages)


def test_buffers_have_roles_lifetimes_and_bytes(explained):
    by_role = {}
    for b in explained.buffers:
        by_role.setdefault(b.role, []).append(b)
    assert {"param", "grad", "arena", "scratch"} <= set(by_role)
    for b in by_role["arena"]:
        assert 0 <= b.first <= b.last and b.bytes > 0
    assert all(b.bytes == 0 for b in by_role["param"])
    h = [b for b in by_role["arena"] if b.space == "vertex" and b.width == 6]
    assert h and all(b.bytes == 4 * 6 * explained.run.vertices for b in h)


def test_one_run(explained):
    batch, run = treebank(6), explained.run
    assert (run.graphs, run.vertices, run.edges) == (6, batch.num_vertices, batch.num_edges)
    depth = max(int(t.num_levels) for t in batch.topology.graphs)
    assert run.task_bound == run.tasks == depth - 1  # leaves need no task
    assert run.backward_tasks == run.backward_bound == run.tasks == len(run.widths)
    inner = [v for t in batch.graphs for v in range(t.num_vertices) if len(t.children(v))]
    assert sum(run.widths) == len(inner)
    mean = sum(run.widths) / run.tasks
    assert f"mean {mean:.1f}: {sum(run.widths)} vertices in {run.tasks} tasks" in str(explained)
    assert 0 < run.kept_bytes <= run.peak_bytes <= run.arena_bytes
    assert len(run.stages) == explained.program.count("stage ")


def test_work_that_was_not_batched():
    rng = np.random.default_rng(0)
    chain = graph([[], *([i] for i in range(9))], rng)
    alone = cavs.explain(Classifier(nn.LSTM(8, 6)), cavs.batch([chain]))
    nothing = "nothing else is ready at their level"
    assert f"9 of 9 tasks have one vertex: {nothing}" in alone.not_batched
    both = cavs.batch([chain, graph(chain_lists(9), rng, absent=lambda kids: False)])
    mixed = cavs.explain(Classifier(nn.LSTM(8, 6)), both)
    kinds = "what else is ready at their level is of another kind"
    assert f"18 of 18 tasks have one vertex: {kinds}" in mixed.not_batched
    (levels,) = [x for x in mixed.not_batched if x.startswith("9 levels run as several tasks")]
    assert "with children, without token; with children, with token" in levels
    longer = cavs.batch([chain, graph(chain_lists(12), rng, absent=lambda kids: False)])
    both_reasons = cavs.explain(Classifier(nn.LSTM(8, 6)), longer, run=False)
    found = f"21 of 21 tasks have one vertex: 3 because {nothing}, 18 because {kinds}"
    assert found in both_reasons.not_batched
    assert mixed.run.tasks == mixed.run.task_bound == 18  # two chains of 9, of different kinds
    assert any("computed again" in x for x in mixed.not_batched)
    off = cavs.explain(Classifier(nn.LSTM(8, 6)), both, passes=Passes(specialise=False), run=False)
    assert "passes switched off: specialise" in off.not_batched
    assert any(x.startswith("hoist_products_to_leaves is off, too") for x in off.not_batched)


@pytest.mark.parametrize("policy", ["agenda", "learned"])
def test_tasks_in_the_order_of_a_policy_have_its_reasons(policy):
    """Two chains of different kinds: at every level another vertex is ready, but of its kind none.

    A policy runs one chain after the other or both in turns; levels say nothing of that.
    """
    rng = np.random.default_rng(0)
    kinds = [graph(chain_lists(9), rng, absent=lambda kids: False), graph(chain_lists(9), rng)]
    found = cavs.explain(Classifier(nn.LSTM(8, 6)), cavs.batch(kinds), scheduling=policy, run=False)
    lines = [line for line in found.not_batched if "tasks" in line]
    assert not any("level" in line for line in lines)
    assert lines[0] == (
        "18 of 18 tasks have one vertex: no other vertex of its kind was ready at the turn that "
        f"the policy '{policy}' gave it"
    )
    assert lines[1].startswith(
        "2 kinds of vertices, which have different bodies, run in 18 tasks in the order of the "
        f"policy '{policy}', and no order needs fewer than 18: with children, without "
        "token; with children,"
    )


def chain_lists(n):
    return [[], *([i] for i in range(n))]


def test_inference_has_no_gradients_and_need_not_run():
    e = cavs.explain(Classifier(), treebank(3), training=False, run=False)
    assert e.run is None and "one step" not in str(e)
    assert "differentiate" not in dict(e.stages)
    assert not any(b.role == "grad" for b in e.buffers)
    assert {b.when for b in e.bodies} == {"eager", "loop", "lazy"}


def test_nothing_is_updated():
    model = Classifier()
    model.initialize(0)
    before = {n: p.value.copy() for n, p in model.parameters().items()}
    cavs.explain(model, treebank(3))
    assert all((p.value == before[n]).all() for n, p in model.parameters().items())


def test_double_precision_counts_eight_bytes():
    single, double = Classifier(), Classifier()
    double.initialize(0, np.float64)
    batch = treebank(3)
    of = [cavs.explain(m, batch, run=False).buffers for m in (single, double)]
    assert [2 * b.bytes for b in of[0]] == [b.bytes for b in of[1]]
