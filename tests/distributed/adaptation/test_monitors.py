"""Monitors on ranks: norms and gradients before the exchanges, and estimates from them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cavs
from cavs import nn, ops
from cavs.distributed import Trainer, by_counts
from cavs.distributed.comm import run_threads
from cavs.errors import ConfigError
from cavs.train import Monitor, Policy, monitors
from cavs.train.monitors import GradientVariance, NoiseScale, StepFacts, TemporalVariance
from tests.distributed.test_trainer import trees


class Rooted(cavs.Model):
    """A Tree-LSTM whose loss is a mean over graphs."""

    def __init__(self):
        self.embedding = nn.Embedding(40, 6)
        self.cell = nn.ChildSumTreeLSTM(6, 5)
        self.value = nn.Linear(5, 1)
        rng = np.random.default_rng(0)
        for p in self.parameters().values():
            p.value[...] = rng.normal(size=p.shape) * 0.4

    def loss(self, batch):
        h = self.cell(batch.graph, x=self.embedding(batch["token"]))
        return ops.mean_squared_error(self.value(ops.sum_roots(h)), 0.3)


class Keeping(Monitor):
    """Keeps the gradients of every step."""

    name = "keeping"
    reads_norms = True
    wants = ("local", "reduced")

    def __init__(self):
        super().__init__()
        self.local, self.reduced, self.facts = {}, {}, None

    def observe(self, parameter, local, reduced):
        self.local[parameter], self.reduced[parameter] = dense(local), dense(reduced)

    def end_step(self, facts):
        self.facts = facts


def dense(gradient):
    """Return a gradient as an array; the rows of a table as one of 40 rows."""
    if not isinstance(gradient, tuple):
        return None if gradient is None else gradient.copy()
    rows, values = gradient
    whole = np.zeros((40, *values.shape[1:]))
    whole[rows] = values
    return whole


def gradients(graphs):
    """Return the gradients of the loss over `graphs` on one process."""
    model = Rooted()
    _, found = cavs.Session(model, dtype=np.float64).gradients(cavs.batch(graphs))
    return {name: dense(value) for name, value in found.items()}


STRATEGIES = [None, "AllReduce", "PartitionedPS", "PSLoadBalancing", "Parallax", "PartitionedAR"]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_local_and_reduced_gradients_are_those_of_one_process(size, strategy):
    graphs = trees(11, 4)
    counts = [4, 5, 2][:size]

    def work(c):
        monitor = Keeping()
        options = {"strategy": strategy, "dtype": np.float64, "split": by_counts(counts)}
        trainer = Trainer(Rooted(), cavs.optim.SGD(lr=0.0001), communicator=c, **options)
        loader = cavs.DataLoader(graphs, 11)
        trainer.fit(loader, epochs=1, progress=False, monitors=[monitor])
        return monitor

    found = run_threads(size, work)
    whole = gradients(graphs)
    ends = [round(c * 11 / sum(counts)) for c in np.cumsum([0, *counts])]
    for rank, monitor in enumerate(found):
        part = graphs[ends[rank] : ends[rank + 1]]
        facts = monitor.facts
        assert facts.rank_graphs[rank] == len(part) and facts.graphs == 11
        own = gradients(part)
        square = sum((g**2).sum() for g in own.values())
        assert facts.rank_squares[rank] == pytest.approx(square, rel=1e-10)
        mean = np.sqrt(sum((g**2).sum() for g in whole.values()))
        assert facts.grad_norm == pytest.approx(mean, rel=1e-10)
        scale = size * len(part) / 11  # the mean over ranks is the gradient of the batch
        for name, expected in own.items():
            np.testing.assert_allclose(monitor.local[name], scale * expected, atol=1e-12)
        for name, expected in whole.items():
            if monitor.reduced[name] is not None:
                np.testing.assert_allclose(monitor.reduced[name], expected, atol=1e-12)
        if strategy in (None, "AllReduce"):
            assert all(value is not None for value in monitor.reduced.values())


@pytest.mark.parametrize("size", [2, 4])
def test_noise_scale_is_the_same_on_all_ranks_and_monitors_change_no_bit(size):
    def work(c, watch):
        trainer = Trainer(Rooted(), cavs.optim.SGD(lr=0.1), communicator=c)
        seen = []

        class Reading(Policy):
            monitors = (NoiseScale(), GradientVariance(interval=2), monitors.Throughput())

            def after_step(self, run):
                seen.append((run.noise_scale, run.gradient_variance, run.throughput))

        trainer.fit(
            cavs.DataLoader(trees(30, 1), 8, shuffle=True),
            epochs=2,
            progress=False,
            policies=[Reading()] if watch else [],
        )
        return seen, [p.value.tobytes() for p in trainer.parameters.values()]

    watched = run_threads(size, lambda c: work(c, True))
    plain = run_threads(size, lambda c: work(c, False))
    assert watched[0][1] == plain[0][1]
    assert len(watched[0][0]) == 8
    assert all(seen == watched[0][0] for seen, _ in watched)
    assert np.isfinite([noise for noise, _, _ in watched[0][0][1:]]).all()


@pytest.mark.parametrize(
    "strategy", ["PSLoadBalancing(staleness=1)", "PSLoadBalancing(sync=False)"]
)
def test_monitors_of_gradients_refuse_stale_parameters(strategy):
    def work(c):
        trainer = Trainer(Rooted(), cavs.optim.SGD(lr=0.1), communicator=c, strategy=strategy)
        loader = cavs.DataLoader(trees(8, 1), 4)
        with pytest.raises(ConfigError, match="monitor noise_scale compares"):
            trainer.fit(loader, epochs=1, progress=False, monitors=[NoiseScale()])
        return trainer.fit(loader, epochs=1, progress=False, monitors=[monitors.Throughput()])

    run_threads(2, work)


def test_a_monitor_of_reduced_gradients_alone_sees_them():
    class Reduced(Monitor):
        name = "reduced"
        wants = ("reduced",)

        def __init__(self):
            super().__init__()
            self.seen = {}

        def observe(self, parameter, local, reduced):
            assert local is None
            self.seen[parameter] = dense(reduced)

    def work(c):
        monitor = Reduced()
        trainer = Trainer(Rooted(), cavs.optim.SGD(lr=0.1), communicator=c, dtype=np.float64)
        loader = cavs.DataLoader(trees(8, 1), 8)
        trainer.fit(loader, epochs=1, progress=False, monitors=[monitor])
        return monitor.seen

    for seen in run_threads(2, work):
        for name, expected in gradients(trees(8, 1)).items():
            np.testing.assert_allclose(seen[name], expected, atol=1e-12)


# ---- estimates -----------------------------------------------------------------------------------


def facts(means, graphs, extra=0.0):
    """Return the facts of a step whose ranks have these mean gradients."""
    weights = np.array(graphs) / sum(graphs)
    mean = weights @ means
    squares = tuple((means**2).sum(axis=1) + extra)
    ones = (1.0,) * len(graphs)
    return StepFacts(1.0, sum(graphs), float(np.linalg.norm(mean)), tuple(graphs), ones, squares)


@pytest.mark.parametrize("graphs", [(16, 16), (8, 8, 8, 8), (5, 20, 9), (1, 31)])
def test_noise_scale_of_a_known_covariance(graphs):
    rng = np.random.default_rng(3)
    true = rng.normal(size=12)
    deviations = rng.uniform(0.5, 2.0, size=12)
    monitor = NoiseScale(alpha=0.02)
    values = []
    for _ in range(10_000):
        means = [true + deviations * rng.normal(size=12) / np.sqrt(n) for n in graphs]
        monitor.end_step(facts(np.array(means), graphs))
        values.append(monitor.value)
    expected = (deviations**2).sum() / (true**2).sum()
    assert np.mean(values[200:]) == pytest.approx(expected, rel=0.05)


@settings(max_examples=100)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any),
    st.integers(1, 6),
    st.integers(0, 2**32 - 1),
)
def test_variance_is_the_trace_of_the_weighted_covariance(graphs, size, seed):
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(len(graphs), size))
    monitor = GradientVariance()
    monitor.end_step(facts(means, graphs))
    weights = np.array(graphs) / sum(graphs)
    expected = (weights @ means**2 - (weights @ means) ** 2).sum()
    assert monitor.value == pytest.approx(expected, abs=1e-12)


def test_noise_scale_holds_where_it_is_unknown():
    monitor = NoiseScale()
    means = np.array([[1.0, 0.0], [0.0, 1.0]])
    monitor.end_step(facts(means[:1], [4]))  # one rank
    assert np.isnan(monitor.value)
    monitor.end_step(facts(means, [4, 0]))  # the other rank has no graph
    assert np.isnan(monitor.value)
    monitor.end_step(facts(np.array([[2.0, 1.0], [2.0, 0.5]]), [4, 4]))
    known = monitor.value
    assert known > 0
    negative = NoiseScale(alpha=1.0)
    negative.load_state_dict(monitor.state_dict())
    negative.end_step(facts(np.array([[1.0, 0.0], [-1.0, 0.0]]), [4, 4]))  # no signal
    assert negative.value == known


@pytest.mark.parametrize("table", [False, True])
def test_temporal_variance_is_the_trace_over_the_window(table):
    rng = np.random.default_rng(0)
    monitor = TemporalVariance(window=4)
    every = []
    for _ in range(6):
        if table:
            rows = np.sort(rng.choice(40, 5, replace=False))
            gradient = rows, rng.normal(size=(5, 3))
        else:
            gradient = rng.normal(size=(40, 3))
        every.append(dense(gradient))
        monitor.observe("w", gradient, None)
        monitor.end_step(facts(np.ones((1, 1)), [1]))
    assert monitor.value == pytest.approx(np.var(every[-4:], axis=0).sum())


def test_states_of_monitors_survive_a_checkpoint(tmp_path):
    def work(c):
        seen = []

        class Reading(Policy):
            monitors = (NoiseScale(),)

            def after_step(self, run):
                seen.append(run.noise_scale)
                if run.step == stop_at:
                    run.stop()

        trainer = Trainer(Rooted(), cavs.optim.SGD(lr=0.1), communicator=c)
        if stop_at == 0:
            trainer.resume(tmp_path / "m")
        path = tmp_path / "m" if stop_at else None
        loader = cavs.DataLoader(trees(30, 1), 8)
        trainer.fit(loader, epochs=2, progress=False, policies=[Reading()], checkpoint=path)
        return seen

    stop_at = 99
    whole = run_threads(2, work)[0]
    stop_at = 3
    first = run_threads(2, work)[0]
    stop_at = 0
    assert first + run_threads(2, work)[0] == whole
