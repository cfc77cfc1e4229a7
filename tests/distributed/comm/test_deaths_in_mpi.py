"""A rank dies while others are inside MPI and create groups: all survivors learn of it."""

import os
import signal
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from cavs.distributed.comm import LostPeerError
from tests.distributed.mpirun import needs_mpi, run_ranks
from tests.patience import patience

pytestmark = needs_mpi

MESSAGES = ("Isend", "Irecv")  # the calls of a barrier
CALLS = {1: 2, 2: 4, 3: 2}  # their number in a barrier of 4 ranks; rank 0 writes the result
FAST = ("split", 2, 3)  # rank 3 fails before the vote to which the others come
DEATHS = [
    pytest.param(operation, victim, nth, marks=[pytest.mark.slow] if slow else [])
    for operation, slow in [("agree", False), ("split", True)]
    for victim, count in CALLS.items()
    for nth in range(1, count + 1)
    if (operation, victim, nth) != FAST
] + [FAST]
SOON = patience(10)  # seconds to notice a death on loaded processors; the timeout is 30 s


class KilledInCall:
    """A communicator of MPI whose process is killed at the `nth` call of one of `names`."""

    def __init__(self, comm, names, nth):
        self.comm, self.names, self.left = comm, names, nth

    def __getattr__(self, name):
        call = getattr(self.comm, name)
        return call if name not in self.names else lambda *arguments: self.count(call, *arguments)

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
        c._comm = KilledInCall(c._comm, [call], 1)
    with pytest.raises(LostPeerError, match=r"rank \d in (split|mailbox) with ranks"):
        c.split(c.rank // 2) if call == "Split" else c.mailbox()
    return works(c.shrink())


def die_in_shrink(c, nth):
    """Let rank 1 die, and rank 2 while the others continue without it."""
    if c.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if c.rank == 2:
        c._comm = KilledInCall(c._comm, ["Shrink"], nth)
    with pytest.raises(LostPeerError):
        c.barrier()
    while True:
        c = c.shrink()
        try:
            return works(c)
        except LostPeerError:  # rank 2 may die after the last check of the survivors
            assert c.size == 3


class Intracomms:
    """The module of MPI for one rank, which calls `before` in the creation of a group."""

    def __init__(self, mpi, before):
        self._mpi, self._before, self.Intracomm = mpi, before, self

    def __getattr__(self, name):
        return getattr(self._mpi, name)

    def Create_from_group(self, *arguments):
        self._before()
        return self._mpi.Intracomm.Create_from_group(*arguments)


def kill_soon():
    """Kill this process while it is inside the next call."""

    def kill():
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()


def kill_now():
    time.sleep(0.3)  # the others are inside
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_end(process):
    """Return when another process of this machine has ended."""
    while True:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state == "Z":
            return
        time.sleep(0.001)


def die_around_group(c, when):
    """Let rank 1 die before, at, within or after the creation of a group of all ranks."""
    box = c.mailbox()
    box.outlives = True
    victim = c.share(os.getpid())[1]
    if c.rank == 1:
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        c._mpi = Intracomms(c._mpi, kill_soon if when == "within" else kill_now)
    elif when in ("before", "within") and c.rank == 2:  # MPI is left to report the death later
        before = partial(wait_for_end, victim)
        if when == "before":
            before()
        else:
            c._mpi = Intracomms(c._mpi, before)
    if when == "after":
        if c.rank == 1:
            c._mpi = c._mpi._mpi
        part = c.subgroup([0, 1, 2, 3], 1, box)
        if c.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(LostPeerError):
            part.barrier()
        smaller = part.shrink()
    else:
        begun = time.monotonic()
        with pytest.raises(LostPeerError, match=r"in MPI_Comm_create_from_group .*rank 1 has died"):
            c.subgroup([0, 1, 2, 3], 1, box)
        assert time.monotonic() - begun < SOON
        smaller = c.subgroup([0, 2, 3], 2, box)
    assert smaller.agree(True)
    found = works(smaller)
    assert works(c.shrink()) == found
    return found


def die_in_messages(c, victim, calls, nth, operation):
    """Let rank `victim` die at the `nth` of its calls in an operation; survivors vote alike."""
    if c.rank == victim:
        c._comm = KilledInCall(c._comm, calls, nth)
        c._channel.comm = c._comm
    begun = time.monotonic()
    if operation == "agree":
        verdict = c.agree(True)
    else:
        verdict = True
        try:
            c.split(c.rank // 2)
        except LostPeerError:
            verdict = False
    assert time.monotonic() - begun < SOON
    smaller = c.shrink()
    assert time.monotonic() - begun < SOON
    return [smaller.share(verdict), works(smaller)[0]]


@pytest.mark.parametrize("when", ["before", "call", "after"])
def test_a_rank_dies_around_the_creation_of_a_group_of_some(when):
    assert run_ranks(4, __name__, "die_around_group", when, elastic=True) == [3, 3, [0, 2, 3]]


def test_no_rank_waits_if_one_dies_within_the_creation_of_a_group_of_some():
    """The others survive, unless Open MPI itself crashes them, see decision 048."""
    done = run_ranks(4, __name__, "die_around_group", "within", elastic=True, check=False)
    assert "RESULT [3, 3, [0, 2, 3]]" in done.stdout or "ompi_comm_activate" in done.stderr


@pytest.mark.parametrize(("operation", "victim", "nth"), DEATHS)
def test_a_rank_dies_at_each_message_before_a_vote(operation, victim, nth):
    """The votes of survivors meet, whichever of them have learned of the death before."""
    found = run_ranks(
        4, __name__, "die_in_messages", victim, MESSAGES, nth, operation, elastic=True
    )
    assert found == [[False] * 3, 3]


def test_a_rank_dies_in_the_last_call_of_an_agreement():
    found = run_ranks(4, __name__, "die_in_messages", 1, ["Agree"], 1, "agree", elastic=True)
    assert found == [[False] * 3, 3]


@pytest.mark.parametrize("call", ["Split", "Dup"])
def test_a_rank_dies_while_a_group_is_created(call):
    assert run_ranks(4, __name__, "die_inside", call, elastic=True) == [3, 3, [0, 2, 3]]


@pytest.mark.parametrize("nth", [1, 2])
def test_a_second_rank_dies_during_recovery(nth):
    assert run_ranks(4, __name__, "die_in_shrink", nth, elastic=True) == [2, 1, [0, 3]]
