"""`ElasticGNS`, `CostEffectiveSize` and `KeepSize`: numbers of ranks from scripted measures."""

import math

import pytest

from cavs.errors import ConfigError
from cavs.train.policies import CostEffectiveSize, ElasticGNS, KeepSize
from tests.train.policies.scripted import ScriptedRun, epochs, restored, steps

NAN = math.nan


@pytest.mark.parametrize(
    ("noise", "most", "size"),
    [
        ([NAN, NAN], None, 2),
        ([10.0, 20.0], None, 4),
        ([10.0, 14.0], None, 2),  # 2.8 ranks
        ([10.0, 5.0, 15.0], None, 3),  # the last change counts
        ([10.0, 1e9], None, 8),
        ([10.0, 1e9], 5, 5),
        ([10.0, 1e9], 1, 2),  # it removes none
        ([0.0, -1.0, 10.0, 20.0], None, 4),
        ([1e-320, 1e300], None, 8),
    ],
)
def test_elastic_gns_multiplies_ranks_by_the_growth_of_the_noise_scale(noise, most, size):
    run = ScriptedRun(size=2)
    epochs(ElasticGNS(most=most), run, noise)
    assert run.size == size


def test_elastic_gns_goes_on_from_a_checkpoint():
    run, policy = ScriptedRun(size=2), restored(ElasticGNS())
    epochs(policy, run, [10.0])
    epochs(restored(policy), run, [20.0])
    assert run.size == 4


def cost_effective(throughputs, **facts):
    """Return run and policy after four steps at the throughput of each number of ranks."""
    run, policy = ScriptedRun(**facts), CostEffectiveSize(every=4)
    for _ in range(12):
        policy = restored(policy, every=4)
        steps(policy, run, 4, throughput=throughputs[run.size - 1])
    return run, policy


@pytest.mark.parametrize(
    ("throughputs", "sizes"),
    [
        ([10, 20, 30, 31, 99, 99, 99, 99], [2, 3, 4, 3]),
        ([10, 13.2, 99, 99, 99, 99, 99, 99], [2, 1]),
        ([10, 13.4, 15, 99, 99, 99, 99, 99], [2, 3, 2]),
        (range(10, 90, 10), [2, 3, 4, 5, 6, 7, 8]),
        ([10, 20, 30, 40, 50, 60, 70, 71], [2, 3, 4, 5, 6, 7, 8, 7]),
        ([NAN] * 8, []),
    ],
)
def test_cost_effective_size_removes_the_first_rank_that_is_not_worth_it(throughputs, sizes):
    run, _ = cost_effective(throughputs)
    assert run.changes == [("size", size) for size in sizes]


def test_cost_effective_size_waits_for_its_first_steps_wherever_it_begins():
    run = ScriptedRun(step=1000)
    policy = CostEffectiveSize(every=4)
    steps(policy, run, 3, throughput=10.0)
    assert run.size == 1
    steps(policy, run, 1)
    assert run.size == 2


@pytest.mark.parametrize("size", [1, 2, 5])
def test_cost_effective_size_compares_only_with_one_rank_less(size):
    """The size changes otherwise between two comparisons."""
    run, policy = ScriptedRun(size=2), CostEffectiveSize(every=4)
    steps(policy, run, 4, throughput=10.0)
    steps(policy, run, 4, throughput=5.0, size=size)
    assert run.changes == [("size", 3), ("size", size + 1)]


def test_cost_effective_size_ends_at_the_most():
    run, policy = ScriptedRun(max_size=2), CostEffectiveSize(every=1)
    for throughput in (10.0, 20.0, 1.0, 1.0):
        steps(policy, run, 1, throughput=throughput)
    assert run.changes == [("size", 2)]
    run, policy = ScriptedRun(size=3), CostEffectiveSize(every=1, most=3)
    steps(policy, run, 3, throughput=10.0)
    assert run.changes == []


@pytest.mark.parametrize(
    ("given", "sizes"),
    [(None, [("size", 3)]), (4, [("size", 4), ("size", 4)]), (9, [("size", 5), ("size", 5)])],
)
def test_keep_size_asks_for_the_ranks_that_began_or_those_given(given, sizes):
    run, policy = ScriptedRun(size=3, max_size=5, agree=False), KeepSize(given)
    policy.before_train(run)
    policy = restored(policy)
    steps(policy, run, 1)
    steps(policy, run, 1, size=2)
    assert run.changes == sizes
    steps(policy, run, 1, max_size=2)  # none waits
    assert run.changes == sizes


@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        (KeepSize, {"size": 0}, "size is 0"),
        (ElasticGNS, {"most": 0}, "most is 0"),
        (ElasticGNS, {"alpha": 0}, "alpha is 0"),
        (CostEffectiveSize, {"every": 1.5}, "every is 1.5"),
        (CostEffectiveSize, {"alpha": -0.1}, "alpha is -0.1"),
        (CostEffectiveSize, {"most": 0}, "most is 0"),
    ],
)
def test_invalid_options_are_refused(policy, options, message):
    with pytest.raises(ConfigError, match=message):
        policy(**options)
