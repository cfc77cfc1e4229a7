"""Processes that wait to join a training: invitations, deaths, and the end of the training."""

import threading

import numpy as np
import pytest

from cavs.distributed.comm import LostPeerError, run_threads
from cavs.distributed.comm.pool import Invitation, Pool
from cavs.errors import CommunicationError, ConfigError
from tests.patience import patience


def never():
    return False


def test_a_process_that_died_is_not_invited_again():
    died = threading.Event()

    def work(c):
        pool = Pool(c, [0])
        if c.rank == 1:
            c.die()
            died.set()
            return
        assert died.wait(patience(20)) and pool.waiting == [1, 2]
        if c.rank == 2:
            assert pool.wait(lambda: "facts", never) is None
            return
        ready, reasons = pool.invite(2, "facts", patience(20))
        assert ready == [2]
        assert reasons == ["process 1 is gone: it has died"]
        assert pool.waiting == [2]
        pool.release()

    run_threads(3, work)


def test_a_group_with_a_dead_process_is_not_announced():
    died = threading.Event()

    def work(c):
        pool = Pool(c, [0])
        if c.rank == 1:
            c.die()
            died.set()
        elif c.rank == 2:
            assert pool.wait(lambda: "", never) == Invitation(8, (0, 2))
        else:
            assert died.wait(patience(20))
            assert pool.announce([0, 1, 2], 7) == ["processes [1] have died"]
            assert pool.announce([0, 2], 8) == []

    run_threads(3, work)


def test_a_process_that_waits_learns_that_all_ranks_have_died():
    def work(c):
        pool = Pool(c, [0, 1])
        if pool.is_member:
            c.die()
            return
        with pytest.raises(LostPeerError, match="all ranks that trained have died") as caught:
            pool.wait(lambda: "", never)
        assert "hint: resume from the last checkpoint" in str(caught.value)

    run_threads(3, work)


def wait_to_begin(first, invitation):
    """Return whether the group of `invitation` trains, as the process that joins learns.

    first: called with the communicator and the pool of the rank, once the other process waits.
    """
    waits = threading.Event()

    def work(c):
        pool = Pool(c, [0])
        if c.rank == 0:
            assert waits.wait(patience(20))
            first(c, pool)
            return None
        lost = pool._mailbox.lost

        def looking():
            waits.set()
            return lost()

        pool._mailbox.lost = looking
        return pool.begins(invitation), pool.wait(lambda: "", lambda: True)

    return run_threads(2, work)[1]


@pytest.mark.parametrize("trains", [True, False])
def test_a_process_that_joins_learns_if_its_group_trains(trains):
    def first(c, pool):
        pool.begin([1], 6, trains=not trains)  # for an earlier group
        pool.begin([1], 7, trains=trains)

    assert wait_to_begin(first, Invitation(7, (0, 1))) == (trains, None)


def test_a_process_that_joins_is_released_at_the_end_of_the_training():
    assert wait_to_begin(lambda c, pool: pool.release(), Invitation(7, (0, 1))) == (False, None)


def test_a_group_whose_ranks_have_died_does_not_train():
    assert wait_to_begin(lambda c, pool: c.die(), Invitation(7, (0, 1))) == (False, None)


def test_operations_of_a_waiting_process_leave_its_values():
    def work(c):
        if c.pool is not None and c.pool.is_member:
            c.pool.everyone.barrier()
            return c.size, c.names
        array = np.arange(3.0)
        c.all_reduce(array, "max")
        c.broadcast(array, 0)
        c.barrier()
        assert array.tolist() == [0, 1, 2]
        assert [row.tolist() for row in c.all_gather(array)] == [[0, 1, 2]]
        assert c.share({"a": c.rank}) == [{"a": 2}]
        assert c.agree(True) and not c.agree(False)
        box = c.mailbox()
        box.post(0, [4])
        assert box.take(0.0).words == (4,)
        with c.waiting("a sum") as waiting:
            waiting.look()
        c.leave()
        assert c.split(1) is c.shrink() is c.subgroup([0], 1, box) is c
        c.pool.everyone.barrier()
        return c.size, c.names

    assert run_threads(2, work, spares=1) == [(2, (0, 1)), (2, (0, 1)), (1, (2,))]


def test_a_waiting_process_ends_all_ranks():
    def work(c):
        if c.pool.is_member:
            c.pool.everyone.barrier()
        c.abort("the disk is full")

    with pytest.raises(CommunicationError, match="the disk is full"):
        run_threads(1, work, spares=1)


def test_one_process_must_train():
    with pytest.raises(ConfigError, match="2 spares of 2 processes") as caught:
        run_threads(0, lambda c: None, spares=2)
    assert "hint: at least one process trains" in str(caught.value)
