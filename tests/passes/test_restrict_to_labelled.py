"""Losses are computed at labelled vertices only, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.compiler.pipeline import Passes
from cavs.errors import CompileError
from cavs.frontend.model import trace_model
from cavs.ir import Domain, Graph
from cavs.ir.interpret import interpret
from cavs.passes.differentiate import differentiate
from cavs.passes.restrict_to_labelled import restrict_to_labelled
from cavs.runtime import program_cache
from tests.oracle import assert_close, inputs_of, reference
from tests.passes.graphs import SCHEMA

LABELLED = Domain("present", "label")
SOME = {
    **SCHEMA,
    "label": replace(SCHEMA["label"], optional=True),
    "other": replace(SCHEMA["label"], optional=True),
    "always": SCHEMA["label"],
}


class Losses(cavs.Model):
    """A cell, and a loss of what it pushes: ``losses`` has the ways."""

    def __init__(self, loss):
        self.word = nn.Embedding(7, 6)
        self.cell = nn.ChildSumTreeLSTM(6, 6)
        self.hidden, self.output, self.second = (nn.Linear(6, n) for n in (6, 4, 5))
        self.way = loss

    def logits(self, h):
        return self.output(ops.tanh(self.hidden(h)))

    def loss(self, batch):
        return self.way(self, batch, self.cell(batch.graph, x=self.word(batch["token"])))


def weighed(m, b, h):
    """Elementwise values, features and values of graphs between logits and label, and weights."""
    z = m.logits(h) + b["a"][0:4] + ops.sum_graph(h)[0:4]
    rows = ops.cross_entropy(z, b["label"], "none")
    return ops.sum_rows(-(rows * ops.sigmoid(b["b"].sum(-1))) / 3.0)


LOSSES = {
    "plain": lambda m, b, h: ops.cross_entropy(m.output(h), b["label"]),
    "hidden": lambda m, b, h: ops.cross_entropy(m.logits(h), b["label"]),
    "dropout": lambda m, b, h: ops.cross_entropy(m.logits(ops.dropout(h, 0.4)), b["label"], "sum"),
    "weighed": weighed,
    "mean of rows": lambda m, b, h: ops.mean_rows(
        ops.cross_entropy(m.logits(h), b["label"], "none"), b["b"].sum(-1) * b["b"].sum(-1)
    ),
    "two losses of one layer": lambda m, b, h: (
        ops.cross_entropy(m.logits(h), b["label"])
        + ops.cross_entropy(m.second(ops.tanh(m.hidden(h))), b["label"])
    ),
    "two labels": lambda m, b, h: (
        ops.cross_entropy(m.logits(h), b["label"])
        + ops.cross_entropy(m.second(ops.tanh(m.hidden(h))), b["other"])
    ),
    "read elsewhere": lambda m, b, h: (
        ops.cross_entropy(m.logits(h), b["label"]) + ops.mean_rows(ops.square(m.hidden(h)).sum(-1))
    ),
    "rows in a formula": lambda m, b, h: ops.sum_rows(
        ops.square(ops.cross_entropy(m.logits(h), b["label"], "none") - 0.5)
    ),
    "of a label that is always there": lambda m, b, h: ops.cross_entropy(m.logits(h), b["always"]),
}
NOT_CHANGED = {"of a label that is always there"}


def trees(rng, labels, many=12):
    """labels: "roots" alone, "some" or "none"."""
    made = []
    for n in rng.integers(1, 9, many):
        children = [rng.choice(v, min(v, 2), replace=False).tolist() for v in range(n)]
        known = {"some": rng.random(n) < 0.4, "none": np.zeros(n, bool)}.get(labels)
        known = np.arange(n) == n - 1 if known is None else known
        features = {
            "token": rng.integers(-1, 7, n),
            "a": rng.normal(size=(n, 6)),
            "b": rng.normal(size=(n, 6)),
            "label": np.where(known, rng.integers(0, 4, n), -1),
            "other": rng.integers(-1, 3, n),
            "always": rng.integers(0, 4, n),
        }
        made.append(cavs.Graph(children, features))
    return made


class Scattered(Losses):
    """Cells that scatter what they lose, alone or by a gathered number."""

    class Cell(cavs.VertexFunction):
        def __init__(self, way):
            self.state = cavs.State(h=6)
            self.W = cavs.Parameter((6, 6))
            self.way = way

        def vertex(self, v):
            before = v.gather().h.sum()
            logits = (v.pull("x") if self.way == "known before" else before) @ self.W
            rows = ops.cross_entropy(logits[0:4], v.pull("label"), "none")
            if self.way == "known before":
                rows = rows * before.sum(-1)
            h = ops.tanh(v.pull("x") + before * 0.5 + ops.reshape(rows, (1,)))
            v.scatter(h=h)
            v.push(h)

    def __init__(self, way):
        super().__init__(None)
        self.cell = self.Cell(way)

    def loss(self, batch):
        x = self.word(batch["token"])
        h = self.cell(batch.graph, x=x, label=batch["label"])
        return ops.cross_entropy(self.logits(h), batch["label"])


MODELS = {name: (Losses, way) for name, way in LOSSES.items()}
MODELS |= {f"scattered, {way}": (Scattered, way) for way in ("of gathered", "known before")}


def model_of(name):
    made, way = MODELS[name]
    model = made(way)
    model.initialize(0, np.float64)
    return model


def loss_of(model):
    graph = trace_model(model, SOME, training=True)
    return Graph({"loss": graph.outputs["loss"]}, graph.slots)


@pytest.mark.parametrize("labels", ["roots", "some", "none"])
@pytest.mark.parametrize("name", MODELS)
def test_the_interpreter_sees_no_difference(name, labels):
    model = model_of(name)
    batch = cavs.batch(trees(np.random.default_rng(0), labels, 3))
    before = loss_of(model)
    after = restrict_to_labelled(before)
    assert (after == before) == (name in NOT_CHANGED)
    for made in (lambda g: g, differentiate):
        expected = interpret(made(before), inputs_of(batch))
        found = interpret(made(after), inputs_of(batch))
        assert found.keys() == expected.keys()
        for key, values in expected.items():
            assert_close(found[key], values, 1e-12, key)


@pytest.mark.parametrize("name", MODELS)
def test_training_equals_the_oracle(name, monkeypatch):
    """Batches with labels at roots, at some vertices and nowhere, one after the other; of distinct
    vertices and of all."""
    model = model_of(name)
    rng = np.random.default_rng(1)
    batches = [cavs.batch(trees(rng, labels)) for labels in ("some", "roots", "none", "some")]
    known = [reference(model, batch, seed=3, step=1)[1] for batch in batches]
    for merged in (False, True):
        monkeypatch.setattr(program_cache, "MIN_MERGED", 1 if merged else 10**9)
        session = cavs.Session(model, dtype=np.float64)
        for batch, expected in zip(batches, known, strict=True):
            loss, gradients = session.gradients(batch, seed=3, step=1)
            assert_close(loss, expected["loss"], 1e-9, "loss")
            for key, g in gradients.items():
                assert_close(g, expected.get(f"grad:{key}", np.zeros(g.shape)), 1e-9, key)


def rows_of(name, op):
    """The rows that operators of one name run over, before differentiation."""
    graph = restrict_to_labelled(loss_of(model_of(name)))
    return [str(n.type.domain) for n in graph.nodes() if n.op.name == op]


def test_the_output_layer_runs_where_there_is_a_label():
    cell = ["vertex", "vertex", "edge"]
    assert sorted(rows_of("hidden", "matmul")) == sorted([*cell, *["present.label"] * 2])
    assert rows_of("dropout", "uniform") == ["present.label"]
    assert sorted(rows_of("two losses of one layer", "matmul"))[:3] == sorted(
        ["edge", "present.label", "present.label"]
    )


def test_what_others_read_stays():
    hidden_and_cell = ["vertex", "vertex", "vertex", "edge"]
    of_both = [*hidden_and_cell, "present.label", "present.other"]
    assert sorted(rows_of("two labels", "matmul")) == sorted(of_both)
    assert sorted(rows_of("read elsewhere", "matmul")) == sorted(
        [*hidden_and_cell, "present.label"]
    )


def test_what_runs_level_by_level_stays():
    """The loss of a cell that is scattered again; what comes before the loop does not stay."""
    gathered = rows_of("scattered, of gathered", "cross_entropy_rows")
    assert sorted(gathered) == ["present.label", "vertex"]
    before = rows_of("scattered, known before", "cross_entropy_rows")
    assert before == ["present.label", "present.label"]


def test_rows_with_a_label_in_a_loop_are_refused(monkeypatch):
    monkeypatch.setattr("cavs.passes.restrict_to_labelled.loops_of", lambda graph: {})
    with pytest.raises(CompileError, match=r"@present\.label is in a loop"):
        cavs.Session(model_of("scattered, of gathered")).gradients(
            cavs.batch(trees(np.random.default_rng(0), "some"))
        )


class SecondChild(cavs.VertexFunction):
    """One child multiplies what is scattered, another what is pushed."""

    def __init__(self):
        self.state = cavs.State(h=6)
        self.U, self.V = cavs.Parameter((6, 6)), cavs.Parameter((6, 6))

    def vertex(self, v):
        h = ops.tanh(v.pull("x") + v.gather(0).h @ self.U)
        v.scatter(h=h)
        v.push(ops.tanh(h + v.gather(1).h @ self.V))


def test_products_at_leaves_that_only_the_loss_reads(monkeypatch):
    """Kinds of vertices are numbered by which child of another they are."""
    monkeypatch.setattr(program_cache, "MIN_MERGED", 1)
    monkeypatch.setattr(program_cache, "MIN_READERS", 0)
    model = Losses(LOSSES["hidden"])
    model.cell = SecondChild()
    model.initialize(0, np.float64)
    batch = cavs.batch(trees(np.random.default_rng(4), "roots"))
    session = cavs.Session(model, dtype=np.float64)
    loss, gradients = session.gradients(batch)
    names, _ = zip(*cavs.explain(model, batch).stages, strict=True)
    assert {"hoist_products_to_leaves", "restrict_to_labelled"} <= set(names)
    _, expected = reference(model, batch)
    assert_close(loss, expected["loss"], 1e-9, "loss")
    for key, g in gradients.items():
        assert_close(g, expected.get(f"grad:{key}", np.zeros(g.shape)), 1e-9, key)


def test_kinds_numbered_otherwise_are_refused(monkeypatch):
    model = model_of("hidden")
    monkeypatch.setattr("cavs.runtime.tracing.optional_features", lambda graph: ("other",))
    with pytest.raises(CompileError, match=r"numbered by \('other',\).*by \('token',\)"):
        cavs.Session(model).gradients(cavs.batch(trees(np.random.default_rng(0), "some")))


def test_predictions_are_of_all_vertices():
    """Where the logits are asked for, the loss reads them as they are."""

    class Predicting(Losses):
        def forward(self, batch):
            return self.logits(self.cell(batch.graph, x=self.word(batch["token"])))

        def loss(self, batch):
            return ops.cross_entropy(self.forward(batch), batch["label"])

    model = Predicting(None)
    model.initialize(0, np.float64)
    traced = trace_model(model, SOME, training=False)
    assert restrict_to_labelled(traced) == traced
    batch = cavs.batch(trees(np.random.default_rng(2), "roots"))
    found = cavs.Session(model, dtype=np.float64).evaluate(batch)
    _, expected = reference(model, batch, training=False)
    assert_close(found.outputs["output"], expected["output"], 1e-9, "output")
    assert_close(found.loss, expected["loss"], 1e-9, "loss")


def test_the_report_counts_rows_with_a_label():
    model = Losses(LOSSES["hidden"])
    model.initialize(0)
    batch = cavs.batch(trees(np.random.default_rng(3), "roots", 10))
    on, off = (
        cavs.explain(model, batch, run=True, passes=Passes(restrict_to_labelled=switch))
        for switch in (True, False)
    )
    assert "restrict_to_labelled" in dict(on.stages)
    assert "restrict_to_labelled" not in dict(off.stages)
    logits = [b for b in on.buffers if b.space == "present.label" and b.width == 4 and b.bytes]
    assert logits and all(b.bytes == 10 * 4 * 4 for b in logits)
    assert not any("present" in b.space for b in off.buffers)
    assert "of vertices with label" in on.program and "where there is label" in on.program
    assert on.run is not None and off.run is not None
    assert on.run.write_bytes < off.run.write_bytes
