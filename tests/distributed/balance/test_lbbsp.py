"""LB-BSP: shares, predictors and the two algorithms."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cavs.distributed.balance import (
    ARIMA,
    EMA,
    NARX,
    Memoryless,
    PairBalancer,
    PairRule,
    SpeedRule,
    gradient_weights,
    whole_shares,
)
from cavs.distributed.balance.predictors import train
from cavs.errors import ConfigError

positive = st.floats(1e-6, 1e6)


@given(st.lists(positive, min_size=1, max_size=9), st.integers(0, 500))
def test_shares_add_up(weights, more):
    total = len(weights) + more
    shares = whole_shares(total, weights)
    assert sum(shares) == total
    assert min(shares) >= 1
    exact = total * np.array(weights) / sum(weights)
    if exact.min() >= 1:
        assert np.abs(shares - exact).max() < 1 + 1e-6


@given(st.lists(st.tuples(positive, st.integers(1, 40)), min_size=1, max_size=9), st.floats(0, 1))
def test_shares_keep_limits(items, fill):
    weights, most = zip(*items, strict=True)
    total = len(items) + int(fill * (sum(most) - len(items)))
    shares = whole_shares(total, weights, most)
    assert sum(shares) == total
    assert all(1 <= share <= limit for share, limit in zip(shares, most, strict=True))


def test_shares_by_largest_remainder():
    assert whole_shares(10, [1, 1, 1]) == [4, 3, 3]
    assert whole_shares(10, [0.5, 1.2, 8.3]) == [1, 1, 8]
    assert whole_shares(7, [1, 2, 4]) == [1, 2, 4]
    assert whole_shares(100, [1e-9, 1, 1]) == [1, 50, 49]
    assert whole_shares(90, [3, 1, 1], [20, 100, 100]) == [20, 35, 35]


@pytest.mark.parametrize(
    ("total", "weights", "most"),
    [
        (2, [1, 1, 1], None),
        (5, [1, 0], None),
        (5, [1, float("nan")], None),
        (5, [1, float("inf")], None),
        (5, [], None),
        (5, [1, 1], [2, 2]),
        (5, [1, 1], [9, 0]),
    ],
)
def test_impossible_shares_are_refused(total, weights, most):
    with pytest.raises(ConfigError):
        whole_shares(total, weights, most)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(0, 9))
def test_weighted_gradients_are_those_of_the_whole_batch(counts, seed):
    rng = np.random.default_rng(seed)
    samples = rng.standard_normal((sum(counts), 5))
    parts = np.split(samples, np.cumsum(counts)[:-1])
    weights = gradient_weights(counts)
    total = sum(w * part.mean(axis=0) for w, part in zip(weights, parts, strict=True))
    assert np.allclose(total, samples.mean(axis=0), rtol=1e-12, atol=1e-14)


def test_weights_of_empty_shards():
    assert gradient_weights([3, 0, 1]) == [0.75, 0, 0.25]
    for counts in ([0, 0], [3, -1]):
        with pytest.raises(ConfigError):
            gradient_weights(counts)


# ---- predictors -------------------------------------------------------------------------------


def error_of(predictor, speeds, cpu=None, skip=0):
    """Return the root mean square error of one-step predictions."""
    cpu = np.zeros(len(speeds)) if cpu is None else cpu
    errors = []
    for i, speed in enumerate(speeds):
        if i > skip:
            errors.append(predictor.predict(cpu[i], 0.0) - speed)
        predictor.update(float(speed), float(cpu[i]), 0.0)
    return float(np.sqrt(np.mean(np.square(errors))))


def test_memoryless_and_ema():
    memoryless, ema = Memoryless(), EMA()
    for speed in (10.0, 20.0):
        memoryless.update(speed)
        ema.update(speed)
    assert memoryless.predict() == 20
    assert ema.predict() == 12
    steady = np.random.default_rng(0).normal(100, 10, 400)
    assert error_of(EMA(), steady) < error_of(Memoryless(), steady)


def test_arima_follows_a_trend():
    speeds = 100 + 2.0 * np.arange(60) + np.random.default_rng(0).normal(0, 0.1, 60)
    assert error_of(ARIMA(), speeds, skip=20) < 0.3 * error_of(EMA(), speeds, skip=20)
    assert error_of(ARIMA(), speeds, skip=20) < 0.5 * error_of(Memoryless(), speeds, skip=20)


def test_arima_predicts_waves_and_constants():
    waves = 100 + 30 * np.sin(np.arange(200) / 5)
    assert error_of(ARIMA(), waves, skip=30) < 0.2 * error_of(Memoryless(), waves, skip=30)
    assert error_of(ARIMA(), np.full(80, 7.0)) == pytest.approx(0, abs=1e-6)


@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=90))
def test_arima_predicts_positive_speeds(speeds):
    predictor = ARIMA()
    for speed in speeds:
        predictor.update(speed)
        window = list(predictor.speeds)
        assert 0.5 * min(window) <= predictor.predict() <= 2 * max(window)


def driven(count, seed=0):
    """A machine with other programs: speed falls with CPU use, which is known in advance."""
    rng = np.random.default_rng(seed)
    cpu = np.clip(np.repeat(rng.uniform(0, 0.9, count // 5 + 1), 5)[:count], 0, 1)
    return 100 * (1 - 0.8 * cpu**2) + rng.normal(0, 1, count), cpu


def test_narx_uses_the_present_cpu_load():
    speeds, cpu = driven(900)
    narx = error_of(NARX(), speeds, cpu, skip=520)
    assert narx < 0.3 * error_of(EMA(), speeds, cpu, skip=520)
    assert narx < 0.3 * error_of(Memoryless(), speeds, cpu, skip=520)


def test_narx_is_ema_until_it_is_trained_and_deterministic():
    speeds, cpu = driven(600)
    one, two, ema = NARX(), NARX(), EMA()
    for i in range(600):
        if i:
            assert one.predict(cpu[i]) == two.predict(cpu[i])
            assert (one.predict(cpu[i]) == ema.predict()) == (i < 500)
        for predictor in (one, two, ema):
            predictor.update(speeds[i], cpu[i])


def test_narx_starts_from_given_weights():
    speeds, cpu = driven(400)
    rows = np.stack([speeds, cpu, np.zeros(400)], axis=1)
    cold = train(rows, 16, 0)
    again = train(rows, 16, 1, cold)
    assert np.abs(again.hidden - cold.hidden).mean() < 0.2
    other = train(rows, 8, 0, cold)  # another width: starts untrained
    assert other.output.shape == (8,)
    constant = train(np.ones((50, 3)), 4, 0)
    assert constant(np.ones((1, 8))) == pytest.approx([1.0])


def test_narx_with_earlier_weights_predicts_from_the_start():
    """A repeated job need not wait for 500 iterations (section 4)."""
    speeds, cpu = driven(500)
    known = train(np.stack([speeds, cpu, np.zeros(500)], axis=1), 16, 0)
    speeds, cpu = driven(200, seed=1)
    first = error_of(NARX(weights=known), speeds, cpu, skip=10)
    assert first < 0.5 * error_of(NARX(), speeds, cpu, skip=10)


def test_narx_predicts_positive_speeds():
    narx = NARX(warm_up=40)
    speeds, cpu = driven(60)
    for speed, use in zip(speeds, cpu, strict=True):
        narx.update(speed, use)
    assert narx.predict(1e9, 1e9) <= 2 * speeds.max()
    assert narx.predict(-1e9, -1e9) >= 0.5 * speeds.min()


# ---- algorithm 1 --------------------------------------------------------------------------------


@pytest.mark.parametrize("predictor", [Memoryless, EMA, ARIMA, NARX])
def test_a_worker_slowed_three_times(predictor):
    """Counts are within one sample of the optimum in 40 iterations, and times within 1.1 of the
    ideal after them.
    """
    rng = np.random.default_rng(0)
    balancer = SpeedRule([32] * 4, predictor)
    for _ in range(15):
        balancer.update((np.array(balancer.counts) / 100 * rng.normal(1, 0.004, 4)).tolist())
    speeds = np.array([100, 100, 100, 100 / 3])
    optimum = 128 * speeds / speeds.sum()
    reached, times = None, []
    for k in range(80):
        seconds = np.array(balancer.counts) / speeds
        times.append(seconds.max() / (128 / speeds.sum()))
        counts = balancer.update((seconds * rng.normal(1, 0.004, 4)).tolist())
        assert sum(counts) == 128 and min(counts) >= 1
        near = np.abs(counts - optimum).max() <= 1
        reached = (k if reached is None else reached) if near else None
    assert reached is not None and reached <= 40
    assert max(times[41:]) <= 1.1


def test_shares_are_in_proportion_to_speed():
    balancer = SpeedRule([10, 10, 10], Memoryless)
    assert balancer.update([1.0, 0.5, 1.0]) == [8, 15, 7]
    assert SpeedRule([1, 1], Memoryless).update([1e-6, 1e3]) == [1, 1]


def test_predictions_use_the_present_load():
    """Predictors learn the use an iteration began with, and predict from the present one."""
    seen = []

    class Spy(Memoryless):
        def update(self, speed, cpu=0.0, memory=0.0):
            seen.append(("learn", cpu, memory))
            super().update(speed)

        def predict(self, cpu=0.0, memory=0.0):
            seen.append(("ask", cpu, memory))
            return super().predict()

    balancer = SpeedRule([4], Spy)
    balancer.update([1.0], cpu=[0.5], memory=[0.1])
    balancer.update([1.0], cpu=[0.7], memory=[0.2])
    assert seen == [("learn", 0, 0), ("ask", 0.5, 0.1), ("learn", 0.5, 0.1), ("ask", 0.7, 0.2)]


@pytest.mark.parametrize("kind", [SpeedRule, PairRule])
def test_invalid_measurements_are_refused(kind):
    for seconds in ([1.0], [1.0, 0.0], [1.0, float("nan")], [1.0, -1.0], [1.0, float("inf")]):
        with pytest.raises(ConfigError, match="seconds of 2 workers"):
            kind([4, 4]).update(seconds)
    for counts in ([], [0, 3]):
        with pytest.raises(ConfigError, match="first counts"):
            kind(counts)


# ---- algorithm 2 --------------------------------------------------------------------------------


def profile(intercept, saturation, slope):
    """A GPU: launching takes time, and a small batch takes as long as one that fills it."""
    return lambda count: intercept + slope * max(count, saturation)


def equilibrium(gpus, counts, iterations, noise=0.0, rng=None):
    balancer = PairRule(list(counts))
    trace = []
    for _ in range(iterations):
        seconds = [gpu(count) for gpu, count in zip(gpus, balancer.counts, strict=True)]
        if noise:
            seconds = (np.array(seconds) * rng.normal(1, noise, len(gpus))).tolist()
        trace.append(list(balancer.update(seconds)))
        assert sum(trace[-1]) == sum(counts) and min(trace[-1]) >= 1
    return balancer, trace


def test_a_gpu_slowed_three_times():
    """The fast phase brings it near, the fine phase within one sample, by iteration 40."""
    gpus = [profile(0, 0, 1.0)] * 3 + [profile(0, 0, 3.0)]
    _, trace = equilibrium(gpus, [32] * 4, 60)
    optimum = 128 * np.array([1, 1, 1, 1 / 3]) / (10 / 3)
    assert np.abs(np.array(trace[39]) - optimum).max() <= 1
    times = [max(g(c) for g, c in zip(gpus, counts, strict=True)) for counts in trace]
    assert max(times[40:]) <= 1.1 * 38.4


def test_four_models_of_gpus():
    """As in Figure 8 of the paper: the largest moves by iteration 30, then one sample at a time."""
    gpus = [profile(0.2, 24, 0.012), profile(0.2, 8, 0.05), profile(0.2, 4, 0.095)]
    gpus += [profile(0.2, 4, 0.2)]
    balancer, trace = equilibrium(gpus, [32] * 4, 400)
    assert balancer.is_fine
    seconds = [gpu(count) for gpu, count in zip(gpus, trace[-1], strict=True)]
    assert max(seconds) - min(seconds) <= 0.2 + 1e-9  # a change of one sample of the slowest
    first = [max(g(c) for g, c in zip(gpus, counts, strict=True)) for counts in trace]
    assert first[30] < 0.7 * (0.2 + 0.2 * 32)


def test_nothing_moves_before_the_window_is_full():
    balancer = PairRule([20, 20])
    for _ in range(4):
        assert balancer.update([1.0, 2.0]) == [20, 20]
    assert balancer.update([1.0, 2.0]) == [25, 15]
    assert balancer.update([1.0, 2.0]) == [30, 10]  # the window does not restart


def test_a_spike_shorter_than_the_window_changes_nothing():
    balancer = PairRule([20, 20])
    for seconds in [[1.0, 2.0]] * 4 + [[2.0, 1.0]] * 4:
        assert balancer.update(seconds) == [20, 20]


def test_a_swapped_pair_starts_the_fine_phase():
    balancer = PairRule([40, 40])
    balancer.update([2.0, 1.0])
    balancer.update([1.0, 2.0])
    assert balancer.is_fine and balancer.window == 20
    for _ in range(18):
        assert balancer.update([1.0, 2.0]) == [40, 40]
    assert balancer.update([1.0, 2.0]) == [41, 39]


def test_a_rank_with_full_memory_gets_no_more_graphs():
    balancer = PairRule([20, 20, 20])
    for _ in range(5):
        counts = balancer.update([1.0, 1.5, 2.0], memory=[0.96, 0.5, 0.5])
    assert counts == [20, 25, 15]
    assert balancer.update([1.0, 1.5, 2.0], memory=[0.96] * 3) == counts


def test_a_rank_that_is_too_slow_is_named():
    balancer = PairRule([20, 5])
    for _ in range(6):
        assert balancer.update([1.0, 9.0]) == [20, 5]
    assert "worker 1 is slowest with 5 samples" in balancer.warnings[0]


def test_a_later_change_of_speed_is_found():
    gpus = [profile(0, 0, 1.0), profile(0, 0, 1.0)]
    balancer, _ = equilibrium(gpus, [20, 20], 30)
    rng = np.random.default_rng(0)
    for _ in range(30):
        balancer.update((np.array(balancer.counts) * rng.normal(1, 0.01, 2)).tolist())
    for _ in range(500):
        balancer.update([balancer.counts[0] * 1.0, balancer.counts[1] * 3.0])
    assert abs(balancer.counts[0] - 30) <= 1


def test_a_pair_balancer_learns_from_smaller_batches():
    balancer = PairBalancer()

    def runs(size, steps):
        for _ in range(steps):
            counts = [len(part) for part in balancer(range(size), 2)]
            balancer.update([0.1 * counts[0], 0.3 * counts[1]])
        return counts

    large = runs(64, 40)
    assert abs(large[0] - 48) <= 2
    balancer.reset()  # another `fit`, with another loader
    small = runs(32, 1)
    assert sum(small) == 32 and abs(small[0] - 24) <= 2
    for _ in range(60):  # and now the other rank is slow
        counts = [len(part) for part in balancer(range(32), 2)]
        balancer.update([0.3 * counts[0], 0.1 * counts[1]])
    assert abs(counts[0] - 8) <= 2
    assert runs(5, 1) == [1, 4]  # the short last batch of an epoch changes nothing
    assert sum(balancer.rule.counts) == 32
