"""The number of threads changes beside steps: they wait, and none fails."""

import threading

import numpy as np
import pytest
from test_parts import case
from test_step import STATES, options

from cavs import _engine


@pytest.fixture(autouse=True)
def one_thread_afterwards():
    yield
    _engine.set_num_threads(1)


def test_steps_go_on_while_the_number_of_threads_changes():
    whole, executor, inputs = case(d=8, h=12, scale=0.1)
    states = [[np.zeros_like(p) for _ in range(STATES["adam"])] for p in whole.parameters]
    _engine.set_num_threads(1)
    expected = executor.run(*inputs)
    ended, failed = threading.Event(), []

    def change():
        n = 0
        while not ended.is_set():
            n += 1
            _engine.set_num_threads(1 + n % 4)

    def run():
        _, other, own = case(d=8, h=12, scale=0.1)
        try:
            for _ in range(300):
                assert other.run(*own) == pytest.approx(expected, rel=1e-4)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=change), threading.Thread(target=run)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        executor.step(*inputs, 0, 1, options("adam", 1), states, [True] * 5)
    threads[1].join()
    ended.set()
    threads[0].join()
    assert failed == []
