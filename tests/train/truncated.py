"""A language model whose states are carried over batches, and its text."""

from __future__ import annotations

import numpy as np

import cavs
from cavs import data, nn, ops

CARRY = {"c0": "c", "h0": "h"}
WORDS, SIZE, PARTS, LENGTH = 8, 5, 4, 3


class LanguageModel(cavs.Model):
    """An LSTM that begins from graph features and returns its final states."""

    def __init__(self, seed=0):
        self.word, self.cell = nn.Embedding(WORDS, SIZE), nn.LSTM(SIZE, SIZE)
        self.output = nn.Linear(SIZE, WORDS)
        rng = np.random.default_rng(seed)
        for p in self.parameters().values():
            p.value[...] = rng.normal(size=p.shape) * 0.6

    def loss(self, batch):
        start = {"c": batch["c0"], "h": batch["h0"]}
        h, final = self.cell.with_final(batch.graph, x=self.word(batch["token"]), initial=start)
        loss = ops.cross_entropy(self.output(h), batch["label"])
        return loss, {"c": final.c, "h": final.h}


def text_chains(count=PARTS, length=LENGTH, tokens=60, first=0.0):
    """Return the chains of a drawn text; `first`: states of the first batch."""
    vocabulary = data.Vocabulary(["<eos>", *"abcdef"])
    words = [*"abcdef"]
    drawn = np.random.default_rng(3).integers(0, 6, tokens)
    start = {"c0": np.full(SIZE, first), "h0": np.full(SIZE, first)}
    return data.parallel_chains([[words[i] for i in drawn]], vocabulary, count, length, start)


def loader(graphs=None, batch_size=PARTS, **options):
    """Return a loader whose batches continue each other."""
    return cavs.DataLoader(graphs or text_chains(), batch_size=batch_size, **options)


def trainer(device=None, dtype=np.float64, seed=0):
    """Return a trainer of the model, in float64 unless asked."""
    model = LanguageModel(seed)
    options = {} if device is None else {"device": device}
    session = cavs.Session(model, dtype=dtype, **options)
    return cavs.Trainer(model, cavs.optim.Adam(lr=0.05), session=session)


def bits(made):
    """Return the parameters of a trainer."""
    return {name: p.current().tobytes() for name, p in made.parameters.items()}


def by_hand(made, batches, epochs):
    """Train as `fit` with CARRY; return the losses."""
    losses = []
    for _ in range(epochs):
        rows = {}
        for batch in batches:
            outcome = made.advance(batch.with_graph_features(rows))
            rows = {feature: outcome.aux[name] for feature, name in CARRY.items()}
            losses.append(outcome.loss)
    return losses
