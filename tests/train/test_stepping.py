"""A training step is one call from Python into the engine, and other threads run meanwhile."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import time

import pytest

import cavs
from cavs import _engine, optim
from tests.runtime.trees import Classifier, treebank


def noted(function, name, calls):
    """Return the function, with calls on this thread recorded."""
    mine = threading.get_ident()

    @functools.wraps(function)
    def call(*arguments, **options):
        if threading.get_ident() == mine:
            calls.append(name)
        return function(*arguments, **options)

    return call


@pytest.fixture
def calls(monkeypatch):
    """Names of the engine functions that this thread calls, in order."""
    found: list[str] = []
    for name, value in list(vars(_engine).items()):
        if inspect.isbuiltin(value):
            monkeypatch.setattr(_engine, name, noted(value, name, found))

    class Recorded(_engine.Executor):
        """An executor that records the calls of its methods."""

        def __getattribute__(self, name):
            method = super().__getattribute__(name)
            special = name.startswith("__")
            return method if special or not callable(method) else noted(method, name, found)

    monkeypatch.setattr(_engine, "Executor", Recorded)
    return found


def trained():
    model = Classifier()
    model.initialize(0)
    return cavs.Trainer(model, optim.Adagrad(0.05), max_norm=1.0)


def test_a_step_is_one_call(calls):
    trainer, batches = trained(), [treebank(40, seed) for seed in (0, 1)]
    for batch in batches:
        trainer.step(batch)  # compiles, makes schedules
    assert {"make_schedule", "merge_copies", "step"} < set(calls)
    for batch in batches:
        calls.clear()
        trainer.step(batch)
        assert calls == ["step"]


def test_the_training_thread_calls_only_the_step_in_a_fit(calls):
    """The thread of the loader collates batches and builds their schedules."""
    graphs = [graph for seed in range(4) for graph in treebank(20, seed).graphs]
    trainer, loader = trained(), cavs.DataLoader(graphs, 20)
    trainer.fit(loader, epochs=1, progress=False)
    calls.clear()
    trainer.fit(loader, epochs=1, progress=False)
    assert calls == ["step"] * 4


def test_other_threads_run_during_a_step():
    """The switch interval is long, so that only the engine can release the interpreter lock."""
    turns, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            turns[0] += 1
            time.sleep(1e-4)

    trainer, batch = trained(), treebank(400)
    trainer.step(batch)
    executor, inputs, _ = trainer.session.ready(batch)
    hyper = trainer.optimizer.hyper(2)
    trainable = [p.trainable for p in trainer.parameters.values()]

    def during(work):
        before = turns[0]
        work()
        return turns[0] - before

    def step():
        executor.step(*inputs, 0, 2, hyper, trainer.states, trainable, None)

    other, interval = threading.Thread(target=count), sys.getswitchinterval()
    try:
        sys.setswitchinterval(30)  # longer than any step
        other.start()
        while not turns[0]:
            time.sleep(1e-3)
        assert during(lambda: sum(range(10**6))) == 0  # pure Python keeps the lock
        # On a busy machine, at least one of many steps sees the other thread run.
        assert any(during(step) for _ in range(1000))
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        other.join()
