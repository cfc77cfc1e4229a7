"""`LinearScaling`: rates and batch sizes in proportion to scripted numbers of ranks."""

import pytest

from cavs.errors import ConfigError
from cavs.train.policies import LinearScaling
from tests.train.policies.scripted import ScriptedRun, restored


def resized(policy, run, sizes):
    """Let `policy` see each number of ranks; return rates and batch sizes after each."""
    found = []
    for size in sizes:
        old, run.size = run.size, size
        policy.on_resize(run, old, size)
        found.append((run.lr_scale, run.batch_size))
    return found


def test_rate_and_batch_are_in_proportion_to_the_ranks():
    run = ScriptedRun(size=4, lr_scale=2.0)
    assert resized(LinearScaling(), run, [2, 3, 4, 8]) == [(1.0, 4), (1.5, 6), (2.0, 8), (4.0, 16)]


def test_rounding_does_not_add_up():
    run, policy = ScriptedRun(size=3, batch_size=10, lr_scale=0.1), LinearScaling()
    policy.before_train(run)
    for _ in range(5):
        policy = restored(policy)
        assert resized(policy, run, [7, 1, 2, 3])[-1] == (0.1, 10)
    assert resized(policy, run, [1])[0][1] == 3
    assert resized(LinearScaling(), ScriptedRun(size=8, batch_size=3), [1])[0][1] == 1


def test_a_change_by_others_is_the_new_proportion():
    run, policy = ScriptedRun(size=4, batch_size=8), LinearScaling()
    resized(policy, run, [2])
    run.batch_size, run.lr_scale = 10, 3.0
    assert resized(policy, run, [4]) == [(6.0, 20)]


def test_the_rate_alone():
    run = ScriptedRun(size=4)
    assert resized(LinearScaling(batch=False), run, [2, 6]) == [(0.5, 8), (1.5, 8)]


def test_a_run_that_resumes_with_other_ranks_scales_at_its_begin():
    run, policy = ScriptedRun(size=4), LinearScaling()
    policy.before_train(run)
    assert run.changes == []
    resized(policy, run, [2])
    run.size = 6
    restored(policy).before_train(run)
    assert (run.lr_scale, run.batch_size) == (1.5, 12)


def test_an_invalid_option_is_refused():
    with pytest.raises(ConfigError, match="batch is 'no'"):
        LinearScaling(batch="no")
