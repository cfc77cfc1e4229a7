"""Compare every operation with NumPy, on ranks that are threads, with data in RAM or on devices."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cavs.distributed.comm import SingleCommunicator, ThreadCommunicator, run_threads
from cavs.distributed.comm.collectives import SMALL
from cavs.distributed.comm.messages import even_counts, offsets
from cavs.errors import CommunicationError, ConfigError
from tests.cuda.nccl_threads import device_ranks
from tests.patience import patience

SIZES = st.integers(1, 5)
BELOW = {1: [0], 2: [1, 0], 3: [2, 0, 0], 4: [2, 0, 1, 0]}  # children, by distance from the root


@pytest.fixture(scope="module", params=["threads", "nccl"])
def run(request):
    """Run ranks with NumPy's arrays, or with copies on devices by a stand-in for NCCL."""
    if request.param == "threads":
        yield run_threads
        return
    with device_ranks() as run:
        yield run


def values(rank, n, dtype=np.float64):
    return np.random.default_rng((7, rank, n)).normal(size=n).astype(dtype)


@settings(max_examples=25, deadline=None)
@given(SIZES, st.sampled_from([0, 1, 3, 17, SMALL // 8, SMALL // 8 + 5, 5000]))
def test_all_reduce_sums_and_all_ranks_have_the_same_bits(run, size, n):
    def work(c):
        a = values(c.rank, n)
        c.all_reduce(a)
        return a, c.sent_bytes

    results = run(size, work)
    expected = sum(values(r, n) for r in range(size))
    for a, sent in results:
        np.testing.assert_allclose(a, expected, rtol=1e-12, atol=1e-12)
        assert a.tobytes() == results[0][0].tobytes()
        if 8 * n > SMALL:  # the formula of a ring; parts differ by one element at most
            assert abs(sent - 2 * (size - 1) / size * 8 * n) <= 2 * size * 8


NUMPY = {"sum": np.add, "mean": np.add, "min": np.minimum, "max": np.maximum}
SUMMED = ("uint8", "int32", "int64", "float16", "float32", "float64")  # by NCCL and the host


@settings(max_examples=25, deadline=None)
@given(
    SIZES,
    st.sampled_from(list(NUMPY)),
    st.sampled_from(SUMMED),
    st.sampled_from([0, 1, 7, 40, SMALL // 8 + 5, 5000]),
)
def test_all_reduce_by_other_operations(run, size, op, dtype, n):
    """Whole numbers, whose sums are exact in every order."""

    def whole(rank):
        return np.random.default_rng((7, rank, n)).integers(0, 50, n).astype(dtype)

    def work(c):
        a = whole(c.rank)
        c.all_reduce(a, op)
        return a

    if op == "mean" and "float" not in dtype:
        with pytest.raises(ConfigError, match=f"the mean of arrays of {dtype} is no {dtype}"):
            run(size, work)
        return
    expected = NUMPY[op].reduce([whole(r) for r in range(size)], dtype=dtype)
    if op == "mean":
        expected = expected / np.array(size, dtype)
    for a in run(size, work):
        np.testing.assert_array_equal(a, expected)


def test_nan_stays_nan_and_unknown_operations_are_named():
    def work(c):
        a = np.array([c.rank, np.nan if c.rank else 1.0])
        c.all_reduce(a, "min")
        return a

    for a in run_threads(3, work):
        np.testing.assert_array_equal(a, [0, np.nan])
    with pytest.raises(ConfigError, match=r"no reduction 'product'\n(.|\n)*sum, min, max, mean"):
        SingleCommunicator().all_reduce(np.zeros(1), "product")


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 9), st.data())
def test_a_broadcast_reaches_all_ranks_down_a_tree(size, data):
    root, n = data.draw(st.integers(0, size - 1)), data.draw(st.sampled_from([0, 1, 5000]))

    def work(c):
        a = values(c.rank, n)
        c.broadcast(a, root)
        return a, c.sent_bytes

    results = run_threads(size, work)
    for a, _ in results:
        np.testing.assert_array_equal(a, values(root, n))
    assert sum(sent for _, sent in results) == 8 * n * (size - 1)
    assert max(sent for _, sent in results) == 8 * n * (size - 1).bit_length()


@settings(max_examples=25, deadline=None)
@given(SIZES, st.data())
def test_reduce_scatter_and_all_gather_into_take_any_parts(run, size, data):
    counts = data.draw(st.lists(st.integers(0, 40), min_size=size, max_size=size))
    n = sum(counts)

    def work(c):
        a = values(c.rank, n)
        part = c.reduce_scatter(a, counts).copy()
        begin, end = offsets(counts)[c.rank]
        whole = np.zeros(n)
        whole[begin:end] = part
        c.all_gather_into(whole, counts)
        return part, whole

    expected = sum(values(r, n) for r in range(size))
    for rank, (part, whole) in enumerate(run(size, work)):
        begin, end = offsets(counts)[rank]
        np.testing.assert_allclose(part, expected[begin:end], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(whole, expected, rtol=1e-12, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(SIZES, st.data())
def test_gathers_of_rows_of_any_number(run, size, data):
    rows = data.draw(st.lists(st.integers(0, 9), min_size=size, max_size=size))

    def work(c):
        own = values(c.rank, 3 * rows[c.rank], np.float32).reshape(-1, 3)
        parts = [own[: (r + c.rank) % 3] for r in range(size)]
        return c.all_gather(own), c.all_to_all(parts)

    def matrix(rank):
        return values(rank, 3 * rows[rank], np.float32).reshape(-1, 3)

    for rank, (every, mine) in enumerate(run(size, work)):
        for r in range(size):
            np.testing.assert_array_equal(every[r], matrix(r))
            np.testing.assert_array_equal(mine[r], matrix(r)[: (rank + r) % 3])


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_reduce_adds_in_the_order_of_ranks_and_broadcast_sends_from_the_root(run, size):
    def work(c):
        a = values(c.rank, 11, np.float32)
        c.reduce(a, size - 1)
        sent = c.sent_bytes
        b = values(c.rank, 11)
        c.broadcast(b, size - 1)
        return a, b, sent, c.sent_bytes - sent

    results = run(size, work)
    expected = values(0, 11, np.float32)
    for r in range(1, size):
        expected = expected + values(r, 11, np.float32)
    root = size - 1
    assert results[root][0].tobytes() == expected.tobytes()
    for r, (_, b, up, down) in enumerate(results):
        np.testing.assert_array_equal(b, values(root, 11))
        assert up == (0 if r == root else 44)
        distance = (r - root) % size  # in the tree below the root
        assert down == 88 * BELOW[size][distance]


def test_send_receive_share_split_and_barrier(run):
    def work(c):
        a = np.full(4, c.rank, np.int32)
        b = np.empty(4, np.int32)
        if c.rank % 2:
            c.send(a, c.rank - 1)
        else:
            c.receive(b, c.rank + 1)
            assert (b == c.rank + 1).all()
        half = c.split(c.rank % 2, -c.rank)
        c.barrier()
        members = half.share(c.rank)
        half.close()
        return c.share({"rank": c.rank}), half.rank, half.size, members

    for rank, (shared, half, size, members) in enumerate(run(4, work)):
        assert shared == [{"rank": r} for r in range(4)]
        assert (half, size) == (1 - rank // 2, 2)
        assert members == [rank % 2 + 2, rank % 2]


@settings(max_examples=10, deadline=None)
@given(SIZES, st.lists(st.integers(0, 3000), min_size=1, max_size=3))
def test_an_exchange_sends_and_receives_all_at_once(run, size, sizes):
    """Around a ring and back, receives before sends would deadlock."""

    def work(c):
        ways = [1, -1] if c.size > 1 else []
        sends = [
            (np.full(n, 10.0 * c.rank + w), (c.rank + w) % c.size) for w in ways for n in sizes
        ]
        into = [(np.empty(n), (c.rank - w) % c.size) for w in ways for n in sizes]
        before = c.sent_bytes
        c.exchange(sends, into)
        assert c.sent_bytes - before == 8 * len(ways) * sum(sizes)
        came = zip(into, np.repeat(ways, len(sizes)), strict=True)
        return [(array, 10.0 * source + way) for (array, source), way in came]

    for came in run(size, work):
        for array, expected in came:
            assert (array == expected).all()


def test_an_exchange_names_missing_ranks():
    def work(c):
        for rank, found in ((2, "there is no rank 2"), (c.rank, f"rank {c.rank} is this one")):
            with pytest.raises(ConfigError, match=found):
                c.exchange([], [(np.zeros(1), rank)])

    run_threads(2, work)
    SingleCommunicator().exchange([], [])


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("overlaps", [True, False])
def test_started_operations_keep_their_order(overlaps, first):
    def work(c):
        c.overlaps = overlaps
        arrays = [values(c.rank, n) for n in (5, 4000, 7)]
        handles = [c.start(c.all_reduce, a) for a in arrays]
        last = values(c.rank, 9)
        if first:
            handles[0].wait()
        c.all_reduce(last)  # waits for its turn
        assert all(h.done for h in handles)
        handles[0].wait()
        return [*arrays, last]

    for arrays in run_threads(3, work):
        for a in arrays:
            np.testing.assert_allclose(a, sum(values(r, a.size) for r in range(3)))


def test_thousands_of_operations_may_wait_for_the_last():
    def work(c):
        c.overlaps = False
        arrays = [np.ones(1) for _ in range(3000)]
        handles = [c.start(c.all_reduce, a) for a in arrays]
        handles[-1].wait()
        assert all(h.done for h in handles) and all(a[0] == 2 for a in arrays)

    run_threads(2, work)


def test_a_started_operation_runs_concurrently():
    """Rank 0 starts, rank 1 comes later: rank 0 is free in between."""
    free = threading.Event()

    def work(c):
        a = np.ones(10)
        if c.rank == 1:
            assert free.wait(10)
        handle = c.start(c.all_reduce, a)
        if c.rank == 0:
            assert not handle.done
            free.set()
        handle.wait()
        return a[0]

    assert run_threads(2, work) == [2, 2]


def test_a_background_error_is_raised_by_wait():
    def work(c):
        handle = c.start(c.broadcast, np.zeros(1), 5)
        with pytest.raises(ConfigError, match="there is no rank 5"):
            handle.wait()

    run_threads(2, work)


def test_a_missing_peer_is_named():
    gave_up = threading.Semaphore(0)

    def work(c):
        c.barrier()  # a thread that has not started yet would be missing, too
        c.timeout = 0.2
        if c.rank == 2:
            assert all(gave_up.acquire(timeout=patience(20)) for _ in range(2))
            return
        try:
            c.all_reduce(np.zeros(1))
        finally:
            gave_up.release()

    with pytest.raises(CommunicationError, match=r"waited 0.2 s in all-reduce.*rank 2 did not"):
        run_threads(3, work)


def test_a_failed_rank_ends_the_others():
    def work(c):
        if c.rank == 1:
            raise ZeroDivisionError("of this rank")
        with pytest.raises(CommunicationError, match="rank 1 failed: of this rank"):
            c.barrier()
        raise CommunicationError("told")

    with pytest.raises(ZeroDivisionError):
        run_threads(2, work)


def test_bad_arguments_are_named():
    c = SingleCommunicator()
    with pytest.raises(ConfigError, match=r"shape \(4, 2\) .* is not C-contiguous"):
        c.all_reduce(np.zeros((2, 4)).T)
    with pytest.raises(ConfigError, match=r"counts \[3\] do not cut 4 elements for 1 ranks"):
        c.reduce_scatter(np.zeros(4), [3])
    with pytest.raises(ConfigError, match="2 parts for 1 ranks"):
        c.all_to_all([np.zeros(1), np.zeros(1)])


def test_a_single_process_keeps_its_values():
    c = SingleCommunicator()
    a = values(0, 6)
    for operation in (
        lambda: c.all_reduce(a),
        lambda: c.reduce(a, 0),
        lambda: c.broadcast(a, 0),
        lambda: c.reduce_scatter(a, [6]),
        lambda: c.all_gather_into(a, [6]),
        c.barrier,
    ):
        operation()
        np.testing.assert_array_equal(a, values(0, 6))
    np.testing.assert_array_equal(c.all_gather(a)[0], a)
    assert c.share([1]) == [[1]] and c.split(3).size == 1 and c.sent_bytes == 0


def test_even_counts():
    assert even_counts(10, 4) == [3, 3, 2, 2]
    assert even_counts(2, 3) == [1, 1, 0]


def test_different_sizes_are_an_error():
    def work(c: ThreadCommunicator):
        c.all_reduce(np.zeros(1 + c.rank))

    with pytest.raises(CommunicationError, match="sent 16 bytes, rank 0 expects 8"):
        run_threads(2, work)
