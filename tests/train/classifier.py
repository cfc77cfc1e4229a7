"""A recurrent classifier and made-up trees, also for programs, which start without pytest."""

import numpy as np

from cavs import nn, ops
from cavs.data import Graph
from cavs.frontend import Model, Parameter, State, VertexFunction

WORDS, WIDTH, CLASSES = 23, 5, 3


class Cell(VertexFunction):
    def __init__(self):
        self.state = State(h=WIDTH)
        self.W = Parameter((WIDTH, WIDTH))
        self.U = Parameter((WIDTH, WIDTH))
        self.b = Parameter((WIDTH,))

    def vertex(self, v):
        h = ops.tanh(v.pull("x") @ self.W + v.gather().h.sum() @ self.U + self.b)
        v.scatter(h=h)
        v.push(h)


class Classifier(Model):
    def __init__(self, dropout=0.2):
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.cell = Cell()
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(WIDTH, CLASSES)

    def forward(self, data):
        h = self.cell(data.graph, x=self.embedding(data["token"]))
        return self.output(self.dropout(h))

    def loss(self, data):
        return ops.cross_entropy(self.forward(data), data["label"])


def trees(count, seed=0):
    rng = np.random.default_rng(seed)
    graphs = []
    for _ in range(count):
        n = int(rng.integers(1, 12))
        # Some vertices take an earlier one as a child; the last vertex gathers all other roots.
        parents = [int(rng.integers(i + 1, n)) if i < n - 1 else -1 for i in range(n)]
        token = rng.integers(0, WORDS - 3, n)
        token[rng.random(n) < 0.3] = -1
        label = np.where(token >= 0, token % CLASSES, -1)
        graphs.append(Graph.from_parents(parents, features={"token": token, "label": label}))
    return graphs
