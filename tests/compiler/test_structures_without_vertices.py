"""Structures without vertices in some samples."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.errors import FeatureError, GraphError
from tests.compiler import test_typed_structures as typed
from tests.compiler.test_structures import Translator
from tests.oracle import agrees, drawn, reference

EMPTY = cavs.Graph([])


class Reader(cavs.Model):
    """Words with attention to notes, and one row a sample of each structure."""

    def __init__(self, size=3):
        self.word, self.note = nn.Embedding(5, size), nn.Embedding(5, size)
        self.words, self.notes = nn.LSTM(size, size), nn.LSTM(size, size)
        self.output = nn.Linear(4 * size, 2)

    def forward(self, batch):
        words, notes, link = batch.graphs["words"], batch.graphs["notes"], batch.link("of")
        of_notes, end = self.notes.with_final(notes, x=self.note(notes["token"]))
        read = ops.sum_linked(of_notes, link, link["weight"])
        one = ops.take(of_notes, batch.link("one"))
        h = self.words(words, x=self.word(words["token"]) + read + one, initial=end)
        whole = [ops.mean_graph(h), ops.sum_roots(h), ops.mean_graph(of_notes)]
        return {"output": self.output(ops.concat([*whole, ops.max_graph(of_notes)])), "h": h}

    def loss(self, batch):
        found = self.forward(batch)
        labels = ops.cross_entropy(found["h"], batch.graphs["words"]["label"])
        return labels + ops.mean_squared_error(found["output"], 0.5)


def chain(n, rng):
    label = rng.integers(-1, 3, n)
    return cavs.Graph.chain(n, {"token": rng.integers(-1, 5, n), "label": label}) if n else EMPTY


def sample(words, notes, rng):
    """Return a sample of so many words and notes; every word reads some notes."""
    rows = [rng.integers(0, notes, rng.integers(0, 3 * (notes > 0) + 1)) for _ in range(words)]
    weight = rng.normal(size=sum(map(len, rows)))
    features = {"weight": weight} if len(weight) else {}
    one = rng.integers(-1, notes, words)
    return cavs.Sample(
        words=chain(words, rng),
        notes=chain(notes, rng),
        links={
            "of": cavs.Link("words", "notes", rows, features),
            "one": cavs.Link("words", "notes", one),
        },
    )


def samples(*sizes, seed=0):
    rng = np.random.default_rng(seed)
    return [sample(*of, rng) for of in sizes]


MIXED = [(0, 2), (3, 2), (2, 0), (4, 3), (0, 1)]


@pytest.mark.parametrize("serial", [False, True])
@pytest.mark.parametrize("sizes", [MIXED, MIXED[::-1], [(2, 3), (1, 0)], [(0, 2), (2, 2)]])
def test_samples_without_content_equal_the_oracle(sizes, serial):
    model, batch = drawn(Reader(), 0.5), cavs.batch(samples(*sizes))
    session, _ = agrees(model, batch, 1e-9)
    session.set_serial(serial)
    _, expected = reference(model, batch, training=False)
    found = session.predict(batch)
    for name, rows in found.items():
        np.testing.assert_allclose(rows, expected[name], rtol=1e-9, atol=1e-12)
    assert len(found["output"]) == len(sizes)
    assert len(found["h"]) == sum(words for words, _ in sizes)


def test_means_and_sums_of_no_vertex_are_zeros():
    class Sums(cavs.Model):
        def forward(self, batch):
            x = batch.graphs["notes"]["x"]
            return {
                "sum": ops.sum_graph(x),
                "mean": ops.mean_graph(x),
                "max": ops.max_graph(x),
                "roots": ops.sum_roots(x),
                "leaves": ops.sum_leaves(x),
            }

    words, notes = cavs.Graph.chain(1), cavs.Graph.chain(2, {"x": np.full((2, 2), 3.0)})
    batch = cavs.batch([cavs.Sample(words=words, notes=g) for g in (EMPTY, notes, EMPTY)])
    for name, rows in cavs.Session(Sums()).predict(batch).items():
        assert rows.shape == (3, 2)
        assert not rows[[0, 2]].any(), name
        assert rows[1].all(), name


def test_a_later_batch_has_no_vertex_of_a_structure():
    model = drawn(Reader(), 0.5)
    session = cavs.Session(model, dtype=np.float64)
    session.gradients(cavs.batch(samples(*MIXED)))
    whole = samples((2, 2), *[(3, 0)] * 2, *[(0, 2)] * 2)
    expected = session.predict(cavs.batch(whole))
    begin = 2
    for i in ([1, 2], [3, 4]):
        batch = cavs.batch([whole[k] for k in i])
        for other in (session, cavs.Session(pickle.loads(pickle.dumps(model)), dtype=np.float64)):
            found = other.predict(batch)
            np.testing.assert_allclose(found["output"], expected["output"][i], rtol=1e-9)
            words = batch.graphs["words"].num_vertices
            own = expected["h"][begin : begin + words]
            np.testing.assert_allclose(found["h"], own, rtol=1e-9, atol=1e-12)
            assert np.isfinite(other.gradients(batch)[0])
        begin += words
    with pytest.raises(FeatureError, match="structure 'notes' has no feature 'token'"):
        cavs.Session(Reader()).predict(cavs.batch(whole[1:3]))


def test_a_link_without_rows_fits_links_of_both_sorts():
    one, lists = cavs.Link("a", "b", [0, -1]), cavs.Link("a", "b", [[0], []])
    full = {"a": cavs.Graph.chain(2), "b": cavs.Graph.chain(1)}
    none = cavs.Sample(a=EMPTY, b=full["b"], links={"to": cavs.Link("a", "b", [])})
    for link in (one, lists):
        for order in ([0, 1], [1, 0]):
            given = [none, cavs.Sample(**full, links={"to": link})]
            batch = cavs.batch([given[i] for i in order])
            assert batch.links["to"].single is link.single
    assert cavs.batch([none]).links["to"].single is None
    with pytest.raises(GraphError, match='link "to" differs: from "a" to "b", one vertex each'):
        cavs.batch([none, *(cavs.Sample(**full, links={"to": link}) for link in (one, lists))])


class Summed(cavs.Model):
    """A sum along a link of either sort."""

    def __init__(self):
        self.linear = nn.Linear(2, 3)

    def forward(self, batch):
        link, h = batch.link("to"), self.linear(batch.graphs["b"]["x"])
        return {"sum": ops.sum_linked(h, link), "whole": ops.sum_graph(h)}

    def loss(self, batch):
        found = self.forward(batch)
        return ops.sum_rows(ops.sum_graph(found["sum"]) ** 2.0 + found["whole"]).sum()


@pytest.mark.parametrize("rows", [[0, -1], [[0, 1], []]])
def test_the_sort_of_a_link_is_learnt(rows):
    def of(n, rows):
        x = {"x": np.arange(4.0).reshape(2, 2)}
        link = cavs.Link("a", "b", rows)
        return cavs.Sample(
            a=cavs.Graph.chain(n) if n else EMPTY, b=cavs.Graph.chain(2, x), links={"to": link}
        )

    none, full = cavs.batch([of(0, [])] * 2), cavs.batch([of(2, rows), of(0, [])])
    model = drawn(Summed(), 0.5)
    session = cavs.Session(model, dtype=np.float64)
    before = session.gradients(none)[0]  # the first batch leaves the sort of the link open
    for batch in (full, none, full):
        agrees(model, batch, 1e-9)
        fresh = cavs.Session(pickle.loads(pickle.dumps(model)), dtype=np.float64)
        assert session.gradients(batch)[0] == pytest.approx(fresh.gradients(batch)[0], rel=1e-12)
        for name, value in session.predict(batch).items():
            np.testing.assert_allclose(value, fresh.predict(batch)[name], rtol=1e-12)
    assert session.gradients(none)[0] == before
    other = [0, 1] if rows[1] == [] else [[0], [1]]
    with pytest.raises(FeatureError, match="samples of earlier batches had structures a, b; link"):
        session.gradients(cavs.batch([of(2, other)]))


def test_the_sort_of_a_link_is_in_checkpoints(tmp_path):
    model, sizes = drawn(Reader(), 0.5), [(2, 2), (1, 3)]
    trainer = cavs.Trainer(model, cavs.optim.SGD(lr=0.1))
    trainer.step(cavs.batch(samples(*sizes)))
    trainer.save(tmp_path / "run.safetensors")
    other = cavs.Trainer(drawn(Reader(), 0.5), cavs.optim.SGD(lr=0.1))
    other.load(tmp_path / "run.safetensors")
    none = cavs.batch(samples((0, 2), (0, 1)))
    expected = trainer.session.predict(none)["output"]
    np.testing.assert_allclose(other.session.predict(none)["output"], expected, rtol=1e-6)


def test_attention_to_nothing():
    """Every target word attends to a source without words."""
    rng = np.random.default_rng(1)

    def of(source, target):
        tokens = {"token": rng.integers(0, 9, source)}
        return cavs.Sample(
            source=cavs.Graph.chain(source, tokens) if source else EMPTY,
            target=cavs.Graph.chain(target, {"token": rng.integers(0, 9, target)}),
            links={"to": cavs.Link.all("target", "source")},
        )

    agrees(Translator(), cavs.batch([of(0, 3), of(2, 2), of(0, 1)]), 1e-9)


def test_types_next_to_a_structure_without_content():
    rng = np.random.default_rng(2)
    model = drawn(typed.PlanCost(), 0.5)
    full = typed.samples()
    links = {"reads": cavs.Link("plan", "columns", [[]])}
    scan = cavs.Graph([[]], {"scan": {"table": rng.normal(size=(1, 2))}}, types=["scan"])
    bare = cavs.Sample(plan=scan, columns=EMPTY, links=links)
    none = cavs.Sample(
        plan=EMPTY,
        columns=full[0].graphs["columns"],
        links={"reads": cavs.Link("plan", "columns", [])},
    )
    session, _ = agrees(model, cavs.batch([bare, *full, none]), 1e-9)
    whole = session.predict(cavs.batch([bare, *full, none]))["cost"]
    for i, batch in ((0, [bare, bare]), (len(full) + 1, [none])):
        found = session.predict(cavs.batch(batch))["cost"]
        np.testing.assert_allclose(found, whole[[i] * len(batch)], rtol=1e-9)
        assert np.isfinite(session.gradients(cavs.batch(batch))[0])


def test_loaders_take_samples_without_content():
    loader = cavs.DataLoader(samples(*MIXED * 4), 4, shuffle=True, seed=1, bucket="size")
    trainer = cavs.Trainer(Reader(), cavs.optim.Adam(lr=0.05), seed=0)
    before = trainer.evaluate(loader)["loss"]
    trainer.fit(loader, epochs=10, progress=False)
    assert trainer.evaluate(loader)["loss"] < before


def test_a_graph_without_vertices():
    empty = cavs.Graph([], {"token": [], "x": np.zeros((0, 2))}, name="none")
    assert (empty.num_vertices, empty.num_edges, empty.depth, empty.arity) == (0, 0, 0, 0)
    assert list(empty.features) == ["x"]
    assert empty.roots.tolist() == []
    assert empty.reversed().num_vertices == 0
    again = pickle.loads(pickle.dumps(empty))
    assert (again.name, again.num_vertices, again.features["x"].shape) == ("none", 0, (0, 2))
    with pytest.raises(GraphError, match="graph 1 of those to join has no vertex"):
        cavs.Graph.join([cavs.Graph([[]]), EMPTY])
    with pytest.raises(GraphError, match="all structures are empty: a, b"):
        cavs.Sample(a=EMPTY, b=EMPTY)
    found = re.escape('leads from vertex 0 of "a" to vertex 0 of "b", whose graph has no vertex')
    with pytest.raises(GraphError, match=found):
        cavs.Sample(a=cavs.Graph([[]]), b=EMPTY, links={"to": cavs.Link("a", "b", [0])})


class Pairs(cavs.VertexFunction):
    """Sums of two children, with types of vertices."""

    def __init__(self):
        self.state, self.W = cavs.State(h=2), cavs.Parameter((2, 2), init="uniform")

    @cavs.vertex("leaf")
    def leaf_vertex(self, v):
        v.scatter(h=v.pull("x") @ self.W)
        v.push(v.pull("x") @ self.W)

    @cavs.vertex("pair")
    def pair_vertex(self, v):
        h = ops.tanh(v.gather(0).h + v.gather(1).h)
        v.scatter(h=h)
        v.push(h)


class TypedAndTrees(cavs.Model):
    """Roots of a structure with types, and of one whose vertices have more children."""

    def __init__(self):
        self.pairs, self.trees = Pairs(), nn.ChildSumTreeLSTM(2, 2)

    def loss(self, batch):
        pairs, trees = batch.graphs["pairs"], batch.graphs["trees"]
        first = ops.sum_roots(self.pairs(pairs, leaf={"x": pairs["leaf"]["x"]}))
        return ops.mean_squared_error(first + ops.sum_roots(self.trees(trees, x=trees["x"])), 0.5)


def test_a_batch_without_vertices_of_any_type():
    pairs = cavs.Graph(
        [[], [], [0, 1]], {"leaf": {"x": np.ones((2, 2))}}, types=["leaf", "leaf", "pair"]
    )
    trees = cavs.Graph([[], [], [], [0, 1, 2]], {"x": np.full((4, 2), 0.5)})
    session = cavs.Session(drawn(TypedAndTrees(), 0.5), dtype=np.float64)
    session.gradients(cavs.batch([cavs.Sample(pairs=pairs, trees=trees)]), inputs=True)
    empty = cavs.batch([cavs.Sample(pairs=EMPTY, trees=trees)])
    loss, gradients, inputs = session.gradients(empty, inputs=True)
    assert np.isfinite(loss) and not gradients["pairs.W"].any()
    assert len(inputs["pairs.leaf.x"]) == 0 and inputs["trees.x"].all()
