"""Outputs that the engine copies to the caller chunk by chunk, and those that stay in the arena."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.compiler.pipeline import Passes
from tests.oracle import drawn, reference
from tests.runtime.trees import Classifier, OfRoots, treebank

WIDE = 700  # columns: several chunks of rows


class Wide(Classifier):
    """Predictions that nothing else reads, wide enough for several chunks of rows."""

    def __init__(self, classes=WIDE):
        super().__init__()
        self.output = nn.Linear(6, classes)


class WithStates(Wide):
    """The states are predictions too, which the tasks of parents read; one has two names."""

    def forward(self, batch):
        h = self.tree(batch.graph, x=self.embedding(batch["token"]))
        y = self.output(h)
        return {"h": h, "y": y, "again": y}

    def loss(self, batch):
        return ops.cross_entropy(self.forward(batch)["y"], batch["label"])


def roles(session, batch):
    program = session.compiled(batch, training=False).program
    return {
        name: program.buffers[b].role
        for name, b in program.outputs.items()
        if name not in ("loss", "weight")
    }


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("trees", [1, 3, 60], ids=["narrow", "few", "several chunks"])
@pytest.mark.parametrize("merge_vertices", [False, True])
def test_copied_outputs_equal_the_oracle(threads, trees, merge_vertices):
    model, batch = drawn(Wide(), 0.7), treebank(trees, longest=9)
    passes = Passes(merge_vertices=merge_vertices)
    session = cavs.Session(model, dtype="float64", threads=threads, passes=passes)
    expected = reference(model, batch, training=False)[1]
    np.testing.assert_allclose(session.predict(batch)["output"], expected["output"], rtol=1e-9)
    assert roles(session, batch) == {"output": "scratch"}


def test_outputs_that_are_read_elsewhere_stay_in_the_arena():
    model, batch = drawn(WithStates(), 0.7), treebank(5)
    session = cavs.Session(model, dtype="float64")
    found = session.predict(batch)
    assert roles(session, batch) == {"h": "arena", "y": "scratch", "again": "scratch"}
    np.testing.assert_array_equal(found["again"], found["y"])
    assert not np.shares_memory(found["again"], found["y"])
    expected = reference(model, batch, training=False)[1]
    for name in ("h", "y"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-9)


class OfGraphs(OfRoots):
    def loss(self, batch):
        return ops.mean_squared_error(self.forward(batch), 0.5)


def test_outputs_of_graphs_and_of_unplanned_memory_stay_in_the_arena():
    batch = treebank(4)
    assert roles(cavs.Session(drawn(OfGraphs(), 0.7)), batch) == {"output": "arena"}
    session = cavs.Session(drawn(Wide(), 0.7), passes=Passes(plan_memory=False))
    assert roles(session, batch) == {"output": "arena"}


def test_later_runs_leave_earlier_outputs_unchanged():
    model = drawn(Wide(4000), 0.7)  # large enough for the pool of outputs
    session = cavs.Session(model)
    batches = [treebank(8, seed=n) for n in range(4)]
    kept = [session.predict(batch)["output"] for batch in batches]
    copies = [values.copy() for values in kept]
    again = [session.predict(batch)["output"] for batch in reversed(batches)]
    for values, copy, repeated in zip(kept, copies, reversed(again), strict=True):
        np.testing.assert_array_equal(values, copy)
        np.testing.assert_array_equal(repeated, copy)
        assert values.nbytes > 1 << 20


def test_copied_outputs_are_no_part_of_the_peak():
    batch = treebank(40)
    peak = {}
    for classes in (WIDE, 2 * WIDE):
        session = cavs.Session(drawn(Wide(classes), 0.7))
        session.predict(batch)
        peak[classes] = session.report(training=False)["peak_bytes"]
    assert peak[WIDE] == peak[2 * WIDE]


def test_outstanding_forward_runs_have_their_own_outputs():
    class Inputs(Wide):
        def forward(self, batch):
            return self.output(self.tree(batch.graph, x=batch["x"]))

    rng = np.random.default_rng(0)
    batches = []
    for size in (9, 3):
        children = [[], *([[i] for i in range(size - 1)])]
        x = rng.normal(size=(size, 8)).astype(np.float32)
        batches.append(cavs.batch([cavs.Graph(children, {"x": x, "label": [0] * size})] * 4))
    session = cavs.Session(drawn(Inputs(), 0.7))
    alone, found = [], []
    for batch in batches:
        run = session.forward(batch, inputs=True)
        cotangents = {"output": np.ones_like(run.outputs["output"])}
        alone.append((run.outputs["output"].copy(), run.backward(cotangents)))
    runs = [session.forward(batch, inputs=True) for batch in batches]
    for run in runs:
        y = run.outputs["output"]
        found.append((y, run.backward({"output": np.ones_like(y)})))
    for (y, gradients), (same, again) in zip(alone, found, strict=True):
        np.testing.assert_array_equal(same, y)
        np.testing.assert_array_equal(again.inputs["x"], gradients.inputs["x"])
