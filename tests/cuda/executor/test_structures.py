"""Models over samples of several structures on a device."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import cavs
from cavs import nn, ops
from cavs.runtime import program_cache
from tests.compiler.test_structures import (
    ALL_ON,
    FLOAT64,
    Attention,
    Bags,
    Tagger,
    Translator,
    bag,
    compare,
    pair_of_sentences,
    sentence,
    translation,
)
from tests.draws import examples
from tests.oracle import agrees, drawn
from tests.random_structures import cases

RANDOM = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def tagger(rng):
    return Tagger(), [sentence(list(rng.integers(1, 4, n)), rng) for n in (3, 1, 2)]


def attention(rng):
    return Attention(), [pair_of_sentences(s, t, rng) for s, t in ((3, 2), (1, 1), (2, 4))]


def bags(rng):
    return Bags(), [bag(rows, rng) for rows in ([[0, 2, 2], [], [1]], [[]])]


def translator(rng):
    return Translator(), [translation(s, t, rng) for s, t in ((3, 4), (1, 1), (5, 2))]


@pytest.mark.parametrize("case", [tagger, attention, bags, translator])
def test_a_device_equals_the_oracle(device, case):
    model, samples = case(np.random.default_rng(0))
    session, _ = agrees(model, cavs.batch(samples), 1e-9, device=device)
    agrees(model, cavs.batch(samples[::-1][:2]), 1e-9, device=device)
    assert session.device is device


@examples(2, RANDOM, most=50)
@given(cases(most=2, mergeable=True))
def test_merged_structures_equal_the_oracle(device, case):
    with mock.patch.object(program_cache, "MIN_MERGED", 1):
        compare(*case, FLOAT64, dtype=np.float64, passes=ALL_ON, device=device)


@examples(3, RANDOM, most=50)
@given(cases(most=2))
def test_random_models_equal_the_oracle(device, case):
    compare(*case, FLOAT64, dtype=np.float64, passes=ALL_ON, device=device)


class Noisy(cavs.VertexFunction):
    """A chain whose messages from linked vertices have random numbers of their own."""

    def __init__(self, size):
        self.state = cavs.State(h=size)
        self.linear = nn.Linear(2 * size, size)

    def vertex(self, v):
        h = v.gather().h.sum()
        message = ops.dropout(ops.tanh(v.link("source").h * h + v.pull("x")), 0.4)
        message = ops.normal(message, 0.1 * message) + ops.uniform(like=message)
        h = ops.tanh(self.linear(ops.concat([v.pull("x"), message.sum()])))
        v.scatter(h=h)
        v.push(h)


class NoisyTranslator(Translator):
    def __init__(self, size=3):
        super().__init__(size)
        self.decode = Noisy(size)

    def forward(self, batch):
        source, target = batch.graphs["source"], batch.graphs["target"]
        h = self.encode(source, x=self.word(source["token"]))
        read = ops.linked(batch.link("to"), h=h)
        return self.decode(target, x=self.word(target["token"]), source=read)


def test_random_numbers_of_pairs_are_those_of_the_cpu(device):
    """Pairs are numbered by the vertex that reads them, and rows by level over all samples."""
    rng = np.random.default_rng(1)
    batch = cavs.batch([translation(*s, rng) for s in ((3, 4), (2, 1), (5, 2), (2, 6))])
    model = drawn(NoisyTranslator(), 0.5)
    agrees(model, batch, FLOAT64)
    agrees(model, batch, FLOAT64, device=device)
