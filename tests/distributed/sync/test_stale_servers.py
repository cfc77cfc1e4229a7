"""The rules of stale parameters, visible in the data: every update leaves a mark of its own.

Worker w changes element (w, c) of a parameter, and row (w, c) of a table, in its step c, from 0 to
1. The values that a worker reads at the beginning of a step show which updates they contain.
"""

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cavs
from cavs.distributed.comm import run_threads
from cavs.distributed.strategy import GraphConfig, NodeConfig, Strategy
from cavs.distributed.sync import ParameterServer
from cavs.distributed.sync.stale_server import StaleServers, layout_of
from cavs.distributed.sync.stale_server.owner import Clocks
from cavs.errors import CommunicationError
from tests.distributed.launch.test_launcher import wait_for
from tests.distributed.step.test_consensus import outcomes
from tests.patience import patience

SGD = cavs.optim.SGD(lr=1.0).hyper(0)


def sync(device, staleness):
    """Return a synchroniser; staleness None: asynchronous."""
    return ParameterServer(destination=device, sync=staleness is not None, staleness=staleness or 0)


class Marks:
    """Parameters "dense" [workers, steps], owned in two parts, and "table" [workers * steps, 2]."""

    def __init__(self, c, steps, staleness, owners, servers=0):
        workers = c.size - servers
        devices = [f"h:CPU:{i}" for i in range(c.size)]
        shapes = {"dense": (workers, steps), "table": (workers * steps, 2)}
        self.values = {name: np.zeros(shape) for name, shape in shapes.items()}
        nodes = []
        for j, name in enumerate(shapes):
            axis = 1 - j if steps > 1 else 0
            parts = 2 if shapes[name][axis] > 1 else 1
            shards = [
                sync(devices[owners[2 * j + i] % c.size], staleness[2 * j + i])
                for i in range(parts)
            ]
            if parts == 1:
                nodes.append(NodeConfig(name=name, synchroniser=shards[0]))
                continue
            vector = tuple(2 if i == axis else 1 for i in range(2))
            leaves = tuple(
                NodeConfig(name=f"{name}/part_{i}", synchroniser=s) for i, s in enumerate(shards)
            )
            nodes.append(NodeConfig(name=name, partition=vector, shards=leaves))
        graph = GraphConfig(replicas=tuple(devices[:workers]), servers=tuple(devices[workers:]))
        parameters = {
            name: SimpleNamespace(shape=value.shape, trainable=True, sparse=name == "table")
            for name, value in self.values.items()
        }
        self.layout = layout_of(Strategy(graph=graph, nodes=tuple(nodes)), parameters)
        flat = [v.reshape(-1) for v in self.values.values()]
        self.servers = StaleServers(c, self.layout, flat, [[w] for w in range(workers)])
        self.servers.open([[], []], SGD)
        self.workers, self.steps, self.rank = workers, steps, c.rank

    def push(self, step):
        """Push the gradient of one step: minus 1 at its mark, times the workers for their mean."""
        gradient = np.zeros_like(self.values["dense"])
        gradient[self.rank, step] = -self.workers
        row = np.array([self.rank * self.steps + step], np.int32)
        values = np.full((1, 2), -float(self.workers))
        for unit in self.layout.units:
            if unit.rows is None:
                part = np.ascontiguousarray(unit.part.view(gradient.reshape(-1)))
                self.servers.push(unit.owner, [unit.number], [part])
            else:
                inside = (row >= unit.rows[0]) & (row < unit.rows[1])
                self.servers.push(unit.owner, [unit.number], [row[inside], values[inside]])

    def seen(self, unit):
        """Return [workers, steps] of 0 and 1 for the values of `unit` on this rank; NaN
        elsewhere.
        """
        found = np.full((self.workers, self.steps), np.nan)
        if unit.rows is None:
            mask = np.zeros(self.values["dense"].size)
            unit.part.view(mask)[...] = 1
            mask = mask.reshape(found.shape) > 0
            found[mask] = self.values["dense"][mask]
        else:
            begin, end = unit.rows
            rows = self.values["table"][begin:end]
            assert (rows[:, 0] == rows[:, 1]).all()
            found.reshape(-1)[begin:end] = rows[:, 0]
        return found

    def check(self, step, made):
        """Check the updates visible at the beginning of `step`; `made`: steps of every worker."""
        for unit in self.layout.units:
            found, bound = self.seen(unit), self.layout.groups[unit.group].staleness
            known = found[~np.isnan(found)]
            assert np.isin(known, [0, 1]).all(), "an update was applied twice"
            for w in range(self.workers):
                marks = found[w][~np.isnan(found[w])]
                assert (np.diff(marks) <= 0).all(), "an update is missing between two others"
                late = 0 if w == self.rank else self.steps if bound is None else bound
                must = found[w][: max(min(step - late, made[w]), 0)]
                assert (must[~np.isnan(must)] == 1).all(), (step, w, bound, found)


