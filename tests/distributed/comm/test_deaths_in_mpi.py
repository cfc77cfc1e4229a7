"""A rank dies while others are inside MPI and create groups: all survivors learn of it."""

import os
import signal
import time

import numpy as np
import pytest

from cavs.distributed.comm import LostPeerError
from tests.distributed.mpirun import needs_mpi, run_ranks

pytestmark = needs_mpi


class KilledInCall:
    """A communicator of MPI whose process is killed at the `nth` call of `name`."""

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
    """Return size and sum of ranks, by every way to create a group."""
    total = np.full(1, c.rank)
    c.all_reduce(total)
    part = c.split(c.rank % 2)
    part.barrier()
    box = c.mailbox()
    c.barrier()
    box.close()
    return [c.size, int(total[0]), list(c.names)]


def die_inside(c, call):
    """Let rank 1 die in `call`, which all ranks make."""
    if c.rank == 1:
        c._comm = KilledInCall(c._comm, call, 1)
    with pytest.raises(LostPeerError, match=r"rank \d in (split|mailbox) with ranks"):
        c.split(c.rank // 2) if call == "Split" else c.mailbox()
    return works(c.shrink())


def die_in_shrink(c, nth):
    """Let rank 1 die, and rank 2 while the others continue without it."""
    if c.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if c.rank == 2:
        c._comm = KilledInCall(c._comm, "Shrink", nth)
    with pytest.raises(LostPeerError):
        c.barrier()
    while True:
        c = c.shrink()
        try:
            return works(c)
        except LostPeerError:  # rank 2 may die after the last check of the survivors
            assert c.size == 3


@pytest.mark.parametrize("call", ["Split", "Dup"])
def test_a_rank_dies_while_a_group_is_created(call):
    assert run_ranks(4, __name__, "die_inside", call, elastic=True) == [3, 3, [0, 2, 3]]


@pytest.mark.parametrize("nth", [1, 2])
def test_a_second_rank_dies_during_recovery(nth):
    assert run_ranks(4, __name__, "die_in_shrink", nth, elastic=True) == [2, 1, [0, 3]]
