"""A small model of sentences, and random ones, to look at bytes and faults, not at times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import cavs
from cavs import nn, ops
from cavs.data import Vocabulary, read_sst

WORDS, WIDTH, HIDDEN, CLASSES = 2000, 96, 96, 5


class Sentiment(cavs.Model):
    """A binary Tree-LSTM over words, given as numbers or as vectors."""

    def __init__(self, table: bool) -> None:
        if table:
            self.embedding = nn.Embedding(WORDS, WIDTH)
        self.tree = nn.BinaryTreeLSTM(WIDTH, HIDDEN)
        self.output = nn.Linear(HIDDEN, CLASSES)
        self.table = table
        rng = np.random.default_rng(0)
        for p in self.parameters().values():
            p.value[...] = rng.normal(size=p.shape) * 0.1

    def loss(self, batch):
        x = self.embedding(batch["token"]) if self.table else batch["x"]
        return ops.cross_entropy(self.output(self.tree(batch.graph, x=x)), batch["label"])


def trees(count: int, table: bool, seed: int = 5) -> list[cavs.Graph]:
    """Return random binary trees with skewed word frequencies; labels depend on the words."""
    rng = np.random.default_rng(seed)
    graphs = []
    for _ in range(count):
        words = int(rng.integers(2, 20))
        children: list[list[int]] = [[] for _ in range(words)]
        roots = list(range(words))
        while len(roots) > 1:
            i = int(rng.integers(0, len(roots) - 1))
            children.append(roots[i : i + 2])
            roots[i : i + 2] = [len(children) - 1]
        token = np.minimum(rng.zipf(1.3, words), WORDS) - 1
        value = list(token % 3)
        value += [0] * (words - 1)
        for v in range(words, len(children)):
            value[v] = sum(value[c] for c in children[v])
        token = np.concatenate([token, np.full(words - 1, -1)]).astype(np.int32)
        graphs.append(graph(children, token, np.array(value, np.int32) % CLASSES, table))
    return graphs


def treebank(folder: str, count: int, table: bool) -> list[cavs.Graph]:
    """Return the first trees of train.txt of SST in `folder`; rare words share a number."""
    found = read_sst(Path(folder, "train.txt"), CLASSES)[:count]
    known = Vocabulary.build((w for tree in found for w in tree.tokens), max_size=WORDS)
    return [
        graph(
            (np.array(t.offsets, np.int32), np.array(t.children, np.int32)),
            known.encode(t.words),
            np.array(t.labels, np.int32),
            table,
        )
        for t in found
    ]


VECTORS = np.random.default_rng(1).normal(size=(WORDS + 1, WIDTH)).astype(np.float32)
VECTORS[-1] = 0  # above the words


def graph(children: Any, token: Any, label: Any, table: bool) -> cavs.Graph:
    features = {"token": token} if table else {"x": VECTORS[token]}
    return cavs.Graph(children, {"label": label} | features)
