"""A failure on one rank is an error on all: nothing is updated and no rank waits."""

from dataclasses import replace

import numpy as np
import pytest

import cavs
from cavs import ops
from cavs.distributed import Trainer
from cavs.distributed.balance import SpeedBalancer, StructureBalancer
from cavs.distributed.balance.shards import contiguous
from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.comm import run_threads
from cavs.distributed.comm.agreement import Agreement, is_agreed
from cavs.distributed.coordinator import RankCoordinator
from cavs.distributed.planning.builders import build
from cavs.distributed.strategy import variables_of
from cavs.errors import CavsError, CommunicationError, ConfigError, FeatureError, NumericsError
from cavs.train.checkpoint import best_path
from cavs.train.checkpoint_lock import CheckpointLock
from tests.distributed.test_trainer import BATCHES, Tree, trees
from tests.patience import patience


def outcomes(size, work):
    """Return the result or error of `work(communicator)` on every rank."""

    def caught(c):
        try:
            return work(c)
        except (CavsError, KeyboardInterrupt) as error:
            return error

    return run_threads(size, caught, timeout=patience(20))


def trainer(c, **options):
    optimizer = options.pop("optimizer", cavs.optim.SGD(lr=0.1))
    return Trainer(Tree(), optimizer, communicator=c, dtype=np.float64, **options)


@pytest.mark.parametrize("strategy", [None, "PartitionedPS"])
def test_a_batch_that_one_rank_cannot_compute_updates_no_rank(strategy):
    """Rank 1's shard holds a token outside the table: the engine refuses it within the step."""
    bad = [*trees(2, 3), cavs.Graph([[]], {"token": [99], "label": [0]})]
    seen = {}

    def work(c):
        t = trainer(c, strategy=strategy)
        t.advance(cavs.batch(BATCHES[0]))
        before = {n: p.value.copy() for n, p in t.parameters.items()}
        try:
            t.advance(cavs.batch(bad))
        except CavsError as error:
            seen[c.rank] = error
        same = all((p.value == before[n]).all() for n, p in t.parameters.items())
        return same, t.advance(cavs.batch(BATCHES[1])).loss  # and training can continue

    results = run_threads(2, work)
    assert all(same for same, _ in results)
    assert results[0][1] == results[1][1]
    assert isinstance(seen[1], FeatureError) and "'token' is 99" in str(seen[1])
    assert isinstance(seen[0], CommunicationError)
    assert "rank 1: FeatureError: feature 'token' is 99" in str(seen[0])


def test_a_batch_that_one_rank_cannot_collate_is_an_error_on_all():
    def split(graphs, ranks):
        return [[0], [0]]

    for error in outcomes(2, lambda c: trainer(c, split=split).advance(cavs.batch(trees(2, 1)))):
        assert isinstance(error, ConfigError)
        assert "the split of 2 graphs over 2 ranks gives [[0], [0]]" in str(error)


def test_a_loss_that_is_not_finite_is_the_same_error_on_all_ranks():
    def work(c):
        t = trainer(c)
        t.begin()
        t.parameters["output.weight"].value[...] = np.inf
        t.session.invalidate()
        t.advance(cavs.batch(BATCHES[0]))

    for error in outcomes(2, work):
        assert isinstance(error, NumericsError) and "nothing was updated" in str(error)


FACTS = {
    "seed": lambda c: trainer(c, seed=c.rank),
    "optimizer": lambda c: trainer(c, optimizer=cavs.optim.SGD(lr=0.1 + c.rank)),
    "strategy": lambda c: trainer(c, strategy=[None, "PS"][c.rank]),
    "options": lambda c: trainer(c, config={"hidden": c.rank, "data": str(c.rank)}),
    "max_norm": lambda c: trainer(c, max_norm=1.0 + c.rank),
    "scheduling": lambda c: trainer(c, scheduling=["auto", "agenda"][c.rank]),
}


