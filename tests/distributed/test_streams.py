"""Streams and samplers on many ranks train as on one process."""

import numpy as np
import pytest

import cavs
from cavs.distributed.balance import SpeedBalancer
from cavs.distributed.comm import run_threads
from cavs.train import BatchStream, StreamLoader, WeightedSampler
from tests.distributed.elastic import test_resize
from tests.distributed.elastic.test_resize import assert_all_equal, resized
from tests.distributed.test_loaders import DEV, GRAPHS, alone, assert_same, together, trained
from tests.patience import patience


def batches(epoch):
    for i in range(0, len(GRAPHS), 4):
        yield cavs.batch(GRAPHS[i : i + 4])


SOURCES = [
    lambda: StreamLoader(GRAPHS, 4, shuffle=6, seed=2),
    lambda: StreamLoader(lambda epoch: GRAPHS[epoch:], 4, prefetch=0),
    lambda: BatchStream(batches),
    lambda: batches,
    lambda: cavs.DataLoader(GRAPHS, 4, sampler=WeightedSampler(np.arange(1, 22), 17), seed=2),
]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("options", [{}, {"strategy": "PSLoadBalancing"}])
def test_streams_and_samplers_are_shared_among_ranks(source, options):
    def run(t):
        return trained(t, train=source(), dev=cavs.DataLoader(DEV, 4))

    assert_same(together(run, 2, **options), alone(run))


def test_a_balanced_stream_trains_alike():
    def run(t):
        return trained(t, train=StreamLoader(GRAPHS, 4))

    assert_same(together(run, 2, split=SpeedBalancer()), alone(run))


def test_a_stream_resumes_on_another_number_of_ranks(tmp_path):
    path = tmp_path / "run"
    source = SOURCES[0]
    whole = alone(lambda t: trained(t, train=source()))

    def begin(t):
        t.fit(source(), epochs=1, checkpoint=path, progress=False)

    def end(t):
        t.resume(path)
        return trained(t, train=source())[0]

    together(begin, 2)
    for found in together(end, 3):
        for name, value in whole[0].items():
            np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    "source",
    [
        lambda: StreamLoader(lambda epoch: test_resize.GRAPHS, 8, shuffle=30),
        lambda: BatchStream(
            [cavs.batch(test_resize.GRAPHS[i : i + 8]) for i in range(0, 120, 8)], prefetch=0
        ),
    ],
)
def test_ranks_that_join_read_the_stream_up_to_the_batch_of_the_others(source, monkeypatch):
    monkeypatch.setattr(test_resize, "loader", source)
    expected, _ = test_resize.alone()
    found = run_threads(4, resized, spares=2, timeout=patience(20))
    assert_all_equal(found, expected)
