"""A rank dies anywhere in a training: the others continue, and the result is that of one
process.
"""

import json
import os
import signal
import time

import numpy as np
import pytest

import cavs
from cavs.distributed import Trainer
from cavs.distributed.comm import LostPeerError, launcher_pipe, run_threads
from cavs.distributed.coordinator import RankCoordinator
from cavs.distributed.elastic import survivors
from cavs.errors import CommunicationError, ConfigError
from cavs.train.checkpoint import read_checkpoint
from tests.distributed.mpirun import needs_mpi, run_ranks
from tests.distributed.step.test_consensus import loader
from tests.distributed.test_train_command import Running
from tests.distributed.test_trainer import Tree
from tests.patience import patience


class Killed(BaseException):
    """Ends a rank that is killed; no handler may catch it."""


def mortal(c, rank, messages):
    """Let `rank` die after so many exchanges."""
    count = 0

    def in_group(c):
        exchange, shrink = c._exchange, c.shrink

        def killed(sends, receives):
            nonlocal count
            count += 1
            if count > messages:
                c.die()
                raise Killed
            exchange(sends, receives)

        c._exchange, c.shrink = killed, lambda: in_group(shrink())
        return c

    if c.rank == rank:
        in_group(c)


def fit(c, path=None, strategy=None, *, elastic=True, log=None):
    optimizer = cavs.optim.Adam(lr=0.02)
    options = {"elastic": elastic, "strategy": strategy, "dtype": np.float64}
    t = Trainer(Tree(), optimizer, communicator=c, **options)
    train = loader()
    result = t.fit(train, epochs=2, dev=loader(), checkpoint=path, progress=False, log=log)
    values = {n: p.value.copy() for n, p in t.parameters.items()}
    return values, [e["dev_loss"] for e in result.epochs], t.steps, t.communicator.size


def survive(size, deaths, path=None, strategy=None):
    def work(c):
        for rank, messages in deaths:
            mortal(c, rank, messages)
        try:
            return fit(c, path, strategy)
        except Killed:
            return None

    return run_threads(size, work, timeout=patience(30))


@pytest.fixture(scope="module")
def alone():
    return run_threads(1, fit)[0]


@pytest.mark.parametrize("messages", range(1, 150, 7))
def test_a_rank_that_dies_anywhere_costs_nothing(messages, alone, tmp_path, capsys):
    path = tmp_path / "c.safetensors"
    victim = messages % 3
    results = survive(3, [(victim, messages)], path)
    assert results[victim] is None
    for result in results[:victim] + results[victim + 1 :]:
        values, losses, steps, size = result
        assert (steps, size) == (alone[2], 2)
        assert losses == pytest.approx(alone[1], rel=1e-9)
        for name, value in alone[0].items():
            np.testing.assert_allclose(values[name], value, rtol=1e-8, atol=1e-10, err_msg=name)
    assert "1 of 3 ranks lost at step" in capsys.readouterr().err
    assert read_checkpoint(path).progress["step"] == alone[2]


def test_the_next_rank_goes_on_with_the_log(tmp_path):
    log = tmp_path / "log.jsonl"

    def work(c):
        mortal(c, rank=0, messages=60)
        try:
            return fit(c, tmp_path / "c.safetensors", log=log)
        except Killed:
            return None

    first, second, _ = run_threads(3, work, timeout=patience(30))
    assert first is None and second is not None
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [e["epoch"] for e in events if e["event"] == "epoch"] == [1, 2]
    assert [e["event"] for e in events].count("end") == 1


