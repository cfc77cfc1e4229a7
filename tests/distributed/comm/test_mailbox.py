"""Messages of a mailbox: none is lost, pairs of ranks keep order, arrays are unchanged."""

import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cavs.distributed.comm import SingleCommunicator, run_threads
from cavs.distributed.comm.mailbox import as_text, decode, encode, letter_bytes
from cavs.distributed.comm.mpi import polling
from cavs.errors import CommunicationError
from tests.distributed.mpirun import needs_mpi4py, run_ranks
from tests.patience import patience

ARRAYS = st.lists(
    st.tuples(st.sampled_from(["u1", "i4", "i8", "f4", "f8"]), st.integers(0, 9)), max_size=5
)


@given(st.lists(st.integers(-(2**60), 2**60), max_size=6), ARRAYS)
def test_a_letter_is_read_as_it_was_written(words, kinds):
    arrays = [(np.arange(n) * 7 % 251).astype(kind) for kind, n in kinds]
    coded = encode(words, arrays)
    assert coded.nbytes == letter_bytes(len(words), [a.nbytes for a in arrays])
    letter = decode(3, coded)
    assert letter.source == 3 and letter.words == tuple(words)
    for got, array in zip(letter.arrays, arrays, strict=True):
        assert got.dtype == array.dtype
        np.testing.assert_array_equal(got, array)


def correspond(c, letters=40, seed=0):
    """Send `letters` from every rank to every rank, itself included; return those received."""
    box = c.mailbox()
    rng = np.random.default_rng([seed, c.rank])

    def write():
        for i in range(letters):
            for to in rng.permutation(c.size):
                size = int(rng.integers(0, 3000))
                box.post(int(to), [i, size], [np.full(size, i, np.float32), as_text(f"{c.rank}")])

    writer = threading.Thread(target=write)
    writer.start()
    read = [[] for _ in range(c.size)]
    while sum(map(len, read)) < letters * c.size:
        letter = box.take(20.0)
        assert letter is not None, read
        i, size = letter.words
        assert letter.arrays[0].shape == (size,) and (letter.arrays[0] == i).all()
        assert letter.arrays[1].tobytes().decode() == str(letter.source)
        read[letter.source].append(i)
    writer.join()
    assert box.take(0.01) is None
    c.barrier()
    box.close()
    assert box.take(1.0) is None
    with pytest.raises(CommunicationError, match="closed its mailbox"):
        box.post(0, [1])
    return read


@settings(max_examples=10)
@given(st.integers(1, 4), st.integers(0, 9))
def test_threads_keep_the_order_of_each_sender(size, seed):
    for read in run_threads(size, lambda c: correspond(c, seed=seed)):
        assert read == [list(range(40))] * size


def test_messages_to_itself_count_no_bytes():
    c = SingleCommunicator()
    box = c.mailbox()
    threading.Timer(0.05, lambda: box.post(0, [7])).start()
    begun = time.monotonic()
    assert box.take(5.0).words == (7,)
    assert time.monotonic() - begun < patience(2)
    assert box.sent_bytes == 0
    box.close()


def test_a_reader_learns_of_a_lost_rank():
    def work(c):
        box = c.mailbox()
        c.barrier()
        if c.rank == 1:
            c.die()
            return None
        with pytest.raises(CommunicationError, match=r"ranks \[1\] are gone"):
            box.take(10.0)
        return True

    assert run_threads(2, work) == [True, None]


def over_mpi(c):
    polling.LARGEST = 1000  # letters sent in pieces
    for sender in correspond(c):
        assert sender == list(range(40))
    box = c.mailbox()
    handle = c.start(c.all_reduce, np.ones(100_000))  # collectives run concurrently
    box.post((c.rank + 1) % c.size, [5])
    assert box.take(20.0).words == (5,)
    handle.wait()
    c.barrier()
    box.close()
    return c.size


@pytest.mark.mpi
@needs_mpi4py
@pytest.mark.parametrize("size", [2, 3])
def test_over_mpi(size):
    assert run_ranks(size, __name__, "over_mpi") == size


def test_letters_that_are_not_wanted_stay_in_order():
    def work(c):
        box = c.mailbox()
        if c.rank == 0:
            for word in range(4):
                box.post(1, [word])
        box.post(c.rank, [9])
        c.barrier()
        found = [] if c.rank == 0 else [box.take(5.0, lambda letter: letter.words[0] == 2)]
        found += [box.take(0.0, lambda letter: False)]
        while letter := box.take(0.0):
            found.append(letter)
        return [letter and letter.words[0] for letter in found]

    first, second = run_threads(2, work)
    assert first == [None, 9]
    assert second[:2] == [2, None] and [word for word in second[2:] if word != 9] == [0, 1, 3]
    assert second.count(9) == 1
