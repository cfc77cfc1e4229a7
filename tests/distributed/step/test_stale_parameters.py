"""Training with bounded staleness and without a bound, on ranks that are threads."""

import dataclasses
import time

import numpy as np
import pytest

import cavs
from cavs.distributed import Trainer
from cavs.distributed.balance import StructureBalancer
from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.comm import run_threads
from cavs.distributed.elastic import training
from cavs.distributed.planning.builders import build
from cavs.distributed.strategy import GraphConfig, NodeConfig, Strategy, variables_of
from cavs.distributed.sync import AllReduce, ParameterServer
from cavs.errors import CavsError, CommunicationError, ConfigError, FeatureError, NumericsError
from cavs.train.checkpoint import read_checkpoint
from tests.distributed.launch.test_launcher import wait_for
from tests.distributed.step.test_consensus import loader, outcomes
from tests.distributed.test_trainer import BATCHES, Tree, train_alone, trees
from tests.patience import patience
from tests.train.own_rules import AMSGrad

STALE = ["PSLoadBalancing(staleness=2)", "PartitionedPS(sync=False)", "Parallax(staleness=1)"]
OPTIMIZERS = [
    cavs.optim.SGD(lr=0.1, momentum=0.9, weight_decay=0.01),
    cavs.optim.Adagrad(lr=0.1),
    cavs.optim.AdamW(lr=0.05),
    AMSGrad(0.05, weight_decay=0.01),
]


def trainer(c, **options):
    optimizer = options.pop("optimizer", cavs.optim.SGD(lr=0.1))
    return Trainer(Tree(), optimizer, communicator=c, dtype=np.float64, **options)


def values_of(t):
    return {name: p.value.copy() for name, p in t.parameters.items()}


def assert_same_bits(results):
    for values in results:
        for name, value in values.items():
            assert value.tobytes() == results[0][name].tobytes(), name


@pytest.mark.parametrize("strategy", STALE)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.name)
def test_one_worker_alone_trains_as_without_servers(strategy, optimizer):
    """Its own steps are always applied before it reads, with any staleness."""
    expected, losses = train_alone(optimizer, max_norm=0.5)

    def work(c):
        with trainer(c, optimizer=optimizer, strategy=strategy, max_norm=0.5) as t:
            found = [t.advance(cavs.batch(graphs)) for graphs in BATCHES]
        return values_of(t), found

    ((values, found),) = run_threads(1, work)
    for name, value in expected.items():
        np.testing.assert_allclose(values[name], value, rtol=1e-11, atol=1e-13, err_msg=name)
    for a, b in zip(losses, found, strict=True):
        assert a.loss == pytest.approx(b.loss, rel=1e-11)
        assert a.grad_norm == pytest.approx(b.grad_norm, rel=1e-11)


@pytest.mark.parametrize("strategy", STALE)
@pytest.mark.parametrize("size", [2, 3])
def test_sgd_equals_one_process_if_ranks_settle_after_each_step(strategy, size):
    """Gradients have the usual weights: those of all ranks at equal parameters add up to the
    same.
    """
    optimizer = cavs.optim.SGD(lr=0.1)
    expected, _ = train_alone(optimizer)

    def work(c):
        with trainer(c, strategy=strategy) as t:
            for graphs in BATCHES:
                t.advance(cavs.batch(graphs))
                t.settle()
        return values_of(t)

    results = run_threads(size, work)
    assert_same_bits(results)
    for name, value in expected.items():
        np.testing.assert_allclose(results[0][name], value, rtol=1e-11, atol=1e-13, err_msg=name)


def test_staleness_zero_is_synchronous_training_bit_for_bit():
    def work(c, strategy):
        with trainer(c, strategy=strategy, optimizer=cavs.optim.Adam(lr=0.05)) as t:
            losses = [t.advance(cavs.batch(graphs)).loss for graphs in BATCHES]
        return values_of(t), losses

    first = run_threads(2, lambda c: work(c, "PSLoadBalancing"))
    second = run_threads(2, lambda c: work(c, "PSLoadBalancing(staleness=0, sync=True)"))
    assert first[0][1] == second[0][1]
    assert_same_bits([first[0][0], second[1][0]])


