"""Variants of a session: prepared schedules, and programs that ranks share."""

from __future__ import annotations

import json

import numpy as np
import pytest

import cavs
from cavs import _engine, nn, ops
from cavs.compiler.pipeline import Passes
from tests.runtime.trees import CLASSES, WORDS, Classifier, OfRoots, binary, treebank


def large(seed):
    """Return a batch in which equal vertices are merged, if the model allows it."""
    return treebank(30, seed)


@pytest.mark.parametrize("rate", [0.0, 0.5])
@pytest.mark.parametrize("make", [large, lambda seed: treebank(2, seed)])
def test_a_prepared_batch_is_scheduled_once(monkeypatch, rate, make):
    """With dropout copies are not merged, so batches large and small run as they are."""
    made = []

    def counted(*arguments, **named):
        made.append(arguments)
        return original(*arguments, **named)

    original = _engine.make_schedule
    session = cavs.Session(Classifier(rate=rate))
    session.gradients(make(0))
    monkeypatch.setattr(_engine, "make_schedule", counted)
    batch = make(1)
    session.prepare(batch)
    assert len(made) == 1
    session.gradients(batch)
    assert len(made) == 1


def test_a_program_may_be_dropped_while_another_thread_prepares(monkeypatch):
    """A trace for new features, or a session of another dtype, drops programs."""
    session = cavs.Session(Classifier())
    session.gradients(large(0))
    rows = session._programs.rows_of

    def dropping(variant, batch):
        found = rows(variant, batch)
        session._variants.drop_builds()
        return found

    monkeypatch.setattr(session._programs, "rows_of", dropping)
    session.prepare(large(1))
    monkeypatch.undo()
    session.gradients(large(1))


def test_batches_are_prepared_for_training_or_evaluation(monkeypatch):
    """An evaluation in between does not slow training batches, nor the other way round."""
    wanted = []
    make = cavs.data.GraphBatch.merged

    def merged(batch, names, child_numbers=0):
        wanted.append(len(names))
        return make(batch, names, child_numbers)

    graphs = treebank(20).graphs
    trainer = cavs.Trainer(Classifier(), cavs.optim.SGD(lr=0.01))
    train, dev = (cavs.DataLoader(graphs, 20, prefetch=0) for _ in range(2))
    trainer.fit(train, dev=dev, epochs=1, progress=False)
    monkeypatch.setattr(cavs.data.GraphBatch, "merged", merged)
    assert train.prepare == trainer.session.prepare
    assert dev.prepare == trainer.prepare_evaluation
    for loader in train, dev:
        wanted.clear()
        next(iter(loader))
        assert len(wanted) == 1
    trainer.evaluate(train)
    assert train.prepare == trainer.session.prepare


def test_features_that_are_absent_on_other_ranks():
    """Another rank has vertices without a word: this one traces again, though its batches fit."""
    chains = cavs.batch(
        [cavs.Graph.chain(4, features={"token": [1, 2, 3, 4], "label": [0, 1, 2, 3]})] * 3
    )
    session = cavs.Session(Classifier(nn.ChildSumTreeLSTM(8, 6)), replicated=True)
    session.compile_for(chains, lambda own: own)
    assert not session.is_new(chains)
    asked = []

    def union(own):
        asked.append(list(own))
        return sorted({*own, "token"}) if len(asked) == 1 else own

    session.compile_for(chains, union)
    assert asked[0] == []  # nothing is absent here
    _, _, compiled = session.ready(chains)
    assert compiled.program.optional == ("token",)


class ManyWords(cavs.Model):
    """Features that may be absent, as many as the kinds of vertices can distinguish."""

    def __init__(self, count):
        self.count = count
        self.embedding = nn.Embedding(WORDS, 3, init="xavier")
        self.tree = nn.BinaryTreeLSTM(3, 2)
        self.output = nn.Linear(2, CLASSES)

    def forward(self, batch):
        x = self.embedding(batch["token"])
        for i in range(self.count - 1):
            x = x + self.embedding(batch[f"extra {i}"])
        return self.output(self.tree(batch.graph, x=x))

    def loss(self, batch):
        return ops.cross_entropy(self.forward(batch), batch["label"])


