"""Ranks that only own parameters, and hosts whose ranks sum first, give results of one process."""

import numpy as np
import pytest

import cavs
from cavs.distributed import Trainer
from cavs.distributed.cluster.resources import Node, ResourceSpec
from cavs.distributed.comm import run_threads
from cavs.distributed.coordinator import RankCoordinator
from cavs.distributed.planning.builders import build
from cavs.distributed.strategy import variables_of
from cavs.errors import FeatureError
from cavs.train.checkpoint import read_checkpoint
from tests.distributed.mpirun import needs_mpi4py, run_ranks
from tests.distributed.step.test_consensus import loader, outcomes
from tests.distributed.step.test_stale_parameters import assert_same_bits, trainer, values_of
from tests.distributed.sync.test_stale_sums import Wide, bytes_of
from tests.distributed.test_trainer import BATCHES, Tree, train_alone, trees


def hosts(*sizes):
    """Several nodes, all of them on this machine."""
    return ResourceSpec(
        nodes=tuple(
            Node(address=f"host{i}", cpus=tuple(range(n)), chief=i == 0)
            for i, n in enumerate(sizes)
        )
    )


def train(size, strategy, resources, optimizer=None, **options):
    """Return parameters and reports of every rank, after all batches."""

    def work(c):
        t = trainer(
            c,
            strategy=strategy,
            resources=resources,
            optimizer=optimizer or cavs.optim.Adam(lr=0.05),
            **options,
        )
        with t:
            reports = [t.advance(cavs.batch(graphs)) for graphs in BATCHES]
            loss = t.evaluate([cavs.batch(graphs) for graphs in BATCHES])["loss"]
        return values_of(t), reports, loss

    return run_threads(size, work)


def assert_as_alone(results, computing):
    expected, losses = train_alone(cavs.optim.Adam(lr=0.05), max_norm=0.5)
    assert_same_bits([values for values, _, _ in results[:computing]])
    for name, value in expected.items():
        np.testing.assert_allclose(results[0][0][name], value, rtol=1e-10, atol=1e-12, err_msg=name)
    for _, reports, loss in results:
        assert loss == results[0][2]
        for a, b in zip(losses, reports, strict=True):
            assert a.loss == pytest.approx(b.loss, rel=1e-11)
            assert a.grad_norm == pytest.approx(b.grad_norm, rel=1e-11)


SERVED = ["PS(servers=1)", "PSLoadBalancing(servers=2)", "PartitionedPS(servers=1)"]
SERVED += ["Parallax(servers=1)", "Poseidon(servers=2, batch_size=1)"]


@pytest.mark.parametrize("strategy", SERVED)
def test_ranks_that_only_own_parameters_change_no_result(strategy):
    results = train(4, strategy, ResourceSpec.local(4), max_norm=0.5)
    computing = 4 - int(strategy.partition("servers=")[2][0])
    assert_as_alone(results, computing)
    for _, reports, _ in results:
        assert all(len(r.rank_seconds) == computing for r in reports)
    for _, reports, _ in results[computing:]:
        assert all(r.compute_seconds == 0 for r in reports)


@pytest.mark.parametrize(
    "strategy",
    [
        "PSLoadBalancing(servers=1, staleness=2)",
        "PS(servers=1, sync=False)",
        "Parallax(servers=1, staleness=1)",
    ],
)
def test_they_may_own_stale_parameters(strategy):
    def work(c):
        options = {"strategy": strategy, "resources": ResourceSpec.local(3)}
        with trainer(c, **options) as t:
            for graphs in BATCHES:
                t.advance(cavs.batch(graphs))
                t.settle()
        return values_of(t)

    expected, _ = train_alone(cavs.optim.SGD(lr=0.1))
    results = run_threads(3, work)
    assert_same_bits(results[:2])
    for name, value in expected.items():
        np.testing.assert_allclose(results[0][name], value, rtol=1e-11, atol=1e-13, err_msg=name)


@pytest.mark.parametrize(
    "strategy", ["PSLoadBalancing(servers=1)", "PSLoadBalancing(servers=1, staleness=2)"]
)
def test_fit_stops_and_resumes_with_them(strategy, tmp_path):
    path = tmp_path / "c.safetensors"

    def work(c, stop):
        t = trainer(
            c,
            strategy=strategy,
            resources=ResourceSpec.local(3),
            optimizer=cavs.optim.Adagrad(lr=0.05),
        )
        calls = 0

        def stops(requested):
            nonlocal calls
            calls += 1
            return RankCoordinator.should_stop(t.coordinator, c.rank == 1 and calls >= stop)

        t.coordinator.should_stop = stops
        if path.exists():
            t.resume(path)
        try:
            t.fit(loader(), epochs=3, dev=loader(), checkpoint=path, progress=False)
        except KeyboardInterrupt:
            return t.steps, None
        return t.steps, t.evaluate(loader())["loss"]

    stopped = run_threads(3, lambda c: work(c, 3))
    assert len(set(stopped)) == 1 and stopped[0][1] is None
    assert read_checkpoint(path).progress["step"] == stopped[0][0] <= 6
    ended = run_threads(3, lambda c: work(c, 10**9))
    assert len(set(ended)) == 1 and ended[0][0] == 15


