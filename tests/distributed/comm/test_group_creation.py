"""Members of a new group act alike when one of them fails, hangs or dies."""

import threading

import pytest

from cavs.distributed.comm import LostPeerError, run_threads
from cavs.distributed.comm.mpi import groups
from cavs.distributed.comm.mpi.groups import GroupConsensus
from cavs.errors import CommunicationError
from tests.patience import patience

CALL = "MPI_Comm_create_from_group"


class MPIError(Exception):
    """The class of errors of MPI."""


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(groups, "_ALONE", 0.01)
    monkeypatch.setattr(groups, "_GLANCE", 0.01)
    monkeypatch.setattr(groups, "_NOTICE", 0.05)


def outlived(c):
    """Return a mailbox from which others read after the death of a rank."""
    box = c.mailbox()
    box.outlives = True
    return box


def make(c, box, call=lambda: "group", duplicate=list, timeout=None):
    """Make a group of all ranks; return the error, or what was made."""
    members = range(c.size)
    consensus = GroupConsensus(members, 5, box, lambda peers: c.waiting(CALL, peers), MPIError)
    try:
        return consensus.run(call, duplicate, timeout or patience(20))
    except CommunicationError as error:
        return error


def test_a_group_is_made_by_all_members():
    assert run_threads(3, lambda c: make(c, outlived(c))) == [list("group")] * 3


def test_a_member_that_cannot_make_the_group_is_quoted_by_the_others():
    def work(c):
        def duplicate(group):
            if c.rank == 1:
                raise MPIError("no more communicators")
            return group

        return make(c, outlived(c), duplicate=duplicate)

    other, failed = run_threads(2, work)
    own = f"rank 1 in {CALL} of ranks [0, 1]: no more communicators"
    assert failed.what == own
    assert other.what == f"rank 0 in {CALL} of ranks [0, 1]: rank 1 failed: {own}"
    assert not isinstance(other, LostPeerError)


def test_a_call_that_does_not_end_is_given_up_by_all():
    ends = threading.Event()

    def work(c):
        if c.rank == 0:
            return make(c, outlived(c), lambda: ends.wait(patience(20)), timeout=0.1)
        return make(c, outlived(c))

    waited, told = run_threads(2, work)
    ends.set()
    assert str(waited).startswith(f"rank 0 waited 0.1 s in {CALL}: rank 1 ")
    assert told.what == f"rank 1 in {CALL} of ranks [0, 1]: rank 0 failed: {waited.what}"


def test_a_member_that_does_not_come_is_named():
    gave_up = threading.Event()

    def work(c):
        box = outlived(c)
        if c.rank == 1:
            assert gave_up.wait(patience(20))
            return None
        error = make(c, box, timeout=0.1)
        gave_up.set()
        return error

    waited, _ = run_threads(2, work)
    assert str(waited).startswith(f"rank 0 waited 0.1 s in {CALL}: rank 1 did not come")


def test_a_member_learns_of_a_death_from_the_one_that_found_it():
    """MPI reports the death of rank 2 to rank 1 alone."""

    def work(c):
        box = outlived(c)
        if c.rank == 2:
            c.die()
            return None
        if c.rank == 0:
            box.lost = set
        return make(c, box)

    told, found, _ = run_threads(3, work)
    assert isinstance(told, LostPeerError) and isinstance(found, LostPeerError)
    assert found.what == f"rank 1 in {CALL} of ranks [0, 1, 2]: rank 2 has died"
    text = f"rank 0 in {CALL} of ranks [0, 1, 2]: a member has died, as rank 1 found out"
    assert told.what == text


def test_a_death_that_mpi_reports_late_is_that_of_the_failed_call():
    """The call fails first, and MPI says then which member has died."""
    died = threading.Event()

    def work(c):
        box = outlived(c)

        def duplicate(group):
            if c.rank == 0:
                c.die()
                died.set()
            assert died.wait(patience(20))
            raise MPIError("process failed")

        return make(c, box, duplicate=duplicate)

    _, found = run_threads(2, work)
    assert isinstance(found, LostPeerError)
    assert found.what == f"rank 1 in {CALL} of ranks [0, 1]: rank 0 has died"