def test_staleness_by_parameter_with_synchronous_ones():
    model = Tree()
    spec = ResourceSpec.local(3)
    kinds = [
        AllReduce(),
        ParameterServer(destination=spec.cpu_devices[0]),
        ParameterServer(destination=spec.cpu_devices[1], staleness=1),
        ParameterServer(destination=spec.cpu_devices[2], staleness=3),
        ParameterServer(destination=spec.cpu_devices[1], sync=False),
    ]
    nodes = tuple(
        NodeConfig(name=name, synchroniser=kinds[(i + 2) % len(kinds)])
        for i, name in enumerate(model.parameters())
    )
    strategy = Strategy(graph=GraphConfig(replicas=spec.replicas), nodes=nodes)

    def work(c, settles):
        with trainer(c, strategy=strategy, max_norm=0.7) as t:
            reports = []
            for graphs in BATCHES:
                reports.append(t.advance(cavs.batch(graphs)))
                if settles:
                    t.settle()
            loss = t.evaluate([cavs.batch(graphs) for graphs in BATCHES])["loss"]
        return values_of(t), reports, loss

    results = run_threads(3, lambda c: work(c, settles=False))
    assert_same_bits([values for values, _, _ in results])
    # All ranks know loss and norm, because synchronous parameters keep them in step.
    assert len({tuple(r.loss for r in reports) for _, reports, _ in results}) == 1
    assert len({tuple(r.grad_norm for r in reports) for _, reports, _ in results}) == 1
    assert len({loss for _, _, loss in results}) == 1

    def plain(c):
        with trainer(c, strategy=strategy) as t:
            for graphs in BATCHES:
                t.advance(cavs.batch(graphs))
                t.settle()
        return values_of(t)

    expected, _ = train_alone(cavs.optim.SGD(lr=0.1))
    for values in run_threads(3, plain):
        for name, value in expected.items():
            np.testing.assert_allclose(values[name], value, rtol=1e-11, atol=1e-13, err_msg=name)


@pytest.mark.parametrize("strategy", STALE[:2])
def test_fit_learns_and_its_checkpoint_resumes_on_any_number_of_ranks(strategy, tmp_path):
    path = tmp_path / "c.safetensors"

    def work(c):
        t = trainer(c, strategy=strategy, optimizer=cavs.optim.Adagrad(lr=0.05))
        before = t.evaluate(loader())["loss"]
        result = t.fit(
            loader(), epochs=3, dev=loader(), checkpoint=path, checkpoint_every=2, progress=False
        )
        return before, result, values_of(t), t.states, t.steps

    results = run_threads(3, work)
    assert_same_bits([values for _, _, values, _, _ in results])
    for before, result, _, _, _ in results:
        losses = [e["dev_loss"] for e in result.epochs]
        assert losses[-1] < losses[0] < before
        assert losses == [e["dev_loss"] for e in results[0][1].epochs]
        trained = [e["train_loss"] for e in result.epochs]
        assert trained == [e["train_loss"] for e in results[0][1].epochs]
    stored = read_checkpoint(path)
    for name, value in results[0][2].items():
        assert stored.parameters[name].tobytes() == value.tobytes()
        # The writer has received the states of owners.
        owned = sum(states[list(stored.states).index(name)][0] for *_, states, _ in results) / 3
        np.testing.assert_allclose(stored.states[name][0], owned, rtol=1e-12)
        assert owned.sum() > 0

    def resumed(c):
        t = trainer(c, strategy=strategy, optimizer=cavs.optim.Adagrad(lr=0.05))
        t.resume(path)
        t.fit(loader(), epochs=4, dev=loader(), progress=False)
        return values_of(t), t.steps

    for size in (1, 2):
        again = run_threads(size, resumed)
        assert_same_bits([values for values, _ in again])
        assert again[0][1] == results[0][4] // 3 * 4


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.name)
def test_a_checkpoint_of_one_worker_resumes_as_if_never_interrupted(optimizer, tmp_path):
    """One worker has no interleavings: states and the number of updates must be restored
    exactly.
    """
    path = tmp_path / "c.safetensors"

    def work(c, epochs, resume):
        t = trainer(c, strategy="PSLoadBalancing(staleness=3)", optimizer=optimizer)
        if resume:
            t.resume(path)
        t.fit(loader(), epochs=epochs, checkpoint=path, progress=False)
        return values_of(t)

    straight = run_threads(1, lambda c: work(c, 4, False))
    run_threads(1, lambda c: work(c, 2, False))
    assert_same_bits(straight + run_threads(1, lambda c: work(c, 4, True)))


