"""Ctrl-C on a rank, deferred while a training goes on."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from cavs.distributed.comm import interrupt as module
from cavs.distributed.comm.interrupt import RankInterrupt, begin_before_interrupt
from tests.patience import patience


@pytest.fixture
def interrupt():
    made, old = RankInterrupt(), [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGALRM)]
    made.install()
    made.training = RankInterrupt()  # any object
    made.trainings.add(made.training)
    yield made
    made.clear()
    for number, handler in zip((signal.SIGINT, signal.SIGALRM), old, strict=True):
        signal.signal(number, handler)


def test_no_timer_is_left_once_all_have_stopped(interrupt):
    os.kill(os.getpid(), signal.SIGINT)  # between two calls
    assert interrupt.requested and signal.getitimer(signal.ITIMER_REAL)[0] > 0
    with interrupt.deferred():  # the next call, in which the ranks agree to stop
        interrupt.clear()
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_a_timer_of_the_program_is_left_alone(interrupt):
    signal.setitimer(signal.ITIMER_REAL, 300)
    with interrupt.deferred():
        os.kill(os.getpid(), signal.SIGINT)
        interrupt.clear()
    assert signal.setitimer(signal.ITIMER_REAL, 0)[0] > 0


ENDING = """
import atexit, os, signal, time
atexit.register(time.sleep, 0.3)  # MPI_Finalize
from cavs.distributed.comm import interrupt
interrupt._PATIENCE = 0.1
made = interrupt.RankInterrupt()
made.install()
made.trainings.add(made)
with made.deferred():
    os.kill(os.getpid(), signal.SIGINT)
"""


def test_a_program_that_ends_is_not_killed_by_the_timer():
    command = [sys.executable, "-c", ENDING]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# ---- outside of a training, or late ------------------------------------------------------------


def interrupt_self():
    os.kill(os.getpid(), signal.SIGINT)


def test_the_second_interrupt_is_not_deferred(interrupt):
    with interrupt.deferred():
        interrupt_self()
        assert interrupt.requested
        with pytest.raises(KeyboardInterrupt):
            interrupt_self()
        assert not interrupt.requested


def test_an_interrupt_outside_of_a_training_is_not_deferred(interrupt):
    interrupt.trainings.clear()
    with pytest.raises(KeyboardInterrupt):
        interrupt_self()
    assert not interrupt.requested


def test_an_interrupt_after_the_stop_that_another_rank_asked_for_is_ignored_once(interrupt):
    """All ranks have it; it comes to this one last."""
    interrupt.trainings.clear()
    interrupt.clear()
    interrupt_self()
    assert not interrupt.requested
    with pytest.raises(KeyboardInterrupt):
        interrupt_self()


def test_an_interrupt_acts_if_no_call_of_the_training_follows(interrupt, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE", 0.01)
    with pytest.raises(KeyboardInterrupt):
        interrupt_self()
        assert interrupt.requested
        time.sleep(patience(20))
    assert not interrupt.requested


def test_an_interrupt_does_not_act_within_a_call_that_follows(interrupt):
    interrupt_self()
    with interrupt.deferred():
        signal.raise_signal(signal.SIGALRM)  # the timer expires
        assert interrupt.requested
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert signal.getitimer(signal.ITIMER_REAL)[0] > 0  # it is set again
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGALRM)
    assert not interrupt.requested


def test_a_program_that_handles_alarms_keeps_its_handler(interrupt):
    alarms = []
    signal.signal(signal.SIGALRM, lambda number, frame: alarms.append(number))
    interrupt_self()
    assert interrupt.requested and signal.getitimer(signal.ITIMER_REAL)[0] == 0
    signal.raise_signal(signal.SIGALRM)
    assert alarms == [signal.SIGALRM]


def test_an_interrupt_waits_until_the_ranks_have_begun():
    begun = False
    with pytest.raises(KeyboardInterrupt), begin_before_interrupt():
        interrupt_self()
        begun = True
    assert begun and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_that_the_program_handles_is_left_to_it(interrupt):
    came = []

    def handler(number, frame):
        came.append(number)

    signal.signal(signal.SIGINT, handler)
    with begin_before_interrupt():
        interrupt_self()
        assert came == [signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is handler


def test_another_thread_handles_no_interrupt():
    found = []

    def work():
        with begin_before_interrupt():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]
