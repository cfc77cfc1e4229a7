"""Stale servers in two levels: replicas of a host make a step together, hosts do not wait."""

import dataclasses
import time

import numpy as np
import pytest

import cavs
from cavs.distributed import Trainer
from cavs.distributed.comm import run_threads
from cavs.distributed.coordinator import RankCoordinator
from cavs.distributed.elastic import survivors
from cavs.distributed.planning.builders import build
from cavs.distributed.strategy import variables_of
from cavs.distributed.strategy.verify import problems
from cavs.errors import CommunicationError, FeatureError, NumericsError
from tests.distributed.elastic.test_stale_survivors import Linear, data, mortal
from tests.distributed.elastic.test_survivors import Killed
from tests.distributed.launch.test_launcher import wait_for
from tests.distributed.mpirun import needs_mpi4py, run_ranks
from tests.distributed.step.test_consensus import loader, outcomes
from tests.distributed.step.test_stale_parameters import assert_same_bits, trainer, values_of
from tests.distributed.strategy.test_roles import hosts
from tests.distributed.sync.test_stale_sums import Wide, bytes_of
from tests.distributed.test_trainer import BATCHES, Tree, train_alone, trees
from tests.patience import patience

FREE = ["PSLoadBalancing(staleness=2, two_level=True)", "PartitionedPS(sync=False, two_level=True)"]
FREE += ["PS(servers=1, staleness=1, two_level=True)"]
MIXED = "Parallax(staleness=1, two_level=True)"
SIZES = [(2, 2), (3, 1), (1, 2, 2)]


def computing(strategy, sizes):
    return sum(sizes) - ("servers" in strategy)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("strategy", [*FREE, MIXED])
def test_equals_one_process_if_all_settle_after_each_step(strategy, sizes):
    expected, _ = train_alone(cavs.optim.SGD(lr=0.1))

    def work(c):
        with trainer(c, strategy=strategy, resources=hosts(*sizes)) as t:
            for graphs in BATCHES:
                t.advance(cavs.batch(graphs))
                t.settle()
        return values_of(t), t.session.roles.teams

    results = run_threads(sum(sizes), work)
    ranks = computing(strategy, sizes)
    assert_same_bits([values for values, _ in results[:ranks]])
    assert [len(team) for team in results[0][1]] == [n for n in sizes if n] or "servers" in strategy
    for name, value in expected.items():
        np.testing.assert_allclose(results[0][0][name], value, rtol=1e-11, atol=1e-13, err_msg=name)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("strategy", [*FREE, MIXED])
def test_no_gradient_is_lost_and_none_counts_twice(strategy, sizes):
    """Train on a loss that is linear in the parameters, where the order of steps does not
    matter.
    """

    def work(c, strategy):
        options = {"communicator": c, "dtype": np.float64, "strategy": strategy}
        resources = hosts(*sizes) if strategy else None
        with Trainer(Linear(), cavs.optim.SGD(lr=0.05), resources=resources, **options) as t:
            t.fit(data(), epochs=2, dev=data(), progress=False)
        return values_of(t)

    ((expected),) = run_threads(1, lambda c: work(c, None))
    results = run_threads(sum(sizes), lambda c: work(c, strategy))
    assert_same_bits(results[: computing(strategy, sizes)])
    for name, value in expected.items():
        np.testing.assert_allclose(results[0][name], value, rtol=1e-10, err_msg=name)


@pytest.mark.parametrize("ahead", [1, 3])
def test_a_host_runs_ahead_of_another_up_to_the_bound_and_its_replicas_together(ahead):
    strategy = f"PSLoadBalancing(staleness={ahead}, two_level=True)"
    steps, begun, ended = 7, {}, {}

    def work(c):
        with trainer(c, strategy=strategy, resources=hosts(2, 2)) as t:
            for i in range(steps):
                if c.rank == 3:
                    time.sleep(0.1)
                if c.rank == 3 and i == 1:  # however slow the others are
                    wait_for(lambda: (0, 1) in ended)
                begun[c.rank, i] = time.monotonic()
                t.advance(cavs.batch(BATCHES[0]))
                ended[c.rank, i] = time.monotonic()

    run_threads(4, work)
    for i in range(steps):
        for one, other in ((0, 1), (1, 0), (2, 3), (3, 2)):
            assert ended[one, i] > begun[other, i]
        for r in (0, 1):
            assert i <= ahead or ended[r, i] > begun[3, i - ahead - 1]
    assert any(ended[0, i] < begun[3, i] for i in range(steps))


@pytest.mark.parametrize("strategy", FREE)
def test_bytes_are_those_of_the_formula(strategy):
    graphs, resources = trees(12, 4), hosts(2, 2)
    made = build(strategy, variables_of(Wide()), resources)
    expected = bytes_of(made, graphs).sum()

    def work(c):
        optimizer = cavs.optim.SGD(lr=0.1)
        with Trainer(Wide(), optimizer, communicator=c, strategy=made, resources=resources) as t:
            t.advance(cavs.batch(graphs))
            t.settle()
            before = t.session.sent_bytes
            for _ in range(steps):
                t.advance(cavs.batch(graphs))
            t.settle()
            return t.session.sent_bytes - before

    steps = 40  # the consensus after them costs one more answer
    assert sum(run_threads(4, work)) == pytest.approx(steps * expected, rel=0.05)


