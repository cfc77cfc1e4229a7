"""Peers that fail: errors, deaths and checkpoints of replicas that are averaged in pairs."""

import numpy as np
import pytest

import cavs
from cavs.distributed.comm import run_threads
from cavs.errors import CommunicationError, FeatureError, NumericsError
from cavs.train import Policy
from cavs.train.checkpoint import read_checkpoint
from tests.distributed.elastic.test_survivors import Killed, mortal
from tests.distributed.sync.test_merged_replicas import differ, loader, trainer_of, values
from tests.distributed.sync.test_peer_average import batch_of, quadratic_trainer, rows_of
from tests.distributed.sync.test_replicas import chains
from tests.patience import patience

STRATEGIES = ["PeerAverage", "PeerAverage(mode='async')", "ADPSGD"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_gradient_that_is_not_finite_updates_no_replica(strategy):
    good, bad = rows_of(4), rows_of(4)
    bad[1][-1, 0] = 1e38  # the target of a graph of the last rank, whose square is infinite

    def work(c):
        trainer = quadratic_trainer(c, strategy, [10] * 2, np.float32)
        for _ in range(3):
            trainer.advance(batch_of(*good))
        before = values(trainer)
        with pytest.raises(NumericsError):
            trainer.step(batch_of(*bad))
        assert not differ(before, values(trainer))
        trainer.step(batch_of(*good))
        assert all(np.isfinite(v).all() for v in values(trainer).values())
        trainer.close()
        return before

    before = run_threads(2, work, timeout=patience(20))
    assert differ(*before)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_error_on_one_rank_updates_no_replica(strategy):
    word = {"token": np.array([99])}  # there are 12
    bad = [*chains(5, 11), cavs.Graph.chain(1, features=word, graph_features={"label": 0})]

    def work(c):
        trainer, good = trainer_of(c, strategy), next(iter(loader()))
        for _ in range(3):
            trainer.advance(good)
        before = values(trainer)
        with pytest.raises(FeatureError if c.rank else CommunicationError):
            trainer.advance(cavs.batch(bad))
        assert not differ(before, values(trainer))
        trainer.advance(good)
        trainer.close()
        return values(trainer)

    assert differ(*run_threads(2, work, timeout=patience(20)))


@pytest.mark.parametrize("messages", [25, 60, 75])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_survivors_go_on_with_the_peers_that_are_left(strategy, messages):
    def work(c):
        mortal(c, rank=1, messages=messages)
        trainer = trainer_of(c, strategy, elastic=True)
        try:
            trainer.fit(loader(), epochs=4, progress=False)
            trainer.close()
        except Killed:
            return None
        return values(trainer), trainer.communicator.size, trainer.steps

    results = run_threads(4, work, timeout=patience(20))
    assert results[1] is None
    results.pop(1)
    for found, size, steps in results:
        assert size == 3 and steps == 16 and not differ(found, results[0][0])
        assert all(np.isfinite(value).all() for value in found.values())


def test_a_death_without_elastic_is_an_error_of_all():
    def work(c):
        mortal(c, rank=2, messages=40)
        trainer = trainer_of(c, "PeerAverage")
        try:
            with pytest.raises(CommunicationError):
                for _ in range(5):
                    for batch in loader():
                        trainer.advance(batch)
        except Killed:
            return None
        return True

    assert run_threads(3, work, timeout=patience(20)) == [True, True, None]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_checkpoint_holds_the_mean_and_a_training_resumes(strategy, tmp_path):
    path = tmp_path / "c.safetensors"

    def work(c):
        trainer = trainer_of(c, strategy)
        for batch in loader():
            trainer.advance(batch)
        own = values(trainer)
        trainer.save(path)
        assert not differ(own, values(trainer))
        trainer.resume(path)
        merged = values(trainer)
        assert differ(own, merged)
        trainer.advance(next(iter(loader())))
        trainer.close()
        return own, merged

    results = run_threads(3, work)
    stored = read_checkpoint(path).parameters
    for name in stored:
        mean = np.mean([own[name] for own, _ in results], axis=0)
        np.testing.assert_allclose(stored[name], mean, rtol=1e-12, atol=1e-15)
        assert all(merged[name].tobytes() == stored[name].tobytes() for _, merged in results)


@pytest.mark.parametrize("strategy", [STRATEGIES[1], "Crossbow", "Lookahead(every=1)"])
def test_a_model_from_before_a_load_is_not_mixed(strategy, tmp_path):
    path = tmp_path / "c.safetensors"

    def work(c):
        trainer = trainer_of(c, strategy, cavs.optim.SGD(lr=1e-9))
        trainer.begin()
        trainer.save(path)
        start = values(trainer)
        for p in trainer.parameters.values():
            p.value[...] += 100
        batch = next(iter(loader()))
        trainer.advance(batch)
        trainer.load(path)
        trainer.advance(batch)
        trainer.close()
        for name, value in values(trainer).items():
            np.testing.assert_allclose(value, start[name], atol=1e-6)
        return True

    assert run_threads(2, work) == [True, True]


class Changing(Policy):
    """Changes the number of ranks and the strategy in a plan by step."""

    def __init__(self, plan):
        self.plan, self.seen = plan, []

    def after_step(self, run):
        self.seen.append(run.size)
        change = self.plan.get(run.step)
        if isinstance(change, int):
            assert run.resize(change)
        elif change:
            assert run.set_strategy(change)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_ranks_and_strategies_change_in_a_run(strategy):
    """A strategy that comes again on the same ranks finds the store that it had before."""
    plan = {2: 2, 4: 5, 6: "SMA", 8: strategy, 10: 3}

    def work(c):
        trainer, policy = trainer_of(c, strategy), Changing(plan)
        result = trainer.fit(loader(), epochs=3, progress=False, policies=[policy])
        return result.status, values(trainer), trainer.steps, policy.seen

    results = run_threads(4, work, spares=1, timeout=patience(20))
    assert [status for status, *_ in results] == ["finished"] * 3 + ["detached"] * 2
    for _, found, steps, seen in results[:3]:
        assert steps == 12 and not differ(found, results[0][1]) and seen[-2:] == [3, 3]
        assert all(np.isfinite(value).all() for value in found.values())
    assert results[0][3] == [4, 4, 2, 2, 5, 5, 5, 5, 5, 5, 3, 3]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_models_of_other_parameters_do_not_mix(strategy):
    """A frozen parameter is not exchanged; the models of the others are known by another tag."""

    def work(c):
        trainer, tags = quadratic_trainer(c, strategy, [5, 5]), []
        bias = trainer.parameters["output.bias"]
        for frozen in (False, True, True, False, False):
            bias.trainable, before = not frozen, bias.value.copy()
            trainer.advance(batch_of(*rows_of(2)))
            tags.append(trainer.session.exchanges[0].tag)
            assert np.array_equal(bias.value, before) == frozen
        trainer.close()
        return values(trainer), tags

    results = run_threads(2, work, timeout=patience(20))
    for found, tags in results:
        assert all(np.isfinite(value).all() for value in found.values())
        assert tags == results[0][1] and tags[0] == tags[4] != tags[1] == tags[2]
    assert differ(results[0][0], results[1][0])