def test_two_ranks_may_die(alone, capsys):
    results = survive(4, [(1, 30), (3, 90)])
    assert results[1] is results[3] is None
    for r in (0, 2):
        assert results[r][3] == 2
        for name, value in alone[0].items():
            np.testing.assert_allclose(results[r][0][name], value, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("messages", [2, 5, 9])
def test_a_second_death_during_recovery_leaves_a_step_whole_or_undone(messages):
    """Rank 0 has made a step that the others have not, and dies while it sends the values."""

    def work(c):
        t = Trainer(Tree(), cavs.optim.Adam(lr=0.1), communicator=c, elastic=True, dtype=np.float64)
        t.advance(next(iter(loader())))
        before = {n: p.value.copy() for n, p in t.parameters.items()}
        if c.rank == 0:
            for p in t.parameters.values():
                p.value[...] += 1
        c.barrier()
        mortal(c, 0, messages)
        try:
            t.coordinator.survivors._copy_state(c, 0)
        except Killed:
            return None
        except LostPeerError:
            return [np.array_equal(p.value, before[n]) for n, p in t.parameters.items()]

    results = run_threads(3, work, timeout=patience(30))
    assert results[0] is None
    assert all(all(found) for found in results[1:])


def evaluations_with_a_death(monkeypatch, work):
    """Return the results of `work` where rank 1 of 3 dies at the end of its first evaluation."""
    reduce_metrics = RankCoordinator.reduce_metrics

    def killed(self, sums):
        c = self.session.communicator
        if c.rank == 1 and c.size == 3:
            c.die()
            raise Killed
        return reduce_metrics(self, sums)

    def mortal(c):
        try:
            return work(c)
        except Killed:
            return None

    monkeypatch.setattr(RankCoordinator, "reduce_metrics", killed)
    return run_threads(3, mortal, timeout=patience(30))


def test_a_repeated_evaluation_sees_the_same_batches(alone, monkeypatch):
    """Its loader shuffles, and the loss depends on the batches."""
    results = evaluations_with_a_death(monkeypatch, fit)
    assert results[1] is None
    assert results[0][1] == results[2][1] == pytest.approx(alone[1], rel=1e-9)


def test_a_repeated_evaluation_of_an_iterator_sees_all_batches(monkeypatch):
    def work(c):
        t = Trainer(Tree(), cavs.optim.SGD(lr=0.1), communicator=c, elastic=True, dtype=np.float64)
        return t.evaluate(batch for batch in loader())["loss"]

    expected = run_threads(1, work)[0]
    results = evaluations_with_a_death(monkeypatch, work)
    assert results[1] is None
    assert results[0] == results[2] == pytest.approx(expected, rel=1e-9)


def test_without_elastic_a_lost_rank_is_an_error():
    def work(c):
        mortal(c, 1, 10)
        try:
            t = Trainer(Tree(), cavs.optim.SGD(lr=0.1), communicator=c, dtype=np.float64)
            t.fit(loader(), epochs=1, progress=False)
        except Killed:
            return None
        except LostPeerError as error:
            return str(error)

    assert "ranks [1] are gone" in run_threads(2, work)[0]


@pytest.mark.parametrize("messages", range(1, 190, 13))
def test_without_elastic_survivors_finish_and_save_the_step(messages, alone, tmp_path, capsys):
    """A run that continues from there, on one process, equals an undisturbed one."""
    path, victim = tmp_path / "c.safetensors", messages % 3

    def work(c):
        mortal(c, victim, messages)
        try:
            return fit(c, path, elastic=False)
        except Killed:
            return None
        except LostPeerError as error:
            return str(error)

    results = run_threads(3, work, timeout=patience(20))
    others = results[:victim] + results[victim + 1 :]
    assert results[victim] is None and others[0] == others[1]
    stored = read_checkpoint(path)
    found = f"ranks [{victim}] of 3 are gone; stopped after step {stored.progress['step']}; "
    assert others[0].startswith(f"{found}saved {path}\n")
    assert capsys.readouterr().err == ""
    t = cavs.Trainer(
        model := Tree(), cavs.optim.Adam(lr=0.02), session=cavs.Session(model, dtype=np.float64)
    )
    t.resume(path)
    t.fit(loader(), epochs=2, dev=loader(), progress=False)
    assert t.steps == alone[2]
    for name, value in alone[0].items():
        np.testing.assert_allclose(t.parameters[name].value, value, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("strategy", ["PartitionedPS", "PSLoadBalancing(staleness=2)"])
def test_without_elastic_states_of_a_dead_owner_are_lost(strategy, tmp_path):
    """There is no checkpoint yet, and none is written that claims to be complete."""
    path = tmp_path / "c.safetensors"

    def work(c):
        mortal(c, 1, 47)
        try:
            return fit(c, path, strategy, elastic=False)
        except Killed:
            return None
        except CommunicationError as error:
            return str(error)

    results = run_threads(3, work, timeout=patience(20))
    assert results[1] is None and not path.exists()
    assert all("ranks [1] are gone" in results[r] for r in (0, 2))


SERVED = ["PartitionedPS", "PSLoadBalancing", "Parallax", "PS"]


@pytest.mark.parametrize("messages", range(1, 240, 12))
def test_an_owner_that_dies_anywhere_costs_nothing(messages, alone, capsys, monkeypatch):
    monkeypatch.setattr(survivors, "EVERY", 4)
    victim, strategy = messages % 3, SERVED[messages // 3 % len(SERVED)]
    results = survive(3, [(victim, messages)], strategy=strategy)
    assert results[victim] is None
    for result in results[:victim] + results[victim + 1 :]:
        values, losses, steps, size = result
        assert (steps, size) == (alone[2], 2)
        assert losses == pytest.approx(alone[1], rel=1e-9)
        for name, value in alone[0].items():
            np.testing.assert_allclose(values[name], value, rtol=1e-8, atol=1e-10, err_msg=name)
    assert "1 of 3 ranks lost at step" in capsys.readouterr().err


@pytest.mark.parametrize("messages", [70, 150, 190])
def test_repeated_steps_have_their_former_rates_and_frozen_parameters(messages):
    """A schedule has observed values since the snapshot, and a parameter was frozen."""

    def work(c):
        if c.size > 1:
            mortal(c, 2, messages)
        rate = cavs.train.schedules.Plateau(0.1, patience=0)
        options = {"elastic": True, "strategy": "PartitionedPS", "dtype": np.float64}
        t = Trainer(Tree(), cavs.optim.Adam(lr=rate), communicator=c, **options)

        def told(event, record):
            t.optimizer.observe(1.0)
            t.parameters["output.bias"].trainable = t.steps % 2 == 0

        try:
            t.fit(loader(), epochs=3, progress=False, on_event=told)
        except Killed:
            return None
        return {n: p.value.copy() for n, p in t.parameters.items()}

    expected = run_threads(1, work)[0]
    for values in run_threads(3, work, timeout=patience(30))[:2]:
        for name, value in expected.items():
            np.testing.assert_allclose(values[name], value, rtol=1e-8, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("deaths", [[(1, 100), (3, 160)], [(0, 130), (1, 131)], [(0, 90), (2, 92)]])
def test_two_owners_may_die(deaths, alone, monkeypatch):
    monkeypatch.setattr(survivors, "EVERY", 4)
    gone = [rank for rank, _ in deaths]
    results = survive(4, deaths, strategy="PartitionedPS")
    assert [r for r in range(4) if results[r] is None] == gone
    for r in set(range(4)) - set(gone):
        assert results[r][3] == 2
        for name, value in alone[0].items():
            np.testing.assert_allclose(results[r][0][name], value, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("victim", [0, 2, 3])
@pytest.mark.parametrize("messages", [40, 75, 140])
def test_ranks_that_only_own_parameters_may_die_or_survive(victim, messages, alone, monkeypatch):
    """Ranks 0 and 1 compute, 2 and 3 own; waits in a smaller group are interrupted, too.

    Before the first step a strategy requested by name is built again: one rank computes, two own.
    """
    monkeypatch.setattr(survivors, "EVERY", 4)
    results = survive(4, [(victim, messages)], strategy="PSLoadBalancing(servers=2)")
    assert results[victim] is None
    left = [r for r in range(4) if r != victim]
    for r in left[:1] if messages == 40 else {0, 1} - {victim}:
        values, losses, steps, size = results[r]
        assert (steps, size) == (alone[2], 3)
        assert losses == pytest.approx(alone[1], rel=1e-9)
        for name, value in alone[0].items():
            np.testing.assert_allclose(values[name], value, rtol=1e-8, atol=1e-10, err_msg=name)


def test_training_ends_without_a_computing_rank():
    def work(c):
        mortal(c, 0, 60)
        try:
            fit(c, strategy="PS(servers=1)")
        except Killed:
            return None
        except ConfigError as error:
            return str(error)

    assert "all 1 ranks that compute are gone" in run_threads(2, work)[1]


def survive_a_kill(folder, *options):
    """Kill one of three processes in training; the others make all steps of 40 epochs."""
    run = Running(folder, "slow", "--epochs", 40, *options, elastic=True)
    checkpoint = run.out / "checkpoint.safetensors"
    run.wait_for_ranks(checkpoint)
    os.kill(run.pids()[2], signal.SIGKILL)
    began = time.monotonic()
    lost = next(line for line in run.process.stderr if "ranks lost" in line)
    assert time.monotonic() - began < patience(10)
    assert "1 of 3 ranks lost at step" in lost and "going on with 2" in lost
    status, errors = run.end()
    assert status == 0, errors
    assert read_checkpoint(checkpoint).progress["step"] == 40 * 5


def unprotected(c):
    """Return the error of each rank where the death of one would end all; without `elastic`
    they train.
    """
    with pytest.raises(ConfigError) as caught:
        Trainer(Tree(), cavs.optim.SGD(lr=0.1), communicator=c, elastic=True)
    with Trainer(Tree(), cavs.optim.SGD(lr=0.1), communicator=c) as t:
        t.advance(next(iter(loader())))
    return str(caught.value), caught.value.agreed


def unlaunched(c):
    """Return the error of each rank where the launcher would end it when another dies."""
    with pytest.raises(ConfigError) as caught:
        Trainer(Tree(), cavs.optim.SGD(lr=0.1), communicator=c, elastic=True)
    return str(caught.value), caught.value.agreed


class TestProcesses:
    pytestmark = needs_mpi

    def test_elastic_under_a_plain_mpirun_is_refused_at_the_start(self):
        text, agreed = run_ranks(2, __name__, "unprotected")
        assert agreed and "elastic=True, but this MPI was started without fault tolerance" in text
        assert "start with: cavs launch --elastic" in text

    def test_elastic_under_a_launch_without_it_is_refused(self):
        """The launcher would end the survivors after they had continued."""
        watched = {launcher_pipe.PIPE: "/nowhere", launcher_pipe.ELASTIC: ""}
        text, agreed = run_ranks(2, __name__, "unlaunched", elastic=True, env=watched)
        assert agreed and "elastic=True, but cavs launch was started without --elastic" in text
        assert "start with: cavs launch --elastic" in text

    def test_a_killed_rank_is_survived(self, tmp_path):
        survive_a_kill(tmp_path)


class Averaging(cavs.train.Policy):
    """Calls collectives at every step, so that a rank may die within one."""

    def after_step(self, run):
        assert run.all_reduce(2.0, "mean") == 2.0
        assert run.set_batch_size(2 + run.step % 3)


@pytest.mark.parametrize("messages", range(30, 130, 9))
def test_a_rank_that_dies_near_a_call_of_a_policy_leaves_the_result_of_one_process(messages):
    def work(c, rank):
        mortal(c, rank, messages)
        trainer = Trainer(
            Tree(), cavs.optim.SGD(lr=0.05), communicator=c, elastic=True, dtype=np.float64
        )
        try:
            trainer.fit(loader(), epochs=2, progress=False, policies=[Averaging()])
        except Killed:
            return None
        return {n: p.value.copy() for n, p in trainer.parameters.items()}, trainer.steps

    expected, steps = run_threads(1, lambda c: work(c, 9))[0]
    for found in run_threads(3, lambda c: work(c, 2), timeout=patience(20)):
        if found is not None:
            assert found[1] == steps
            for name, value in expected.items():
                np.testing.assert_allclose(found[0][name], value, rtol=1e-9, atol=1e-11)
