"""Errors of waits name the rank that hangs, in any group, by its number in the world."""

import os
import re
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from cavs.distributed.comm import (
    LostPeerError,
    SingleCommunicator,
    hang_detection,
    run_threads,
)
from cavs.distributed.comm.hang_detection import Wait, find, nothing
from cavs.distributed.comm.mpi import polling
from cavs.errors import CommunicationError
from tests.distributed.launch.test_launcher import wait_for
from tests.distributed.mpirun import needs_mpi, run_ranks
from tests.distributed.step.test_consensus import outcomes
from tests.patience import patience


def wait(*peers, group="all", begun=1, operation="share", over=False):
    return Wait(group, begun, operation, peers, over, 0)


@pytest.mark.parametrize(
    ("said", "text", "blamed"),
    [
        ({1: [wait(2, group="a")], 2: []}, "rank 2 did not come", {2}),
        ({1: [wait(2, 3)], 3: [wait(2)]}, "rank 2 does not answer", {2}),
        (
            {1: [wait(2), wait(3)], 2: [], 4: []},
            "rank 3 does not answer; rank 2 did not come",
            {2, 3},
        ),
        ({1: [wait(0)]}, "rank 1 is in share", {1}),
        ({1: [wait(0, begun=0, operation="gather")]}, "rank 1 is still in gather", {1}),
        ({1: [wait(0, operation="gather", over=True)]}, "rank 1 has given up in gather", {1}),
    ],
)
def test_waits_are_followed_to_ranks_that_wait_for_none(said, text, blamed):
    mine = wait(1)
    assert find(0, mine, {0: [mine], **said}, nothing) == (text, blamed)


def said_of(results):
    """Return the first lines of errors, by rank."""
    return {r: str(e).splitlines()[0] for r, e in enumerate(results) if e is not None}