def test_an_error_reaches_ranks_that_compute_nothing():
    bad = [*trees(2, 3), cavs.Graph([[]], {"token": [99], "label": [0]})]

    def work(c):
        t = trainer(c, strategy="PS(servers=1)", resources=ResourceSpec.local(3))
        t.advance(cavs.batch(BATCHES[0]))
        t.advance(cavs.batch(bad))

    first, second, third = outcomes(3, work)
    assert isinstance(second, FeatureError)
    for error in (first, third):
        assert "rank 1: FeatureError: feature 'token' is 99" in str(error)


def test_more_servers_than_ranks_or_parameters_are_refused():
    for size, text in ((2, "servers=2 of 2 devices leave none"), (9, "owns no parameter")):

        def work(c, size=size):
            servers = 2 if size == 2 else 8
            trainer(c, strategy=f"PS(servers={servers})").advance(cavs.batch(BATCHES[0]))

        for error in outcomes(size, work):
            assert text in str(error)


LEVELS = ["PSLoadBalancing", "PartitionedPS", "Parallax", "PS(local_replication=True)"]
LEVELS += ["PSLoadBalancing(two_level=False, local_replication=True)", "PS(servers=1)"]


@pytest.mark.parametrize("strategy", LEVELS)
@pytest.mark.parametrize("sizes", [(3, 1), (1, 2, 2)])
def test_hosts_that_sum_first_change_no_result(strategy, sizes):
    resources = hosts(*sizes)
    made = build(strategy, variables_of(Tree()), resources)
    computing = {device.partition(":")[0] for device in made.graph.replicas}
    levels = {n.two_level for n in (leaf.sync for leaf in made.leaves) if hasattr(n, "two_level")}
    assert levels == {len(computing) > 1 and "two_level=False" not in strategy}
    results = train(sum(sizes), strategy, resources, max_norm=0.5)
    assert_as_alone(results, sum(sizes) - ("servers" in strategy))


@pytest.mark.parametrize("strategy", [*LEVELS, "PSLoadBalancing(servers=1)"])
@pytest.mark.parametrize("sizes", [(2, 2)])
def test_bytes_are_those_of_the_formula(strategy, sizes):
    size, resources = sum(sizes), hosts(*sizes)
    made = build(strategy, variables_of(Wide()), resources)
    graphs = trees(12, 4)
    expected = bytes_of(made, graphs)

    def work(c):
        optimizer = cavs.optim.SGD(lr=0.1)
        t = Trainer(Wide(), optimizer, communicator=c, strategy=made, resources=resources)
        t.advance(cavs.batch(graphs))
        return t.advance(cavs.batch(graphs)).sent_bytes

    found = np.array(run_threads(size, work))
    assert found.sum() == pytest.approx(expected.sum(), rel=0.05)
    np.testing.assert_allclose(found, expected, rtol=0.05, atol=2000)


def over_mpi(c, strategy, sizes):
    """Return the loss of all batches after one epoch, of a strategy with all its hosts on this
    machine.
    """
    optimizer = cavs.optim.Adam(lr=0.05)
    options = {"communicator": c, "dtype": np.float64, "strategy": strategy}
    with Trainer(Tree(), optimizer, resources=hosts(*sizes), **options) as t:
        for graphs in BATCHES:
            t.advance(cavs.batch(graphs))
        return t.evaluate([cavs.batch(graphs) for graphs in BATCHES])["loss"]


@pytest.mark.mpi
@needs_mpi4py
def test_over_mpi_they_train_as_one_process():
    model = Tree()
    session = cavs.Session(model, dtype=np.float64, threads=1)
    alone = cavs.Trainer(model, cavs.optim.Adam(lr=0.05), session=session)
    for graphs in BATCHES:
        alone.advance(cavs.batch(graphs))
    expected = alone.evaluate([cavs.batch(graphs) for graphs in BATCHES])["loss"]
    strategy = "PartitionedPS(servers=1, local_replication=True)"
    found = run_ranks(4, __name__, "over_mpi", strategy, [2, 2])
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.mpi
@needs_mpi4py
def test_over_mpi_they_serve_stale_parameters():
    found = run_ranks(3, __name__, "over_mpi", "PSLoadBalancing(servers=1, staleness=2)", [3])
    model = Tree()
    start = cavs.Trainer(
        model, cavs.optim.SGD(lr=0.1), session=cavs.Session(model, dtype=np.float64)
    )
    assert found < start.evaluate([cavs.batch(graphs) for graphs in BATCHES])["loss"]
