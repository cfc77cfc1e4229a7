"""A rank whose link is slow gets fewer graphs where ranks send gradients to owners.

Ranks are threads that sleep while they compute and while they send, so that the times of a step are
known and take no processor. A machine with other load wakes threads late, so that the times of a
step are others: a run that fails after that happened is repeated.
"""

import time

import numpy as np
import pytest

import cavs
from cavs.distributed.balance import EMA, PairBalancer, SpeedBalancer, StructureBalancer
from cavs.distributed.comm import run_threads
from cavs.distributed.step.delays import OwnerDelays, unequal_delays
from cavs.distributed.step.synchronous_step import Run
from cavs.distributed.sync.synchroniser import OwnerExchange
from tests.distributed.balance.test_speed_balancer import slowed
from tests.distributed.step.test_stale_parameters import assert_same_bits, trainer, values_of
from tests.distributed.test_trainer import trees
from tests.patience import patience

RANKS, SLOW, BATCH = 3, 2, 24
GRAPH = 0.005  # seconds of computing
LINK = 0.04  # seconds in which the slow link sends the gradients of a step
DATA = trees(BATCH, 3)
RUNS = 3  # at most, while runs that are disturbed fail


class Sleep:
    """Sleeps, and notes how late its threads woke up at most."""

    def __init__(self):
        self.late = 0.0

    def __call__(self, seconds):
        end = time.perf_counter() + seconds
        time.sleep(seconds)
        self.late = max(self.late, time.perf_counter() - end)


SLEEP = Sleep()


class Sleeper:
    """An executor that takes a given time for each run."""

    def __init__(self, executor, seconds):
        self.executor, self.seconds = executor, seconds

    def run(self, *inputs):
        SLEEP(self.seconds)
        return self.executor.run(*inputs)

    def __getattr__(self, name):
        return getattr(self.executor, name)


@pytest.fixture
def timed(monkeypatch):
    """Let every graph take `GRAPH` seconds."""
    go = Run.go

    def slower(self, words, inputs):
        own, self.executor = self.executor, Sleeper(self.executor, GRAPH * self.part.computed)
        try:
            go(self, words, inputs)
        finally:
            self.executor = own

    monkeypatch.setattr(Run, "go", slower)


class Link:
    """The link of a rank to others: it sends one message after the other, at a rate."""

    def __init__(self, c):
        self.c, self.exchange, self.seconds_per_byte = c, c._exchange, 0.0
        c._exchange = self

    def __call__(self, sends, receives):
        SLEEP(sum(array.nbytes for array, _ in sends) * self.seconds_per_byte)
        self.exchange(sends, receives)


def steps_of(t, count):
    """Return the graphs of every rank in each step."""
    return [t.advance(cavs.batch(DATA)).rank_graphs for _ in range(count)]


def length(graphs, link):
    """Return the seconds until the last gradients are there, on a machine without other load."""
    return max(GRAPH * n + link * (rank == SLOW) for rank, n in enumerate(graphs))


BALANCERS = {
    "speed": lambda: SpeedBalancer(predictor=EMA, lag=0),
    "pairs": PairBalancer,
    "structure": lambda: StructureBalancer(lag=0),
}


def assert_fewer_graphs_while_late(before, late, after):
    """Compare graphs of the slow rank, and lengths of steps, before, in and after the slow phase.

    Without delays each rank has 8 graphs; the link costs as much time as 8 graphs.
    """

    def graphs(found):
        return float(np.mean([g[SLOW] for g in found[-10:]]))

    def seconds(found):
        return float(np.mean([length(g, LINK) for g in found]))

    assert graphs(late) <= graphs(before) - 1.5
    assert seconds(late[-10:]) < seconds(late[:2]) - LINK / 6
    assert graphs(after) >= graphs(late) + 1


