"""A rank dies around its vote in an agreement: the others reach the same decision at once."""

import threading

import pytest

from cavs.distributed.comm import run_threads
from tests.patience import patience


@pytest.mark.parametrize("victim", range(3))
@pytest.mark.parametrize("voted", [False, True])
def test_a_rank_dies_before_or_after_its_vote(voted, victim):
    """Threads vote without messages: a vote is there or not."""
    ranks, dead = {}, threading.Event()

    def work(c):
        ranks[c.rank] = c
        c.barrier()
        if c.rank == victim:
            if voted:
                threading.Thread(target=die_after_vote).start()
                c.agree(True)  # returns once the others have voted
            else:
                c.die()
                dead.set()
            return None
        if voted or c.rank == (victim + 1) % 3:  # the last one waits inside before the death
            assert dead.wait(patience(20))
        verdict = c.agree(True)
        smaller = c.shrink()
        return verdict, smaller.agree(True), smaller.size

    def die_after_vote():
        c = ranks[victim]
        with c._world.changed:
            c._world.changed.wait_for(lambda: victim in c._world.ballots[0])
        c.die()
        dead.set()

    found = run_threads(3, work, timeout=patience(20))
    assert found.pop(victim) is None
    assert found == [(False, True, 2)] * 2
