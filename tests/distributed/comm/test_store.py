"""The store: arrays that ranks keep and others request while they compute."""

import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cavs.distributed.comm import LostPeerError, SingleCommunicator, run_threads, store_entry
from cavs.errors import CommunicationError, ConfigError
from tests.patience import patience

SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
DTYPES = st.sampled_from(["float32", "float64", "float16", "int64", "uint8"])


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 4), st.lists(st.tuples(SHAPES, DTYPES), min_size=1, max_size=4))
def test_a_request_returns_what_is_kept(size, forms):
    def arrays(rank):
        return [np.full(shape, rank + 1, dtype) for shape, dtype in forms]

    def same(found, expected):
        assert found.dtype == expected.dtype and found.shape == expected.shape
        np.testing.assert_array_equal(found, expected)

    def work(c):
        store, mine = c.store(), arrays(c.rank)
        assert store.keep(mine, "list") == 1
        assert store.keep({f"w{i}": a for i, a in enumerate(mine)}, "model") == 1
        store.keep(mine[0], "array")
        for array in mine:
            array[...] = 99  # the store has copies
        for rank in range(c.size):
            expected = arrays(rank)
            for found in (
                store.request(rank, None, "list"),
                list(store.request(rank, None, "model").values()),
            ):
                assert len(found) == len(expected)
                for one, other in zip(found, expected, strict=True):
                    same(one, other)
            same(store.request(rank, len(forms) - 1, "list"), expected[-1])
            same(store.request(rank, "w0", "model"), expected[0])
            same(store.request(rank, None, "array"), expected[0])
        c.barrier()

    run_threads(size, work)


def test_a_reply_has_the_version_that_was_kept_last():
    def work(c):
        store, versions = c.store(), []
        for i in range(3):
            assert store.version("w") == i
            store.keep(np.full(2, i), "w")
            c.barrier()
            reply = store.request_async(1 - c.rank, None, "w").wait()
            versions.append((reply.version, reply.value[0]))
            assert 0 < reply.seconds < 5
            c.barrier()
        return versions, store.request_counts().tolist(), store.request_seconds()[1 - c.rank] > 0

    for rank, (versions, counts, positive) in enumerate(run_threads(2, work)):
        assert versions == [(1, 0), (2, 1), (3, 2)]
        assert counts[1 - rank] == 3 and counts[rank] == 0 and positive


def test_no_reply_mixes_two_versions():
    """One rank keeps models all the time; the others read them meanwhile."""

    def work(c):
        store, end = c.store(), time.monotonic() + 0.5
        store.keep([np.zeros(5000), np.zeros(5000)], "model")
        count = 0
        while time.monotonic() < end:
            if c.rank == 0:
                count += 1
                store.keep([np.full(5000, count), np.full(5000, count)], "model")
            else:
                reply = store.request_async(0, None, "model").wait()
                assert len({float(x) for a in reply.value for x in a}) == 1
                count += 1
        c.barrier()
        return count

    assert min(run_threads(3, work)) > 5


def test_a_request_before_the_first_keep_waits_for_it():
    def work(c):
        store = c.store()
        if c.rank == 0:
            time.sleep(0.3)
            store.keep({"a": np.arange(3)}, "late")
            c.barrier()
            return None
        futures = [store.request_async(0, name, "late") for name in ("a", None)]
        assert not futures[0].done
        found = futures[0].wait().value
        assert futures[1].wait().value.keys() == {"a"}
        c.barrier()
        return found.tolist()

    assert run_threads(2, work) == [None, [0, 1, 2]]


def test_a_tag_that_is_never_kept_is_named_with_its_rank():
    def work(c):
        store = c.store()
        store.keep(np.ones(1), "here")
        c.barrier()
        text = ""
        if c.rank == 0:
            c.timeout = 0.3
            with pytest.raises(CommunicationError) as error:
                store.request(2, None, "gone")
            c.timeout = patience(20)
            text = str(error.value)
            assert store.request(2, None, "here")[0] == 1  # the store goes on
        c.barrier()
        if c.rank == 2:  # no answer to a request that was given up
            end = time.monotonic() + 10
            while any(store._waiting.values()) and time.monotonic() < end:
                time.sleep(0.01)
            assert not any(store._waiting.values())
            store.keep(np.ones(1), "gone")
        return text

    text = run_threads(3, work, timeout=patience(20))[0]
    assert "rank 0 waited 0.3 s in request of 'gone' from rank 2" in text
    assert "rank 2 has kept nothing under 'gone'" in text


