"""Readouts of whole graphs: `ops.sum_roots`, `sum_graph`, `mean_graph` behind a cell."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.compiler.pipeline import Passes
from cavs.errors import TraceError
from cavs.train import metrics
from tests.oracle import assert_close, reference
from tests.runtime.trees import CLASSES, WORDS

WHOLE = {
    "roots": ops.sum_roots,
    "leaves": ops.sum_leaves,
    "sum": ops.sum_graph,
    "mean": ops.mean_graph,
}
UNMERGED = {
    "max": ops.max_graph,
    "attended": lambda h: ops.sum_graph(ops.softmax_graph(h) * h),
}
CHILDREN = {
    "tree": [[], [], [0, 1], [], [2, 3]],
    "several roots": [[], [], [0], [1], [0, 1], []],  # the last vertex is isolated
    "shared child": [[], [0, 0], [0, 1]],
    "one vertex": [[]],
    "chain": [[], [0], [1], [2], [3]],
    "deeper": [[], [], [], [0, 1], [3, 2]],
}


def graphs_of(seed=0, copies=1, words=WORDS):
    """Return ``copies`` graphs of each shape, with few words, so that some vertices are equal."""
    rng = np.random.default_rng(seed)
    result = []
    for name, children in list(CHILDREN.items()) * copies:
        token = rng.integers(0, words, len(children))
        label = rng.integers(-1, CLASSES)  # some graphs have none
        weight = rng.normal()
        result.append(
            cavs.Graph(
                children,
                {"token": token, "at_root": np.full(len(children), -1)},
                graph_features={"label": label, "weight": weight},
                name=name,
            )
        )
    return result


class OfGraphs(cavs.Model):
    """A child-sum Tree-LSTM with one loss per graph."""

    def __init__(self, whole="roots", top_down=False, rate=0.0):
        self.embedding = nn.Embedding(WORDS, 5, init="xavier")
        self.tree = nn.LSTM(5, 4) if top_down else nn.ChildSumTreeLSTM(5, 4)
        self.output = nn.Linear(4, CLASSES)
        self.dropout, self.whole, self.top_down = nn.Dropout(rate), whole, top_down

    def forward(self, batch):
        graph = batch.graph.reversed() if self.top_down else batch.graph
        h = self.tree(graph, x=self.embedding(batch["token"]))
        return self.output(self.dropout((WHOLE | UNMERGED)[self.whole](h)))

    def loss(self, batch):
        rows = self.forward(batch)
        weighed = ops.sum_rows(rows.sum(-1) * batch["weight"])
        return ops.cross_entropy(rows, batch["label"]) + 0.1 * weighed


def references(model, batch):
    """Initialise the model and return its outputs by the oracle, in training and outside."""
    model.initialize(3, np.float64)
    _, training = reference(model, batch, seed=1)
    _, forward = reference(model, batch, training=False)
    return training, forward


def compare(model, batch, passes=None, tolerance=1e-12, known=None):
    """Compare loss, gradients and predictions of a float64 session with the oracle.

    known: the references, where another session of the model was compared with them.
    """
    training, forward = known or references(model, batch)
    session = cavs.Session(model, dtype=np.float64, passes=passes)
    loss, gradients = session.gradients(batch, seed=1)
    assert_close(loss, training["loss"], tolerance, "loss")
    for key, value in gradients.items():
        assert_close(value, training[f"grad:{key}"], tolerance, key)
    found = session.evaluate(batch)
    assert found.outputs["output"].shape == (batch.num_graphs, CLASSES)
    assert_close(found.outputs["output"], forward["output"], tolerance, "output")
    assert_close(session.predict(batch)["output"], forward["output"], tolerance, "predict")
    return session


@pytest.mark.parametrize("whole", WHOLE | UNMERGED)
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_against_the_oracle(whole, rate):
    for graphs in (graphs_of(), graphs_of()[3:4], graphs_of()[1:2]):
        compare(OfGraphs(whole, rate=rate), cavs.batch(graphs))


@pytest.mark.parametrize("whole", WHOLE)
def test_equal_vertices_are_computed_once(whole):
    """Each graph reads its vertices among the distinct ones, as often as it has them."""
    batch = cavs.batch(graphs_of(copies=30, words=3))
    assert batch.num_vertices >= 256
    model = OfGraphs(whole)
    known = references(model, batch)
    session = compare(model, batch, known=known)
    schedule = session.schedule(batch)
    assert schedule.batch.num_vertices < batch.num_vertices / 4
    unmerged = compare(model, batch, Passes(merge_vertices=False), known=known)
    assert unmerged.schedule(batch).batch.num_vertices == batch.num_vertices


@pytest.mark.parametrize("whole", UNMERGED)
def test_a_maximum_or_weights_prevent_merging(whole):
    """Backward of a vertex reads values of its graph."""
    batch = cavs.batch(graphs_of(copies=30, words=3))
    session = compare(OfGraphs(whole), batch)
    assert session.schedule(batch).batch.num_vertices == batch.num_vertices
    forward = session.schedule(batch, training=False).batch.num_vertices
    assert (forward < batch.num_vertices) == (whole == "max")


@pytest.mark.parametrize("whole", ["leaves", "roots"])
def test_from_the_roots_down(whole):
    """Sentences that are read from their end, up to the first word."""
    chains = [
        cavs.Graph.chain(n, features={"token": np.arange(n)}).with_features(
            graph_features={"label": n % CLASSES, "weight": 0.5}
        )
        for n in (1, 4, 7)
    ]
    compare(OfGraphs(whole, top_down=True), cavs.batch(chains))


class AtRoots(OfGraphs):
    """The same model, with labels at the roots of the graphs."""

    def forward(self, batch):
        return self.output(self.tree(batch.graph, x=self.embedding(batch["token"])))

    def loss(self, batch):
        return ops.cross_entropy(self.forward(batch), batch["at_root"])


class Labelled(OfGraphs):
    def loss(self, batch):
        return ops.cross_entropy(self.forward(batch), batch["label"])


@pytest.mark.parametrize("copies", [1, 40])
def test_labels_of_trees_are_labels_of_their_roots(copies):
    trees = []
    for g in graphs_of(copies=copies, words=4):
        if g.name in ("tree", "one vertex", "chain", "deeper"):
            at_root = [*[-1] * (g.num_vertices - 1), int(g.graph_features["label"])]
            trees.append(g.with_features({"at_root": at_root}))
    batch = cavs.batch(trees)
    found = []
    for make in (Labelled, AtRoots):
        model = make()
        model.initialize(5, np.float64)
        session = cavs.Session(model, dtype=np.float64)
        found.append((*session.gradients(batch), session.evaluate(batch)))
    (loss, gradients, at_roots), (other, others, everywhere) = found
    assert_close(loss, other, 1e-12, "loss")
    for key, value in gradients.items():
        assert_close(value, others[key], 1e-12, key)
    roots = metrics.batch_roots(batch)
    assert_close(at_roots.outputs["output"], everywhere.outputs["output"][roots], 1e-12, "output")


def test_fit_evaluate_and_resume(tmp_path):
    """Accuracy counts graphs; a resumed run ends with the same bits."""
    rng = np.random.default_rng(0)

    def example():
        n = int(rng.integers(2, 9))
        token = rng.integers(0, WORDS, n)
        label = int(token[-1] % 2)  # the last word decides
        return cavs.Graph.chain(n, features={"token": token}).with_features(
            graph_features={"label": label}
        )

    data = [example() for _ in range(300)]

    def run(epochs, resume=None, checkpoint=None):
        model = Labelled()
        trainer = cavs.Trainer(model, cavs.optim.Adam(lr=0.02), seed=0, threads=1)
        if resume is not None:
            trainer.resume(resume)
        result = trainer.fit(
            cavs.DataLoader(data, batch_size=50, shuffle=True, seed=0),
            epochs=epochs,
            dev=cavs.DataLoader(data, batch_size=64),
            metrics=[metrics.accuracy()],
            checkpoint=checkpoint,
            progress=False,
        )
        return model, result

    whole, result = run(12)
    assert result.best > 0.9
    run(5, checkpoint=tmp_path / "half")
    resumed, _ = run(12, resume=tmp_path / "half")
    for name, p in whole.parameters().items():
        np.testing.assert_array_equal(resumed.parameters()[name].value, p.value)


@pytest.mark.parametrize(
    "name", ["sum_roots", "sum_leaves", "sum_graph", "mean_graph", "max_graph", "softmax_graph"]
)
def test_values_that_are_not_of_vertices(name):
    class Wrong(cavs.Model):
        def loss(self, batch):
            return ops.sum_rows(getattr(ops, name)(batch["weight"]))

    with pytest.raises(TraceError, match=r"needs vertex values: f32\[\]@graph") as error:
        cavs.Session(Wrong()).gradients(cavs.batch(graphs_of()))
    assert "test_readouts.py" in str(error.value)


def test_the_report_counts_the_graphs_of_the_caller():
    batch = cavs.batch(graphs_of(copies=60, words=3))
    report = cavs.explain(Labelled(), batch)
    of_graphs = [b for b in report.buffers if b.space == "graph" and b.width == CLASSES]
    assert of_graphs and all(b.bytes == 4 * CLASSES * batch.num_graphs for b in of_graphs)
