"""Vertices with equal values are merged: against nested tuples, in fixed cases, in sessions."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cavs
from cavs import nn, ops
from cavs.compiler.pipeline import Passes
from cavs.data import Graph, batch
from cavs.runtime import program_cache
from tests.data.dags import child_lists
from tests.oracle import assert_close, reference
from tests.runtime.trees import Classifier, binary, treebank

OFF = Passes(merge_vertices=False)


def plain(graphs, names):
    """Return the number of the distinct vertex of every vertex, computed by nested tuples."""
    numbers, result = {}, []
    for g in graphs:
        first_edge = np.cumsum([0, *(len(g.children(v)) for v in range(g.num_vertices))])
        keys = {}

        def key(v, g=g, first_edge=first_edge, keys=keys):
            if v not in keys:
                own = [g.features[n][v].tobytes() for n in names if n in g.features]
                below = [
                    (key(int(c)), *(g.edge_features[n][first_edge[v] + i].tobytes() for n in edge))
                    for i, c in enumerate(g.children(v))
                    for edge in [[n for n in names if n in g.edge_features]]
                ]
                keys[v] = (*own, *below)
            return keys[v]

        result += [numbers.setdefault(key(v), len(numbers)) for v in range(g.num_vertices)]
    return result


@st.composite
def graph_lists(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    graphs = []
    for children in draw(st.lists(child_lists(max_vertices=10), min_size=1, max_size=5)):
        n, edges = len(children), sum(map(len, children))
        of_vertices = {"token": rng.integers(-1, 2, n), "x": rng.integers(0, 2, (n, 2)) * 1.0}
        graphs.append(Graph(children, of_vertices, {"r": rng.integers(0, 2, edges)}))
    return graphs


@given(graph_lists(), st.lists(st.sampled_from(["token", "x", "r"]), unique=True))
def test_merging_equals_nested_tuples(graphs, names):
    whole = batch(graphs)
    merged = whole.merged(tuple(names))
    groups = plain(graphs, names)
    assert merged.num_vertices == len(set(groups))
    assert len(set(zip(groups, merged.distinct.tolist(), strict=True))) == merged.num_vertices
    np.testing.assert_array_equal(merged.copies, np.bincount(merged.distinct))
    for name in names:
        if name != "r":
            np.testing.assert_array_equal(merged[name][merged.distinct], whole[name])
    # The graph that runs: children of a distinct vertex are those of each of its copies.
    (run,) = merged.topology.graphs
    offsets = np.asarray(run.offsets)
    for i, g in enumerate(graphs):
        first = int(np.asarray(whole.topology.vertex_offsets)[i])
        for v in range(g.num_vertices):
            d = int(merged.distinct[first + v])
            found = np.asarray(run.children)[offsets[d] : offsets[d + 1]].tolist()
            assert found == [int(merged.distinct[first + int(c)]) for c in g.children(v)]
            assert run.level[d] == g.topology.level[v]
    parents = np.repeat(np.arange(merged.num_vertices), np.diff(offsets))
    assert (np.asarray(run.children) < parents).all()
    first_copy = [int(np.argmax(merged.distinct == d)) for d in range(merged.num_vertices)]
    for name in ("token", "x"):
        np.testing.assert_array_equal(merged[name], whole[name][first_copy])
    if "r" in names:
        assert len(merged["r"]) == run.num_edges
    assert whole.merged(tuple(names)) is merged


@given(graph_lists(), st.integers(1, 3))
def test_copies_agree_in_which_leaf_children_they_are_and_have(graphs, numbers):
    whole = batch(graphs)
    merged = whole.merged((), numbers)
    leaf, reads, products = [], 0, set()
    for g in graphs:
        masks = [0] * g.num_vertices
        for v in range(g.num_vertices):
            for k, c in enumerate(g.children(v)[:numbers]):
                if len(g.children(int(c))) == 0:
                    masks[int(c)] |= 1 << k
                    masks[v] |= 1 << k
        leaf += masks
    np.testing.assert_array_equal(merged.leaf[merged.distinct], leaf)
    (run,) = merged.topology.graphs
    offsets, children = np.asarray(run.offsets), np.asarray(run.children)
    for d in range(merged.num_vertices):
        for k, c in enumerate(children[offsets[d] : offsets[d + 1]][:numbers]):
            reads += 1
            of_leaf = offsets[c] == offsets[c + 1]
            products.add((k, int(c)) if of_leaf else (k, int(c), d))
    assert merged.reads_per_product == reads / max(len(products), 1)
    names = tuple(f"#leaf child {k}" for k in range(numbers))
    schedule = merged.schedule(names)
    for key, (begin, end), _ in schedule.kinds:
        rows = np.asarray(schedule.order)[begin:end]
        assert (merged.leaf[rows] == key >> 1).all()


def test_too_many_child_numbers():
    with pytest.raises(ValueError, match="0 to 32, found 33"):
        batch([Graph.chain(2)]).merged((), 33)


def test_without_features_the_shape_alone_distinguishes():
    merged = batch([Graph.chain(4), Graph.chain(3)]).merged(())
    assert merged.num_vertices == 4 and merged.copies.tolist() == [2, 2, 2, 1]


def test_an_unknown_feature():
    with pytest.raises(ValueError, match="not all features of vertices"):
        batch([Graph.chain(2)]).merged(("x",))


def test_a_chain_of_5000_and_its_copy():
    one = Graph.chain(5000, features={"token": np.arange(5000) % 7})
    merged = batch([one, one]).merged(("token",))
    assert merged.num_vertices == 5000 and set(merged.copies.tolist()) == {2}


@pytest.fixture
def always(monkeypatch):
    monkeypatch.setattr(program_cache, "MIN_MERGED", 1)


def test_sessions_run_distinct_vertices_only(always):
    model, whole = Classifier(), treebank(12)
    session, unmerged = cavs.Session(model), cavs.Session(model, passes=OFF)
    assert session.schedule(whole).batch.num_vertices < whole.num_vertices
    assert unmerged.schedule(whole).batch.num_vertices == whole.num_vertices
    (loss, found), (expected_loss, expected) = session.gradients(whole), unmerged.gradients(whole)
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    for name, g in expected.items():
        assert_close(found[name], g, 1e-5, name)
    rows = session.predict(whole)["output"]
    assert rows.shape == (whole.num_vertices, 5)
    np.testing.assert_allclose(rows, unmerged.predict(whole)["output"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("shared", "numbers"), [(0.0, 2), (np.inf, 0)])
def test_products_at_the_leaves(always, monkeypatch, shared, numbers):
    """Leaves with enough parents are multiplied once for all of them."""
    monkeypatch.setattr(program_cache, "MIN_READERS", shared)
    model, whole = Classifier(), treebank(12)
    session, unmerged = cavs.Session(model), cavs.Session(model, passes=OFF)
    names = [name for name, _ in session.compiled(whole).stages]
    assert names[1] == "merge_vertices" and ("hoist_products_to_leaves" in names) == bool(numbers)
    assert session.schedule(whole).batch.num_vertices < whole.num_vertices
    text = str(cavs.explain(model, whole))
    assert ("of leaf child 0" in text) == bool(numbers)
    (loss, found), (expected_loss, expected) = session.gradients(whole), unmerged.gradients(whole)
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    for name, g in expected.items():
        assert_close(found[name], g, 1e-5, name)
    # The decision is part of the state, also for a session that loads it.
    monkeypatch.setattr(program_cache, "MIN_READERS", 1.0)
    other = cavs.Session(model)
    other.load_state_dict(session.state_dict())
    again, same = other.gradients(whole)
    assert again == loss
    for name, g in found.items():
        np.testing.assert_array_equal(same[name], g)


def test_small_and_large_batches_in_turn():
    """They run different programs on the same parameters."""
    model, small, large = Classifier(), treebank(2), treebank(40)
    session, unmerged = cavs.Session(model), cavs.Session(model, passes=OFF)
    for whole in (small, large, small, large):
        assert session.gradients(whole)[0] == pytest.approx(unmerged.gradients(whole)[0], rel=1e-6)
        rows = session.predict(whole)["output"]
        np.testing.assert_allclose(rows, unmerged.predict(whole)["output"], rtol=1e-5, atol=1e-6)


def test_small_batches_are_not_merged():
    whole = treebank(3)
    assert cavs.Session(Classifier()).schedule(whole).batch is whole.topology


class ReadsGraph(Classifier):
    """Every vertex reads the sum over its graph."""

    def loss(self, batch):
        rows = self.forward(batch)
        return ops.mean_squared_error(rows * ops.sum_graph(rows), 0.5)


class Dropped(Classifier):
    def loss(self, batch):
        return ops.cross_entropy(ops.dropout(self.forward(batch), 0.4), batch["label"])


@pytest.mark.parametrize("make", [ReadsGraph, Dropped])
def test_vertices_that_must_not_be_merged(always, make):
    """Vertices that read a value of their graph, and vertices that draw random numbers."""
    model, whole = make(), treebank(6)
    session = cavs.Session(model)
    assert session.schedule(whole).batch.num_vertices == whole.num_vertices
    loss, _ = session.gradients(whole)
    assert loss == pytest.approx(float(reference(model, whole)[1]["loss"]), rel=1e-5)
    session.predict(whole)  # without random numbers copies are equal
    if make is Dropped:
        assert session.evaluate(whole).loss > 0


class Related(cavs.Model):
    """Classify edges by the state of the child; some labels are absent."""

    class Cell(cavs.VertexFunction):
        def __init__(self):
            self.state = cavs.State(h=3)
            self.R = cavs.Parameter((3, 2))

        def vertex(self, v):
            child = v.gather().h
            h = ops.tanh(v.pull("x") + child.sum())
            v.scatter(h=h)
            v.push(child @ self.R)

    def __init__(self):
        self.embedding, self.tree = nn.Embedding(4, 3), Related.Cell()

    def loss(self, batch):
        scores = self.tree(batch.graph, x=self.embedding(batch["token"]))
        return ops.cross_entropy(scores, batch["relation"])


def test_labels_of_merged_edges_count_once_per_copy(always):
    rng = np.random.default_rng(3)
    children = [[], [], [0, 1], [2, 2], [3]]
    graphs = [
        Graph(children, {"token": [i % 3, 1, 2, 3, 0]}, {"relation": rng.integers(-1, 2, 5)})
        for i in range(20)
    ]
    graphs.append(Graph([[]], {"token": [1]}, {"relation": np.zeros(0, np.int32)}))
    model, whole = Related(), batch(graphs)
    model.initialize(2, np.float64)
    session = cavs.Session(model, dtype=np.float64)
    assert session.schedule(whole).batch.num_edges < whole.num_edges
    loss, found = session.gradients(whole)
    expected = reference(model, whole)[1]
    assert_close(loss, expected["loss"], 1e-12, "loss")
    for name, g in found.items():
        assert_close(g, expected[f"grad:{name}"], 1e-12, name)
    result = session.evaluate(whole)
    assert_close(result.loss, expected["loss"], 1e-12, "loss")
    assert result.weight == (whole["relation"] >= 0).sum()
    alone = session.evaluate(batch(graphs[-1:]))  # no edge, no label
    assert (alone.loss, alone.weight) == (0.0, 0.0)


def test_too_many_children_are_named_in_the_batch(always):
    wide = Graph([[], [], [], [0, 1, 2]], {"token": [1, 1, 1, -1], "label": [0] * 4}, name="wide")
    model = Classifier(nn.BinaryTreeLSTM(4, 3), input_size=4, hidden_size=3)
    with pytest.raises(cavs.errors.GraphError, match=r'vertex 3 of graph 1 "wide" has 3 children'):
        cavs.Session(model).gradients(batch([binary(3, np.random.default_rng(0)), wide]))


def test_a_batch_is_freed_with_its_last_reference():
    """It needs no garbage collector: a batch is large."""
    model = Classifier()
    trainer = cavs.Trainer(model, cavs.optim.SGD(lr=0.1))
    many = treebank(40)
    trainer.step(many)
    gc.collect()
    gc.disable()
    try:
        fresh = batch(many.graphs)
        trainer.session.prepare(fresh)
        trainer.step(fresh)
        trainer.session.evaluate(fresh)
        gone = weakref.ref(fresh)
        del fresh
        trainer.step(many)
        trainer.session.evaluate(many)
        assert gone() is None
    finally:
        gc.enable()
