"""Steps that do not wait for backup ranks: the result is that of the graphs of the others.

Ranks are threads; slow ones sleep while they compute, until they are told to abandon it.
"""

import threading
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cavs
from cavs import nn, ops
from cavs._engine import Abandoned
from cavs.distributed import Trainer, by_counts
from cavs.distributed.balance import PairBalancer
from cavs.distributed.comm import LostPeerError, run_threads
from cavs.distributed.step import synchronous_step
from cavs.distributed.step.synchronous_step import Run
from cavs.errors import CommunicationError, CompileError, ConfigError
from cavs.train.policies import StragglerRoles
from tests.distributed.step.test_consensus import outcomes
from tests.distributed.step.test_stale_parameters import assert_same_bits, values_of
from tests.distributed.test_trainer import Tree, trees
from tests.patience import patience

DATA = trees(24, 5)
LONG = 30.0  # seconds that a slow rank would compute


class OneMean(cavs.Model):
    """A Tree-LSTM whose loss is one mean or sum."""

    def __init__(self, loss="labels"):
        self.embedding = nn.Embedding(40, 6)
        self.cell = nn.ChildSumTreeLSTM(6, 5)
        self.output = nn.Linear(5, 3)
        self.of = loss
        rng = np.random.default_rng(0)
        for p in self.parameters().values():
            p.value[...] = rng.normal(size=p.shape) * 0.4

    def loss(self, batch):
        h = self.cell(batch.graph, x=self.embedding(batch["token"]))
        if self.of == "graphs":
            return ops.mean_squared_error(self.output(ops.sum_roots(h)), 0.3)
        y = self.output(h)
        if self.of == "vertices":
            return 2 * ops.mean_squared_error(y, 0.3)
        return ops.cross_entropy(
            y, batch["label"], reduction="mean" if self.of == "labels" else "sum"
        )


class Sleeper:
    """An executor whose run takes long, unless it is abandoned."""

    def __init__(self, executor, seconds):
        self.executor, self.seconds, self.told = executor, seconds, threading.Event()

    def run(self, *inputs):
        if self.told.wait(self.seconds):
            raise Abandoned
        return self.executor.run(*inputs)

    def abandon(self):
        self.told.set()

    def __getattr__(self, name):
        return getattr(self.executor, name)


@pytest.fixture(autouse=True)
def slowed(monkeypatch):
    """Return a function that slows this rank in some steps."""
    plans = {}

    class Slowed(Run):
        def go(self, words, inputs):
            seconds = plans.get((self.roles.rank, self.update.step))
            own = self.executor
            if seconds is not None:
                self.executor = Sleeper(own, seconds)
            try:
                super().go(words, inputs)
            finally:
                self.executor = own

    monkeypatch.setattr(synchronous_step, "Run", Slowed)
    return plans


def train(plans, slow_ranks, ranks, backup, loss="labels", data=DATA, **options):
    """Return parameters and reports of ranks of which some are slow. slow_ranks: of each step."""
    plans.clear()
    plans.update({(r, i): LONG for i, every in enumerate(slow_ranks) for r in every})

    def work(c):
        model, optimizer = OneMean(loss), cavs.optim.SGD(lr=0.1, momentum=0.5)
        with Trainer(model, optimizer, communicator=c, dtype=np.float64, **options) as t:
            t.session.backup = backup
            found = [t.advance(cavs.batch(data)) for _ in slow_ranks]
            return values_of(t), found

    return run_threads(ranks, work, timeout=patience(20))


def alone(batches, loss):
    model = OneMean(loss)
    session = cavs.Session(model, dtype=np.float64)
    t = cavs.Trainer(model, cavs.optim.SGD(lr=0.1, momentum=0.5), session=session)
    found = [t.advance(cavs.batch(graphs)) for graphs in batches]
    return {n: p.value for n, p in model.parameters().items()}, found


