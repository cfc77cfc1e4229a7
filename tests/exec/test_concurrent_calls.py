"""Calls to one executor from several Python threads."""

import contextlib
import threading
import time
import weakref

import numpy as np
import pytest
from hand_programs import TreeRnn, random_dag, schedule
from test_optimizer_step import options

from cavs import _engine

TABLE, W, U, B, V = range(5)


@pytest.fixture(autouse=True)
def one_thread():
    _engine.set_num_threads(1)


def inputs_of(vertices, seed=0):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 6, vertices).astype(np.int32)
    return schedule([random_dag(rng, vertices)]), [], [tokens]


@pytest.fixture(scope="module")
def slow():
    """An executor, and a batch whose run takes some tenths of a second."""
    _engine.set_num_threads(1)
    cell = TreeRnn(d=300, h=600, scale=0.01)
    executor, inputs = cell.executor(), inputs_of(1500)
    executor.set_serial(True)
    executor.run(*inputs)
    return cell, executor, inputs


@pytest.mark.parametrize(
    "name",
    [
        "gradient",
        "gradient_rows",
        "output",
        "report",
        "set_profiling",
        "set_serial",
        "set_factored",
        "set_gradient_block",
        "invalidate_parameters",
        "arm_gradients",
    ],
)
def test_waiting_calls_release_the_gil(slow, name):
    """Other Python threads continue while the call waits for a run."""
    cell, executor, inputs = slow
    arguments = {
        "gradient": (W,),
        "gradient_rows": (TABLE,),
        "output": (cell.h_out,),
        "set_profiling": (False,),
        "set_serial": (True,),
        "set_factored": (B,),
        "set_gradient_block": (np.zeros_like(executor.gradient_block()),),
    }
    beats = []  # per attempt, while the call waits
    for _ in range(5):  # a thread may be late on a busy machine, but not every time
        run = threading.Thread(target=executor.run, args=inputs)
        call = threading.Thread(target=getattr(executor, name), args=arguments.get(name, ()))
        run.start()
        time.sleep(0.02)
        call.start()
        beats.append(0)
        while call.is_alive():
            time.sleep(0.001)
            beats[-1] += 1
        run.join()
        if beats[-1] >= 10:
            break
    assert max(beats) >= 10


def test_output_is_that_of_one_run():
    """Size and values match, for any concurrent run."""
    cell = TreeRnn(d=3, h=2)
    executor = cell.executor()
    batches = [inputs_of(n, n) for n in (300, 301)]
    expected = {}
    for batch in batches:
        executor.run(*batch)
        found = executor.output(cell.h_out)
        expected[len(found)] = found
    ended = threading.Event()

    def run(batch):
        while not ended.is_set():
            executor.run(*batch)

    runners = [threading.Thread(target=run, args=(batch,)) for batch in batches * 4]
    for runner in runners:
        runner.start()
    try:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            found = executor.output(cell.h_out)
            np.testing.assert_array_equal(found, expected[len(found)])
    finally:
        ended.set()
        for runner in runners:
            runner.join()


@pytest.mark.parametrize("name", ["run", "step", "squared_norm", "apply"])
def test_arrays_live_as_long_as_a_call_reads_them(slow, name):
    """Another thread may empty the lists that the call was given."""
    for _ in range(5):  # a thread may be late on a busy machine, but not every time
        there, read = emptied_while_it_waits(slow, name)
        if read:
            assert there
            return
    pytest.fail("no call had read its lists before they were empty")


def emptied_while_it_waits(slow, name):
    """True if an array lives that a call of `name` waits to read; and if the call had its lists.

    A call that finds them empty fails, or finds no norm.
    """
    _, executor, (batch, _, ints) = slow
    ints, states = [ints[0].copy()], [[np.zeros_like(executor.gradient(p))] for p in range(5)]
    pieces = [(V, np.ones_like(executor.gradient(V)), None, None, 0)]
    update = options("momentum", lr=0.0, weight_decay=0.0)
    arguments, given = {
        "run": ((batch, [], ints), ints[0]),
        "step": ((batch, [], ints, 0, 0, update, states, [True] * 5), states[W][0]),
        "squared_norm": ((pieces,), pieces[0][1]),
        "apply": ((pieces, update, states, [True] * 5), states[V][0]),
    }[name]
    known = weakref.ref(given)
    del given
    begun, results = threading.Event(), []

    def call():
        begun.set()
        with contextlib.suppress(ValueError):  # from the lists, if they are empty
            results.append(getattr(executor, name)(*arguments))

    before = threading.Thread(target=executor.run, args=(batch, [], [ints[0].copy()]))
    caller = threading.Thread(target=call)
    before.start()
    time.sleep(0.02)
    caller.start()
    begun.wait()
    time.sleep(0.02)
    for lists in (ints, pieces, *states):
        lists.clear()
    there = known() is not None or not caller.is_alive()
    before.join()
    caller.join()
    return there, bool(results) and (name != "squared_norm" or results[0] > 0)
