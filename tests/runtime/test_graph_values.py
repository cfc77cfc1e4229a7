"""Values of a graph that its edges read: contexts of attention, gates of a sentence."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from tests.oracle import assert_close, reference
from tests.runtime.test_top_down import dags, trees


class Cell(cavs.VertexFunction):
    """Combines the context with states, edge features and functions of both, and pushes them."""

    def __init__(self, n):
        self.state = cavs.State(h=n)
        self.U = cavs.Parameter((n, n))

    def vertex(self, v):
        child, context = v.gather(), v.pull("context")
        message = child.h @ self.U * context + context * v.edge("w")
        v.scatter(h=ops.tanh(v.pull("x") + message.sum()))
        v.push(h=v.pull("x") + message.sum(), gate=(child.h * context).sum(-1))


class Model(cavs.Model):
    def __init__(self, top_down):
        self.embedding = nn.Embedding(9, 4)
        self.W, self.top_down = cavs.Parameter((4, 4)), top_down
        self.cell = Cell(4)
        self.output = nn.Linear(4, 3)

    def loss(self, batch):
        x = self.embedding(batch["token"])
        context = ops.sum_graph(x) @ self.W
        graph = batch.graph.reversed() if self.top_down else batch.graph
        out = self.cell(graph, x=x, context=context, w=batch["w"])
        behind = ops.mean_rows(ops.square(out.gate) * context.sum(-1))
        return ops.cross_entropy(self.output(out.h), batch["label"]) + 0.1 * behind


@pytest.mark.parametrize("graphs", [trees()[:1], trees(), dags(), trees() * 10], ids=len)
@pytest.mark.parametrize("top_down", [False, True])
def test_against_the_oracle(top_down, graphs):
    model, batch = Model(top_down), cavs.batch(graphs)
    model.initialize(1, np.float64)
    loss, gradients = cavs.Session(model, dtype=np.float64).gradients(batch)
    _, expected = reference(model, batch)
    assert_close(loss, expected["loss"], 1e-12, "loss")
    for key, value in gradients.items():
        assert_close(value, expected[f"grad:{key}"], 1e-12, key)
