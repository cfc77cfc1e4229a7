"""Ranks that are threads: decisions and letters when another rank fails or hangs."""

import threading

import pytest

from cavs.distributed.comm import run_threads
from cavs.errors import CommunicationError
from tests.distributed.step.test_consensus import outcomes
from tests.patience import patience


@pytest.mark.parametrize(
    "wait",
    [lambda c, box: c.agree(True), lambda c, box: box.take(patience(20))],
    ids=["agreement", "letter"],
)
def test_a_rank_that_waits_is_ended_by_one_that_fails(wait):
    told = []

    def work(c):
        box = c.mailbox()
        if c.rank == 1:
            raise ZeroDivisionError("of this rank")
        with pytest.raises(CommunicationError) as caught:
            wait(c, box)
        told.append(caught.value.what)

    with pytest.raises(ZeroDivisionError):
        run_threads(2, work, timeout=patience(20))
    assert told == ["rank 1 failed: of this rank"]


@pytest.mark.parametrize(("call", "name"), [("agree", "agreement"), ("shrink", "shrink")])
def test_a_rank_that_does_not_come_to_a_decision_is_named(call, name):
    gave_up = threading.Event()

    def work(c):
        c.barrier()
        if c.rank == 1:
            assert gave_up.wait(patience(20))
            return
        if c.rank == 2:
            c.die()  # it is not waited for
            return
        c.timeout = 0.1
        try:
            c.agree(True) if call == "agree" else c.shrink()
        finally:
            gave_up.set()

    error = outcomes(3, work)[0]
    assert isinstance(error, CommunicationError)
    assert str(error).startswith(f"rank 0 waited 0.1 s in {name}: rank 1 did not come")
