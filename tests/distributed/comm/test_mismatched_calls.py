"""Mismatched calls of ranks, and arrays that cannot be sent."""

import numpy as np
import pytest

from cavs.distributed.comm import SingleCommunicator, run_threads
from cavs.errors import CommunicationError, ConfigError
from tests.distributed.mpirun import needs_mpi, run_ranks
from tests.patience import patience

F4, F8, I4 = np.float32, np.float64, np.int32
MANY = 5 << 20  # bytes: two messages of MPI


def mismatches(c):
    """Return mismatched calls of two ranks, and the error of each rank."""

    def sums(*sizes, dtypes=(F8, F8)):
        return lambda p: p.all_reduce(np.ones(sizes[p.rank], dtypes[p.rank]))

    def pairs(sent, expected, dtype=np.uint8):
        def act(p):
            if p.rank == 0:
                p.send(np.ones(sent, np.uint8), 1)  # it may wait for the receiver
            else:
                p.receive(np.ones(expected, dtype), 0)

        return act

    return {
        "tree": (sums(200, 100), {0: "rank 1 sent 800 bytes, rank 0 expects 1600 in all-reduce"}),
        "longer": (sums(100, 200), {0: "rank 1 sent 1600 bytes, rank 0 expects 800 in all-red"}),
        "ring": (
            sums(4000, 6000),
            {
                0: "rank 1 sent 24000 bytes, rank 0 expects 16000 in all-reduce of 32000 bytes",
                1: "rank 0 sent 16000 bytes, rank 1 expects 24000 in all-reduce of 48000 bytes",
            },
        ),
        "ways": (
            sums(4000, 2000),
            {
                0: "sent 16000 bytes in all-reduce up a tree, rank 0 expects 16000 in all-reduce",
                1: "sent 16000 bytes in all-reduce around a ring, rank 1 expects 16000 in all-red",
            },
        ),
        "dtype": (
            sums(100, 100, dtypes=(F4, I4)),
            {0: "sent 400 bytes of int32, rank 0 expects 400 of float32 in all-reduce of 400 b"},
        ),
        "reductions": (
            lambda p: p.all_reduce(np.ones(8), ("min", "max")[p.rank]),
            {0: "rank 1 sent 64 bytes in max all-reduce, rank 0 expects 64 in min all-reduce of 6"},
        ),
        "mean": (
            lambda p: p.all_reduce(np.ones(8), ("sum", "mean")[p.rank]),
            {0: "rank 1 sent 64 bytes in mean all-reduce, rank 0 expects 64 in all-reduce of 64"},
        ),
        "large reductions": (
            lambda p: p.all_reduce(np.ones(4000), ("min", "sum")[p.rank]),
            {
                0: "rank 1 sent 16000 bytes in all-reduce around a ring, rank 0 expects 16000 in m",
                1: "rank 0 sent 16000 bytes in min all-reduce, rank 1 expects 16000 in all-reduce",
            },
        ),
        "broadcast": (
            lambda p: p.broadcast(np.ones(100 + 100 * p.rank), 0),
            {1: "rank 0 sent 800 bytes, rank 1 expects 1600 in broadcast of 1600 bytes by rank 0"},
        ),
        "operations": (
            lambda p: p.broadcast(np.ones(8), 1) if p.rank else p.all_reduce(np.ones(8)),
            {0: "rank 1 sent 64 bytes in broadcast, rank 0 expects 64 in all-reduce of 64 bytes"},
        ),
        "share": (
            lambda p: p.all_gather(np.ones((1, 2))) if p.rank else p.share([1]),
            {
                0: "rank 1 sent 8 bytes in all-gather, rank 0 expects 8 in share",
                1: "rank 0 sent 8 bytes in share, rank 1 expects 8 in all-gather of 16 bytes",
            },
        ),
        "roots": (
            lambda p: (p.broadcast(np.ones(8), p.rank), p.barrier()),
            {
                0: "rank 1 sent 64 bytes of float64 in broadcast, rank 0 expects 1 of uint8 in ba",
                1: "rank 0 sent 64 bytes of float64 in broadcast, rank 1 expects 1 of uint8 in ba",
            },
        ),
        "short": (pairs(3, 5), {1: "rank 0 sent 3 bytes, rank 1 expects 5 in receive from rank 0"}),
        "nothing": (pairs(0, 5), {1: "rank 0 sent 0 bytes, rank 1 expects 5 in receive"}),
        "long": (pairs(5, 0), {1: "rank 0 sent 5 bytes, rank 1 expects 0 in receive"}),
        "shorter": (pairs(MANY - 1, MANY), {1: f"{MANY - 1} bytes, rank 1 expects {MANY} in rec"}),
        "pieces": (pairs(MANY, 4 << 20), {1: f"bytes, rank 1 expects {4 << 20} in receive"}),
        "bits": (pairs(8, 1, F8), {1: "sent 8 bytes of uint8, rank 1 expects 8 of float64 in"}),
    }