def test_the_number_of_updates_is_restored(tmp_path):
    """Adam's corrections follow the number of updates, three per step here."""
    path = tmp_path / "c.safetensors"

    def work(c):
        with trainer(c, strategy=STALE[0], optimizer=cavs.optim.Adam(lr=0.01)) as t:
            for graphs in BATCHES[:5]:
                t.advance(cavs.batch(graphs))
            t.save(path)
            t.advance(cavs.batch(BATCHES[5]))
            t.settle()
            first = t.session.servers.updates
            t.resume(path)
            t.advance(cavs.batch(BATCHES[5]))
            t.settle()
        return first, t.session.servers.updates

    assert run_threads(3, work) == [(18, 18)] * 3


@pytest.mark.parametrize("strategy", STALE[:2])
def test_ranks_may_make_different_numbers_of_steps(strategy):
    def work(c):
        with trainer(c, strategy=strategy) as t:
            for graphs in BATCHES[: 1 + 3 * c.rank]:
                t.advance(cavs.batch(graphs))
            t.settle()
            middle = values_of(t)
            for graphs in BATCHES[:2]:
                t.advance(cavs.batch(graphs))
        return middle, values_of(t)

    results = run_threads(3, work)
    assert_same_bits([middle for middle, _ in results])
    assert_same_bits([end for _, end in results])


@pytest.mark.parametrize(("strategy", "ahead"), [("sync=False", 6), ("staleness=1", 2)])
def test_a_slow_rank_delays_others_only_at_the_bound(strategy, ahead):
    """Rank 1 waits until rank 0 has made as many steps as it may."""
    made, after = [], []

    def work(c):
        with trainer(c, strategy=f"PSLoadBalancing({strategy})") as t:
            batches = [cavs.batch(graphs) for graphs in BATCHES]
            t.advance(batches[0])
            t.settle()
            if c.rank == 1:
                wait_for(lambda: len(made) >= ahead)
                time.sleep(0.2)
                after.append(len(made))
            for batch in batches[1:7]:
                t.advance(batch)
                if c.rank == 0:
                    made.append(batch)

    run_threads(2, work)
    assert after == [ahead] and len(made) == 6


def test_a_batch_that_one_rank_cannot_compute_ends_all():
    bad = [*trees(2, 3), cavs.Graph([[]], {"token": [99], "label": [0]})]

    def work(c):
        t = trainer(c, strategy="PSLoadBalancing(staleness=2)")
        t.advance(cavs.batch(BATCHES[0]))
        for _ in range(20):
            t.advance(cavs.batch(bad))

    first, second = outcomes(2, work)
    assert isinstance(second, FeatureError) and "'token' is 99" in str(second)
    assert isinstance(first, CommunicationError)
    assert "another rank failed\n  rank 1: FeatureError: feature 'token' is 99" in str(first)


def test_with_synchronous_parameters_training_continues_after_a_failed_step():
    bad = [*trees(2, 3), cavs.Graph([[]], {"token": [99], "label": [0]})]

    def work(c):
        with trainer(c, strategy="Parallax(staleness=1)") as t:
            t.advance(cavs.batch(BATCHES[0]))
            t.settle()
            before = values_of(t)
            with pytest.raises(CavsError, match="'token' is 99"):
                t.advance(cavs.batch(bad))
            t.settle()
            assert_same_bits([before, values_of(t)])
            t.advance(cavs.batch(BATCHES[1]))
            with pytest.raises(CavsError, match="'token' is 99"):
                t.advance(cavs.batch(bad))  # has read the answer to that step
            for graphs in BATCHES[2:]:
                t.advance(cavs.batch(graphs))
        return values_of(t), t.session.servers.updates

    results = run_threads(2, work)
    assert_same_bits([values for values, _ in results])
    assert [updates for _, updates in results] == [2 * len(BATCHES)] * 2


def test_an_error_after_a_consensus_reaches_the_other_ranks(monkeypatch):
    monkeypatch.setattr(training, "_SHORT_PATIENCE", patience(0.5))

    def work(c):
        with trainer(c, strategy="PSLoadBalancing(staleness=1)") as t:
            t.advance(cavs.batch(BATCHES[0]))
            t.settle()
            if c.rank == 1:
                raise OSError("no space left on device")
            for _ in range(20):
                t.advance(cavs.batch(BATCHES[0]))

    def caught(c):
        try:
            return work(c)
        except (OSError, CavsError) as error:
            return error

    begun = time.monotonic()
    first, second = run_threads(2, caught)
    assert isinstance(second, OSError)
    assert "rank 1: OSError: no space left on device" in str(first)
    assert time.monotonic() - begun < patience(10)


