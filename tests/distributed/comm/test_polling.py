"""Letters over MPI: in pieces, of which few are under way to a rank at once."""

from types import SimpleNamespace

import numpy as np
import pytest

from cavs.distributed.comm.mpi.polling import PIECE, WINDOW, _Messages
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