@pytest.mark.parametrize("name", FACTS)
def test_different_trainings_are_refused_on_every_rank(name):
    texts = {str(e) for e in outcomes(2, lambda c: FACTS[name](c).advance(cavs.batch(BATCHES[0])))}
    (text,) = texts
    assert "the ranks do not train the same" in text
    lines = [line for line in text.splitlines() if "rank 0 has" in line]
    assert len(lines) == 1 and lines[0].strip().startswith(f"{name}: rank 0 has ")


def test_another_model_or_code_is_refused(monkeypatch):
    class Other(Tree):
        pass

    def work(c):
        model = Tree() if c.rank == 0 else Other()
        t = Trainer(model, cavs.optim.SGD(lr=0.1), communicator=c, dtype=np.float64)
        t.begin()

    for error in outcomes(2, work):
        assert "model: rank 0 has Tree, rank 1 has" in str(error)
    from cavs.distributed.step import program

    monkeypatch.setattr(program, "code_digest", lambda: str(np.random.default_rng().random()))
    for error in outcomes(2, lambda c: trainer(c).begin()):
        assert "version of cavs: rank 0 has" in str(error)


def test_ranks_in_different_calls_are_an_error():
    def work(c):
        Agreement(c).consensus("step" if c.rank else "evaluation")

    for error in outcomes(3, work):
        assert "rank 0 in evaluation, rank 1 in step, rank 2 in step" in str(error)


def test_a_loss_that_cannot_be_sharded_is_refused_with_the_users_line():
    class Squared(Tree):
        def loss(self, batch):
            loss = Tree.loss(self, batch)
            return loss * loss

    def work(c):
        t = Trainer(Squared(), cavs.optim.SGD(lr=0.1), communicator=c, dtype=np.float64)
        t.advance(cavs.batch(BATCHES[0]))

    for error in outcomes(2, work):
        assert "[mul] the loss is no affine function of its sums over rows" in str(error)
        assert "test_consensus.py:" in str(error)


def test_a_strategy_for_another_number_of_ranks_is_refused():
    three = build("AllReduce", variables_of(Tree()), ResourceSpec.local(3))
    for error in outcomes(2, lambda c: trainer(c, strategy=three)):
        assert "the strategy has 3 replicas and 0 servers, but there are 2 ranks" in str(error)


def loader(seed=0):
    return cavs.DataLoader([g for b in BATCHES for g in b], 8, shuffle=True, seed=seed)


def fitted(c, path=None, **options):
    t = trainer(c, optimizer=cavs.optim.Adam(lr=0.02), **options)
    result = t.fit(
        loader(), epochs=2, dev=loader(), checkpoint=path, progress=False, log=None, patience=5
    )
    return t, result


@pytest.mark.parametrize("strategy", [None, "PartitionedPS", "Parallax"])
def test_fit_and_its_checkpoint_do_not_depend_on_the_number_of_ranks(strategy, tmp_path):
    path = tmp_path / "two.safetensors"
    model = Tree()
    session = cavs.Session(model, dtype=np.float64)
    alone = cavs.Trainer(model, cavs.optim.Adam(lr=0.02), session=session)
    expected = alone.fit(loader(), epochs=4, dev=loader(), progress=False)
    for t, result in run_threads(2, lambda c: fitted(c, path, strategy=strategy)):
        assert [e["dev_loss"] for e in result.epochs] == pytest.approx(
            [e["dev_loss"] for e in expected.epochs[:2]], rel=1e-10
        )
        assert t.last_checkpoint == path

    def resumed(c):
        t = trainer(c, optimizer=cavs.optim.Adam(lr=0.02), strategy=strategy)
        t.resume(path)
        t.fit(loader(), epochs=4, dev=loader(), progress=False)
        return {n: p.value.copy() for n, p in t.parameters.items()}

    for size in (1, 3):
        for values in run_threads(size, resumed):
            for name, p in model.parameters().items():
                np.testing.assert_allclose(values[name], p.value, rtol=1e-9, atol=1e-11)