@pytest.mark.parametrize("count", [30, 32])
def test_as_many_optional_features_as_there_can_be(monkeypatch, count):
    """Kinds by number of child take two bits more: with 32 features there is no room for them."""
    monkeypatch.setattr("cavs.runtime.program_cache.MIN_MERGED", 1)
    monkeypatch.setattr("cavs.runtime.program_cache.MIN_READERS", 0.0)
    rng = np.random.default_rng(0)
    graphs = []
    for i in range(6):
        tree = binary(5, rng)
        extra = {f"extra {j}": np.full(9, 1 if i == 0 else -1) for j in range(count - 1)}
        children = [[int(c) for c in tree.children(v)] for v in range(9)]
        graphs.append(cavs.Graph(children, {**dict(tree.features), **extra}))
    model, batch = ManyWords(count), cavs.batch(graphs)
    session = cavs.Session(model)
    found = session.predict(batch)["output"]
    unmerged = cavs.Session(model, passes=Passes(merge_vertices=False)).predict(batch)["output"]
    np.testing.assert_allclose(found, unmerged, rtol=1e-5, atol=1e-6)
    if count == 32:
        assert session.schedule(batch, training=False).batch.num_vertices < batch.num_vertices


def test_features_named_like_those_of_the_compiler(monkeypatch):
    """They are the user's; copies are not merged."""
    monkeypatch.setattr("cavs.runtime.program_cache.MIN_MERGED", 1)

    class Named(Classifier):
        def forward(self, batch):
            x = self.embedding(batch["token"]) * batch["#copies"]
            return self.output(self.tree(batch.graph, x=x))

    whole = treebank(3)
    graphs = [
        cavs.Graph(g.topology, {**dict(g.features), "#copies": np.full(g.num_vertices, 0.5)})
        for g in whole.graphs
    ]
    model, batch = Named(), cavs.batch(graphs)
    found = cavs.Session(model).predict(batch)["output"]
    unmerged = cavs.Session(model, passes=Passes(merge_vertices=False)).predict(batch)["output"]
    np.testing.assert_array_equal(found, unmerged)


class Remembering(cavs.VertexFunction):
    """Multiplies two states of each child; half of one is zero at a leaf."""

    def __init__(self, input_size, hidden_size):
        self.state = cavs.State(c=2 * hidden_size, h=hidden_size)
        self.W = cavs.Parameter((input_size, hidden_size))
        self.U = cavs.Parameter((6 * hidden_size, hidden_size))

    def vertex(self, v):
        left, right = v.gather(0), v.gather(1)
        below = ops.concat([left.c, left.h, right.c, right.h]) @ self.U
        h = ops.tanh(v.pull("x") @ self.W + below)
        v.scatter(c=ops.concat([left.h + right.h, 0.5 * h]), h=h)
        v.push(h)


def test_rows_of_a_gradient_that_a_kind_leaves_zero(monkeypatch):
    """The rows of U for the second child, and for its h."""
    monkeypatch.setattr("cavs.runtime.program_cache.MIN_MERGED", 1)
    monkeypatch.setattr("cavs.runtime.program_cache.MIN_READERS", 0.0)
    model, batch = Classifier(Remembering(8, 6)), treebank(8)
    on, off = Passes(), Passes(merge_vertices=False)
    _, found = cavs.Session(model, passes=on).gradients(batch)
    _, expected = cavs.Session(model, passes=off).gradients(batch)
    for name, gradient in expected.items():
        np.testing.assert_allclose(found[name], gradient, rtol=1e-4, atol=1e-6, err_msg=name)


def sums_in_loops(session):
    """Return for each program whether it sums gradients task by task, as one that saves memory
    does.
    """
    programs = [v.build.compiled.program for v in session._variants.values() if v.build]
    loops = [(p, s) for p in programs for s in p.stages if s.gradient]
    return [
        any(p.instructions[i].type == "matmul_tn" for body in s.bodies for i in body)
        for p, s in loops
    ]


@pytest.mark.parametrize("told", [True, False])
def test_a_resumed_session_uses_the_same_memory_plan(told):
    """It uses the stored shape of graphs; without one, the plain program, whatever runs first.

    Here the first batch has no edges.
    """

    def chains(*sizes):
        made = []
        for n in sizes:
            token = {"token": [i % WORDS for i in range(n)]}
            children = [[], *([i] for i in range(n - 1))]
            made.append(cavs.Graph(children, token, graph_features={"label": 1}))
        return cavs.batch(made)

    model = OfRoots(nn.TreeFC(8), 8)
    model.initialize(0, np.float32)
    first = cavs.Session(model)
    first.gradients(chains(40, 23))
    assert sums_in_loops(first) == [True]
    state = json.loads(json.dumps(first.state_dict()))
    for entry in state["variants"] if not told else ():
        del entry["shape"]
    found = []
    for _ in range(2):
        session = cavs.Session(model)
        session.load_state_dict(state)
        if not found:
            session.gradients(chains(1, 1))
        found.append(session.gradients(chains(40, 23))[1])
        assert sums_in_loops(session) == [told]
        state = json.loads(json.dumps(session.state_dict()))
    for name, g in found[0].items():
        assert np.array_equal(g, found[1][name])