def test_names_that_are_not_kept_are_an_error_at_once():
    def work(c):
        store = c.store()
        store.keep({"a": np.ones(1), "b": np.ones(1)}, "model")
        c.barrier()
        with pytest.raises(ConfigError, match="rank 1 keeps 'a', 'b' under 'model', not 'c'"):
            store.request(1, "c", "model")
        with pytest.raises(ConfigError, match="there is no rank 2"):
            store.request(2, "a", "model")
        for name in (["a"], 0.0, True):
            with pytest.raises(ConfigError, match="must be a name, the number of an array"):
                store.request(1, name, "model")
        assert store.request(1, "a", "model") == 1.0  # the store of that rank still answers
        with pytest.raises(ConfigError, match="is no NumPy array"):
            store.keep([1.0], "model")
        c.barrier()

    run_threads(2, work)


def test_a_callback_has_the_reply_before_the_handle_is_done():
    def work(c):
        store, seen = c.store(), []
        store.keep(np.full(1, c.rank), "w")
        future = store.request_async(1 - c.rank, None, "w", seen.append)
        assert future.wait() is seen[0] and seen[0].value[0] == 1 - c.rank

        def fail(reply):
            raise ZeroDivisionError("of the callback")

        with pytest.raises(ZeroDivisionError, match="of the callback"):
            store.request_async(1 - c.rank, None, "w", fail).wait()
        c.barrier()

    run_threads(2, work)


def test_a_rank_that_computes_still_answers():
    free = threading.Event()

    def work(c):
        store = c.store()
        store.keep(np.ones(1), "w")
        if c.rank == 1:
            assert free.wait(10)
        else:
            assert store.request(1, None, "w")[0] == 1 and store.ping(1) < 5
            free.set()
        c.barrier()

    run_threads(2, work)


def test_a_death_ends_all_requests():
    def work(c):
        store = c.store()
        futures = [store.request_async(r, None, "never") for r in (0, 1, 2)]
        c.barrier()
        if c.rank == 1:
            c.die()
            return None
        for future in futures:
            with pytest.raises(LostPeerError, match=r"ranks \[1\] are gone"):
                future.wait()
        with pytest.raises(LostPeerError):
            store.keep(np.ones(1), "w")
        return True

    assert run_threads(3, work) == [True, None, True]


def test_one_rank_requests_from_itself():
    store = SingleCommunicator().store()
    store.keep([np.ones(2), np.zeros(3)], "w")
    assert [a.size for a in store.request(0, None, "w")] == [2, 3]
    store.close()
    with pytest.raises(CommunicationError, match="closed"):
        store.request(0, None, "w")


def test_a_request_waits_for_the_version_that_it_names():
    def work(c):
        store = c.store()
        c.barrier()
        if c.rank == 0:
            future = store.request_async(1, None, "w", version=3)
            time.sleep(0.05)
            assert not future.done
            c.barrier()
            reply = future.wait()
            assert (reply.version, reply.value[0]) == (3, 3)
            assert store.request_async(1, None, "w", version=2).wait().version == 3
        else:
            store.keep(np.full(1, 1), "w")
            store.keep(np.full(1, 2), "w")
            c.barrier()
            store.keep(np.full(1, 3), "w")
        c.barrier()
        if c.rank == 1:
            assert store.keep(np.full(1, 9), "w", version=9) == 9 == store.version("w")
            with pytest.raises(ConfigError, match="version 9 of 'w' after version 9"):
                store.keep(np.full(1, 9), "w", version=9)
        c.timeout = 0.2
        if c.rank == 0:
            with pytest.raises(CommunicationError, match="no version 12 yet under 'w'"):
                store.request_async(1, None, "w", version=12).wait()
        c.timeout = patience(20)
        c.barrier()

    run_threads(2, work, timeout=patience(20))


@settings(max_examples=10, deadline=None)
@given(st.integers(2, 5), st.lists(SHAPES, min_size=1, max_size=3), st.sampled_from(["sum", "max"]))
def test_arrays_are_combined_one_after_the_other(size, shapes, op):
    """All other ranks combine theirs with those of rank 0; each has what rank 0 had by then."""

    def work(c):
        store = c.store()
        store.keep([np.full(shape, float(c.rank + 1)) for shape in shapes], "w")
        c.barrier()
        found = None
        if c.rank:
            mine = [np.full(shape, float(c.rank + 1)) for shape in shapes]
            # By version: rank 1 is the first.
            found = store.combine(0, mine, "w", op, version=c.rank).wait()
        c.barrier()
        return store.kept("w"), store.version("w"), found

    results = run_threads(size, work)
    total = 1.0
    for rank in range(1, size):
        total = total + rank + 1 if op == "sum" else float(rank + 1)
        reply = results[rank][2]
        assert reply.version == rank + 1
        assert all((array == total).all() for array in reply.value)
    assert results[0][1] == size and [a.shape for a in results[0][0]] == shapes
    assert all((array == total).all() for array in results[0][0])