def test_an_error_in_fit_on_one_rank_ends_fit_on_all(tmp_path):
    def work(c):
        t = trainer(c)
        path = tmp_path / "x" / "c.safetensors"

        def metric(outputs, batch):
            if c.rank == 1:
                raise OSError("no space left on device")
            return 0.0, 1.0

        t.fit(loader(), epochs=1, dev=loader(), metrics={"m": metric}, checkpoint=path)

    def caught(c):
        try:
            return work(c)
        except (OSError, CavsError) as error:
            return error

    first, second = run_threads(2, caught)
    assert isinstance(second, OSError)
    assert "rank 1: OSError: no space left on device" in str(first)
    path = tmp_path / "x" / "c.safetensors"
    assert f"last good checkpoint: {path}, of step " in str(first)
    assert cavs.train.checkpoint.read_checkpoint(path).progress["fit"]["trained"]


class Steep(Tree):
    def loss(self, batch):
        steep = ops.exp(self.embedding(batch["token"]))
        return super().loss(batch) + ops.mean_squared_error(steep, 0.0)


@pytest.mark.parametrize("strategy", [None, "PartitionedPS"])
def test_a_non_finite_loss_loses_no_earlier_step(strategy, tmp_path):
    path = tmp_path / "c.safetensors"

    def work(c):
        t = Trainer(Steep(), cavs.optim.Adam(lr=0.02), communicator=c, strategy=strategy)
        t.parameters["embedding.weight"].value[39] = 800
        t.fit(cavs.DataLoader(graphs, 4), epochs=1, checkpoint=path, progress=False)

    graphs = [g for b in BATCHES for g in b if 39 not in g.features["token"]][:8]
    graphs += [cavs.Graph([[]], {"token": [39], "label": [1]}), *graphs[:3]]
    for error in outcomes(2, work):
        assert isinstance(error, NumericsError) and "step 3: the loss is" in str(error)
        assert f"last good checkpoint: {path}, of step 2\n" in str(error)
    progress = cavs.train.checkpoint.read_checkpoint(path).progress
    assert (progress["step"], progress["loader"]["position"]) == (2, 2)


def test_ranks_of_one_training_share_its_lock(tmp_path):
    path = tmp_path / "c.safetensors"

    def work(c):
        t = trainer(c)
        t.fit(loader(), epochs=1, checkpoint=path, progress=False)
        t.fit(loader(), epochs=2, checkpoint=path, progress=False)

    run_threads(2, work)
    lock = CheckpointLock(path)
    lock.acquire()
    first, second = outcomes(2, work)
    lock.close()
    assert "another training that is still running writes to" in str(first)
    assert "rank 0: ConfigError: another training" in str(second)


def test_a_checkpoint_that_rank_0_cannot_write_is_an_error_on_all(tmp_path):
    def work(c):
        t = trainer(c)
        t.advance(cavs.batch(BATCHES[0]))
        t.save(tmp_path)  # a folder

    first, second = outcomes(2, work)
    assert "cannot write" in str(first) or "directory" in str(first).lower()
    assert "another rank failed\n  rank 0: CheckpointError" in str(second)


def test_a_stop_on_one_rank_stops_all_with_a_checkpoint(tmp_path):
    path = tmp_path / "c.safetensors"

    def work(c):
        t = trainer(c)
        batches = 0

        def stops(requested):
            nonlocal batches
            batches += 1
            return RankCoordinator.should_stop(t.coordinator, c.rank == 1 and batches == 2)

        t.coordinator.should_stop = stops
        t.fit(loader(), epochs=3, checkpoint=path, progress=False)

    for error in outcomes(2, work):
        assert isinstance(error, KeyboardInterrupt) and f"saved {path}" in str(error)
    assert cavs.train.checkpoint.read_checkpoint(path).progress["step"] == 3


