"""Resizes that fail: groups that cannot be made, and deaths meanwhile."""

import threading

import numpy as np
import pytest

from cavs.distributed.comm import LostPeerError, run_threads
from cavs.distributed.comm.pool import Word
from cavs.errors import CommunicationError, ConfigError
from cavs.train import Policy
from tests.distributed.elastic.deaths import deaths  # noqa: F401  (a fixture)
from tests.distributed.elastic.test_resize import Planned, alone, loader, make, outcome, values
from tests.distributed.elastic.test_survivors import Killed
from tests.patience import patience


@pytest.fixture(scope="module")
def expected():
    return alone()[0]


def trained(c, plan, prepare=lambda trainer: None, policies=(), **options):
    """Train with resizes; return the result, the trainer and its policy, or None on a dead rank."""
    trainer, policy = make(c, **options), Planned(plan)
    prepare(trainer)
    try:
        result = trainer.fit(loader(), epochs=2, progress=False, policies=[policy, *policies])
    except Killed:
        return None
    return result, trainer, policy


def assert_finished(found, expected, size, steps=30):
    for result, trainer, policy in found:
        assert result.status == "finished" and trainer.steps == steps
        assert policy.sizes[-1] == [steps, size]
        for name, value in expected.items():
            np.testing.assert_allclose(values(trainer)[name], value, 1e-10, 1e-12, err_msg=name)


# ---- groups that cannot be made -----------------------------------------------------------------


@pytest.mark.parametrize("failing", [{0}, {1}, {0, 1, 2}], ids=["first", "second", "all"])
def test_ranks_go_on_without_a_process_if_the_new_group_cannot_be_made(failing, expected, capsys):
    """The process waits again, whether it has made the group or not."""

    def work(c):
        def refuse(*arguments):
            raise CommunicationError("no group today")

        def prepare(trainer):
            everyone = trainer.coordinator.resizer._pool.everyone
            if everyone.rank in failing:
                everyone.subgroup = refuse

        return trained(c, {3: 3}, prepare)

    found = run_threads(2, work, spares=1, timeout=patience(20))
    assert_finished(found[:2], expected, 2)
    assert found[2][0].status == "detached" and found[2][2].sizes == []
    said = capsys.readouterr().err.splitlines()
    assert said == ["cavs: going on with 2 ranks, others cannot join: no group today"]


def test_a_process_that_dies_once_it_is_ready_does_not_join(expected, capsys):
    gone = threading.Event()

    def work(c):
        def prepare(trainer):
            pool = trainer.coordinator.resizer._pool
            post, announce = pool._mailbox.post, pool.announce

            def dies(to, words, arrays=()):
                post(to, words, arrays)
                if words[0] == Word.READY:
                    pool.everyone.die()
                    gone.set()
                    raise Killed

            def late(*arguments):
                assert gone.wait(patience(10))
                return announce(*arguments)

            pool.announce = late
            if pool.everyone.rank == 2:
                pool._mailbox.post = dies

        return trained(c, {3: 3}, prepare)

    found = run_threads(2, work, spares=1, timeout=patience(20))
    assert found[2] is None
    assert_finished(found[:2], expected, 2)
    message = "cavs: going on with 2 ranks, others cannot join: processes [2] have died"
    assert capsys.readouterr().err.splitlines() == [message]


def test_ranks_go_on_as_they_are_if_no_process_answers(expected, capsys, monkeypatch):
    monkeypatch.setattr("cavs.distributed.elastic.resize._PATIENCE", 0.1)

    def work(c):
        if c.rank == 2:  # it has ended before it was wanted
            return None
        return trained(c, {3: 3})

    found = run_threads(2, work, spares=1, timeout=patience(20))
    assert_finished(found[:2], expected, 2)
    assert capsys.readouterr().err.splitlines() == [
        "cavs: process 2 did not answer within 0.1 s",
        "cavs: going on with 2 ranks, not 3",
    ]


def test_ranks_that_only_own_parameters_do_not_go_with_resizes():
    def work(c):
        return outcome(lambda: trained(c, {3: 1}, strategy="PS(servers=1)"))

    for error in run_threads(3, work, timeout=patience(20)):
        assert isinstance(error, ConfigError)
        assert error.what == "resize to 1 ranks with 1 ranks that only own parameters"


# ---- deaths -------------------------------------------------------------------------------------


class DiesInSplit(Policy):
    """Lets rank 2 die when it is to make the group of those that stay."""

    def __init__(self, trainer, left):
        self.trainer, self.left = trainer, left

    def after_step(self, run):
        if run.step == 3 and run.rank == 2:
            c = self.trainer.communicator
            split = c.split

            def dies(*arguments):
                self.left[2] = 0
                return split(*arguments)

            c.split = dies


def shrinks(c, left, **options):
    trainer, policy = make(c, **options), Planned({3: 2})
    policies = [DiesInSplit(trainer, left), policy]
    try:
        result = trainer.fit(loader(), epochs=2, progress=False, policies=policies)
    except Killed:
        return None
    return result, trainer, policy


def test_a_rank_may_die_while_it_leaves(expected, deaths):  # noqa: F811
    """The ranks that are left are as many as were wanted, and make no other group."""
    found = run_threads(3, lambda c: shrinks(c, deaths, elastic=True), timeout=patience(20))
    assert found[2] is None
    assert_finished(found[:2], expected, 2)


def test_without_elastic_a_death_in_a_resize_is_an_error_on_all(deaths):  # noqa: F811
    found = run_threads(3, lambda c: outcome(lambda: shrinks(c, deaths)), timeout=patience(20))
    assert found[2] is None
    for error in found[:2]:
        assert isinstance(error, LostPeerError) and "ranks [2] are gone" in str(error)


class Switch(Policy):
    """Takes another strategy after step 3, while rank 2 dies."""

    def __init__(self, left, messages):
        self.left, self.messages = left, messages

    def after_step(self, run):
        if run.step == 3:
            assert run.set_strategy("PartitionedPS")
            if run.rank == 2:
                self.left[2] = self.messages


@pytest.mark.parametrize("messages", range(0, 24, 3))
def test_a_rank_may_die_while_ranks_change_their_strategy(messages, deaths, expected):  # noqa: F811
    def work(c):
        return trained(c, {}, policies=[Switch(deaths, messages)], elastic=True)

    found = run_threads(3, work, timeout=patience(20))
    assert found[2] is None
    assert_finished(found[:2], expected, 2)
    assert {trainer.strategy.builder for _, trainer, _ in found[:2]} == {"PartitionedPS"}


class Leaves(Planned):
    """Asks for a second rank, and lets the only rank die so many messages later."""

    def __init__(self, left, messages):
        super().__init__({3: 2})
        self.left, self.messages = left, messages

    def after_step(self, run):
        super().after_step(run)
        if run.step == 3 and run.rank == 0:
            self.left[0] = self.messages


@pytest.mark.parametrize("messages", [0, 8, 16])
def test_a_process_that_joins_cannot_go_on_without_the_state(messages, deaths, capsys):  # noqa: F811
    """The only rank that has trained dies before the process has all of it."""

    def work(c):
        policies = [Leaves(deaths, messages)]
        try:
            make(c, elastic=True).fit(loader(), epochs=2, progress=False, policies=policies)
        except Killed:
            return None
        except CommunicationError as error:
            return error

    dead, error = run_threads(1, work, spares=1, timeout=patience(20))
    assert dead is None and "all ranks that have trained before have died" in error.what
    assert error.hint == "resume from the last checkpoint"
    said = "cavs: all ranks that had the state have died\n"
    assert capsys.readouterr().err == said