def test_no_combination_is_lost():
    """Ranks add to the arrays of rank 0 in any order, and to those of each other, at once."""

    def work(c):
        store = c.store()
        store.keep({"a": np.zeros(1000), "b": np.zeros(3)}, "w")
        c.barrier()
        one = {"a": np.ones(1000), "b": np.ones(3)}
        futures = [store.combine(r, one, "w", "sum") for r in range(c.size) for _ in range(20)]
        for future in futures:
            assert len({float(x) for a in future.wait().value.values() for x in a}) == 1
        c.barrier()
        return [a.tolist() for a in store.kept("w")]

    for a, b in run_threads(4, work):
        assert set(a) == set(b) == {80.0}


def test_arrays_of_another_form_are_not_combined():
    def work(c):
        store = c.store()
        store.keep(np.ones(2), "w")
        c.barrier()
        if c.rank == 0:
            with pytest.raises(ConfigError, match=r"rank 1 keeps .*\[2\].* under 'w', not .*\[3\]"):
                store.combine(1, np.ones(3), "w").wait()
            with pytest.raises(ConfigError, match="the mean of arrays of int64"):
                store.combine(1, np.ones(2, np.int64), "w")
            with pytest.raises(ConfigError, match="no reduction 'median'"):
                store.combine(1, np.ones(2), "w", "median")
            assert store.combine(1, np.zeros(2), "w").wait().value.tolist() == [0.5, 0.5]
        c.barrier()

    run_threads(2, work)


def test_a_cancelled_request_ends_and_its_reply_is_ignored():
    def work(c):
        store, seen = c.store(), []
        c.barrier()
        if c.rank == 0:
            future = store.request_async(1, None, "late", seen.append)
            store.cancel(future)
            with pytest.raises(CommunicationError, match="from rank 1 was cancelled"):
                future.wait()
        c.barrier()
        store.keep(np.ones(1), "late")
        c.barrier()
        assert store.request(1 - c.rank, None, "late")[0] == 1 and seen == []
        c.barrier()

    run_threads(2, work)


def test_bytes_of_services_are_counted():
    def work(c):
        store = c.store()
        store.keep(np.zeros(1000), "w")
        c.barrier()
        before = c.service_bytes
        c.barrier()
        operations = c.sent_bytes
        if c.rank == 0:
            store.request(1, None, "w")
        assert c.sent_bytes == operations
        c.barrier()
        return c.service_bytes - before

    asked, answered = run_threads(2, work)
    assert 0 < asked < 200 and 8000 < answered < 8300


def test_a_large_answer_comes_in_parts_of_one_version(monkeypatch):
    """Arrays that are replaced while parts travel are those of the request."""
    monkeypatch.setattr(store_entry, "MOST", 1 << 17)
    shapes = [(300, 401), (0, 3), (70_000,), ()]

    def arrays(version):
        return [np.full(shape, version, np.float32) for shape in shapes]

    def work(c):
        store = c.store()
        store.keep(arrays(1), "w")
        c.barrier()
        if c.rank == 1:
            for version in range(2, 30):
                store.keep(arrays(version), "w")
            c.barrier()
            return
        for _ in range(6):
            reply = store.request_async(1, None, "w").wait()
            assert [a.shape for a in reply.value] == shapes
            assert {float(x) for a in reply.value for x in np.unique(a)} == {reply.version}
        c.barrier()

    run_threads(2, work)


def test_messages_pass_between_the_parts_of_an_answer(monkeypatch):
    monkeypatch.setattr(store_entry, "MOST", 1 << 16)

    def work(c):
        store = c.store()
        store.keep(np.arange(1 << 21, dtype=np.float64), "large")
        store.keep(np.ones(1), "small")
        c.barrier()
        if c.rank == 0:
            large = store.request_async(1, None, "large")
            assert store.request(1, None, "small")[0] == 1
            assert not large.done  # 256 parts or more are left
            np.testing.assert_array_equal(large.wait().value, np.arange(1 << 21))
        c.barrier()

    run_threads(2, work)


def test_a_cancelled_answer_ends(monkeypatch):
    monkeypatch.setattr(store_entry, "MOST", 1 << 16)

    def work(c):
        store = c.store()
        store.keep(np.zeros(1 << 21), "w")
        c.barrier()
        if c.rank == 0:
            future = store.request_async(1, None, "w")
            store.ping(1)
            store.cancel(future)
            with pytest.raises(CommunicationError, match="was cancelled"):
                future.wait()
            store.ping(1)
        c.barrier()
        return len(store._leaving)

    assert run_threads(2, work) == [0, 0]
