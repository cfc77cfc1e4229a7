"""Features of links in models: reading them inside and outside of cells, and the errors."""

from __future__ import annotations

import re

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.errors import FeatureError, ShapeError, TraceError
from tests.oracle import agrees


def sample(rows, rng, name=""):
    """Return a sample of a chain whose vertices read ``rows`` of three vertices of b."""
    n, pairs = len(rows), sum(map(len, rows))
    features = {"weight": rng.normal(size=pairs), "kind": rng.integers(-1, 4, pairs)}
    return cavs.Sample(
        a=cavs.Graph.chain(n, {"x": rng.normal(size=(n, 3))}),
        b=cavs.Graph([[]] * 3, {"x": rng.normal(size=(3, 3))}),
        links={
            "to": cavs.Link("a", "b", rows, features),
            "all": cavs.Link.all("a", "b", {"way": rng.normal(size=(n, 3, 2))}),
            "one": cavs.Link("a", "b", [0] * n, {"weight": rng.normal(size=n)}),
        },
        name=name,
    )


def samples(seed=0):
    rng = np.random.default_rng(seed)
    of = ([[0, 2, 2], [], [1]], [[]], [[1], [0], [0, 0], [2, 1, 0]])
    return [sample(list(rows), rng, f"s{i}") for i, rows in enumerate(of)]


class Relations(cavs.VertexFunction):
    """A chain that reads linked vertices by a matrix row for each pair, weighted."""

    def __init__(self):
        self.state, self.W = cavs.State(h=3), cavs.Parameter((3, 3))
        self.kind = nn.Embedding(4, 3)

    def vertex(self, v):
        of = v.link("of")
        read = (of.x * self.kind(of.kind) * ops.reshape(of.weight, (1,))).sum()
        h = ops.tanh(v.pull("x") + v.gather().h.sum() @ self.W + read)
        v.scatter(h=h)
        v.push(h)


class Model(cavs.Model):
    """Computes ``forward`` as the given function says, and the mean of its squares."""

    def __init__(self, forward=None):
        self.function = forward
        self.cell, self.kind = Relations(), nn.Embedding(4, 3)

    def forward(self, batch):
        return self.function(self, batch)

    def loss(self, batch):
        return ops.mean_rows(ops.square(self.forward(batch)).sum(-1))


def in_cell(m, batch):
    link, a, b = batch.link("to"), batch.graphs["a"], batch.graphs["b"]
    of = ops.linked(link, x=b["x"], kind=link["kind"], weight=link["weight"])
    return m.cell(a, x=a["x"], of=of)


def outside(m, batch):
    link, a, b = batch.link("to"), batch.graphs["a"], batch.graphs["b"]
    of_all = ops.tanh(batch.link("all")["way"]).mean() @ m.cell.W[..., 0:2].T
    score = (m.kind(link["kind"]) * a["x"]).sum(-1)
    found = ops.sum_linked(b["x"] @ m.cell.W, link, score.softmax() * link["weight"])
    return (
        found
        + of_all
        + ops.take(b["x"], batch.link("one")) * ops.reshape(batch.link("one")["weight"], (1,))
    )


@pytest.mark.parametrize("forward", [in_cell, outside])
def test_features_of_pairs_equal_the_oracle(forward):
    session, _ = agrees(Model(forward), cavs.batch(samples()), 1e-9)
    whole = session.predict(cavs.batch(samples()))["output"]
    alone = [session.predict(cavs.batch([s]))["output"] for s in samples()]
    np.testing.assert_allclose(whole, np.concatenate(alone), rtol=1e-12, atol=1e-12)


