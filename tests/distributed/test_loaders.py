"""Ranks in `fit` process the batches of one process, in its order."""

import numpy as np
import pytest

import cavs
from cavs.data import GraphBatch, batch
from cavs.distributed import Trainer
from cavs.distributed.balance.shards import by_counts, contiguous
from cavs.distributed.comm import run_threads
from cavs.errors import CavsError
from tests.distributed.step.test_consensus import trainer
from tests.distributed.test_trainer import Tree, trees

GRAPHS, DEV = trees(21, 3), trees(10, 4)  # the last batch of 4 has one graph


def loader(graphs=GRAPHS, **options):
    return cavs.DataLoader(graphs, **{"batch_size": 4, "shuffle": True, "seed": 5} | options)


def alone(work):
    model = Tree()
    session = cavs.Session(model, dtype=np.float64)
    return work(cavs.Trainer(model, cavs.optim.SGD(lr=0.1), session=session))


def together(work, size=2, **options):
    def ranks(c):
        with trainer(c, **options) as t:
            return work(t)

    return run_threads(size, ranks)


def trained(t, **options):
    """Return the parameters of `t`, and the report of its `fit`."""
    result = t.fit(**{"train": loader(), "epochs": 3, "progress": False} | options)
    losses = [{k: v for k, v in e.items() if "loss" in k} for e in result.epochs]
    return {n: p.value.copy() for n, p in t.parameters.items()}, losses, result.best_epoch


def assert_same(found, expected):
    for values, losses, best in found:
        for name, value in expected[0].items():
            np.testing.assert_allclose(values[name], value, rtol=1e-9, atol=1e-11, err_msg=name)
        assert [list(x) for x in losses] == [list(x) for x in expected[1]]
        for a, b in zip(losses, expected[1], strict=True):
            assert a == pytest.approx(b, rel=1e-9)
        assert best == expected[2]


OPTIONS = [{}, {"bucket": "size"}, {"shuffle": False, "cache": True}, {"prefetch": 0}]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("strategy", [None, "PartitionedPS(servers=1)"])
def test_an_evaluation_of_the_training_data_does_not_disturb_the_training(options, strategy):
    """It runs in a callback, and as dev."""
    expected = alone(lambda t: trained(t, train=loader(**options)))

    def work(t):
        train, seen = loader(**options), []

        def told(event, record):
            seen.append(t.evaluate(train)["loss"])
            t.evaluate(train)

        values, losses, _ = trained(t, train=train, dev=train, on_event=told)
        assert [e.pop("dev_loss") for e in losses] == pytest.approx(seen[1:-1])
        return values, losses, expected[2]

    assert_same([alone(work)], expected)
    assert_same(together(work, 3, strategy=strategy), expected)


@pytest.mark.parametrize("strategy", [None, "PSLoadBalancing"])
@pytest.mark.parametrize("cache", [False, True])
def test_a_loader_returns_whole_batches_after_training_on_ranks(cache, strategy):
    def work(t):
        train = loader(shuffle=False, cache=cache)
        t.fit(train, epochs=1, progress=False)
        batches = list(train)
        assert all(isinstance(b, GraphBatch) for b in batches)
        assert [b.num_graphs for b in batches] == [4, 4, 4, 4, 4, 1]
        alike = cavs.Trainer(Tree(), cavs.optim.SGD(lr=0.1))
        alike.fit(train, epochs=1, progress=False)  # without ranks
        t.fit(train, epochs=1, progress=False)  # and with them again
        return train.collate is loader().collate

    assert all(together(work, strategy=strategy))


@pytest.mark.parametrize("split", [contiguous, by_counts([2, 1])])
def test_a_loader_keeps_its_batches_between_fits(split):
    made = []

    def collate(graphs, ids):
        made.append(ids)
        return batch(graphs, ids)

    def work(t):
        train = loader(shuffle=False, cache=True, collate=collate)
        for _ in range(3):
            t.fit(train, epochs=1, progress=False)
        return len(train)

    assert together(work, 2, split=split) == [6, 6]
    assert len(made) == 2 * 6  # the shard of each rank, once
    assert alone(work) == 6
    assert len(made) == 3 * 6


@pytest.mark.parametrize("strategy", [None, "PartitionedPS(servers=1)"])
def test_an_evaluation_before_the_first_step_uses_parameters_of_rank_0(strategy):
    dev = loader(DEV)
    expected = alone(lambda t: t.evaluate(dev))

    def work(c):
        options = {"communicator": c, "strategy": strategy, "dtype": np.float64}
        t = Trainer(Tree(seed=c.rank), cavs.optim.SGD(lr=0.1), **options)
        return t.evaluate(loader(DEV))

    assert run_threads(3, work) == [pytest.approx(expected)] * 3


@pytest.mark.parametrize("strategy", [None, "PartitionedPS"])
def test_a_stopped_evaluation_ends_only_itself(strategy):
    """Later evaluations and the surrounding training continue."""

    def work(t):
        seen = []

        def told(event, record):
            t.evaluate(loader(DEV), stop=lambda: True)
            seen.append(t.evaluate(loader(DEV))["loss"])

        found = trained(t, dev=loader(DEV), on_event=told)
        assert seen[1:-1] == pytest.approx([e["dev_loss"] for e in found[1]])
        return found

    assert_same(together(work, strategy=strategy), alone(work))


def test_dev_may_be_any_iterable_of_batches():
    class Dev:
        def __iter__(self):
            return iter([cavs.batch(DEV[:3]), cavs.batch(DEV[3:])])

    found = together(lambda t: trained(t, dev=Dev()))
    assert_same(found, alone(lambda t: trained(t, dev=Dev())))


def test_an_error_in_the_digest_of_dev_is_an_error_on_all():
    class Dev(cavs.DataLoader):
        def digest(self):
            raise RuntimeError("nothing to be told")

    def ranks(c):
        kind = Dev if c.rank == 1 else cavs.DataLoader
        with trainer(c) as t, pytest.raises((RuntimeError, CavsError), match="nothing to be told"):
            t.fit(loader(), epochs=1, dev=kind(DEV, 4), progress=False)
        return True

    assert all(run_threads(3, ranks))