STALENESS = st.one_of(st.none(), st.integers(1, 4))


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_reads_satisfy_the_staleness_and_no_update_is_lost(data):
    size = data.draw(st.integers(1, 4))
    servers = data.draw(st.integers(0, 1)) if size > 1 else 0
    workers = size - servers
    steps = data.draw(st.lists(st.integers(0, 8), min_size=workers, max_size=workers))
    more = data.draw(st.integers(0, 3))  # after a consensus
    total = max(*steps, 0, 0) + more
    staleness = [data.draw(STALENESS) for _ in range(4)]
    owners = data.draw(st.lists(st.integers(0, size - 1), min_size=4, max_size=4))
    seed = data.draw(st.integers(0, 99))
    slow = data.draw(st.integers(0, size - 1))
    finished, guard = [0] * workers, threading.Lock()
    bound = min((10**9 if s is None else s) for s in staleness)

    def work(c):
        marks = Marks(c, max(total, 1), staleness, owners, servers)
        rng = np.random.default_rng([seed, c.rank])
        pause = 2e-3 if c.rank == slow else 2e-4
        if c.rank < workers:
            for step in range(steps[c.rank]):
                run_step(marks, step, rng.random() * pause, finished, guard)
        marks.servers.settle()
        halfway = {n: v.copy() for n, v in marks.values.items()}
        at = max(steps, default=0)
        if c.rank < workers:
            finished[c.rank] = at  # all clocks are at the furthest now
        c.barrier()
        if c.rank < workers:
            for step in range(at, at + more):
                marks.servers.fetch()
                marks.push(step)
                marks.servers.commit(1.0, 1.0)
                time.sleep(rng.random() * pause)
        marks.servers.settle()
        c.barrier()
        marks.servers.close()
        return halfway, marks.values

    def run_step(marks, step, pause, finished, guard):
        marks.servers.fetch()
        with guard:
            others = [n for w, n in enumerate(finished) if n < steps[w]]
            assert all(n >= step - bound for n in others), (step, finished, bound)
        marks.check(step, steps)
        time.sleep(pause)
        marks.push(step)
        with guard:
            finished[marks.rank] += 1  # before its commit: others may see it at once
        marks.servers.commit(1.0, 1.0)

    results = run_threads(size, work, timeout=patience(20))
    expected = np.zeros((workers, max(total, 1)))
    for w, count in enumerate(steps):
        expected[w, :count] = 1
    at = max(steps, default=0)
    after = expected.copy()
    after[:, at : at + more] = 1
    for halfway, values in results:
        np.testing.assert_array_equal(halfway["dense"], expected)
        np.testing.assert_array_equal(halfway["table"][:, 0].reshape(expected.shape), expected)
        np.testing.assert_array_equal(values["dense"], after)
        np.testing.assert_array_equal(values["table"][:, 1].reshape(expected.shape), after)


@given(
    st.integers(0, 3),
    st.lists(st.integers(0, 3), max_size=40),
)
def test_clocks_enforce_the_staleness(staleness, turns):
    clocks, began = Clocks(range(4)), [0] * 4
    for worker in turns:
        if clocks.may_begin(clocks.of[worker], staleness):
            began[worker] = clocks.of[worker]
            clocks.of[worker] += 1
            assert began[worker] - min(clocks.of.values()) <= staleness
    # Some worker may always run: no deadlock.
    assert any(clocks.may_begin(clock, staleness) for clock in clocks.of.values())


def test_a_fast_worker_waits_for_a_slow_one_only_at_the_bound():
    """Worker 1 makes no step: worker 0 makes s + 1, or all of them without a bound."""
    for staleness, expected in ((1, 2), (3, 4), (None, 20)):
        made, looked = [], threading.Event()

        def work(c, staleness=staleness, expected=expected, made=made, looked=looked):
            marks = Marks(c, 20, [staleness] * 4, [0, 1, 1, 0])
            if c.rank == 1:
                wait_for(lambda: len(made) >= expected)
                time.sleep(0.1)
                found = len(made)
                looked.set()
                marks.servers.settle()  # releases the other one
            else:
                for step in range(20):
                    marks.servers.fetch()
                    marks.push(step)
                    marks.servers.commit(1.0, 1.0)
                    made.append(step)
                looked.wait(20)
                found = len(made)
                marks.servers.settle()
            marks.servers.close()
            return found

        assert run_threads(2, work) == [20, expected]


