"""Changes of the number of threads while steps run."""

import threading

import numpy as np
import pytest
from test_optimizer_step import STATES, options
from test_split_step import case

from cavs import _engine


@pytest.fixture(autouse=True)
def one_thread_afterwards():
    yield
    _engine.set_num_threads(1)


def test_steps_continue_while_the_number_of_threads_changes():
    """Large enough for several threads; a step reads their number when it starts."""
    whole, executor, inputs = case()
    states = [[np.zeros_like(p) for _ in range(STATES["adam"])] for p in whole.parameters]
    _engine.set_num_threads(1)
    expected = executor.run(*inputs)
    ended, failed = threading.Event(), []

    def change():
        n = 0
        while not ended.is_set():
            n += 1
            _engine.set_num_threads(1 + n % 4)

    def attempt(work):
        try:
            work()
        except BaseException as error:
            failed.append(error)

    def run():
        _, other, own = case()
        for _ in range(60):
            assert other.run(*own) == pytest.approx(expected, rel=1e-4)

    def step():
        for _ in range(60):
            executor.step(*inputs, 0, 1, options("adam", 1), states, [True] * 5)

    changer = threading.Thread(target=change)
    others = [threading.Thread(target=attempt, args=(work,)) for work in (run, step)]
    for thread in (changer, *others):
        thread.start()
    for thread in others:
        thread.join()
    ended.set()
    changer.join()
    assert failed == []
