"""Values that are read through row maps, and values that must be stored first."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from tests.oracle import assert_close, reference
from tests.runtime.test_top_down import dags, trees


class Cell(cavs.VertexFunction):
    """Pushes values that need no kernel: a sum, a mean, a child's value."""

    def __init__(self, push):
        self.state = cavs.State(h=3)
        self.W, self.push = cavs.Parameter((3, 3)), push

    def vertex(self, v):
        children = v.gather()
        v.scatter(h=ops.tanh(v.pull("x") @ self.W + children.h.sum()))
        if self.push == "child":
            v.push(v.gather(0).h)
        elif self.push == "side by side":
            v.push(ops.concat([v.gather(1).h, children.h.sum()])[1:4])
        else:
            v.push(getattr(children.h, self.push)())


class Model(cavs.Model):
    def __init__(self, loss, push="sum"):
        self.embedding = nn.Embedding(9, 3)
        self.language = nn.Embedding(4, 3)
        self.cell = Cell(push)
        self.Q = cavs.Parameter((3, 3))
        self.of = loss

    def loss(self, batch):
        return self.of(self, batch)


def words(model, batch):
    return model.embedding(batch["token"])


def pushed(model, batch):
    return model.cell(batch.graph, x=words(model, batch))


LOSSES = {
    "labels of sums of a graph": lambda m, b: ops.cross_entropy(
        ops.sum_graph(words(m, b)), b["kind"]
    ),
    "labels of part of such sums": lambda m, b: ops.cross_entropy(
        ops.sum_graph(ops.concat([words(m, b), pushed(m, b)]))[1:4], b["kind"]
    ),
    "labels of sums over children": lambda m, b: ops.cross_entropy(pushed(m, b), b["label"]),
    "labels of edges": lambda m, b: ops.cross_entropy(words(m, b) @ m.Q + b["f"], b["name"]),
    "a table of graphs at vertices": lambda m, b: ops.cross_entropy(
        words(m, b) + m.language(b["kind"]), b["label"]
    ),
    "a table of vertices at edges": lambda m, b: ops.sum_rows(ops.dot(words(m, b), b["f"])),
    "a table of graphs at edges": lambda m, b: ops.mean_rows(
        ops.tanh(m.language(b["kind"]) * b["f"])
    ).sum(),
    "sums of a graph at its edges": lambda m, b: ops.mean_rows(
        ops.tanh(ops.sum_graph(words(m, b)) + b["f"]) @ m.Q
    ).sum(),
    "pushed values at edges": lambda m, b: ops.sum_rows(ops.dot(pushed(m, b), b["f"])),
    "pushed values at edges, twice": lambda m, b: ops.sum_rows(
        ops.dot(ops.tanh(pushed(m, b)) * pushed(m, b), b["f"])
    ),
}


def graphs_of(graphs, seed=0, absent=False):
    """With a label of each vertex, edge and graph; absent: some vertices have no word."""
    rng = np.random.default_rng(seed)
    return [
        cavs.Graph(
            g.topology,
            {
                "token": rng.integers(-1 if absent else 0, 9, g.num_vertices),
                "label": rng.integers(-1, 3, g.num_vertices),
            },
            {
                "f": rng.standard_normal((g.num_edges, 3)),
                "name": rng.integers(-1, 3, g.num_edges),
            },
            graph_features={"kind": int(rng.integers(0, 3))},
        )
        for g in graphs
    ]


OF_TREES = ["child", "side by side"]  # and of no other graphs
PUSHES = ["sum", "mean", "max", *OF_TREES]
# A loss that reads no pushed value is one program, which runs over both kinds of graphs.
READ = {name: "pushed" in loss.__code__.co_names for name, loss in LOSSES.items()}
CASES = [(name, p) for name in LOSSES for p in PUSHES if READ[name] or p in ("sum", "child")]


@pytest.mark.parametrize("absent", [False, True], ids=["", "absent"])
@pytest.mark.parametrize(("name", "push"), CASES)
def test_against_the_oracle(name, push, absent):
    shapes = trees() if push in OF_TREES else dags()
    model, batch = Model(LOSSES[name], push), cavs.batch(graphs_of(shapes, absent=absent))
    model.initialize(1, np.float64)
    session = cavs.Session(model, dtype=np.float64)
    found = session.evaluate(batch)
    loss, gradients = session.gradients(batch)
    _, expected = reference(model, batch)
    assert_close(found.loss, expected["loss"], 1e-12, "loss")
    assert_close(loss, expected["loss"], 1e-12, "loss")
    for key, value in gradients.items():
        assert_close(value, expected.get(f"grad:{key}", np.zeros(value.shape)), 1e-12, key)