@pytest.mark.parametrize("strategy", [*FREE[:2], MIXED])
def test_an_error_of_one_replica_ends_all_and_names_it(strategy):
    bad = [*trees(3, 3), cavs.Graph([[]], {"token": [99], "label": [0]})]

    def work(c):
        t = trainer(c, strategy=strategy, resources=hosts(2, 2))
        t.advance(cavs.batch(BATCHES[0]))
        for graphs in (bad, *BATCHES):
            t.advance(cavs.batch(graphs))
        t.settle()

    errors = outcomes(4, work)
    assert isinstance(errors[3], FeatureError)
    for error in errors[:3]:
        assert isinstance(error, CommunicationError) and "rank 3: FeatureError" in str(error)


def test_a_replica_forwards_an_error_within_its_host():
    """Rank 1 learns of failures on the other host only from rank 0."""
    bad = [*trees(3, 3), cavs.Graph([[]], {"token": [99], "label": [0]})]

    def work(c):
        t = trainer(c, strategy=FREE[0], resources=hosts(2, 2))
        t.advance(cavs.batch(BATCHES[0]))
        if c.rank == 1:
            t.session.servers.fetch = lambda: False
        for graphs in (bad, *BATCHES, *BATCHES):
            t.advance(cavs.batch(graphs))

    errors = outcomes(4, work)
    assert isinstance(errors[3], FeatureError)
    for error in errors[:3]:
        assert isinstance(error, CommunicationError) and "rank 3: FeatureError" in str(error)


def test_a_loss_that_is_not_finite_is_applied_nowhere():
    def work(c):
        t = trainer(c, strategy=FREE[0], resources=hosts(2, 2))
        t.begin(cavs.batch(BATCHES[0]))
        if c.rank == 1:
            t.parameters["output.weight"].value[...] = np.inf
            t.session.session.invalidate()
        try:
            t.advance(cavs.batch(BATCHES[0]))
            t.settle()
        except (NumericsError, CommunicationError) as error:
            clocks = t.session.servers._owner.clocks.of
            return type(error), [next(iter(clocks.values()))]

    results = run_threads(4, work)
    assert [kind for kind, _ in results[:2]] == [NumericsError, NumericsError]
    assert not any(step for _, steps in results for step in steps)  # on the first host


def test_a_stop_on_one_replica_stops_all_after_the_same_step(tmp_path):
    def work(c):
        t = trainer(c, strategy=FREE[0], resources=hosts(2, 2))
        calls = 0

        def stops(requested):
            nonlocal calls
            calls += 1
            return RankCoordinator.should_stop(t.coordinator, c.rank == 3 and calls >= 4)

        t.coordinator.should_stop = stops
        with pytest.raises(KeyboardInterrupt):
            t.fit(loader(), epochs=9, checkpoint=tmp_path / "c.safetensors", progress=False)
        return t.steps

    assert len(set(run_threads(4, work))) == 1


@pytest.mark.parametrize("acts", range(20, 140, 17))
@pytest.mark.parametrize("strategy", [FREE[0], MIXED])
def test_a_replica_may_die(strategy, acts, monkeypatch):
    monkeypatch.setattr(survivors, "EVERY", 4)
    victim = acts % 4

    def work(c, strategy):
        if strategy:
            mortal(c, victim, acts)
        options = {"communicator": c, "dtype": np.float64, "strategy": strategy, "elastic": True}
        resources = hosts(2, 2) if strategy else None
        t = Trainer(Linear(), cavs.optim.SGD(lr=0.05), resources=resources, **options)
        try:
            with t:
                t.fit(data(), epochs=3, progress=False)
        except (Killed, CommunicationError):
            assert c.rank == victim
            return None
        return values_of(t)

    (expected,) = run_threads(1, lambda c: work(c, None))
    results = run_threads(4, lambda c: work(c, strategy), timeout=patience(20))
    for values in (results[r] for r in range(4) if r != victim):
        for name, value in expected.items():
            np.testing.assert_allclose(values[name], value, rtol=1e-9, atol=1e-12, err_msg=name)


def test_a_mixture_with_two_levels_is_refused():
    variables = variables_of(Tree())
    made = build(FREE[0], variables, hosts(2, 2))
    node = made.nodes[1]
    flat = dataclasses.replace(node, synchroniser=dataclasses.replace(node.sync, two_level=False))
    mixed = dataclasses.replace(made, nodes=(made.nodes[0], flat, *made.nodes[2:]))
    (problem,) = problems(mixed, variables, hosts(2, 2))
    assert node.name in problem.what and "stale with two_level=True" in problem.what
    synchronous = dataclasses.replace(
        node, synchroniser=dataclasses.replace(node.sync, staleness=0, two_level=False)
    )
    assert not problems(
        dataclasses.replace(made, nodes=(made.nodes[0], synchronous, *made.nodes[2:])),
        variables,
        hosts(2, 2),
    )


@pytest.mark.mpi
@needs_mpi4py
def test_over_mpi():
    found = run_ranks(
        4, "tests.distributed.strategy.test_roles", "over_mpi", FREE[0], [2, 2], timeout=120
    )
    model = Tree()
    start = cavs.Trainer(
        model, cavs.optim.SGD(lr=0.1), session=cavs.Session(model, dtype=np.float64)
    )
    assert found < start.evaluate([cavs.batch(graphs) for graphs in BATCHES])["loss"]
