"""A small model with data and trainers, for the tests of steps launched ahead."""

from __future__ import annotations

import re

import numpy as np

import cavs
from cavs import nn, ops
from tests.oracle import assert_close

CLASSES, SIZE = 3, 4
SGD, STATES = {"kind": "sgd", "lr": 0.5}, [[]] * 7


class Tagger(cavs.Model):
    """A class per vertex, from an embedding and from numbers whose exp may be infinite."""

    def __init__(self, rate=0.0):
        self.embedding = nn.Embedding(30, SIZE, init="xavier")
        self.tree = nn.ChildSumTreeLSTM(SIZE, 3)
        self.dropout = nn.Dropout(rate)
        self.output = nn.Linear(3, CLASSES)

    def loss(self, batch):
        x = self.embedding(batch["token"]) + ops.exp(batch["x"])
        return ops.cross_entropy(
            self.output(self.dropout(self.tree(batch.graph, x=x))), batch["label"]
        )


def tagger(rate=0.0):
    model = Tagger(rate)
    model.initialize(1, np.float64)
    return model


def graphs(sizes=(2, 1, 9, 3, 14, 2, 5, 1), bad=(), tokens=30):
    """Return random trees of these sizes; those in `bad` have no finite loss or gradient."""
    rng, found = np.random.default_rng(sum(sizes)), []
    for i, n in enumerate(sizes):
        parents = [-1, *(int(rng.integers(v)) for v in range(1, n))]
        children = [[c for c in range(n) if parents[c] == v] for v in range(n)]
        x = rng.normal(size=(n, SIZE))
        x[0, : 1 + i % 2 * SIZE] = 1e4 if i in bad else 0
        features = {"x": x, "token": rng.integers(0, tokens, n), "label": rng.integers(0, 3, n)}
        found.append(cavs.Graph(children, features))
    return found


def single(i, **options):
    return cavs.batch([graphs(**options)[i]])


def trainer_on(where, model=None, optimizer=None, **options):
    model = tagger() if model is None else model
    session = cavs.Session(model, dtype=np.float64, device=where)
    return cavs.Trainer(model, optimizer or cavs.optim.Adam(lr=0.02), session=session, **options)


def values(model):
    return {k: p.value.copy() for k, p in model.parameters().items()}


def rounded(text):
    return re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.9f}", text)


def close(trainer, other, tolerance=1e-10):
    wanted = values(other.model)
    for k, value in values(trainer.model).items():
        assert_close(value, wanted[k], tolerance, k)
    pairs = zip(trainer.states, other.states, strict=True)
    for i, (own, others) in enumerate(pairs):
        for a, b in zip(own, others, strict=True):
            assert_close(a, b, tolerance, f"state {i}")


def both(device, run, **options):
    """Check that `run` gives the same with a trainer on the CPU and with one on the device."""
    host, there = trainer_on("cpu", **options), trainer_on(device, **options)
    expected, found = run(host), run(there)
    assert there.steps == host.steps
    close(there, host)
    return expected, found