def part(rank, ranks):
    bounds = [len(DATA) * r // ranks for r in range(ranks + 1)]
    return DATA[bounds[rank] : bounds[rank + 1]]


def check(results, slow_ranks, ranks, loss="labels"):
    counted = [[r for r in range(ranks) if r not in every] for every in slow_ranks]
    batches = [[g for r in own for g in part(r, ranks)] for own in counted]
    expected, losses = alone(batches, loss)
    assert_same_bits([values for values, _ in results])
    values, reports = results[0]
    for name, value in expected.items():
        np.testing.assert_allclose(values[name], value, rtol=1e-10, atol=1e-13, err_msg=name)
    for found, one, every in zip(reports, losses, slow_ranks, strict=True):
        assert found.dropped == tuple(sorted(every))
        assert all((n == 0) == (r in every) for r, n in enumerate(found.rank_graphs))
        assert found.loss == pytest.approx(one.loss, rel=1e-10)
        assert found.grad_norm == pytest.approx(one.grad_norm, rel=1e-10)


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_the_result_is_that_of_the_graphs_of_counted_ranks(slowed, data):
    ranks = data.draw(st.integers(2, 4), "ranks")
    backup = data.draw(st.integers(1, ranks - 1), "backup")
    loss = data.draw(st.sampled_from(["labels", "vertices", "graphs", "sum"]), "loss")
    strategy = data.draw(st.sampled_from([None, "PS", "Parallax", "PartitionedPS"]), "strategy")
    rank = st.integers(0, ranks - 1)
    # Exactly so many are slow: which of the others are first depends on time.
    each = st.sets(rank, min_size=backup, max_size=backup)
    slow_ranks = data.draw(st.lists(each, min_size=2, max_size=3), "slow ranks")
    results = train(slowed, slow_ranks, ranks, backup, loss, strategy=strategy)
    check(results, slow_ranks, ranks, loss)


@pytest.mark.parametrize("strategy", [None, "PSLoadBalancing"])
def test_without_backup_ranks_a_step_has_the_same_bits(slowed, strategy):
    plain = train(slowed, [(), ()], 3, 0, strategy=strategy)
    assert plain[0][1][0].dropped == ()
    waited = train(slowed, [(), ()], 3, 0, strategy=strategy)
    assert_same_bits([values for values, _ in plain + waited])


def test_a_rank_that_is_slow_for_a_while_is_counted_again(slowed):
    slow_ranks = [{2}, {2}, {0}, {2}]
    check(train(slowed, slow_ranks, 3, 1), slow_ranks, 3)


def test_ranks_that_only_own_parameters_follow(slowed):
    strategy = "PS(servers=1)"
    results = train(slowed, [{1}, {0}], 3, 1, strategy=strategy)
    assert_same_bits([values for values, _ in results[:2]])
    assert [report.dropped for report in results[0][1]] == [(1,), (0,)]


def test_a_run_of_the_engine_is_abandoned():
    """A rank that computes for long ends soon after it is told to."""
    graphs = trees(2000, 9)
    session = cavs.Session(OneMean(), replicated=True)
    batch = cavs.batch(graphs)
    session.compile_for(batch, sorted)
    executor, inputs, _ = session.ready(batch)
    arguments = (*inputs, 0, 0, 1.0, [])
    executor.run(*arguments)
    expected = executor.gradient_block().copy()
    begun = time.perf_counter()
    executor.run(*arguments)
    whole = time.perf_counter() - begun
    found = []

    def run():
        executor.arm_gradients()
        begun = time.perf_counter()
        try:
            executor.run(*arguments)
        except Abandoned:
            found.append(time.perf_counter() - begun)

    for _ in range(20):  # the run may end before it is told
        before, thread = len(found), threading.Thread(target=run)
        thread.start()
        time.sleep(whole / 4)
        executor.abandon()
        thread.join(patience(10))
        if len(found) > before:
            assert not executor.wait_gradient(executor.gradient_order()[0])
    assert found
    executor.run(*arguments)  # a later run is whole again, with the same bits
    np.testing.assert_array_equal(executor.gradient_block(), expected)


def test_an_error_of_a_counted_rank_is_raised_on_all(slowed):
    bad = [*DATA[:-1], cavs.Graph([[]], {"token": np.array([99]), "label": np.array([0])})]

    def work(c):
        with Trainer(OneMean(), cavs.optim.SGD(lr=0.1), communicator=c) as t:
            t.session.backup = 1
            t.advance(cavs.batch(bad))

    slowed.update({(0, 0): LONG})
    found = outcomes(3, work)
    assert all("99" in str(error) for error in found)
    assert isinstance(found[1], CommunicationError) and "rank 2" in str(found[1])


def test_a_death_of_a_rank_is_named(slowed):
    def work(c):
        with Trainer(OneMean(), cavs.optim.SGD(lr=0.1), communicator=c) as t:
            t.session.backup = 1
            t.advance(cavs.batch(DATA))
            if c.rank == 2:
                c.die()
                return
            with pytest.raises(LostPeerError):
                t.advance(cavs.batch(DATA))
            raise CommunicationError("as expected")

    found = outcomes(3, work)
    assert all("as expected" in str(error) for error in found[:2])


class TwoMeans(OneMean):
    def loss(self, batch):
        y = self.output(self.cell(batch.graph, x=self.embedding(batch["token"])))
        return ops.cross_entropy(y, batch["label"]) + ops.mean_squared_error(y, 0.3)


class Decayed(OneMean):
    def loss(self, batch):
        return super().loss(batch) + ops.mean_squared_error(self.output.weight, 0.0)


@pytest.mark.parametrize(
    ("model", "why"),
    [(TwoMeans, "different counts"), (Decayed, "terms without data"), (Tree, "loss")],
)
def test_a_loss_that_cannot_be_restricted_is_refused_on_all_ranks(model, why):
    def work(c):
        t = Trainer(model(), cavs.optim.SGD(lr=0.1), communicator=c)
        t.session.backup = 1
        t.advance(cavs.batch(DATA))

    for error in outcomes(2, work):
        assert isinstance(error, (CompileError, CommunicationError)) and why in str(error)


def test_stale_parameters_are_refused():
    def work(c):
        t = Trainer(
            OneMean(), cavs.optim.SGD(lr=0.1), communicator=c, strategy="Parallax(staleness=1)"
        )
        t.session.backup = 1
        t.advance(cavs.batch(DATA))

    for error in outcomes(2, work):
        assert "backup ranks with stale parameters" in str(error)
        assert isinstance(error, (ConfigError, CommunicationError))


def test_a_balancer_does_not_learn_from_a_step_without_some_ranks(slowed):
    split = [PairBalancer() for _ in range(3)]
    slowed.update({(2, i): LONG for i in range(4)})

    def work(c):
        with Trainer(OneMean(), cavs.optim.SGD(lr=0.1), communicator=c, split=split[c.rank]) as t:
            t.session.backup = 1
            for _ in range(4):
                t.advance(cavs.batch(DATA))
        return split[c.rank].rule

    assert run_threads(3, work, timeout=patience(20)) == [None] * 3


def test_a_rank_without_graphs_is_not_enough(slowed):
    """The step waits for a rank that has graphs."""
    results = train(slowed, [()], 3, 2, split=by_counts([1, 0, 1]))
    assert results[0][1][0].loss > 0


def test_the_policy_sets_and_clears_backup_ranks(slowed):
    slowed.update({(1, i): LONG for i in range(6)})
    seen = []

    class Watch(StragglerRoles):
        def after_step(self, run):
            seen.append(run.table["backup"])

    def work(c):
        with Trainer(OneMean(), cavs.optim.SGD(lr=0.1), communicator=c) as t:
            loader = cavs.DataLoader(DATA, 8)
            t.fit(loader, epochs=2, progress=False, policies=[Watch(backup=1)])
            return values_of(t), t.session.backup

    results = run_threads(3, work, timeout=patience(20))
    assert_same_bits([values for values, _ in results])
    assert [backup for _, backup in results] == [0] * 3
    assert seen == [1] * len(seen)


def test_the_policy_does_nothing_on_one_process():
    t = cavs.Trainer(OneMean(), cavs.optim.SGD(lr=0.1))
    result = t.fit(cavs.DataLoader(DATA, 8), epochs=1, progress=False, policies=[StragglerRoles(2)])
    assert result.status == "finished"
