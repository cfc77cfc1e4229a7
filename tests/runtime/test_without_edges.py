"""Graphs without edges have no edge features: those of other batches say what they would be."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.errors import FeatureError


class Labelled(cavs.VertexFunction):
    def __init__(self, size):
        self.state = cavs.State(h=size)
        self.U = cavs.Parameter((size, size))

    def vertex(self, v):
        child = v.gather().h * v.edge("gate") + v.edge("weight").sum(-1)
        h = ops.tanh(v.pull("x") + child.sum() @ self.U)
        v.scatter(h=h)
        v.push(h)


class Relations(cavs.Model):
    def __init__(self):
        self.word, self.relation = nn.Embedding(9, 3), nn.Embedding(4, 3)
        self.tree = Labelled(3)

    def forward(self, batch):
        gate = ops.sigmoid(self.relation(batch["relation"]))
        x = self.word(batch["word"])
        return self.tree(batch.graph, x=x, gate=gate, weight=batch["weight"])

    def loss(self, batch):
        return ops.cross_entropy(self.forward(batch), batch["label"])


TREE = cavs.Graph(
    [[1, 2], [], []],
    {"word": [4, 7, 8], "label": [1, 0, 2]},
    {"relation": [3, 0], "weight": [[0.5, 1.0], [2.0, 0.1]]},
)
WORD = {"word": [4], "label": [2]}
TYPED = {"relation": np.zeros(0, np.int32), "weight": np.zeros((0, 2), np.float32)}
ALONE = cavs.Graph([[]], WORD, TYPED)
WAYS = [{}, {"relation": [], "weight": []}, {"weight": []}, TYPED]


@pytest.mark.parametrize("edge_features", WAYS)
@pytest.mark.parametrize("copies", [1, 400])  # many equal vertices are merged
def test_after_a_batch_with_edges(edge_features, copies):
    model = Relations()
    session = cavs.Session(model)
    session.gradients(cavs.batch([TREE]))
    found = cavs.batch([cavs.Graph([[]], WORD, edge_features)] * copies)
    expected = cavs.Session(model)
    same = cavs.batch([ALONE] * copies)
    assert session.gradients(found)[0] == expected.gradients(same)[0]
    ours, theirs = session.predict(found)["output"], expected.predict(same)["output"]
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("edge_features", WAYS)
def test_beside_a_graph_with_edges(edge_features):
    session = cavs.Session(Relations())
    mixed = cavs.batch([cavs.Graph([[]], WORD, edge_features), TREE])
    assert session.gradients(mixed)[0] == session.gradients(cavs.batch([ALONE, TREE]))[0]


def test_before_any_batch_with_edges():
    """What an empty list holds is a guess, which the first edge corrects."""

    class Words(Relations):
        def forward(self, batch):
            return self.word(batch["word"])

    session = cavs.Session(Words())
    empty = cavs.Graph([[]], WORD, {"relation": [], "weight": []})
    session.gradients(cavs.batch([empty]))
    session.gradients(cavs.batch([TREE]))
    session.gradients(cavs.batch([empty]))


def test_a_graph_with_edges_needs_its_features():
    bare = cavs.Graph([[1], []], {"word": [1, 2], "label": [0, 0]})
    with pytest.raises(FeatureError, match='"relation" is in graph 0, but not in graph 1'):
        cavs.batch([TREE, bare])
    session = cavs.Session(Relations())
    session.gradients(cavs.batch([TREE]))
    with pytest.raises(FeatureError, match="no feature 'relation'"):
        session.gradients(cavs.batch([bare]))