def in_groups(c, hangs):
    """Rank 2 hangs, rank 3 waits for it in a group of a group, the others wait in the world.

    Rank 1 waits concurrently with its operations, as for a device.
    """
    half = c.split(c.rank // 2, -c.rank)  # which numbers ranks in reverse
    own = half.split(0)
    if c.rank == 2:
        hangs()
    elif c.rank == 3:
        own.broadcast(np.zeros(3), 1)
    elif c.rank == 1:
        end = time.monotonic() + c.timeout
        with c.waiting("a sum") as waiting:
            while time.monotonic() < end:
                time.sleep(0.01)
                waiting.look()
            raise waiting.hung(c.timeout, "for a device")
    else:
        c.all_reduce(np.zeros(1))


def test_only_the_rank_that_hangs_in_another_group_is_named():
    gave_up = threading.Semaphore(0)

    def hangs():
        for _ in range(3):
            assert gave_up.acquire(timeout=20)

    def work(c):
        c.barrier()
        c.timeout = 0.4
        try:
            in_groups(c, hangs)
        finally:
            gave_up.release()

    said = said_of(outcomes(4, work))
    assert said == {
        0: "rank 0 waited 0.4 s in all-reduce of 8 bytes: rank 2 did not come",
        1: "rank 1 waited 0.4 s for a device: rank 2 did not come",
        3: "rank 3 waited 0.4 s in broadcast of 24 bytes by rank 2: rank 2 did not come",
    }


def test_a_late_rank_learns_which_ranks_gave_up():
    gave_up = threading.Event()

    def work(c):
        c.timeout = 0.2
        if c.rank == 1:
            assert gave_up.wait(20)
        try:
            c.barrier()
        finally:
            gave_up.set()

    first, second = outcomes(2, work)
    assert "rank 0 waited 0.2 s in barrier: rank 1 did not come" in str(first)
    assert "rank 1 waited 0.2 s in barrier: rank 0 has given up in barrier" in str(second)


def test_a_rank_that_waits_while_all_are_stopped_is_interrupted(monkeypatch):
    """Python has dropped its own interrupt, where the callback of an import was running."""

    def late(c):
        with suppress(LostPeerError):
            c.barrier() if c.rank else time.sleep(0.3)

    monkeypatch.setattr(hang_detection, "is_stopping", lambda: True)
    monkeypatch.setattr(hang_detection.INTERRUPT, "trainings", set())
    with pytest.raises(KeyboardInterrupt):
        run_threads(2, late, timeout=0.1)
    monkeypatch.setattr(hang_detection.INTERRUPT, "trainings", {"a training"})
    with pytest.raises(CommunicationError, match="rank 1 waited"):
        run_threads(2, late, timeout=0.1)


def test_ranks_that_wait_for_each_other_are_named():
    def work(c):
        part = c.split(0, -c.rank)
        part.timeout = 0.2
        part.receive(np.zeros(1), 1 - part.rank)

    said = said_of(outcomes(2, work))
    assert "rank 0 waited 0.2 s in receive from rank 1" in said[0]
    assert "rank 1 waited 0.2 s in receive from rank 0" in said[1]
    assert "in receive from rank" in said[0].partition(": ")[2]


def test_a_group_names_ranks_of_the_world():
    def work(c):
        part = c.split(c.rank // 2)
        if c.rank >= 2:
            part.all_reduce(np.zeros(1 + part.rank))

    with pytest.raises(CommunicationError, match="rank 3 sent 16 bytes, rank 2 expects 8"):
        run_threads(4, work)


def test_threads_of_survivors_end_with_their_ranks():
    def work(c):
        if c.rank == 0:
            c.die()
            return
        left = c.shrink()
        left.start(left.all_reduce, np.ones(1)).wait()
        assert left.start(left.all_reduce, np.ones(1)).wait() is None

    before = set(threading.enumerate())
    outcomes(3, work)
    assert [t.name for t in set(threading.enumerate()) - before] == []


def test_survivors_keep_their_numbers():
    gave_up = threading.Semaphore(0)

    def work(c):
        if c.rank == 0:
            c.die()
            return
        with pytest.raises(LostPeerError, match=r"ranks \[0\] are gone"):
            c.barrier()
        left = c.shrink()
        assert (left.rank, left.size, left.names) == (c.rank - 1, 3, (1, 2, 3))
        pair = left.split(left.rank // 2)
        assert pair.names == ((1, 2) if c.rank < 3 else (3,))
        left.timeout = pair.timeout = 0.3
        if c.rank == 2:
            assert gave_up.acquire(timeout=20) and gave_up.acquire(timeout=20)
            return
        try:
            if c.rank == 1:
                pair.barrier()
            else:
                left.receive(np.zeros(1), 0)
        finally:
            gave_up.release()

    said = said_of(outcomes(4, work))
    assert "rank 1 waited 0.3 s in barrier: rank 2 did not come" in said[1]
    assert "rank 3 waited 0.3 s in receive from rank 1: rank 2 did not come" in said[3]


def test_a_wait_that_was_given_up_is_known_until_the_next_of_its_group():
    c = SingleCommunicator()
    with c.waiting("a sum") as waiting:
        waiting.hung(0.5)
    own = c._register.own
    assert [(w.operation, w.over) for w in own()] == [("a sum", True)]
    with c.split(0).waiting("another group"):
        assert [w.operation for w in own()] == ["a sum"]
    with c.waiting("a mean"):
        assert [(w.operation, w.over) for w in own()] == [("a mean", False)]
    assert own() == []


def test_a_single_process_can_wait_concurrently():
    c = SingleCommunicator()
    with c.waiting("a sum") as waiting:
        waiting.look()
        error = waiting.hung(0.5)
    assert str(error).startswith("rank 0 waited 0.5 s in a sum: no rank is missing")


# ---- processes ----------------------------------------------------------------------------------


def over_mpi(c, folder):
    """As `in_groups`; every rank writes its error to a file, and ends when all have."""
    polling._GRACE = patience(1)
    c.barrier()
    c.timeout = 0.5

    def hangs():
        time.sleep(patience(40))
        os._exit(1)

    with pytest.raises(CommunicationError) as caught:
        in_groups(c, hangs)
    Path(folder, str(c.rank)).write_text(str(caught.value).splitlines()[0])
    wait_for(lambda: len(list(Path(folder).iterdir())) == 3, 20)
    c.abort("stopped")


def after_a_death(c):
    """Let rank 0 die; a group without it continues; rank 2 of the survivors hangs."""
    polling._GRACE = patience(1)
    part = c.split(min(c.rank, 1))
    c.barrier()
    if c.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(LostPeerError):
        c.barrier()
    for _ in range(20):
        part.all_reduce(np.zeros(1))
        time.sleep(0.01)
    left = c.shrink()
    assert (left.size, left.names) == (2, (1, 2))
    left.barrier()
    if c.rank == 2:
        time.sleep(20)
        os._exit(1)
    left.timeout = 0.5
    with pytest.raises(CommunicationError) as caught:
        left.barrier()
    print("SAID", str(caught.value).splitlines()[0], flush=True)
    left.abort("stopped")


class TestProcesses:
    pytestmark = needs_mpi

    def test_a_process_that_hangs_in_another_group_is_named_by_all(self, tmp_path):
        done = run_ranks(4, __name__, "over_mpi", str(tmp_path), check=False)
        said = [file.read_text() for file in sorted(tmp_path.iterdir())]
        assert len(said) == 3, done.stdout + done.stderr
        places = ("in all-reduce of 8 bytes", "a sum|for a device", "in broadcast of .* by rank 2")
        for rank, place, text in zip((0, 1, 3), places, said, strict=True):
            found = rf"rank {rank} (waited 0.5 s )?.*({place}): rank 2 does not answer"
            assert re.fullmatch(found + r"(, as rank [013] found out)?", text), text

    def test_processes_that_survive_keep_their_numbers(self):
        done = run_ranks(3, __name__, "after_a_death", check=False, elastic=True)
        said = "SAID rank 1 waited 0.5 s in barrier: rank 2 does not answer"
        assert said in done.stdout, done.stdout + done.stderr
        assert "cavs: rank 1: stopped" in done.stderr
