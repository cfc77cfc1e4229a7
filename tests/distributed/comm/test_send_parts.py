"""Parts of sizes that receivers do not know, which leave before receivers come."""

import threading
import time

import numpy as np
import pytest

from cavs.distributed.comm import SingleCommunicator, run_threads
from cavs.errors import CommunicationError, ConfigError
from tests.distributed.mpirun import needs_mpi4py, run_ranks
from tests.patience import patience

LIKE = [np.empty(0, np.int32), np.empty((0, 3))]


def parts(rank, to):
    n = (rank * 3 + to) % 4  # none between some ranks
    return [np.arange(n, dtype=np.int32) + rank, np.full((n, 3), 10.0 * rank + to)]


def awaited(arrivals, least):
    """True if a rank waited for one of these messages for at least so many seconds."""
    return any(at - looked > least for looked, at in arrivals)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_owners_receive_what_every_rank_sends(ranks):
    owners = [0, ranks - 1]

    def work(c):
        sources = [r for r in range(ranks) if r != c.rank] if c.rank in owners else []
        sends = [(parts(c.rank, to), to) for to in owners if to != c.rank]
        return c.send_parts(sends, sources, LIKE)

    for rank, (came, arrivals) in enumerate(run_threads(ranks, work, timeout=patience(30))):
        sources = [r for r in range(ranks) if r != rank] if rank in owners else []
        assert len(came) == len(arrivals) == len(sources)
        for source, arrays in zip(sources, came, strict=True):
            for found, expected in zip(arrays, parts(source, rank), strict=True):
                assert found.dtype == expected.dtype
                np.testing.assert_array_equal(found, expected)


def test_a_rank_without_sources_does_not_wait():
    gone, looks = threading.Event(), threading.Event()

    def work(c):
        if c.rank == 0:
            receive = c._receive

            def looking(receives):
                looks.set()
                return receive(receives)

            assert gone.wait(patience(10))
            c._receive = looking
            came, arrivals = c.send_parts([], [1, 2], [np.empty(0)])
            return [awaited(own, 0.01) for own in arrivals], came[1][0].tolist()
        if c.rank == 2:
            assert looks.wait(patience(10))
            time.sleep(0.1)
        c.send_parts([([np.full(2, 1.0 * c.rank)], 0)], [], [])
        if c.rank == 1:
            gone.set()
        return None

    # Rank 1 was there when rank 0 looked, rank 2 came later.
    (waited, values), *_ = run_threads(3, work, timeout=patience(10))
    assert values == [2.0, 2.0]
    assert waited == [False, True]


def test_a_rank_does_not_send_to_itself():
    def work(c):
        with pytest.raises(ConfigError, match="is this one"):
            c.send_parts([([np.zeros(1)], c.rank)], [], [])

    run_threads(2, work, timeout=patience(10))


def test_a_rank_alone_sends_and_receives_nothing():
    c = SingleCommunicator()
    assert c.send_parts([], [], LIKE) == ([], [])
    with pytest.raises(ConfigError, match="there is no rank 1"):
        c.send_parts([], [1], LIKE)


def test_nothing_is_sent_after_an_operation_that_failed():
    def work(c):
        if c.rank == 0:
            with pytest.raises(CommunicationError, match="rank 1 sent 16 bytes in send") as first:
                c.all_reduce(np.zeros(1))
            with pytest.raises(CommunicationError) as second:
                c.send_parts([([np.ones(2)], 1)], [1], [np.empty(0)])
            assert second.value is first.value
            return c.sent_bytes
        c.send(np.zeros(2), 0)
        return None

    assert run_threads(2, work, timeout=patience(10))[0] == 0


def over_mpi(c):
    """Send parts of several pieces between processes; return whether the last rank was awaited."""
    c.barrier()
    if c.rank == c.size - 1:
        time.sleep(1.5)
    sizes = [0, 3, 700_000]
    sends = [([np.full(sizes[c.rank], c.rank + to / 10)], to) for to in (0, 1) if to != c.rank]
    sources = [r for r in range(c.size) if r != c.rank] if c.rank < 2 else []
    came, arrivals = c.send_parts(sends, sources, [np.empty(0)])
    for source, (array,) in zip(sources, came, strict=True):
        assert array.size == sizes[source] and (array == source + c.rank / 10).all()
    c.barrier()
    return [awaited(own, 0.75) for own in arrivals]


@pytest.mark.mpi
@needs_mpi4py
def test_parts_between_processes():
    assert run_ranks(3, __name__, "over_mpi") == [False, True]
