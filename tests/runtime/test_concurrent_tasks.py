"""Tasks of one level, which differ only in kind, run concurrently."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import nn
from tests.runtime.trees import Classifier, graph, treebank

DEPTH = 20


def caterpillar(words_inside, rng):
    """A tree whose inner vertices have a leaf and another tree as children, and words or not."""
    children = [[], []]
    for _ in range(DEPTH):
        children += [[len(children) - 2, len(children) - 1], []]
    return graph(children[:-1], rng, absent=(lambda _: False) if words_inside else bool)


def model(hidden):
    made = Classifier(nn.BinaryTreeLSTM(16, hidden), input_size=16)
    made.initialize(1, np.float32)
    return made


def segments(trees):
    rng = np.random.default_rng(0)
    batch = cavs.batch([caterpillar(words_inside, rng) for words_inside in trees])
    session = cavs.Session(model(192), threads=2)
    session.gradients(batch)
    return session.report()["segments"]


def test_several_kinds_at_every_level_add_no_waiting():
    one_kind, two_kinds = segments([False] * 12), segments([False, True] * 6)
    assert one_kind > 2 * DEPTH  # levels are shared by both threads
    assert two_kinds - one_kind < DEPTH


@pytest.mark.parametrize("hidden", [24, 192])
def test_threads_do_not_change_a_bit(hidden):
    batch, results = treebank(20), []
    for threads in (1, 2, 3):
        results.append(cavs.Session(model(hidden), threads=threads).gradients(batch))
    for loss, gradients in results[1:]:
        assert loss == results[0][0]
        for name, value in gradients.items():
            assert np.array_equal(value, results[0][1][name]), name
