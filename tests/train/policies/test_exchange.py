"""`NoiseExchange`: the part of the gradients that is exchanged, from scripted noise scales."""

import math

import pytest

from cavs.errors import ConfigError
from cavs.train.policies import NoiseExchange
from tests.train.policies.scripted import ScriptedRun, restored


class Exchanging(ScriptedRun):
    """A scripted training whose ranks exchange a part of the gradients."""

    def set_exchange_budget(self, budget):
        return self._change("exchange_budget", budget)


def begin_epochs(policy, run, *noise_scales):
    for run.noise_scale in noise_scales:
        policy.before_epoch(run)


def test_the_part_falls_with_the_noise_between_its_limits():
    run = Exchanging(batch_size=8)
    begin_epochs(NoiseExchange(least=0.2), run, math.nan, 0.0, -3.0, 2.0, 8.0, 32.0, 8e6)
    assert run.changes == [("exchange_budget", part) for part in (1.0, 1.0, 0.5, 0.2)]


def test_ranks_take_the_mean_of_their_noise_scales():
    class Noisier(Exchanging):
        def all_reduce(self, value, op="sum"):
            return {"mean": value + 24.0}[op]

    run = Noisier(batch_size=8)
    begin_epochs(NoiseExchange(first=0.8), run, 8.0)
    assert run.changes == [("exchange_budget", 0.4)]


def test_a_resumed_run_begins_with_the_part_of_the_stored_one():
    run, policy = Exchanging(batch_size=8), NoiseExchange()
    policy.before_train(run)
    assert run.changes == []
    begin_epochs(policy, run, 32.0)
    again, resumed = restored(policy), Exchanging(batch_size=8)
    again.before_train(resumed)
    assert resumed.changes == run.changes == [("exchange_budget", 0.5)]
    untouched = Exchanging()
    restored(NoiseExchange()).before_train(untouched)
    assert untouched.changes == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"first": 0}, "first is 0"),
        ({"least": 1.5}, "least is 1.5"),
        ({"power": -1}, "power is -1"),
        ({"alpha": 2}, "alpha is 2"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        NoiseExchange(**options)