def test_a_later_batch_may_have_no_pair():
    rng = np.random.default_rng(1)
    session = cavs.Session(Model(in_cell), dtype=np.float64)
    session.evaluate(cavs.batch(samples()))
    a, b = cavs.Graph.chain(2, {"x": rng.normal(size=(2, 3))}), samples()[0].graphs["b"]
    links = {**samples()[0].links, "to": cavs.Link("a", "b", [[], []])}
    links["all"] = cavs.Link.all("a", "b", {"way": np.zeros((6, 2))})
    links["one"] = cavs.Link("a", "b", [0, 0], {"weight": np.zeros(2)})
    empty = cavs.batch([cavs.Sample(a=a, b=b, links=links)])
    assert np.isfinite(session.evaluate(empty).loss)
    loss, _ = session.gradients(empty)
    assert np.isfinite(loss)


def test_labels_of_pairs():
    def loss(m, batch):
        link = batch.link("to")
        return ops.cross_entropy(m.kind(link["kind"]) * batch.graphs["a"]["x"], link["kind"])

    class Aligned(Model):
        def loss(self, batch):
            return loss(self, batch)

    rng = np.random.default_rng(3)
    rows = [[0, 1], [], [2, 2, 0]]
    two = sample(rows, rng)
    to = two.links["to"]
    known = cavs.Link("a", "b", rows, {**to.features, "kind": rng.integers(-1, 3, 5)})
    batch = cavs.batch([cavs.Sample(links={**two.links, "to": known}, **two.graphs)])
    agrees(Aligned(), batch, 1e-9)


@pytest.mark.parametrize(
    ("forward", "error", "found"),
    [
        (
            lambda m, batch: ops.sum_linked(
                batch.graphs["b"]["x"], batch.link("to"), batch.link("to")["wait"]
            ),
            FeatureError,
            "link 'to' has no feature 'wait'; there are kind, weight",
        ),
        (
            lambda m, batch: batch.link("to")["weight"],
            TraceError,
            "Model.forward returned f32[]@a.pair.to for 'output', a value of every pair",
        ),
        (
            lambda m, batch: ops.sum_linked(
                batch.graphs["b"]["x"], batch.link("to"), batch.link("all")["way"]
            ),
            TraceError,
            "weights along link 'to' are one number for each pair, not f32[2]@a.pair.all",
        ),
        (
            lambda m, batch: batch.link("to")["weight"] * batch.link("all")["way"],
            TraceError,
            "cannot be combined",
        ),
        (
            lambda m, batch: ops.mean_rows(m.kind(batch.link("to")["kind"])),
            TraceError,
            "over which there is no mean",
        ),
        (
            lambda m, batch: m.cell(
                batch.graphs["a"], x=batch.link("all")["way"], of=ops.linked(batch.link("to"))
            ),
            FeatureError,
            "x cannot be pulled: f32[2]@a.pair.all",
        ),
        (
            lambda m, batch: m.cell(
                batch.graphs["a"],
                x=batch.graphs["a"]["x"],
                of=ops.linked(batch.link("one"), w=batch.link("one")["weight"]),
            ),
            TraceError,
            "w is a feature of link 'one', which leads to one vertex each",
        ),
        (
            lambda m, batch: m.cell(batch.graphs["a"], x=batch.graphs["a"]["x"], of=ops.linked(3)),
            TraceError,
            "[linked] needs a link, not 3",
        ),
    ],
)
def test_misuse_is_refused(forward, error, found):
    with pytest.raises((error, ShapeError), match=re.escape(found)) as raised:
        cavs.Session(Model(forward)).predict(cavs.batch(samples()))
    assert raised.value.where
    assert raised.value.hint


def test_an_index_out_of_range_is_named_by_its_pair():
    rng = np.random.default_rng(0)
    first, second = samples()[0], sample([[0, 1], [2]], rng, "late")
    links = {
        **second.links,
        "to": cavs.Link(
            "a",
            "b",
            [[0, 1], [2]],
            {
                "weight": np.ones(3),
                "kind": [0, 1, 9],
            },
        ),
    }
    wrong = cavs.Sample(name="late", links=links, **second.graphs)
    found = 'feature \'a.link to.kind\' is 9 at pair 2 of link "to" of sample 1 "late"'
    with pytest.raises(FeatureError, match=re.escape(found)):
        cavs.Session(Model(in_cell)).evaluate(cavs.batch([first, wrong]))
