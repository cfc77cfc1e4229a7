"""A tree classifier and random binary trees, as in sentiment analysis: words at the leaves."""

from __future__ import annotations

import numpy as np

import cavs
from cavs import nn, ops

WORDS, CLASSES = 50, 5


class Classifier(cavs.Model):
    """An embedding, a cell, a linear layer; a loss at every vertex."""

    def __init__(self, cell=None, input_size=8, hidden_size=6, rate=0.0):
        self.embedding = nn.Embedding(WORDS, input_size, init="xavier")
        self.tree = nn.BinaryTreeLSTM(input_size, hidden_size) if cell is None else cell
        self.output = nn.Linear(self.tree.state.shapes["h"][0], CLASSES)
        self.dropout = nn.Dropout(rate)

    def forward(self, batch):
        h = self.tree(batch.graph, x=self.embedding(batch["token"]))
        return self.output(self.dropout(h))

    def loss(self, batch):
        return ops.cross_entropy(self.forward(batch), batch["label"])


class OfRoots(Classifier):
    """The same with a loss at the roots."""

    def forward(self, batch):
        h = self.tree(batch.graph, x=self.embedding(batch["token"]))
        return self.output(self.dropout(ops.sum_roots(h)))


def graph(children, rng, absent=bool):
    """Return a graph with labels everywhere, and words where ``absent`` is false."""
    token = [-1 if absent(kids) else int(rng.integers(WORDS)) for kids in children]
    return cavs.Graph(children, {"token": token, "label": rng.integers(0, CLASSES, len(children))})


def binary(leaves, rng):
    """Return a random binary tree."""
    children, free = [[] for _ in range(leaves)], list(range(leaves))
    while len(free) > 1:
        i = int(rng.integers(len(free) - 1))
        children.append([free[i], free[i + 1]])
        free[i : i + 2] = [len(children) - 1]
    return graph(children, rng)


def treebank(count, seed=0, longest=30):
    """Return a batch of random trees of up to ``longest`` words."""
    rng = np.random.default_rng(seed)
    return cavs.batch([binary(int(n), rng) for n in rng.integers(1, longest + 1, count)])