def test_an_uncommitted_step_leaves_no_trace():
    def work(c):
        marks = Marks(c, 3, [2] * 4, [0, 1, 1, 0])
        marks.servers.fetch()
        marks.push(0)  # failed: never committed
        for step in (1, 2):
            marks.servers.fetch()
            marks.push(step)
            marks.servers.commit(1.0, 1.0)
        marks.servers.settle()
        marks.servers.close()
        return marks.values["dense"]

    for values in run_threads(2, work):
        np.testing.assert_array_equal(values, [[0, 1, 1]] * 2)


def test_a_hanging_worker_is_named_by_all_that_wait():
    def work(c):
        c.timeout = 1.5
        marks = Marks(c, 9, [1] * 4, [0, 2, 2, 0])
        c.timeout = 60.0
        if c.rank == 1:
            marks.servers.fetch()
            marks.push(0)
            marks.servers.commit(1.0, 1.0)
            c.barrier()
            return None
        with pytest.raises(CommunicationError) as caught:
            for step in range(9):
                marks.servers.fetch()
                marks.push(step)
                marks.servers.commit(1.0, 1.0)
        c.barrier()
        return str(caught.value)

    first, _, third = run_threads(3, work)
    for text in (first, third):
        assert "waited 1.5 s for step 4: rank 1 is still in its step 2" in text


def test_a_waiting_worker_is_not_blamed():
    gave_up = threading.Semaphore(0)

    def work(c):
        c.timeout = 0.8
        marks = Marks(c, 9, [1] * 4, [0, 1, 1, 0])
        marks.servers.fetch()
        marks.push(0)
        marks.servers.commit(1.0, 1.0)
        if c.rank == 2:
            assert gave_up.acquire(timeout=20) and gave_up.acquire(timeout=20)
            return
        c.timeout = 1.2
        try:
            if c.rank == 1:
                for step in (1, 2, 3):
                    marks.servers.fetch()
                    marks.push(step)
                    marks.servers.commit(1.0, 1.0)
            else:
                c.receive(np.zeros(1), 1)
        finally:
            gave_up.release()

    first, second, _ = outcomes(3, work)
    assert "rank 0 waited 1.2 s in receive from rank 1: rank 2 did not come" in str(first)
    assert "rank 1 waited 0.8 s for step 4: rank 2 is still in its step 2" in str(second)


def test_a_slow_worker_is_not_a_hang():
    def work(c):
        c.barrier()
        c.timeout = 1.2
        marks = Marks(c, 9, [1] * 4, [0, 1, 1, 0])
        if c.rank == 1:
            for step in range(9):
                marks.servers.fetch()
                time.sleep(0.2)
                marks.push(step)
                marks.servers.commit(1.0, 1.0)
        marks.servers.settle()  # rank 0 waits 1.8 s here
        marks.servers.close()
        return marks.values["dense"].sum()

    assert run_threads(2, work) == [9, 9]


def test_an_error_of_one_reaches_all_and_stays():
    def work(c):
        marks = Marks(c, 9, [1] * 4, [0, 1, 2, 0])
        c.barrier()
        if c.rank == 1:
            marks.servers.fail(ValueError("no such word"))
            with pytest.raises(ValueError, match="no such word"):
                marks.servers.fetch()
            return None
        with pytest.raises(CommunicationError) as caught:
            marks.servers.settle()
        with pytest.raises(CommunicationError):
            marks.servers.fetch()
        return str(caught.value)

    begun = time.monotonic()
    first, _, third = run_threads(3, work)
    assert "another rank failed\n  rank 1: ValueError: no such word" in first
    assert "rank 1" in third and time.monotonic() - begun < patience(5)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 4), st.integers(0, 99), st.integers(0, 3))
def test_a_stop_ends_all_after_the_same_step(size, seed, asks):
    def work(c):
        marks = Marks(c, 30, [2] * 4, [0, 1, 1, 0])
        rng = np.random.default_rng([seed, c.rank])
        wish = int(rng.integers(1, 20)) if c.rank <= asks else 10**9
        step = 0
        while step < 30:
            marks.servers.fetch()
            time.sleep(rng.random() * 1e-3)
            marks.push(step)
            marks.servers.commit(1.0, 1.0)
            step += 1
            if marks.servers.stops(step >= wish):
                break
        marks.servers.settle()
        marks.servers.close()
        return step, marks.values["dense"].copy()

    results = run_threads(size, work)
    assert len({step for step, _ in results}) == 1
    step = results[0][0]
    assert step <= 24
    for _, values in results:
        np.testing.assert_array_equal(values[:, :step], 1)
        np.testing.assert_array_equal(values[:, step:], 0)
