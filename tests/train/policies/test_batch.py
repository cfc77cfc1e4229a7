"""`GNSBatch` and `AdaptiveBatch`: batch sizes from scripted noise scales."""

import math

import pytest

from cavs.errors import ConfigError
from cavs.train.policies import AdaptiveBatch, GNSBatch
from tests.train.policies.scripted import ScriptedRun, epochs, restored, steps

NAN = math.nan


@pytest.mark.parametrize(
    ("noise", "sizes"),
    [
        ([NAN, NAN], [8, 8]),
        ([10.0, 20.0, 30.0], [8, 16, 24]),
        ([NAN, 10.0, 25.0], [8, 8, 20]),
        ([10.0, 5.0, 10.0], [8, 8, 16]),  # the time before counts, not the largest
        ([10.0, 1e9, 2e9], [8, 64, 64]),
        ([-3.0, 10.0, 0.0, 20.0], [8, 8, 8, 16]),  # estimates may be below 0
        ([1e-320, 1e300], [8, 64]),
    ],
)
def test_gns_batch_multiplies_by_the_growth_of_the_noise_scale(noise, sizes):
    assert epochs(GNSBatch(every=1, most=64), ScriptedRun(), noise) == sizes


def test_gns_batch_compares_every_tenth_epoch():
    sizes = epochs(GNSBatch(), ScriptedRun(), [float(n) for n in range(1, 31)])
    assert sizes == [8] * 19 + [16] * 10 + [24]


def test_gns_batch_leaves_a_batch_above_the_largest():
    run = ScriptedRun(batch_size=100)
    assert epochs(GNSBatch(every=1, most=64), run, [1.0, 2.0]) == [100, 100]
    assert run.changes == []


def test_gns_batch_goes_on_from_a_checkpoint():
    run, policy = ScriptedRun(), restored(GNSBatch(every=1), every=1)
    epochs(policy, run, [10.0])
    assert epochs(restored(policy, every=1), run, [20.0]) == [16]


def test_adaptive_batch_is_the_smoothed_noise_scale_and_never_falls():
    run = ScriptedRun()
    policy = AdaptiveBatch(least=4, most=100, smoothing=0.5, warm_up=2)
    steps(policy, run, 2, noise_scale=1e6)  # discarded
    assert epochs(policy, run, [NAN]) == [8]
    steps(policy, run, 1, noise_scale=NAN)
    steps(policy, run, 1, noise_scale=40.0)
    steps(policy, run, 1, noise_scale=20.0)
    assert epochs(policy, run, [NAN]) == [30]
    steps(policy, run, 9, noise_scale=1.0)
    assert epochs(policy, run, [NAN]) == [30]
    again = restored(policy, least=4, most=100, smoothing=0.5, warm_up=2)
    steps(again, run, 9, noise_scale=1e9)
    assert epochs(again, run, [NAN]) == [100]


@pytest.mark.parametrize(("noise", "size"), [(-5.0, 256), (1000.4, 1000), (math.inf, 4096)])
def test_adaptive_batch_is_clamped(noise, size):
    run, policy = ScriptedRun(), restored(AdaptiveBatch())
    steps(policy, run, 21, noise_scale=noise)
    assert epochs(policy, run, [noise]) == [size]


@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        (GNSBatch, {"every": 0}, "every is 0"),
        (GNSBatch, {"most": 0}, "most is 0"),
        (GNSBatch, {"alpha": 0.0}, "alpha is 0.0"),
        (AdaptiveBatch, {"least": 0}, "least is 0"),
        (AdaptiveBatch, {"most": 255}, "most is 255"),
        (AdaptiveBatch, {"alpha": 2}, "alpha is 2"),
        (AdaptiveBatch, {"smoothing": NAN}, "smoothing is nan"),
        (AdaptiveBatch, {"warm_up": -1}, "warm_up is -1"),
    ],
)
def test_invalid_options_are_refused(policy, options, message):
    with pytest.raises(ConfigError, match=message):
        policy(**options)
