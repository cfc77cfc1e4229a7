"""Samples of several structures are refused by ranks, with the cure, on all of them alike."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.distributed import Trainer
from cavs.distributed.comm import run_threads
from cavs.errors import ConfigError

SAMPLES = [
    cavs.Sample(
        chars=cavs.Graph.chain(n, {"x": np.ones((n, 1))}),
        words=cavs.Graph.chain(2),
        links={"spelling": cavs.Link("words", "chars", [0, n - 1])},
    )
    for n in (2, 3, 4, 5)
]
MESSAGE = r"samples of several structures are not divided among {}\n(.|\n)*one process"


class Spelled(cavs.Model):
    def __init__(self):
        self.chars, self.words = nn.LSTM(1, 2), nn.LSTM(2, 2)

    def loss(self, batch):
        h = self.chars(batch.graphs["chars"], x=batch.graphs["chars"]["x"])
        read = ops.take(h, batch.link("spelling"))
        return ops.sum_rows(self.words(batch.graphs["words"], x=read).sum(-1))


def step(trainer):
    trainer.step(cavs.batch(SAMPLES))


def fit(trainer):
    trainer.fit(cavs.DataLoader(SAMPLES, batch_size=2), epochs=1, progress=False)


@pytest.mark.parametrize("train", [step, fit])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_trainer_of_ranks_refuses_samples(train, ranks):
    def rank(c):
        trainer = Trainer(Spelled(), cavs.optim.SGD(lr=0.1), communicator=c)
        before = {n: p.value.copy() for n, p in trainer.parameters.items()}
        with pytest.raises(
            ConfigError, match=MESSAGE.format("1 rank" if ranks == 1 else "2 ranks")
        ):
            train(trainer)
        return all(np.array_equal(before[n], p.value) for n, p in trainer.parameters.items())

    assert run_threads(ranks, rank) == [True] * ranks


def test_a_replicated_session_refuses_samples():
    session = cavs.Session(Spelled(), replicated=True)
    with pytest.raises(ConfigError, match="samples with the structures chars, words are not div"):
        session.gradients(cavs.batch(SAMPLES))