def mismatch(c, name):
    """Return the errors of `name` of `mismatches` on each rank, in a group of its own."""
    act, _ = mismatches(c)[name]
    part, said = c.split(0), ""
    part.timeout = patience(2)
    try:
        act(part)
    except CommunicationError as error:
        said = str(error)
    return c.share(said)


@pytest.mark.parametrize("name", mismatches(None))
def test_mismatched_calls_are_errors(name):
    texts = mismatches(None)[name][1].values()

    def until_first_error(c):
        mismatches(c)[name][0](c)

    with pytest.raises(CommunicationError) as caught:
        run_threads(2, until_first_error, timeout=5)
    assert any(text in str(caught.value) for text in texts)
    assert "the same operations in the same order" in str(caught.value)


class TestProcesses:
    pytestmark = needs_mpi

    def test_mismatched_calls_are_errors(self):
        for name, said in run_ranks(2, __name__, "all_mismatches", timeout=120).items():
            texts = mismatches(None)[name][1]
            assert any(text in said[rank] for rank, text in texts.items()), (name, said)
            assert "MPI_ERR" not in "".join(said)
            if name in ("tree", "longer", "ring", "ways", "dtype"):  # no rank waits for long
                assert all("bytes" in text and "waited" not in text for text in said), said

    def test_no_rank_writes_beyond_its_array(self):
        assert run_ranks(2, __name__, "too_long") == [True, True]


def all_mismatches(c):
    return {name: mismatch(c, name) for name in mismatches(c)}


def too_long(c):
    """Return for each rank whether memory behind a too short array is unchanged."""
    part, memory = c.split(0), np.zeros(3 << 20)
    part.timeout = patience(1)
    with pytest.raises(CommunicationError):
        if c.rank == 0:
            part.send(np.ones(2 << 20), 1)
            part.barrier()
        else:
            part.receive(memory[: 1 << 20], 0)
    return c.share(bool((memory[1 << 20 :] == 0).all()))


@pytest.mark.parametrize(
    ("array", "found"),
    [
        ([1, 2], "a list is no NumPy array"),
        (np.float64(1), "a float64 is no NumPy array"),
        (np.ones(3, bool), "an array of bool cannot be sent"),
        (np.array(["a"]), "an array of <U1 cannot be sent"),
        (np.ones(3, ">f8"), "an array of >f8 cannot be sent"),
        (np.ones(3, complex), "an array of complex128 cannot be sent"),
        (np.array([None]), "an array of object cannot be sent"),
    ],
)
def test_other_objects_are_refused(array, found):
    c = SingleCommunicator()
    for operation, *arguments in (
        (c.all_reduce,),
        (c.reduce, 0),
        (c.reduce_scatter, [3]),
        (c.all_gather_into, [3]),
        (c.all_gather,),
        (c.broadcast, 0),
        (c.send, 0),
        (c.receive, 0),
    ):
        with pytest.raises(ConfigError, match=found) as caught:
            operation(array, *arguments)
        assert "hint: " in str(caught.value)
    with pytest.raises(ConfigError, match=found):
        c.all_to_all([array])
    with pytest.raises(ConfigError, match=found):
        run_threads(2, lambda c: c.exchange([(array, 1 - c.rank)], []))
