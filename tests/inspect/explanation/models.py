"""Explanations of small models for tests of their pages."""

from __future__ import annotations

import numpy as np

import cavs
from benchmarks.word_lattices import lattices
from cavs import nn, ops
from tests.runtime.plans import PlanCost, plans
from tests.runtime.test_scheduling import Lattice
from tests.runtime.trees import Classifier, treebank

BAD = "<script>alert('x')</script>&\"\u202e"


class Spelled(cavs.Model):
    """Words that read the state after their last character."""

    def __init__(self, size=4):
        self.char, self.spell = nn.Embedding(9, size), nn.LSTM(size, size)
        self.forth, self.output = nn.LSTM(size, size), nn.Linear(size, 3)

    def loss(self, batch):
        chars, words = batch.graphs["chars"], batch.graphs["words"]
        c = self.spell(chars, x=self.char(chars["char"]))
        h = self.forth(words, x=ops.take(c, batch.link("spelling")))
        return ops.cross_entropy(self.output(h), words["tag"])


class Hostile(cavs.VertexFunction):
    """A cell, of vertices with a type, that reads a feature; both have elements as names."""

    def __init__(self):
        self.state = cavs.State(h=2)

    @cavs.vertex(BAD)
    def named_vertex(self, v):
        """Scatter <i>h</i> & more."""
        v.scatter(h=ops.tanh(v.pull(f"{BAD} x") + v.gather().h.sum()))
        v.push(v.gather().h.sum())


class HostileModel(cavs.Model):
    def __init__(self):
        self.cell, self.output = Hostile(), nn.Linear(2, 1)

    def loss(self, batch):
        return ops.mean_squared_error(self.output(self.cell(batch.graph, **{BAD: batch[BAD]})), 0.0)


def spelled_samples(count=3, words=4, length=3):
    rng = np.random.default_rng(0)
    return [
        cavs.Sample(
            words=cavs.Graph.chain(words, {"tag": rng.integers(0, 3, words)}),
            chars=cavs.Graph.chains([length] * words, {"char": rng.integers(0, 9, words * length)}),
            links={"spelling": cavs.Link("words", "chars", length * np.arange(1, words + 1) - 1)},
        )
        for _ in range(count)
    ]


def tree(**options):
    return cavs.explain(Classifier(), treebank(12), **options)


def several_structures():
    return cavs.explain(Spelled(), cavs.batch(spelled_samples()))


def several_types():
    return cavs.explain(PlanCost(), cavs.batch(plans(10, np.random.default_rng(0))))


def by_policy():
    return cavs.explain(Lattice(), cavs.batch(lattices(8, 2)), scheduling="agenda")


def hostile():
    graph = cavs.Graph([[], [0]], {BAD: {f"{BAD} x": [[1.0, 2.0], [3.0, 4.0]]}}, types=[BAD, BAD])
    return cavs.explain(HostileModel(), cavs.batch([graph]))


def chains(length):
    features = {"token": np.arange(length) % 9, "label": np.zeros(length, int)}
    cell = nn.LSTM(8, 6)
    return cavs.explain(Classifier(cell), cavs.batch([cavs.Graph.chain(length, features)]))
