"""Cotangents of vertices that run once: sums over copies, structure by structure."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.compiler.options import Passes
from cavs.runtime import program_cache
from tests.oracle import assert_close, drawn

TOKENS = [[1, 2, 3]] * 6 + [[2, 1]]


class Model(cavs.Model):
    """A cell over words, whose copies run once, and rows of characters, which no cell reads."""

    def __init__(self):
        self.word, self.char = nn.Embedding(5, 3), nn.Embedding(5, 3)
        self.cell = nn.ChildSumTreeLSTM(3, 3)

    def forward(self, batch):
        words, chars = batch.graphs["words"], batch.graphs["chars"]
        states = self.cell(words, x=self.word(words["token"]))
        return {"words": states, "chars": ops.tanh(self.char(chars["char"]))}


def batch(tokens=TOKENS, chars=3):
    rng = np.random.default_rng(0)
    return cavs.batch(
        [
            cavs.Sample(
                words=cavs.Graph.chain(len(words), {"token": words}),
                chars=cavs.Graph([[]] * chars, {"char": rng.integers(0, 5, chars)}),
            )
            for words in tokens
        ]
    )


@pytest.fixture(autouse=True)
def small_batches_are_merged(monkeypatch):
    monkeypatch.setattr(program_cache, "MIN_MERGED", 1)


def test_gradients_equal_those_without_merging():
    model, found = drawn(Model(), 0.5), []
    for merge in (False, True):
        session = cavs.Session(model, dtype=np.float64, passes=Passes(merge_vertices=merge))
        run = session.forward(batch())
        rng = np.random.default_rng(1)
        given = {name: rng.normal(size=run.outputs[name].shape) for name in ("words", "chars")}
        found.append((run.outputs, run.backward(given).parameters))
    (outputs, gradients), (others, merged) = found
    for name, rows in outputs.items():
        assert_close(others[name], rows, 1e-12, name)
    for name, g in gradients.items():
        assert_close(merged[name], g, 1e-12, name)
