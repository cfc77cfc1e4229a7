"""`AdaptiveTopology`: a tree once the scripted throughput has fallen."""

import pytest

from cavs.errors import ConfigError
from cavs.train.policies import AdaptiveTopology
from tests.train.policies.scripted import ScriptedRun, restored, steps


@pytest.mark.parametrize(("tree", "expected"), [("latency", [0, 0, 0]), ("star", [1, 1, 1])])
def test_a_tree_is_set_once_when_the_throughput_is_below_the_share(tree, expected):
    run, policy = ScriptedRun(size=3), AdaptiveTopology(window=4, tree=tree)
    steps(policy, run, 1, throughput=1.0)  # the first step prepares the others
    steps(policy, run, 4, throughput=100.0)
    steps(policy, run, 8, throughput=81.0)
    assert run.changes == []
    policy = restored(policy, window=4, tree=tree)
    steps(policy, run, 4, throughput=79.0)
    steps(restored(policy, window=4, tree=tree), run, 12, throughput=10.0)
    assert run.changes == [("tree", expected)]


def test_ranks_that_disagree_ask_again():
    run, policy = ScriptedRun(size=2, agree=False), AdaptiveTopology(window=1)
    steps(policy, run, 2, throughput=100.0)
    steps(policy, run, 2, throughput=10.0)
    assert len(run.changes) == 2


def test_the_reference_is_that_of_the_same_number_of_ranks():
    run, policy = ScriptedRun(size=4), AdaptiveTopology(window=2)
    steps(policy, run, 5, throughput=100.0)
    steps(policy, run, 5, throughput=50.0, size=2)
    steps(policy, run, 5, throughput=25.0, size=1)
    assert run.changes == []
    steps(policy, run, 3, throughput=50.0, size=2)
    steps(policy, run, 2, throughput=30.0)
    assert run.changes == [("tree", [0, 0])]


def test_a_resumed_run_begins_with_a_new_reference():
    run, policy = ScriptedRun(size=2), AdaptiveTopology(window=1)
    steps(policy, run, 2, throughput=100.0)
    steps(policy, run, 1, throughput=10.0)
    again = restored(policy, window=1)
    again.before_train(run)
    steps(again, run, 2, throughput=50.0)
    steps(again, run, 1, throughput=10.0)
    assert len(run.changes) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": 0}, "share is 0"),
        ({"share": 1.0}, "share is 1.0"),
        ({"window": 0}, "window is 0"),
        ({"tree": "ring"}, "tree is 'ring'"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        AdaptiveTopology(**options)
