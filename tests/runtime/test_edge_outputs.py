"""Values of edges that a cell pushes: weights of attention, gates."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.errors import TraceError
from tests.oracle import assert_close, reference
from tests.runtime.test_top_down import dags, trees


class Attention(cavs.VertexFunction):
    def __init__(self, n, top_down):
        self.state = cavs.State(h=n)
        self.W, self.top_down = cavs.Parameter((n, n)), top_down

    def vertex(self, v):
        child, x = v.gather(), v.pull("x")
        score = ops.reshape(((child.h @ self.W) * x).sum(-1), (1,))
        weight = ops.sigmoid(score) if self.top_down else score.softmax()
        h = ops.tanh(x + (weight * child.h).sum())
        v.scatter(h=h)
        v.push(h=h, weight=ops.reshape(weight, ()))


class Model(cavs.Model):
    def __init__(self, top_down):
        self.embedding = nn.Embedding(9, 4)
        self.cell = Attention(4, top_down)
        self.output = nn.Linear(4, 3)

    def forward(self, batch):
        graph = batch.graph.reversed() if self.cell.top_down else batch.graph
        pushed = self.cell(graph, x=self.embedding(batch["token"]))
        return {"scores": self.output(pushed.h), "share": pushed.weight}

    def loss(self, batch):
        out = self.forward(batch)
        known = ops.mean_rows(ops.square(out["share"] - ops.reshape(batch["w"], ())))
        return ops.cross_entropy(out["scores"], batch["label"]) + 0.1 * known


@pytest.mark.parametrize("graphs", [trees()[:1], trees(), dags(), trees() * 10], ids=len)
@pytest.mark.parametrize("top_down", [False, True])
def test_against_the_oracle(top_down, graphs):
    model, batch = Model(top_down), cavs.batch(graphs)
    model.initialize(1, np.float64)
    session = cavs.Session(model, dtype=np.float64)
    loss, gradients = session.gradients(batch)
    _, expected = reference(model, batch)
    assert_close(loss, expected["loss"], 1e-12, "loss")
    for key, value in gradients.items():
        assert_close(value, expected[f"grad:{key}"], 1e-12, key)
    _, forward = reference(model, batch, training=False)
    for key, rows in session.predict(batch).items():
        assert_close(rows, forward[key], 1e-12, key)


def test_weights_of_the_children_of_a_vertex_add_up_to_one():
    batch = cavs.batch(trees())
    weight = cavs.Session(Model(False)).predict(batch)["share"]
    offsets = np.concatenate([np.diff(g.topology.offsets) for g in batch.graphs])
    parent = np.repeat(np.arange(len(offsets)), offsets)
    assert np.allclose(np.bincount(parent, weight)[np.unique(parent)], 1, atol=1e-6)


class OfGraphs(Attention):
    def vertex(self, v):
        v.scatter(h=v.gather().h.sum())
        v.push(v.pull("whole"))


def test_values_of_graphs_need_no_push():
    class Wrong(Model):
        def loss(self, batch):
            cell = OfGraphs(4, False)
            x = self.embedding(batch["token"])
            return cell(batch.graph, x=x, whole=ops.sum_graph(x))

    with pytest.raises(TraceError, match=r"a value of the vertex or its edges, not .*@graph"):
        cavs.Session(Wrong(False)).gradients(cavs.batch(trees()))
