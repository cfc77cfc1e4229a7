"""A training on ranks between its steps: monitors, evaluations, processes that wait, exits."""

import threading

import numpy as np
import pytest

import cavs
from cavs.distributed import Trainer, contiguous
from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.comm import run_threads
from cavs.distributed.comm.interrupt import INTERRUPT
from cavs.distributed.strategy import GraphConfig, NodeConfig, Strategy
from cavs.distributed.sync import AllReduce
from cavs.errors import CommunicationError, ConfigError
from cavs.train import Monitor, Policy
from tests.distributed.elastic.test_resize import Planned, loader, make
from tests.distributed.step.test_consensus import outcomes, trainer
from tests.distributed.test_data_set_metrics import USED, Tagger
from tests.distributed.test_trainer import BATCHES, Tree, trees
from tests.patience import patience

DEV = trees(7, 11)


class Norms(Monitor):
    """Keeps the norms of gradients that monitors are told."""

    name = "norms"

    def __init__(self):
        super().__init__()
        self.seen = []

    def end_step(self, facts):
        self.seen.append(facts.grad_norm)


def test_monitors_get_the_norm_of_the_mean_where_gradients_are_added():
    """A report has the norm of what was applied, the sum."""
    replicas = ResourceSpec.local(3).replicas
    nodes = [NodeConfig(name=name, synchroniser=AllReduce()) for name in Tree().parameters()]

    def work(c, gradients):
        strategy = Strategy(graph=GraphConfig(replicas=replicas, gradients=gradients), nodes=nodes)
        t = trainer(c, strategy=strategy, optimizer=cavs.optim.SGD(lr=1e-12))
        monitor, norms = Norms(), []

        class Reported(Policy):
            def after_step(self, run):
                norms.append(run.grad_norm)

        data = cavs.DataLoader([g for graphs in BATCHES for g in graphs], 6)
        t.fit(data, epochs=1, progress=False, monitors=[monitor], policies=[Reported()])
        return monitor.seen, norms

    mean, mean_reported = run_threads(3, lambda c: work(c, "mean"))[0]
    summed, sum_reported = run_threads(3, lambda c: work(c, "sum"))[0]
    assert mean == pytest.approx(mean_reported, rel=1e-12)
    assert np.array(summed) * 3 == pytest.approx(np.array(sum_reported), rel=1e-12)
    assert len(summed) == len(mean) > 1


# ---- evaluations --------------------------------------------------------------------------------


def test_equal_replicas_are_evaluated_once_for_all():
    def work(c):
        with trainer(c) as t:
            t.advance(cavs.batch(BATCHES[0]))
            data = cavs.DataLoader(DEV, 3)
            return t.evaluate_replicas(data), t.evaluate(data)

    for replicas, alone in run_threads(3, work):
        assert replicas == [alone] * 3


def test_a_process_that_waits_evaluates_all_by_itself():
    """Also metrics of whole data sets, which ranks compute together."""
    session = cavs.Session(Tagger(), dtype=np.float64)
    one = cavs.Trainer(session.model, cavs.optim.SGD(0.1), session=session)
    expected = one.evaluate(cavs.DataLoader(DEV, 3), USED)

    def work(c):
        t = Trainer(Tagger(), cavs.optim.SGD(lr=0.1), communicator=c, dtype=np.float64)
        waits = t.coordinator.detached()
        found = t.evaluate(cavs.DataLoader(DEV, 3), USED) if waits else None
        t.fit(cavs.DataLoader(DEV, 3), epochs=1, progress=False)
        return found

    first, spare = run_threads(1, work, spares=1, timeout=patience(20))
    assert first is None and spare == pytest.approx(expected, rel=1e-12)


def test_outputs_are_those_of_the_parameters_of_the_ranks():
    batch = cavs.batch(DEV)

    def work(c):
        t = Trainer(Tagger(), cavs.optim.SGD(lr=0.1), communicator=c, dtype=np.float64)
        t.advance(batch)
        found = t.session.predict(batch)["output"]
        values = {name: p.value.copy() for name, p in t.parameters.items()}
        t.close()
        return found, values

    results = run_threads(2, work)
    session = cavs.Session(Tagger(), dtype=np.float64)
    for name, p in session.model.parameters().items():
        p.value[...] = results[0][1][name]
    expected = session.predict(batch)["output"]
    for found, _ in results:
        np.testing.assert_allclose(found, expected, rtol=1e-12)