def test_a_loss_that_is_not_finite_is_applied_nowhere():
    def work(c):
        t = trainer(c, strategy="PSLoadBalancing(staleness=2)")
        t.advance(cavs.batch(BATCHES[0]))
        t.settle()
        before = values_of(t)
        t.model.output.weight.value[...] = np.nan if c.rank == 1 else 1
        t.session.session.invalidate()
        try:
            for _ in range(20):
                t.advance(cavs.batch(BATCHES[1]))
        except CavsError as error:
            return error, all(
                np.isfinite(v).all() for n, v in values_of(t).items() if n != "output.weight"
            )
        return before, False

    (first, clean), (second, _) = run_threads(2, work)
    assert isinstance(second, NumericsError) and "nothing was updated" in str(second)
    assert isinstance(first, CommunicationError) and "rank 1: NumericsError" in str(first)
    assert clean


def test_an_error_between_steps_reaches_ranks_in_a_step():
    def work(c):
        with trainer(c, strategy="PSLoadBalancing(staleness=1)") as t:
            for i in range(50):
                if c.rank == 1 and i == 3:
                    raise OSError("no space left on device")
                t.advance(cavs.batch(BATCHES[0]))

    def caught(c):
        try:
            return work(c)
        except (OSError, CavsError) as error:
            return error

    begun = time.monotonic()
    first, second, third = run_threads(3, caught)
    assert isinstance(second, OSError)
    for error in (first, third):
        assert "rank 1: OSError: no space left on device" in str(error)
    assert time.monotonic() - begun < patience(10)


def test_a_stop_on_one_rank_stops_all_after_the_same_step(tmp_path):
    path = tmp_path / "c.safetensors"

    def work(c):
        t = trainer(c, strategy="PSLoadBalancing(staleness=2)")
        calls = 0

        def stops(requested):
            nonlocal calls
            calls += 1
            time.sleep(0.01 * c.rank)
            return should_stop(c.rank == 1 and calls >= 2)

        should_stop, t.coordinator.should_stop = t.coordinator.should_stop, stops
        try:
            t.fit(loader(), epochs=30, checkpoint=path, progress=False)
        except KeyboardInterrupt as error:
            return str(error), t.steps, values_of(t)
        return None

    results = run_threads(3, work)
    assert len({(text, steps) for text, steps, _ in results}) == 1
    assert 2 <= results[0][1] <= 6 and f"saved {path}" in results[0][0]
    assert read_checkpoint(path).progress["step"] == results[0][1]
    assert_same_bits([values for _, _, values in results])


def test_a_balancer_learns_nothing_from_asynchronous_ranks():
    def work(c):
        balancer = StructureBalancer(c.size, timeout=5.0)
        t = trainer(c, strategy="PSLoadBalancing(staleness=2)", split=balancer)
        t.fit(loader(), epochs=1, progress=False)
        t.close()
        return values_of(t), balancer.model.steps

    results = run_threads(2, work)
    assert_same_bits([values for values, _ in results])
    assert [steps for _, steps in results] == [0, 0]


def test_written_parameters_are_refused_and_loaded_ones_used(tmp_path):
    path = tmp_path / "c.safetensors"

    def work(c):
        t = trainer(c, strategy="PSLoadBalancing(staleness=1)")
        t.advance(cavs.batch(BATCHES[0]))
        t.save(path)
        saved = values_of(t)
        t.advance(cavs.batch(BATCHES[1]))
        with pytest.raises(ConfigError, match=r"call settle\(\) of the trainer"):
            t.session.invalidate()
        t.load(path)
        assert_same_bits([saved, values_of(t)])
        t.advance(cavs.batch(BATCHES[1]))
        t.settle()
        first = values_of(t)
        t.load(path)
        t.advance(cavs.batch(BATCHES[1]))
        t.close()
        return first, values_of(t)

    for first, second in run_threads(2, work):
        for name, value in first.items():
            np.testing.assert_allclose(second[name], value, rtol=1e-12, atol=1e-14)


def test_a_table_with_stale_and_synchronous_shards_is_refused():
    made = build("PartitionedPS(staleness=1)", variables_of(Tree()), ResourceSpec.local(2))
    table = made.nodes[0]
    first = dataclasses.replace(
        table.shards[0], synchroniser=dataclasses.replace(table.shards[0].sync, staleness=0)
    )
    mixed = dataclasses.replace(table, shards=(first, *table.shards[1:]))
    strategy = dataclasses.replace(made, nodes=(mixed, *made.nodes[1:]))
    for error in outcomes(2, lambda c: trainer(c, strategy=strategy)):
        assert isinstance(error, ConfigError) and "embedding.weight" in str(error)


# ---- gradients that are added ------------------------------------------------------------------
