"""Letters over MPI: in pieces, of which few are under way to a rank at once."""

from types import SimpleNamespace
from weakref import WeakSet

import numpy as np
import pytest

from cavs.distributed.comm import LostPeerError
from cavs.distributed.comm.hang_detection import PendingWait, Wait, nothing
from cavs.distributed.comm.mpi import polling
from cavs.distributed.comm.mpi.polling import (
    PIECE,
    WINDOW,
    MPIMailbox,
    MPIWaitRegister,
    _Messages,
)
from cavs.errors import CommunicationError
from tests.distributed.comm.mpi_stand_in import StandIn
from tests.distributed.mpirun import needs_mpi4py, run_ranks

SIZES = [0, 1, PIECE - 100, PIECE, WINDOW, 3 * WINDOW + 5, 40, 9 * PIECE]


class Wire:
    """A communicator that sends nothing before it is told to."""

    def __init__(self):
        self.sent, self.dead = [], set()

    def Isend(self, buffer, to, tag):
        if to in self.dead:
            raise ConnectionError
        request = SimpleNamespace(ended=False)
        request.Test = lambda: request.ended
        self.sent.append((to, tag, len(buffer[0]), request))
        return request


def test_pieces_wait_for_those_under_way_to_their_rank():
    wire = Wire()
    messages = _Messages(SimpleNamespace(BYTE="byte", Exception=ConnectionError), wire)
    messages.send(1, 1, *[np.zeros(PIECE, np.uint8)] * 5)
    messages.send(1, 2, b"last")
    messages.send(2, 2, b"other")
    assert [s[:3] for s in wire.sent] == [(1, 1, PIECE), (1, 1, PIECE), (2, 2, 5)]
    assert messages.is_sending and not messages.is_empty()
    seen = 0
    while not messages.is_empty():
        under_way = [s for s in wire.sent if s[0] == 1 and not s[3].ended]
        assert sum(s[2] for s in under_way) <= WINDOW
        wire.sent[seen][3].ended = True
        seen += 1
    assert [s[2] for s in wire.sent if s[0] == 1] == [PIECE] * 5 + [4]
    assert not messages.is_sending


def test_small_letters_do_not_wait():
    wire = Wire()
    messages = _Messages(SimpleNamespace(BYTE="byte", Exception=ConnectionError), wire)
    for _ in range(50):
        messages.send(1, 2, b"letter")
    assert len(wire.sent) == 50 and not messages.is_sending


def test_pieces_for_a_rank_that_died_are_dropped_one_by_one():
    wire = Wire()
    messages = _Messages(SimpleNamespace(BYTE="byte", Exception=ConnectionError), wire)
    messages.send(1, 1, *[np.zeros(PIECE, np.uint8)] * 4)
    wire.dead.add(1)
    for _, _, _, request in wire.sent:
        request.ended = True
    for _ in range(2):
        with pytest.raises(ConnectionError):
            messages.is_empty()
    assert messages.is_empty() and not messages.is_sending


def exchange_letters(c):
    """Return words and sizes of all letters; the first rank to have all reads no more mail."""
    box, other = c.mailbox(), 1 - c.rank
    for i, size in enumerate(SIZES):
        box.post(other, [i], [np.full(size, i + c.rank, np.uint8)])
    found = []
    while len(found) < len(SIZES):
        letter = box.take(1.0)
        if letter is not None:
            (array,) = letter.arrays
            assert (array == letter.words[0] + other).all()
            found.append([*letter.words, array.size])
    c.barrier()
    box.close()
    return found


@pytest.mark.mpi
@needs_mpi4py
def test_letters_of_all_sizes_keep_their_order():
    assert run_ranks(2, __name__, "exchange_letters") == [[i, n] for i, n in enumerate(SIZES)]


# ---- errors of MPI ------------------------------------------------------------------------------


@pytest.fixture
def mpi(monkeypatch):
    """MPI of two ranks of this process, without other waits of it."""
    for name, value in (("_registers", WeakSet()), ("_found", {}), ("_listened", 0.0)):
        monkeypatch.setattr(MPIWaitRegister, name, value)
    return StandIn(2)


def register_of(mpi, rank):
    """Return the waits of rank 0 or 1, whose numbers in the world are 4 and 7."""
    made = MPIWaitRegister(mpi, mpi.comm(rank), (4, 7))
    made.waits = []  # those of a process of its own
    return made


def pending(register, peers):
    return PendingWait(register, "all", 3, "barrier", lambda: peers, lambda: None, nothing)


def mailbox(mpi, rank):
    return MPIMailbox(mpi, mpi.comm(rank).Dup(), (4, 7), register_of(mpi, rank))


def test_ranks_answer_which_ranks_they_wait_for(mpi):
    first, second = register_of(mpi, 0), register_of(mpi, 1)
    with pending(second, [4]) as waiting:
        wait = Wait("all", 3, "barrier", [4], False, waiting.serial)
        assert first.ask() == {4: [], 7: [wait]}
        assert second.ask() == {4: [], 7: [wait]}
    assert first.ask() == {4: [], 7: []}


def test_an_answer_that_comes_late_is_not_that_of_the_next_question(mpi, monkeypatch):
    first, second = register_of(mpi, 0), register_of(mpi, 1)
    with monkeypatch.context() as patch, pending(second, [4]):
        patch.setattr(polling, "_GRACE", 0)
        assert first.ask() == {4: []}
        second.listen()  # it answers now
    assert first.ask() == {4: [], 7: []}
    assert not first._answers  # nor is it kept


def test_a_dead_rank_is_not_asked_for_long(mpi, monkeypatch):
    monkeypatch.setattr(polling, "_GRACE", 0.02)
    first = register_of(mpi, 0)
    mpi.dead.add(1)
    assert first.ask() == {4: []}
    assert first.missed


def test_a_wait_ends_by_an_error_that_another_rank_found(mpi):
    first, second = register_of(mpi, 0), register_of(mpi, 1)
    said = "rank 4 in barrier: rank 9 did not come, as rank 7 found out"
    with pending(first, [9]) as waiting:
        second.tell("", "rank 9 did not come", {4: first.own()})
        assert str(waiting.hung(5.0)).startswith(said)
    with pending(first, [9]) as waiting:
        second.tell("all", "rank 9 did not come", {4: []})
        MPIWaitRegister._listened = 0.0  # some time has passed
        with pytest.raises(CommunicationError, match=said):
            waiting.look()


def test_letters_to_and_from_a_dead_rank_are_errors_that_name_it(mpi):
    box = mailbox(mpi, 0)
    assert box.lost() == set()  # without ULFM, MPI does not say
    mpi.dead.add(1)
    with pytest.raises(LostPeerError, match="rank 4 writes to rank 7: process 1 has failed"):
        box.post(1, [3])
    for box.outlives in (False, True):
        with pytest.raises(LostPeerError, match="rank 4 reads its mail: process 1 has failed"):
            box.take(1.0)


def test_a_mailbox_is_closed_once_its_letters_have_left(mpi):
    mpi.tests = 3
    box, other = mailbox(mpi, 0), mailbox(mpi, 1)
    box.post(1, [5])
    assert not any(request.ended for request in mpi.sent)
    box.close()
    assert [request.ended for request in mpi.sent] == [True]
    assert other.take(1.0).words == (5,)