@pytest.mark.parametrize("strategy", [None, "PSLoadBalancing(staleness=2)"])
def test_a_stop_on_one_rank_after_the_last_step_stops_all(strategy, tmp_path):
    path = tmp_path / "c.safetensors"

    def work(c):
        t = trainer(c, strategy=strategy)
        agree = t.coordinator.should_stop_at_end
        t.coordinator.should_stop_at_end = lambda requested: agree(c.rank == 1)
        t.fit(loader(), epochs=1, checkpoint=path, progress=False)

    for error in outcomes(2, work):
        assert isinstance(error, KeyboardInterrupt) and f"saved {path}" in str(error)


@pytest.mark.parametrize("strategy", [None, "PSLoadBalancing(staleness=2)"])
def test_a_stop_in_an_evaluation_gives_no_value(strategy, tmp_path):
    """Half of the data has been seen: that is not a value of this epoch."""
    path = tmp_path / "c.safetensors"

    def work(c):
        t = trainer(c, strategy=strategy)
        ask = t.coordinator.should_end_evaluation
        t.coordinator.should_end_evaluation = lambda requested, in_fit: ask(
            c.rank == 1, in_fit=in_fit
        )
        t.fit(loader(), epochs=2, dev=loader(), checkpoint=path, progress=False)

    for error in outcomes(2, work):
        assert isinstance(error, KeyboardInterrupt) and f"saved {path}" in str(error)
    progress = cavs.train.checkpoint.read_checkpoint(path).progress
    assert progress["fit"]["best"] is None and progress["fit"]["epoch"] == 0
    assert not best_path(path).exists()


def test_an_evaluation_restarts_after_an_abandoned_iteration():
    def work(c):
        t = trainer(c)
        dev = cavs.DataLoader([g for b in BATCHES for g in b], 8)
        expected = t.evaluate(dev)
        next(iter(dev))
        assert t.evaluate(dev)["loss"] == pytest.approx(expected["loss"], rel=1e-12)

    run_threads(2, work)


def test_a_balancer_learns_from_every_step_and_changes_no_result():
    model = Tree()
    alone = cavs.Trainer(
        model, cavs.optim.SGD(lr=0.1), session=cavs.Session(model, dtype=np.float64)
    )
    alone.fit(loader(), epochs=2, progress=False)

    def work(c):
        balancer = StructureBalancer(c.size)
        t = trainer(c, split=balancer)
        t.fit(loader(), epochs=2, progress=False)
        return {n: p.value.copy() for n, p in t.parameters.items()}, balancer._updated, t.steps

    for values, told, steps in run_threads(2, work):
        assert told == steps == alone.steps
        for name, p in model.parameters().items():
            np.testing.assert_allclose(values[name], p.value, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("balancer", [StructureBalancer, SpeedBalancer, contiguous])
def test_no_result_depends_on_the_clock(balancer):
    """Sums of gradients over shards would, if times determined the shards."""
    made = build("PSLoadBalancing", variables_of(Tree()), ResourceSpec.local(2))
    added = replace(made, graph=replace(made.graph, gradients="sum"))

    def work(c):
        learns = balancer is not contiguous
        t = trainer(c, strategy=added, split=balancer() if learns else balancer)
        return t.advance(cavs.batch(BATCHES[0])).loss

    for outcome in outcomes(2, work):
        if balancer is contiguous:
            assert outcome > 0
        else:
            assert isinstance(outcome, ConfigError) and is_agreed(outcome)
            assert f'{balancer.__name__} with the strategy given: its graph.gradients is "sum"' in (
                str(outcome)
            )
            assert 'take graph.gradients "mean"' in str(outcome)


def test_a_loader_that_keeps_its_batches_serves_training_and_evaluation():
    def work(c):
        t = trainer(c)
        graphs = [g for b in BATCHES for g in b]
        kept = cavs.DataLoader(graphs, 8, cache=True)
        before = t.evaluate(kept)
        t.fit(kept, epochs=2, progress=False)
        return before, t.evaluate(kept), t.evaluate(cavs.DataLoader(graphs, 8))

    for before, after, fresh in run_threads(2, work):
        assert after["loss"] == pytest.approx(fresh["loss"], rel=1e-12)
        assert after["loss"] < before["loss"]
