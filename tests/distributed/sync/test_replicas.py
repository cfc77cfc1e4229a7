"""Replicas that differ: every rank follows the definition of its strategy, written in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cavs
from cavs import nn, ops
from cavs.distributed import Trainer, by_counts
from cavs.distributed.comm import run_threads
from cavs.distributed.planning.builders.replicas import pack_bins
from cavs.distributed.strategy import shards_of
from cavs.train.schedules import StepDecay

STEPS, LR, MOMENTUM = 7, 0.2, 0.5
COUNTS = {1: [6], 2: [3, 3], 3: [3, 2, 1], 4: [1, 2, 1, 2]}  # graphs of each rank


class Chain(cavs.Model):
    """An LSTM over tokens that classifies the last one; two dense heads and a table."""

    def __init__(self):
        self.words, self.cell = nn.Embedding(12, 3), nn.LSTM(3, 4)
        self.inner, self.output = nn.Linear(4, 5), nn.Linear(5, 3)
        rng = np.random.default_rng(5)
        for p in self.parameters().values():
            p.value[...] = 0.5 * rng.standard_normal(p.shape)

    def loss(self, batch):
        h = self.cell(batch.graph, x=self.words(batch["token"]))
        scores = self.output(ops.tanh(self.inner(ops.sum_roots(h))))
        return ops.cross_entropy(scores, batch["label"])


def chains(seed, count=6):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 5, count)
    return [
        cavs.Graph.chain(
            int(n),
            features={"token": rng.integers(0, 12, n)},
            graph_features={"label": int(rng.integers(0, 3))},
        )
        for n in lengths
    ]


BATCHES = [chains(seed) for seed in range(STEPS)]


def trained(size, strategy, optimizer=None, strategies=None, **options):
    """Return parameters by rank and step, float64. strategies: gets those of the ranks."""
    strategies = [] if strategies is None else strategies

    def work(c):
        trainer = Trainer(
            Chain(),
            optimizer or cavs.optim.SGD(lr=LR, momentum=MOMENTUM),
            communicator=c,
            dtype=np.float64,
            threads=1,
            strategy=strategy,
            split=by_counts(COUNTS[size]),
            **options,
        )
        found = []
        for graphs in BATCHES:
            trainer.advance(cavs.batch(graphs))
            found.append({n: p.value.copy() for n, p in trainer.parameters.items()})
        strategies.append(trainer.strategy)
        return found

    return run_threads(size, work)


class Oracle:
    """Ranks with values and velocities of their own; gradients from a session of one process."""

    def __init__(self, size):
        self.size, self.model = size, Chain()
        self.session = cavs.Session(self.model, dtype=np.float64)
        start = {n: p.value.copy() for n, p in self.model.parameters().items()}
        self.w = [{n: v.copy() for n, v in start.items()} for _ in range(size)]
        self.v = [{n: np.zeros_like(v) for n, v in start.items()} for _ in range(size)]

    def gradients(self, step):
        """Return the gradient of each rank: of its graphs, weighted by its share of the batch."""
        counts, found, begun = COUNTS[self.size], [], 0
        for rank, count in enumerate(counts):
            for name, p in self.model.parameters().items():
                p.value[...] = self.w[rank][name]
            part = BATCHES[step][begun : begun + count]
            _, gradients = self.session.gradients(cavs.batch(part))
            share = self.size * count / sum(counts)
            found.append({n: share * np.asarray(gradients[n]) for n in self.w[rank]})
            begun += count
        return found

    def update(self, gradients):
        for w, v, g in zip(self.w, self.v, gradients, strict=True):
            for name in w:
                moves = np.ones(len(g[name]), bool)
                if name.startswith("words"):  # only the rows of a table that have a gradient move
                    moves = (g[name] != 0).any(axis=1)
                v[name][moves] = MOMENTUM * v[name][moves] + g[name][moves]
                w[name] = w[name].copy()
                w[name][moves] -= LR * v[name][moves]

    def mean(self, name):
        return np.mean([w[name] for w in self.w], axis=0)


def assert_follows(found, oracle, step):
    for rank, steps in enumerate(found):
        for name, value in oracle.w[rank].items():
            np.testing.assert_allclose(
                steps[step][name], value, rtol=1e-9, atol=1e-12, err_msg=f"{rank} {name} {step}"
            )


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("every", [1, 3])
def test_synchronous_model_averaging(size, every):
    found, oracle = trained(size, f"SMA(alpha=0.3, every={every})"), Oracle(size)
    for step in range(STEPS):
        gradients = oracle.gradients(step)
        if step % every == 0:
            means = {n: oracle.mean(n) for n in oracle.w[0]}
            for w in oracle.w:
                for name in w:
                    w[name] = 0.7 * w[name] + 0.3 * means[name]
        oracle.update(gradients)
        assert_follows(found, oracle, step)


def test_replicas_around_a_central_model():
    found, oracle = trained(3, "Crossbow(alpha=0.2, momentum=0.7)"), Oracle(3)
    z = before = None
    for step in range(STEPS):
        gradients = oracle.gradients(step)
        if z is None:
            z = before = {n: oracle.mean(n) for n in oracle.w[0]}
        pulls = [{n: 0.2 * (w[n] - z[n]) for n in w} for w in oracle.w]
        for w, pull in zip(oracle.w, pulls, strict=True):
            for name in w:
                w[name] = w[name] - pull[name]
        moved = {n: z[n] + sum(c[n] for c in pulls) + 0.7 * (z[n] - before[n]) for n in z}
        z, before = moved, z
        oracle.update(gradients)
        assert_follows(found, oracle, step)


def test_replicas_restart_from_the_central_model_when_the_rate_changes():
    schedule = StepDecay(LR, every=4, factor=0.1)
    optimizer = cavs.optim.SGD(lr=schedule)
    found = trained(2, "Crossbow(alpha=0.2)", optimizer)
    first, second = (steps[3] for steps in found)
    assert any(not np.array_equal(first[n], second[n]) for n in first)
    oracle = Oracle(2)
    z = {n: v.copy() for n, v in oracle.w[0].items()}
    before = z
    for step in range(5):
        rate = LR if step < 4 else LR * 0.1
        gradients = oracle.gradients(step)
        pulls = [{n: 0.2 * (w[n] - z[n]) for n in w} for w in oracle.w]
        for w, pull in zip(oracle.w, pulls, strict=True):
            for name in w:
                w[name] = z[name].copy() if step == 4 else w[name] - pull[name]
        if step < 4:
            moved = {n: z[n] + sum(c[n] for c in pulls) + 0.9 * (z[n] - before[n]) for n in z}
            z, before = moved, z
        for w, g in zip(oracle.w, gradients, strict=True):
            for name in w:
                w[name] = w[name] - rate * g[name]
        assert_follows(found, oracle, step)


@pytest.mark.parametrize("size", [1, 3])
def test_lookahead_moves_slow_values_after_every_so_many_updates(size):
    found, oracle = trained(size, "Lookahead(alpha=0.4, every=3)"), Oracle(size)
    slow = {n: v.copy() for n, v in oracle.w[0].items()}
    for step in range(STEPS):
        oracle.update(oracle.gradients(step))
        if (step + 1) % 3 == 0:
            slow = {n: slow[n] + 0.4 * (oracle.mean(n) - slow[n]) for n in slow}
            for w in oracle.w:
                w.update({n: v.copy() for n, v in slow.items()})
        assert_follows(found, oracle, step)


def bins_of(strategy, shapes):
    """Return the bin of every element of every parameter, and how many bins there are."""
    bins = {}
    for node in strategy.nodes:
        bins[node.name] = np.zeros(shapes[node.name], int)
        shards = shards_of(node, shapes[node.name])
        for leaf, shard in zip(node.leaves, shards, strict=True):
            bins[node.name][shard.start : shard.stop] = leaf.sync.bin
    return bins, strategy.leaves[0].sync.bins


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize(
    ("options", "resync"), [("cut=False", 0), ("resync=3", 3), ("budget=0.1, resync=2", 2)]
)
def test_a_partial_exchange_averages_the_gradients_of_one_bin(size, options, resync):
    strategies = []
    budget = "" if "budget" in options else "budget=0.4, "
    found = trained(size, f"PartialExchange({budget}{options})", strategies=strategies)
    oracle = Oracle(size)
    bins, count = bins_of(strategies[0], {n: v.shape for n, v in oracle.w[0].items()})
    assert count > 2
    assert ("budget" in options) == any(node.shards for node in strategies[0].nodes)
    for step in range(STEPS):
        gradients = oracle.gradients(step)
        for name in gradients[0]:
            mean = np.mean([g[name] for g in gradients], axis=0)
            for g in gradients:
                g[name] = np.where(bins[name] == step % count, mean, g[name])
        if resync and step % resync == 0:
            means = {n: oracle.mean(n) for n in oracle.w[0]}
            for w in oracle.w:
                w.update({n: v.copy() for n, v in means.items()})
        oracle.update(gradients)
        assert_follows(found, oracle, step)


@pytest.mark.parametrize(
    "optimizer", [cavs.optim.SGD(lr=LR, momentum=0.5), cavs.optim.Adam(lr=0.05)]
)
def test_a_budget_of_one_is_all_reduce_to_the_bit(optimizer):
    partial = trained(3, "PartialExchange(budget=1.0)", optimizer, max_norm=0.3)
    plain = trained(3, None, optimizer, max_norm=0.3)
    for a, b in zip(partial, plain, strict=True):
        for name, value in a[-1].items():
            assert value.tobytes() == b[-1][name].tobytes()


def test_accumulated_gradients_are_all_sent_once():
    """Right after a step of its bin, a dense parameter is the same on all ranks, as with SGD."""
    strategy, strategies = "PartialExchange(budget=0.4, accumulate=True)", []
    found = trained(3, strategy, cavs.optim.SGD(lr=LR), strategies)
    shapes = {n: p.shape for n, p in Chain().parameters().items()}
    bins, count = bins_of(strategies[0], shapes)
    for step in range(STEPS):
        for name in bins:
            if name.startswith("words"):
                continue
            values, now = [steps[step][name] for steps in found], bins[name] == step % count
            for value in values:
                np.testing.assert_allclose(value[now], values[0][now], rtol=1e-12, atol=1e-14)
            assert now.all() or not np.allclose(values[0][~now], values[2][~now], rtol=1e-9, atol=0)


def test_an_accumulated_gradient_is_clipped_once_by_one_factor_on_all_ranks():
    """A rank's values differ from the common ones by what it has applied and not yet sent."""
    size, limit, strategies = 3, 0.05, []
    strategy = "PartialExchange(budget=0.4, accumulate=True)"
    optimizer = cavs.optim.SGD(lr=LR)
    found = trained(size, strategy, optimizer, strategies, max_norm=limit)
    oracle = Oracle(size)
    bins, count = bins_of(strategies[0], {n: v.shape for n, v in oracle.w[0].items()})
    dense = [n for n in bins if not n.startswith("words")]
    (table,) = set(bins) - set(dense)
    zeros = {n: np.zeros_like(oracle.w[0][n]) for n in dense}
    unsent, common = [dict(zeros) for _ in range(size)], dict(zeros)
    start = {n: oracle.w[0][n].copy() for n in dense}
    for step in range(STEPS):
        gradients, now = oracle.gradients(step), {n: b == step % count for n, b in bins.items()}
        assert not now[table].any() or now[table].all()
        own = not now[table].any()
        rows = [g[table] if own else sum(x[table] for x in gradients) / size for g in gradients]
        sums = {n: sum(u[n] + g[n] for u, g in zip(unsent, gradients, strict=True)) for n in dense}
        pieces = [
            {n: np.where(now[n], sums[n] - u[n], g[n]) for n in dense}
            for u, g in zip(unsent, gradients, strict=True)
        ]
        squares = [
            (r**2).sum() + sum((x**2).sum() for x in p.values()) / size**2
            for r, p in zip(rows, pieces, strict=True)
        ]
        factor = min(1.0, limit / np.sqrt(np.mean(squares)))
        assert factor < 0.9
        common = {n: common[n] + factor * np.where(now[n], sums[n], 0.0) for n in dense}
        for rank, (u, g) in enumerate(zip(unsent, gradients, strict=True)):
            clip = min(1.0, limit / np.sqrt(squares[rank])) if own else factor
            oracle.w[rank][table] = oracle.w[rank][table] - LR * clip * rows[rank]
            for n in dense:
                u[n] = np.where(now[n], (1 - factor) * u[n], u[n] + factor * g[n])
                oracle.w[rank][n] = start[n] - LR * (common[n] + u[n]) / size
        assert_follows(found, oracle, step)


@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=4), st.integers(1, 100), min_size=1),
    st.floats(0.05, 1.0),
)
def test_bins_hold_what_the_budget_allows(sizes, budget):
    bins = pack_bins(sizes, budget)
    assert set(bins) == set(sizes)
    assert set(bins.values()) == set(range(max(bins.values()) + 1))
    for number in set(bins.values()):
        own = [sizes[n] for n in bins if bins[n] == number]
        assert len(own) == 1 or sum(own) <= budget * sum(sizes.values()) * (1 + 1e-9)
    assert bins == pack_bins(dict(reversed(sizes.items())), budget)
    if budget == 1.0:
        assert set(bins.values()) == {0}


def test_bins_are_filled_by_first_fit_decreasing():
    sizes = {"a": 50, "b": 30, "c": 30, "d": 20, "e": 10, "f": 60}
    assert pack_bins(sizes, 0.3) == {"f": 0, "a": 1, "b": 2, "c": 2, "d": 3, "e": 1}
