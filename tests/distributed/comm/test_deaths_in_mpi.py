"""A rank dies while others are inside MPI, making groups: all that are left learn of it."""

import os
import signal
import time

import numpy as np
import pytest

from cavs.distributed.comm import LostPeerError
from tests.distributed.mpirun import needs_mpi, run_ranks

pytestmark = needs_mpi


class Dying:
    """A communicator of MPI's; its process is killed at the `nth` call of `name`."""

    def __init__(self, comm, name, nth):
        self.comm, self.name, self.left = comm, name, nth

    def __getattr__(self, name):
        call = getattr(self.comm, name)
        return call if name != self.name else lambda *arguments: self.count(call, *arguments)

    def count(self, call, *arguments):
        self.left -= 1
        if self.left == 0:
            time.sleep(0.3)  # the others are inside
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments)


def works(c):
    """Size and sum of ranks, by all kinds of groups."""
    total = np.full(1, c.rank)
    c.all_reduce(total)
    part = c.split(c.rank % 2)
    part.barrier()
    box = c.mailbox()
    c.barrier()
    box.close()
    return [c.size, int(total[0]), list(c.names)]


def die_inside(c, call):
    """Rank 1 dies in `call`, which all make."""
    if c.rank == 1:
        c._comm = Dying(c._comm, call, 1)
    with pytest.raises(LostPeerError, match=r"rank \d in (split|mailbox) with ranks"):
        c.split(c.rank // 2) if call == "Split" else c.mailbox()
    return works(c.shrink())


def die_in_shrink(c, nth):
    """Rank 1 dies, and rank 2 while the others go on without it."""
    if c.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if c.rank == 2:
        c._comm = Dying(c._comm, "Shrink", nth)
    with pytest.raises(LostPeerError):
        c.barrier()
    while True:
        c = c.shrink()
        try:
            return works(c)
        except LostPeerError:  # rank 2 may die after the last look at who is there
            assert c.size == 3


@pytest.mark.parametrize("call", ["Split", "Dup"])
def test_a_rank_dies_while_a_group_is_made(call):
    assert run_ranks(4, __name__, "die_inside", call, elastic=True) == [3, 3, [0, 2, 3]]


@pytest.mark.parametrize("nth", [1, 2])
def test_another_rank_dies_while_the_others_go_on_without_the_first(nth):
    assert run_ranks(4, __name__, "die_in_shrink", nth, elastic=True) == [2, 1, [0, 3]]
