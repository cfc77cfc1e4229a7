"""Named collectives whose letters come early, late, or not at all."""

import threading
import time

import numpy as np
import pytest

from cavs.distributed.comm import run_threads
from cavs.errors import CommunicationError
from tests.distributed.comm.test_named import errors_of
from tests.patience import patience


def until(condition):
    """Return once `condition()` is true."""
    end = time.monotonic() + patience(20)
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_a_step_does_not_end_on_a_rank_that_others_are_ahead_of():
    """Rank 0 has the letter of a collective that it has not launched."""

    def work(c, named):
        assert named.set_tree([0, 0])
        if c.rank == 1:
            named.all_reduce("a", np.zeros(1)).wait()
        until(lambda: named.states(0) == 1)
        named.end_step()

    for error in errors_of(2, work):
        assert str(error).startswith("rank 0 ended step 0 without 'a', which rank 1 launched")


def test_a_letter_of_a_step_that_has_ended_is_an_error_on_all():
    ended = threading.Event()

    def work(c, named):
        assert named.set_tree([0, 0])
        if c.rank == 0:
            named.end_step()
            ended.set()
            named.barrier()
        assert ended.wait(patience(20))
        future = named.all_reduce("a", np.zeros(1))
        assert future.ends_within(patience(10))  # before this rank asks the others
        future.wait()

    for error in errors_of(2, work):
        assert str(error).startswith("rank 0 ended step 0 without 'a', which rank 1 launched")


def test_early_letters_of_another_array_are_one_error():
    def work(c, named):
        assert named.set_tree([0, 0, 0])
        key = named._key("a")
        if c.rank == 0:
            until(lambda: len(named._early[key]) == 2)
        named.all_reduce("a", np.zeros(3 + min(c.rank, 1))).wait()

    texts = {str(error).splitlines()[0] for error in errors_of(3, work)}
    (text,) = texts
    assert "launched 'a' of step 0 as all-reduce of 32 bytes of float64, rank 0 as" in text


def test_a_rank_that_comes_to_no_agreement_is_named():
    gave_up = threading.Event()

    def work(c, named):
        if c.rank == 1:
            assert gave_up.wait(patience(20))
        try:
            named.barrier()
        finally:
            gave_up.set()

    first, second = errors_of(2, work, timeout=0.2)
    said = "number 0 of the agreements: rank 1 never launched number 0 of the agreements"
    assert said in str(first) and said in str(second)


def test_a_collective_that_ends_while_its_rank_is_asked_has_its_result():
    """Rank 1 reads no letters for longer than the timeout, and then launches it."""
    asked = threading.Event()

    def work(c):
        named = c.named()
        assert named.set_tree([0, 0])
        array = np.ones(2)
        c.barrier()
        if c.rank == 0:
            post = named.post

            def posted(to, phase, *letter):
                post(to, phase, *letter)
                asked.set()

            named.post, c.timeout = posted, 0.1
            named.all_reduce("a", array).wait()
            c.timeout = patience(20)
        else:
            with named._lock:
                assert asked.wait(patience(20))
                named.all_reduce("a", array)
            named.end_step()
        named.barrier()  # the service goes on
        c.barrier()
        return array.tolist()

    assert run_threads(2, work, timeout=patience(20)) == [[2, 2], [2, 2]]


def test_a_letter_that_cannot_be_sent_ends_the_service():
    def work(c):
        named = c.named()
        assert named.set_tree([0, 0])
        c.barrier()
        if c.rank == 1:

            def fail(to, coded):
                raise CommunicationError("no way to rank 0")

            named._mailbox._deliver = fail
            future = named.all_reduce("a", np.zeros(1))
            assert future.done
            for call in (future.wait, named.end_step, named.barrier):
                with pytest.raises(CommunicationError, match="no way to rank 0"):
                    call()
        c.barrier()

    run_threads(2, work)
