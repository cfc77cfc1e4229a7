"""Models over samples of several structures on a device."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from tests.compiler.test_structures import (
    Attention,
    Bags,
    Tagger,
    Translator,
    pair_of_sentences,
    sentence,
    translation,
)
from tests.oracle import agrees


def tagger(rng):
    return Tagger(), [sentence(list(rng.integers(1, 4, n)), rng) for n in (3, 1, 2)]


def attention(rng):
    return Attention(), [pair_of_sentences(s, t, rng) for s, t in ((3, 2), (1, 1), (2, 4))]


def bags(rng):
    samples = []
    for rows in ([[0, 2, 2], [], [1]], [[]]):
        a = cavs.Graph([[]] * len(rows), {"x": rng.normal(size=(len(rows), 2))})
        b = cavs.Graph.chain(3, {"x": rng.normal(size=(3, 2))})
        samples.append(cavs.Sample(a=a, b=b, links={"many": cavs.Link("a", "b", rows)}))
    return Bags(), samples


def translator(rng):
    return Translator(), [translation(s, t, rng) for s, t in ((3, 4), (1, 1), (5, 2))]


@pytest.mark.parametrize("case", [tagger, attention, bags, translator])
def test_a_device_equals_the_oracle(device, case):
    model, samples = case(np.random.default_rng(0))
    session, _ = agrees(model, cavs.batch(samples), 1e-9, device=device)
    agrees(model, cavs.batch(samples[::-1][:2]), 1e-9, device=device)
    assert session.device is device
