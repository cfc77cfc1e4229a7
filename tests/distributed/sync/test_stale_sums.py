"""Sums of gradients with stale servers: totals, effective rates, bytes."""

import dataclasses

import numpy as np
import pytest

import cavs
from cavs.distributed import Trainer
from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.comm import run_threads
from cavs.distributed.planning.builders import build
from cavs.distributed.planning.cost import Load, bytes_by_rank
from cavs.distributed.strategy import variables_of
from tests.distributed.step.test_stale_parameters import assert_same_bits, trainer, values_of
from tests.distributed.test_trainer import BATCHES, Tree, trees


def added_alone(size):
    """Return the meaning of "sum": each rank's gradient of its own shard's loss, added."""
    model = Tree()
    optimizer = cavs.optim.SGD(lr=0.02)
    session = cavs.Session(model, dtype=np.float64)
    states = optimizer.init_states(list(model.parameters().values()))
    assert not any(states)
    losses, norms = [], []
    for graphs in BATCHES:
        parts = np.array_split(np.arange(len(graphs)), size)
        found = [session.gradients(cavs.batch([graphs[i] for i in p])) for p in parts if len(p)]
        total = {n: sum(g[n] for _, g in found) for n in model.parameters()}
        for name, p in model.parameters().items():
            p.value -= 0.02 * total[name]
        session.invalidate()
        losses.append(np.mean([loss for loss, _ in found]))
        norms.append(np.sqrt(sum((g**2).sum() for g in total.values())))
    return {n: p.value.copy() for n, p in model.parameters().items()}, losses, norms


def summed(name, size):
    made = build(name, variables_of(Tree()), ResourceSpec.local(size))
    return dataclasses.replace(made, graph=dataclasses.replace(made.graph, gradients="sum"))


FULL = [graphs for graphs in BATCHES if len(graphs) >= 3]  # one shard for each of three ranks


@pytest.mark.parametrize(
    "strategy",
    ["AllReduce", "PartitionedPS", "Parallax", "Parallax(staleness=1)", "PS(staleness=2)"],
)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_gradients_are_added_by_the_strategy_sum(strategy, size, monkeypatch):
    monkeypatch.setattr("tests.distributed.sync.test_stale_sums.BATCHES", FULL)
    expected, losses, norms = added_alone(size)

    def work(c):
        optimizer = cavs.optim.SGD(lr=0.02)
        with trainer(c, optimizer=optimizer, strategy=summed(strategy, size)) as t:
            reports = []
            for graphs in FULL:
                reports.append(t.advance(cavs.batch(graphs)))
                t.settle()
        return values_of(t), reports

    results = run_threads(size, work)
    assert_same_bits([values for values, _ in results])
    for name, value in expected.items():
        np.testing.assert_allclose(results[0][0][name], value, rtol=1e-11, atol=1e-13, err_msg=name)
    found = np.mean([[r.loss for r in reports] for _, reports in results], axis=0)
    np.testing.assert_allclose(found, losses, rtol=1e-11)
    if "stale" not in strategy:
        norm = [r.grad_norm for r in results[0][1]]
        np.testing.assert_allclose(norm, norms, rtol=1e-11)


class Mean(Tree):
    """A model whose loss is one mean: shards of a repeated batch have equal gradients."""

    def loss(self, batch):
        h = self.cell(batch.graph, x=self.embedding(batch["token"]))
        return cavs.ops.cross_entropy(self.output(h), batch["label"])


def test_the_effective_learning_rate_is_as_documented():
    """Ranks with equal shards that settle after each step apply N equal gradients, one after
    the other.
    """
    graphs, start = trees(2, 5), Mean().cell.W.value

    def step(size, optimizer, strategy):
        def work(c):
            options = {"communicator": c, "dtype": np.float64, "strategy": strategy}
            with Trainer(Mean(), optimizer, **options) as t:
                t.advance(cavs.batch(graphs * 4))
                t.settle()
            return t.model.cell.W.value - start

        return run_threads(size, work)[0]

    mean, total = "PS(staleness=1)", summed("PS(staleness=1)", 4)
    tiny = 1e-6  # parameters hardly move: the N gradients are equal
    for optimizer, by_mean, by_sum in (
        (cavs.optim.SGD(lr=tiny), 1, 4),
        (cavs.optim.Adagrad(lr=tiny), *[sum(1 / np.sqrt(k) for k in range(1, 5))] * 2),
        (cavs.optim.Adam(lr=tiny), 4, 4),
    ):
        alone = step(1, optimizer, None)
        moved = np.abs(alone) > np.abs(alone).max() * 1e-3
        ratio = step(4, optimizer, mean)[moved] / alone[moved]
        np.testing.assert_allclose(ratio, by_mean, rtol=1e-2)
        ratio = step(4, optimizer, total)[moved] / alone[moved]
        np.testing.assert_allclose(ratio, by_sum, rtol=1e-2)


class Wide(cavs.Model):
    """A model large enough that messages are more than their headers."""

    def __init__(self):
        self.embedding = cavs.nn.Embedding(40, 64)
        self.cell = cavs.nn.ChildSumTreeLSTM(64, 48)
        self.output = cavs.nn.Linear(48, 3)

    def loss(self, batch):
        h = self.cell(batch.graph, x=self.embedding(batch["token"]))
        return cavs.ops.cross_entropy(self.output(h), batch["label"])


def bytes_of(made, graphs):
    """Return the bytes of the formula for each rank in a step of a `Wide` on equal shards of
    graphs.
    """
    parts = np.array_split(np.arange(len(graphs)), len(made.graph.replicas))
    tokens = [np.concatenate([graphs[i].features["token"] for i in part]) for part in parts]
    seen = [set(t[t >= 0].tolist()) for t in tokens]
    load = Load(
        rows={"embedding.weight": [np.array(sorted(s)) for s in seen]},
        factors={},
    )
    return bytes_by_rank(made, variables_of(Wide()), load)


@pytest.mark.parametrize("strategy", ["PSLoadBalancing(staleness=2)", "PartitionedPS(sync=False)"])
@pytest.mark.parametrize("size", [2, 4])
def test_bytes_are_those_of_the_formula(strategy, size):
    graphs = trees(12, 4)
    batch = cavs.batch(graphs)
    made = build(strategy, variables_of(Wide()), ResourceSpec.local(size))
    expected = bytes_of(made, graphs)

    def work(c):
        with Trainer(Wide(), cavs.optim.SGD(lr=0.1), communicator=c, strategy=made) as t:
            t.advance(batch)
            t.settle()
            c.barrier()
            before = t.session.sent_bytes
            c.barrier()
            reported = []
            # in step: a rank that lags receives several updates of a row at once
            for _ in range(6):
                reported.append(t.advance(batch).sent_bytes)
                c.barrier()
            t.session.servers.fetch()  # the answers to the last step
            c.barrier()
            sent = t.session.sent_bytes - before
            c.barrier()
        assert sum(reported) <= sent
        return sent / 6

    np.testing.assert_allclose(run_threads(size, work), expected, rtol=0.05)
