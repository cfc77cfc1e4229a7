"""A model of trees and its batches, also for programs, which start without pytest."""

import functools

import numpy as np

import cavs
from cavs import nn, ops


class Tree(cavs.Model):
    """A Tree-LSTM with a loss that tests weights: two means, a sum, weight decay."""

    def __init__(self, seed=0):
        self.embedding = nn.Embedding(40, 6)
        self.cell = nn.ChildSumTreeLSTM(6, 5)
        self.output = nn.Linear(5, 3)
        self.value = nn.Linear(5, 1)
        rng = np.random.default_rng(seed)
        for p in self.parameters().values():
            p.value[...] = rng.normal(size=p.shape) * 0.4

    def loss(self, batch):
        h = self.cell(batch.graph, x=self.embedding(batch["token"]))
        loss = ops.cross_entropy(self.output(h), batch["label"])
        loss = loss + 0.5 * ops.mean_squared_error(self.value(h), 0.3)
        total = ops.cross_entropy(self.output(h), batch["label"], reduction="sum")
        return loss + 0.01 * total + 0.1 * ops.mean_squared_error(self.output.weight, 0.0)


def trees(count, seed):
    return list(_trees(count, seed))


@functools.cache
def _trees(count, seed):
    rng = np.random.default_rng(seed)
    graphs = []
    for _ in range(count):
        n = int(rng.integers(1, 9))
        children = [[] for _ in range(n)]
        for v in range(1, n):
            children[int(rng.integers(0, v))].append(v)
        leaf = np.array([not c for c in children])
        token = np.where(leaf | (rng.random(n) < 0.2), rng.integers(0, 40, n), -1)
        label = np.where(rng.random(n) < 0.6, rng.integers(0, 3, n), -1)
        graphs.append(cavs.Graph(children, {"token": token, "label": label}))
    return graphs


BATCHES = [trees(n, seed) for seed, n in enumerate([7, 4, 1, 2, 9, 8, 3, 5])]