@pytest.mark.parametrize("name", BALANCERS)
def test_the_rank_of_a_slow_link_gets_fewer_graphs_until_the_link_recovers(timed, name):
    steps = 40 if name == "pairs" else 30

    def work(c):
        split, link = BALANCERS[name](), Link(c)
        with trainer(c, split=split, strategy="PS") as t:
            before = steps_of(t, 10)
            nbytes = sum(p.value.nbytes for p in t.parameters.values())
            if c.rank == SLOW:
                link.seconds_per_byte = LINK / nbytes
            late = steps_of(t, steps)
            link.seconds_per_byte = 0.0
            after = steps_of(t, steps)
            return before, late, after, values_of(t)

    for run in range(1, RUNS + 1):
        SLEEP.late = 0.0
        results = run_threads(RANKS, work, timeout=patience(30))
        assert_same_bits([result[3] for result in results])
        before, late, after, _ = results[0]
        for other in results[1:]:
            assert other[1] == late
        try:
            assert_fewer_graphs_while_late(before, late, after)
            break
        except AssertionError:
            if run == RUNS or SLEEP.late < LINK:
                raise


@pytest.mark.parametrize("delays", [(0.5, 0.5, 0.5), (0.0, 0.0, 0.004)])
def test_delays_that_are_alike_or_small_change_no_split(monkeypatch, delays):
    def learn(self, exchanges, begun, ends):
        self.seconds[:] = delays if learns else 0.0

    def work(c):
        with trainer(c, split=SpeedBalancer(predictor=EMA, lag=0), strategy="PS") as t:
            slowed(t, lambda rank, graphs: 0.01 * (rank + 1) * graphs)
            return [t.advance(cavs.batch(DATA)).rank_graphs for _ in range(6)]

    monkeypatch.setattr(OwnerDelays, "learn", learn)
    learns = True
    found = run_threads(RANKS, work, timeout=patience(30))
    learns = False
    assert run_threads(RANKS, work, timeout=patience(30)) == found
    assert found[0][-1][0] > found[0][-1][2]


def test_all_reduces_have_no_delays_of_one_rank(timed):
    def work(c):
        with trainer(c) as t:
            report = t.advance(cavs.batch(DATA))
        return report.rank_delays, report.rank_loads == report.rank_seconds

    assert run_threads(2, work, timeout=patience(30)) == [((), True)] * 2


class Seen(OwnerExchange):
    """An exchange that an owner has ended. deliveries: see `OwnerExchange`."""

    def __init__(self, deliveries):
        self.deliveries = deliveries

    def reduce(self, gradients, usable, c):
        return []


def test_delays_follow_what_an_owner_waits_for():
    delays = OwnerDelays(3)
    for _ in range(20):
        # Rank 1 was there when the owner looked, at 1.0; it waited for rank 2 until 1.5.
        delays.learn(
            [Seen({1: [(11.0, 11.0)], 2: [(11.0, 11.5), (11.5, 11.5)]})], 10.0, [1.0, 0.9, 0.9]
        )
    np.testing.assert_allclose(delays.seconds, [0, 0, 0.6], atol=1e-5)


def test_a_delay_that_is_not_seen_becomes_shorter_and_stays_below_its_limit():
    delays = OwnerDelays(2)
    delays.seconds[1] = 0.8
    delays.learn([Seen({1: [(11.0, 11.0)]})], 10.0, [1.0, 0.1])
    assert delays.seconds[1] == pytest.approx(0.72)
    delays.learn([Seen({1: [(11.0, 11.0)]})], 10.0, [1.0, 0.8])
    assert delays.seconds[1] == pytest.approx(0.2)


def test_small_and_equal_delays_are_none():
    assert unequal_delays([1.0, 1.0], [0.05, 0.0]) == (0.0, 0.0)
    assert unequal_delays([1.0, 1.0], [0.5, 0.5]) == (0.0, 0.0)
    assert unequal_delays([1.0, 1.0, 1.0], [0.1, 0.5, 0.2]) == pytest.approx((0.0, 0.4, 0.1))
    assert unequal_delays([], []) == ()