# ---- processes that wait ------------------------------------------------------------------------


def test_a_process_that_waits_to_join_may_be_stopped(monkeypatch):
    """The ranks train on without it."""
    monkeypatch.setattr(INTERRUPT, "requested", False)
    stopped = threading.Event()

    def work(c):
        t = make(c)
        if t.coordinator.detached():
            INTERRUPT.requested = True  # as Ctrl-C sets it
            try:
                t.fit(loader(), epochs=1, progress=False)
            except KeyboardInterrupt as error:
                return str(error), INTERRUPT.requested
            finally:
                stopped.set()
        assert stopped.wait(patience(10))
        return t.fit(loader(), epochs=1, progress=False).status

    found = run_threads(1, work, spares=1, timeout=patience(20))
    assert found == ["finished", ("stopped while it waited to join", False)]


def test_a_policy_knows_that_its_process_has_left():
    class Kept(Planned):
        def before_train(self, run):
            self.run = run

    def work(c):
        policy = Kept({2: 1})
        make(c).fit(loader(), epochs=1, progress=False, policies=[policy])
        return policy.run.detached

    assert run_threads(2, work, timeout=patience(20)) == [False, True]


# ---- exits --------------------------------------------------------------------------------------


def exits(work):
    """Return the status with which rank 1 of 2 exits in `work`, and the error of rank 0."""
    told = []

    def caught(c):
        try:
            work(c)
        except CommunicationError as error:
            told.append((c.rank, str(error)))

    with pytest.raises(SystemExit) as found:
        run_threads(2, caught, timeout=patience(20))
    ((rank, text),) = told
    assert rank == 0
    return found.value.code, text


def test_a_rank_that_exits_within_a_step_makes_no_step():
    steps = {}

    def work(c):
        def split(graphs, ranks):
            if c.rank == 1 and len(graphs) == 4:
                raise SystemExit(3)
            return contiguous(graphs, ranks)

        t = trainer(c, split=split)
        try:
            for count in (6, 4):
                t.advance(cavs.batch(trees(count, 1)))
        finally:
            steps[c.rank] = t.steps

    code, text = exits(work)
    assert code == 3 and "rank 1" in text
    assert steps == {0: 1, 1: 1}


def test_a_rank_that_exits_within_an_evaluation_is_named():
    def work(c):
        def leaves(output, batch):
            if c.rank == 1:
                raise SystemExit(4)
            return 1.0, 1

        t = Trainer(Tagger(), cavs.optim.SGD(lr=0.1), communicator=c)
        t.evaluate(cavs.DataLoader(DEV, 3), {"leaves": leaves})

    code, text = exits(work)
    assert code == 4 and "rank 1" in text


def test_a_model_that_one_rank_cannot_trace_is_an_error_on_all():
    """Stale ranks compare programs before the first step: in no later one they wait for others."""

    class Broken(Tree):
        def __init__(self, rank):
            super().__init__()
            self.rank = rank

        def loss(self, batch):
            if self.rank == 1:
                raise ZeroDivisionError("of the model")
            return super().loss(batch)

    def work(c):
        strategy, optimizer = "PSLoadBalancing(staleness=1)", cavs.optim.SGD(lr=0.1)
        t = Trainer(Broken(c.rank), optimizer, communicator=c, strategy=strategy)
        try:
            t.advance(cavs.batch(BATCHES[0]))
        except ZeroDivisionError as error:
            return str(error)

    first, second = outcomes(2, work)
    assert second == "of the model"
    assert isinstance(first, CommunicationError)
    assert "rank 1: ZeroDivisionError: of the model" in str(first)


def test_states_that_no_survivor_has_are_an_error():
    """Each has kept another step, and none the optimiser states of the rank that has died."""

    def work(c):
        t = make(c, strategy="PartitionedPS", elastic=True)
        for graphs in BATCHES[:2]:
            t.advance(cavs.batch(graphs))
        snapshots = t.coordinator.survivors.snapshots
        assert set(snapshots.known()) <= {0, 1, 2}
        with pytest.raises(ConfigError, match="their optimiser states are lost") as found:
            snapshots.restore([7])
        c.barrier()
        return found.value.hint

    assert run_threads(2, work) == ["resume from the last checkpoint"] * 2
