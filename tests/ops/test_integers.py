"""Integers are looked up and counted; whatever else meets them says so."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.errors import DTypeError
from tests.runtime.test_top_down import trees


class Base(cavs.Model):
    def __init__(self):
        self.embedding = nn.Embedding(9, 2)
        self.cell = Scatters()

    def score(self, batch):
        return ops.mean_rows(self.embedding(batch["token"])).sum()


class Scatters(cavs.VertexFunction):
    def __init__(self):
        self.state = cavs.State(h=())

    def vertex(self, v):
        v.scatter(h=v.pull("i"))
        v.push(v.gather().h.sum())


def graphs():
    rng = np.random.default_rng(0)
    return [
        cavs.Graph(
            g.topology,
            {
                "token": rng.integers(0, 9, g.num_vertices),
                "pair": rng.integers(0, 2, (g.num_vertices, 2)),
            },
        )
        for g in trees()[1:3]
    ]


LOSSES = {
    "slice": lambda m, b: ops.cross_entropy(m.embedding(b["token"]), b["pair"][0:1]),
    "reshape": lambda m, b: ops.lookup(m.embedding.weight, ops.reshape(b["pair"], (2,))),
    "concat": lambda m, b: ops.mean_rows(ops.concat([b["pair"], m.embedding(b["token"])])),
    "sum_vertices": lambda m, b: ops.mean_rows(ops.sum_graph(b["token"])),
    "scatter": lambda m, b: m.cell(b.graph, i=b["token"]),
    "tanh": lambda m, b: ops.tanh(b["token"]),
}


@pytest.mark.parametrize("name", LOSSES)
def test_operators_that_take_floats(name):
    class Model(Base):
        def loss(self, batch):
            return self.score(batch) + LOSSES[name](self, batch)

    with pytest.raises(DTypeError, match=f"{name}.*needs floats, not i32") as caught:
        cavs.Session(Model()).evaluate(cavs.batch(graphs()))
    assert "test_integers.py" in str(caught.value) and "hint" in str(caught.value)


def test_predictions_with_their_indices():
    class Model(Base):
        def forward(self, batch):
            return {"y": self.embedding(batch["token"]), "token": batch["token"]}

    with pytest.raises(DTypeError, match=r"forward returned i32\[\]@vertex for 'token'") as caught:
        cavs.Session(Model()).predict(cavs.batch(graphs()))
    assert "read integers from the batch itself" in str(caught.value)
