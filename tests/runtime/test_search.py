"""The search for equal vertices pauses where batches have few copies."""

from __future__ import annotations

import json

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.compiler.pipeline import Passes
from cavs.data import GraphBatch
from cavs.errors import CheckpointError
from tests import oracle
from tests.runtime.trees import CLASSES, binary

TRIED, PAUSE = 4, 63


class OfFloats(cavs.Model):
    """A tree model over float features, in which vertices seldom agree."""

    def __init__(self):
        self.tree = nn.ChildSumTreeLSTM(3, 4)
        self.output = nn.Linear(4, CLASSES)

    def forward(self, batch):
        """Return one row for each vertex."""
        return self.output(self.tree(batch.graph, x=batch["x"]))

    def loss(self, batch):
        """Return the mean cross entropy over vertices."""
        return ops.cross_entropy(self.forward(batch), batch["label"])


def drawn(seed, copies=False):
    """Return a batch of 266 vertices that are all different, or 14 times the same tree."""
    rng = np.random.default_rng(seed)

    def graph():
        tree = binary(10, rng)
        children = [tree.children(v).tolist() for v in range(19)]
        x = rng.standard_normal((19, 3)).astype(np.float32)
        return cavs.Graph(children, {"x": x, "label": rng.integers(0, CLASSES, 19)})

    return cavs.batch([graph()] * 14 if copies else [graph() for _ in range(14)])


@pytest.fixture
def searched(monkeypatch):
    """A list of the batches that were searched for equal vertices."""
    found = []
    make = GraphBatch.merged

    def merged(batch, *arguments, **named):
        found.append(batch)
        return make(batch, *arguments, **named)

    monkeypatch.setattr(GraphBatch, "merged", merged)
    return found


def is_searched(session, batch, searched):
    """Evaluate a batch; return whether equal vertices were looked for."""
    before = len(searched)
    session.evaluate(batch)
    return len(searched) > before


def new_session(**options):
    model = OfFloats()
    model.initialize(0)
    return cavs.Session(model, **options)


def test_a_batch_with_few_copies_runs_as_it_is():
    """Its program is that without merging, with the same bits; one with copies is merged."""
    session, unmerged = new_session(), new_session(passes=Passes(merge_vertices=False))
    batch = drawn(0)
    (loss, found), (expected, of) = session.gradients(batch), unmerged.gradients(batch)
    assert loss == expected
    for name, gradient in of.items():
        np.testing.assert_array_equal(found[name], gradient)
    assert session.schedule(batch).batch.num_vertices == batch.num_vertices
    assert session.schedule(drawn(1, copies=True)).batch.num_vertices == 19


def test_the_search_pauses_after_batches_with_few_copies(searched):
    session, batch = new_session(), drawn(0)
    for _ in range(3):
        found = [is_searched(session, drawn(1), searched) for _ in range(TRIED - 1)]
        assert all(found)
        assert is_searched(session, drawn(2, copies=True), searched)  # the count begins again
    for tried in (TRIED, 1, 1):
        assert all(is_searched(session, batch, searched) for _ in range(tried))
        assert not any(is_searched(session, batch, searched) for _ in range(PAUSE))
    assert is_searched(session, drawn(2, copies=True), searched)
    assert is_searched(session, batch, searched)


def test_training_and_evaluation_are_counted_separately(searched):
    session, batch = new_session(), drawn(0)
    for _ in range(TRIED):
        session.evaluate(batch)
    assert not is_searched(session, batch, searched)
    session.gradients(batch)
    assert searched[-1] is batch


def test_every_batch_equals_the_oracle(searched):
    """Batches with many copies, searched and not, merged and not."""
    model = oracle.drawn(OfFloats(), 0.5)
    session = cavs.Session(model, dtype=np.float64)
    sizes = set()
    for seed in range(TRIED + 3):
        batch = drawn(seed, copies=seed in (0, TRIED + 2))
        before = len(searched)
        loss, gradients = session.gradients(batch)
        sizes.add((len(searched) > before, session.latest().key.merging))
        _, expected = oracle.reference(model, batch)
        oracle.assert_close(loss, expected["loss"], 1e-11, "loss")
        for name, gradient in gradients.items():
            oracle.assert_close(gradient, expected[f"grad:{name}"], 1e-11, name)
    assert sizes == {(True, True), (True, False), (False, False)}


def trained(trainer, batches):
    """Return the losses of a step on each batch."""
    return [float(trainer.step(batch)) for batch in batches]


@pytest.mark.parametrize("done", [2, TRIED, TRIED + 5])
def test_a_resumed_training_searches_the_same_batches(tmp_path, done):
    """Its losses have the same bits, although batches with copies run unmerged in a pause."""
    batches = [drawn(seed, copies=seed >= TRIED and seed % 3 == 0) for seed in range(TRIED + 12)]

    def start():
        model = OfFloats()
        model.initialize(0)
        return cavs.Trainer(model, cavs.optim.Adam(lr=0.01))

    whole, first, resumed = start(), start(), start()
    expected = trained(whole, batches)
    assert trained(first, batches[:done]) == expected[:done]
    first.save(tmp_path / "m")
    resumed.resume(tmp_path / "m")
    resumed.session.prepare(batches[done])  # as loaders do in the background
    assert trained(resumed, batches[done:]) == expected[done:]
    assert resumed.session.state_dict() == whole.session.state_dict()


def test_replicas_search_every_batch(searched):
    """They run one program, whatever their batches look like."""
    session, batch = new_session(replicated=True), drawn(0)
    session.compile_for(batch, lambda own: own)
    for seed in range(TRIED + 2):
        session.ready(drawn(seed))
        assert session.latest().key.merging
    assert len(searched) >= TRIED + 2


def test_a_state_that_counts_no_batches_is_refused():
    session = new_session()
    session.evaluate(drawn(0))
    state = json.loads(json.dumps(session.state_dict()))
    new_session().load_state_dict(state)
    entry = next(e for e in state["variants"] if e["merging"])
    assert entry["search"] == [1, 0]
    for wrong in ([-1, 0], [0, -2], [0, 0, 0], "few", None):
        entry["search"] = wrong
        with pytest.raises(CheckpointError, match="state of the session"):
            new_session().load_state_dict(state)
    del entry["search"]  # older checkpoints have none
    new_session().load_state_dict(state)
