"""A balancer that splits ahead gives equal results on all ranks, whatever their timing."""

import copy
import pickle
import threading

import numpy as np
import pytest

from benchmarks.balance import trees
from cavs.distributed.balance import (
    PairBalancer,
    SpeedBalancer,
    StructureBalancer,
    gradient_weights,
)
from cavs.errors import ConfigError, PicklingError
from tests.distributed.balance.test_structure import cost_of

DATA = trees(200, seed=5)


def batches(count, size=16, seed=0):
    rng = np.random.default_rng(seed)
    return [[DATA[i] for i in rng.integers(0, len(DATA), size)] for _ in range(count)]


def times_of(graphs, parts, slow=(1, 2)):
    return [s * cost_of([graphs[i] for i in part]) for s, part in zip(slow, parts, strict=True)]


def trained(ahead, lag, steps=25):
    """Return the splits of a rank whose loader is `ahead` batches before its steps."""
    balancer, work = StructureBalancer(2, lag=lag), batches(steps)
    splits = []
    for n in range(steps):
        while len(splits) < min(n + 1 + ahead, steps):
            splits.append(balancer(work[len(splits)], 2))
        balancer.update(times_of(work[n], splits[n]))
    return splits


def test_splits_do_not_depend_on_the_look_ahead():
    expected = trained(ahead=0, lag=3)
    assert trained(ahead=3, lag=3) == expected
    assert trained(ahead=1, lag=3) == expected
    assert trained(ahead=0, lag=0) != expected


def test_times_improve():
    work, splits = batches(25), trained(ahead=2, lag=2)
    late = [times_of(work[n], splits[n]) for n in range(15, 25)]
    assert np.mean([max(t) / np.mean(t) for t in late]) < 1.1
    equal = [times_of(work[n], [range(8), range(8, 16)]) for n in range(15, 25)]
    assert sum(map(max, late)) < 0.8 * sum(map(max, equal))
    assert gradient_weights([len(part) for part in splits[-1]])[0] > 0


def test_a_loader_too_far_ahead_waits():
    balancer, work = StructureBalancer(2, lag=0), batches(6)
    splits, done = [], threading.Event()

    def load():
        for graphs in work:
            splits.append(balancer(graphs, 2))
        done.set()

    thread = threading.Thread(target=load)
    thread.start()
    for n in range(6):
        assert not done.is_set() or n == 5
        while len(splits) <= n:
            thread.join(0.001)
        balancer.update(times_of(work[n], splits[n]))
    thread.join(20)
    assert done.is_set()
    assert splits == trained(ahead=0, lag=0, steps=6)


def test_small_batches_and_steps_without_times():
    balancer = StructureBalancer(3, lag=0)
    assert balancer(DATA[:2], 3) == [[0], [1], []]
    balancer.update([1.0, 1.0, 1.0])
    assert balancer.model.steps == 0
    balancer(DATA[:9], 3)
    balancer.update(None)
    assert balancer.model.steps == 0
    balancer(DATA[:9], 3)
    balancer.update([1.0, 1.0, 1.0])
    assert balancer.model.steps == 1


def test_a_new_epoch():
    balancer = StructureBalancer(2, lag=1, timeout=0.01)
    balancer(DATA[:4], 2)
    balancer(DATA[:4], 2)
    with pytest.raises(ConfigError, match="batch 2 is split, but only 0 steps"):
        balancer(DATA[:4], 2)
    balancer.update([1.0, 2.0])
    balancer.reset()
    with pytest.raises(ConfigError, match="times of step 0, whose batch was not split"):
        balancer.update([1.0, 2.0])
    assert balancer.model.steps == 1
    assert len(balancer(DATA[:4], 2)) == 2


def test_misuse():
    with pytest.raises(ConfigError, match="lag is -1"):
        StructureBalancer(2, lag=-1)
    with pytest.raises(ConfigError, match="of 2 ranks splits for 3"):
        StructureBalancer(2)(DATA[:4], 3)


@pytest.mark.parametrize("kind", [SpeedBalancer, PairBalancer, StructureBalancer])
@pytest.mark.parametrize("act", [pickle.dumps, copy.copy, copy.deepcopy])
def test_balancers_stay_in_their_process(kind, act):
    with pytest.raises(
        PicklingError,
        match=rf"(?s)a {kind.__name__} cannot be .*hint: make a balancer in each process",
    ):
        act(kind(2))


@pytest.mark.parametrize("kind", [SpeedBalancer, PairBalancer, StructureBalancer])
def test_fresh_balancers_share_no_history(kind):
    balancer = kind(2, lag=0)
    balancer(DATA[:8], 2)
    other = balancer.fresh()
    assert other.ranks is None and other.lag == 0
    assert [len(part) for part in other(DATA[:9], 3)] and other.ranks == 3
    balancer.update([1.0, 2.0], [(0.0, 0.0)] * 2)
    with pytest.raises(ConfigError, match="of 3 ranks splits for 2"):
        other(DATA[:8], 2)
    assert balancer.ranks == 2
