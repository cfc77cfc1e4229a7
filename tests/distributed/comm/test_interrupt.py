"""Ctrl-C on a rank, deferred while a training goes on."""

import os
import signal
import subprocess
import sys

import pytest

from cavs.distributed.comm.interrupt import RankInterrupt


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
