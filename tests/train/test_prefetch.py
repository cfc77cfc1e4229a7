"""Iterations that a background thread computes ahead, across a fork of the process."""

import multiprocessing
import threading

import pytest

from cavs.errors import CavsError
from cavs.train.prefetch import prefetch
from tests.patience import patience


def _take(iterator, pipe):
    """Send the next item of an iterator of the parent, or the error and its hint."""
    try:
        pipe.send(next(iterator))
    except CavsError as error:
        pipe.send((error.what, error.hint))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_has_no_thread_that_prepares_the_next_item():
    computing, may = threading.Event(), threading.Event()

    def items():
        yield "first"
        computing.set()
        may.wait()
        yield "second"

    iterator = prefetch(items(), 1)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    try:
        assert next(iterator) == "first"
        assert computing.wait(patience(5))  # the thread holds no lock now
        child = context.Process(target=_take, args=(iterator, theirs))
        child.start()
        assert ours.poll(patience(20))
        what, hint = ours.recv()
        child.join()
        assert what == "the thread that prepares batches is not in this process"
        assert hint == "a forked process must start an iteration of its own"
    finally:
        may.set()
    assert list(iterator) == ["second"]
