"""``cavs.torch.collate``: batches of a DataLoader of torch, with and without worker processes."""

from __future__ import annotations

import pickle
from typing import NamedTuple

import numpy as np
import pytest

import cavs
from cavs.errors import FeatureError
from tests.runtime.test_input_gradients import CHAIN, ROOTS, Encoder, graph_of

torch = pytest.importorskip("torch", reason="cavs.torch needs the package torch")
from torch.utils.data import DataLoader  # noqa: E402

from cavs.torch import Module, collate  # noqa: E402

RNG = np.random.default_rng(0)
GRAPHS = [graph_of(form, RNG) for form in (CHAIN, ROOTS, [[]], CHAIN, ROOTS)]
PAIRS = [(graph, torch.full((2,), float(i)), i) for i, graph in enumerate(GRAPHS)]


class Pair(NamedTuple):
    graph: cavs.Graph
    label: int


def same(ours, theirs):
    assert [g.num_vertices for g in ours.graphs] == [g.num_vertices for g in theirs.graphs]
    for name in theirs.feature_schema():
        assert np.array_equal(ours[name], theirs[name])


def test_graphs_become_a_batch():
    batches = list(DataLoader(GRAPHS, batch_size=2, collate_fn=collate))
    assert [b.num_graphs for b in batches] == [2, 2, 1]
    same(batches[0], cavs.batch(GRAPHS[:2]))


def test_items_are_collated_one_by_one():
    batch, rows, numbers = collate(PAIRS[:3])
    same(batch, cavs.batch(GRAPHS[:3]))
    assert torch.equal(rows, torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]))
    assert torch.equal(numbers, torch.tensor([0, 1, 2]))
    pair = collate([Pair(GRAPHS[0], 3), Pair(GRAPHS[1], 4)])
    assert isinstance(pair, Pair)
    assert pair.label.tolist() == [3, 4]
    found = collate([{"tree": g, "more": (g, np.float32(1))} for g in GRAPHS])
    same(found["tree"], cavs.batch(GRAPHS))
    same(found["more"][0], cavs.batch(GRAPHS))
    assert found["more"][1].dtype == torch.float32


def test_samples_of_several_structures():
    samples = [cavs.Sample(words=g, letters=g) for g in GRAPHS[:2]]
    batch, labels = collate([(sample, 1) for sample in samples])
    assert isinstance(batch, cavs.SampleBatch)
    assert labels.tolist() == [1, 1]


def test_worker_processes():
    """Batches of two workers equal those of one process, and the workers end."""
    module = Module(Encoder(3))
    x = torch.ones(GRAPHS[0].num_vertices, 3)
    module(cavs.batch(GRAPHS[:1]), x=x).sum().backward()  # the pool of threads has started
    loader = DataLoader(
        PAIRS,
        batch_size=2,
        collate_fn=collate,
        num_workers=2,
        timeout=60,
    )
    for _ in range(2):
        found = iter(loader)
        workers = list(found._workers)
        given = list(found)
        for (batch, rows, numbers), first in zip(given, range(0, 5, 2), strict=True):
            expected = collate(PAIRS[first : first + 2])
            same(batch, expected[0])
            assert torch.equal(rows, expected[1])
            assert torch.equal(numbers, expected[2])
            x = torch.ones(batch.num_vertices, 3)
            assert torch.equal(module(batch, x=x), module(expected[0], x=x))
        del found
        for worker in workers:
            worker.join(timeout=20)
            assert worker.exitcode == 0


def test_batches_and_samples_pickle():
    """As processes that start afresh send them."""
    batch, rows, _ = pickle.loads(pickle.dumps(collate(PAIRS)))
    same(batch, cavs.batch(GRAPHS))
    assert torch.equal(rows, torch.stack([row for _, row, _ in PAIRS]))
    same(cavs.batch([pickle.loads(pickle.dumps(graph)) for graph in GRAPHS]), batch)


def test_wrong_samples():
    with pytest.raises(FeatureError, match="no samples to collate"):
        collate([])
    with pytest.raises(FeatureError, match="all samples of a batch have the same items"):
        collate([(GRAPHS[0], 1), (GRAPHS[1],)])
    with pytest.raises(FeatureError, match="sample 1 is"):
        collate([{"a": 1}, {"b": 1}])
    with pytest.raises(FeatureError, match=r"sample 1 has a tensor of shape \[3\], sample 0 one"):
        collate([(GRAPHS[0], torch.zeros(2)), (GRAPHS[1], torch.zeros(3))])
    with pytest.raises(FeatureError, match="item 1 is 1"):
        collate([GRAPHS[0], 1])
