"""`NoiseLR` and `VarianceLR`: scales of the rate from scripted measures."""

import math

import pytest

from cavs.errors import ConfigError
from cavs.train.policies import NoiseLR, VarianceLR
from tests.train.policies.scripted import ScriptedRun, restored, steps


def test_noise_lr_is_relative_to_the_first_noise_scale():
    run, policy = ScriptedRun(), NoiseLR(every=2)
    steps(policy, run, 2, noise_scale=math.nan)
    steps(policy, run, 2, noise_scale=8.0)  # 1 / (1 + 8 / 8)
    assert run.changes == [("lr_scale", 1.0)]
    steps(policy, run, 2, noise_scale=24.0)
    assert run.lr_scale == pytest.approx(0.5)
    again = restored(policy, every=2)
    steps(again, run, 2, noise_scale=0.0)
    assert run.lr_scale == pytest.approx(2.0)
    for invalid in (-1.0, math.nan, math.inf):
        steps(again, run, 2, noise_scale=invalid)
    assert len(run.changes) == 3


def test_variance_lr_is_the_gain_of_averaging():
    run, policy = ScriptedRun(size=4), VarianceLR()
    # Variance 4 of one rank's gradient: 3 / 4 of it among the four; the true square is 2 - 1.
    steps(policy, run, 3, gradient_variance=3.0, grad_norm=2**0.5)
    assert run.lr_scale == pytest.approx((4 + 1) / (4 / 4 + 1))
    assert restored(policy).state_dict()["ranks"] == 4


@pytest.mark.parametrize(
    ("variance", "norm", "scale"), [(0.0, 1.0, 1.0), (0.0, 0.0, 1.0), (3.0, 0.1, 4.0)]
)
def test_variance_lr_is_between_one_and_the_number_of_ranks(variance, norm, scale):
    run = ScriptedRun(size=4)
    steps(VarianceLR(), run, 1, gradient_variance=variance, grad_norm=norm)
    assert run.lr_scale == pytest.approx(scale)


def test_variance_lr_smooths_with_weight_alpha_and_goes_on_from_a_checkpoint():
    run, policy = ScriptedRun(size=2), VarianceLR(alpha=0.5)
    steps(policy, run, 1, gradient_variance=1.0, grad_norm=2.0)
    steps(restored(policy, alpha=0.5), run, 1, gradient_variance=2.0, grad_norm=2.0)
    variance, square = (2 + 4) / 2, (3 + 2) / 2
    assert run.lr_scale == pytest.approx((variance + square) / (variance / 2 + square))


def test_variance_lr_smooths_every_step_and_changes_the_rate_in_some():
    run, policy = ScriptedRun(size=2), VarianceLR(every=2, alpha=0.5)
    steps(policy, run, 1, gradient_variance=1.0, grad_norm=2.0)
    assert run.changes == []
    steps(policy, run, 1, gradient_variance=2.0, grad_norm=2.0)
    variance, square = (2 + 4) / 2, (3 + 2) / 2
    ((_, scale),) = run.changes
    assert scale == pytest.approx((variance + square) / (variance / 2 + square))


def test_variance_lr_of_one_rank_is_one():
    run, policy = ScriptedRun(), VarianceLR()
    steps(policy, run, 2, gradient_variance=1.0)
    assert run.changes == []
    steps(policy, run, 1, size=4)
    assert run.lr_scale > 1
    steps(policy, run, 2, size=1)
    assert run.lr_scale == 1.0 and len(run.changes) == 2


@pytest.mark.parametrize("policy", [NoiseLR, VarianceLR])
@pytest.mark.parametrize(
    ("options", "message"),
    [({"every": 0}, "every is 0"), ({"alpha": 0}, "alpha is 0"), ({"alpha": "a"}, "alpha is 'a'")],
)
def test_invalid_options_are_refused(policy, options, message):
    with pytest.raises(ConfigError, match=message):
        policy(**options)
