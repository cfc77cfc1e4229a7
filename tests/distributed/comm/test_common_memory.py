"""Sums in memory that ranks of one host share."""

import gc
import os

import numpy as np
import pytest

import cavs
from cavs.distributed.comm import SingleCommunicator, collectives, run_threads
from cavs.distributed.comm.common_memory import CommonMemory, map_common
from tests.distributed.elastic.test_survivors import fit, survive
from tests.distributed.test_trainer import assert_equal, train_alone, train_together

RANKS = [2, 3, 4, 5]


def terms(size, dtype):
    """Return terms whose sums are rounded."""
    return [np.random.default_rng(r).standard_normal(size).astype(dtype) for r in range(5)]


def in_order(parts):
    """Return their sum in the order of ranks."""
    total = parts[0] + parts[1]
    for part in parts[2:]:
        total = total + part
    return total


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [5_000, 70_001])
@pytest.mark.parametrize("n", RANKS)
def test_sums_add_in_the_order_of_ranks(n, size, dtype):
    values = terms(size, dtype)[:n]

    def work(c):
        memory = c.common_memory(values[0].nbytes + 80).view(dtype)
        mine = memory[5 : 5 + size]
        for _ in range(2):
            memory[...] = 7
            mine[...] = values[c.rank]
            sent = c.sent_bytes
            c.all_reduce(mine)
            sent = c.sent_bytes - sent
            assert (np.delete(memory, np.s_[5 : 5 + size]) == 7).all()
        return mine.copy(), sent

    for got, sent in run_threads(n, work):
        np.testing.assert_array_equal(got, in_order(values))
        assert sent == pytest.approx(2 * (n - 1) / n * got.nbytes, abs=2 * n)


def test_small_arrays_and_other_memory_are_sent():
    """Memory of several programs is distinguished."""
    big, small = 30_000, 100

    def work(c):
        first, second = (c.common_memory(8 * big).view("f8") for _ in range(2))
        found = []
        for array in (first, second, np.zeros(big), first[:small]):
            array[...] = c.rank + 1
            c.all_reduce(array)
            found.append(array.copy())
        assert (first[small:] == 3).all()
        return found

    for found in run_threads(2, work):
        assert all((array == 3).all() for array in found[:3])
        assert (found[3] == 3).all()


def test_unused_memory_is_forgotten():
    """A new array may get the same address."""

    def work(c):
        memory = c.common_memory(1 << 16)
        assert c._in_common(memory[100:200])
        assert not c._in_common(np.zeros(100))
        view = memory.view("f4")[10:]
        del memory
        gc.collect()
        assert c._in_common(view)
        common = c._common[0]
        del view
        gc.collect()
        return common.is_alive

    assert run_threads(2, work) == [False, False]


def test_unused_files_are_forgotten():
    (mine, theirs), _ = seen(100, lambda told: told)
    common = CommonMemory([mine, theirs], 0)
    assert len(common.like(mine[10:20])) == 2
    view = mine.view("u4")[3:]
    del mine
    gc.collect()
    assert common.is_alive and len(common.like(view)) == 2
    del view
    gc.collect()
    assert not common.is_alive and common.like(theirs) == []


def test_one_rank_has_none():
    assert SingleCommunicator().common_memory(100) is None


def seen(nbytes, change):
    """Return what a rank maps if its only peer describes itself by a `change` of the truth."""
    answers = []

    def share(value):
        if isinstance(value, list):
            return [value, change(list(value))]
        answers.append(value)
        return [value, True]

    return map_common(0, nbytes, share), answers


def test_memory_of_a_peer_on_this_host_is_mapped():
    (mine, theirs), answers = seen(100, lambda told: told)  # the same process
    assert answers == [True]
    mine[7] = 9
    assert theirs[7] == 9
    assert mine.nbytes == theirs.nbytes == 100


def wrong(place, value):
    def change(told):
        told[place] = value
        return told

    return change


@pytest.mark.parametrize(
    "change",
    [
        wrong(0, "elsewhere"),
        wrong(1, 2**22 + 1),  # no such process
        wrong(2, 999),  # no such file
        wrong(2, None),  # it could create none
        wrong(3, "00" * 32),  # another file than it meant
        wrong(4, 64),  # another size
    ],
)
def test_missing_memory_is_not_mapped(change):
    before = len(os.listdir("/proc/self/fd"))
    assert seen(100, change) == (None, [False])
    assert len(os.listdir("/proc/self/fd")) == before


def test_another_file_is_not_mapped(tmp_path):
    with open(tmp_path / "other", "w+b") as other:
        other.write(bytes(132))
        other.flush()
        assert seen(100, wrong(2, other.fileno())) == (None, [False])
    shorter = os.memfd_create("cavs")
    os.ftruncate(shorter, 10)
    assert seen(100, wrong(2, shorter)) == (None, [False])
    os.close(shorter)


@pytest.mark.parametrize("strategy", [None, "AllReduce(chunk=2)", "PartitionedAR", "Parallax"])
@pytest.mark.parametrize("size", [2, 3])
def test_training_in_shared_memory_equals_one_process(size, strategy, monkeypatch):
    sums = []
    summed = collectives.Collectives._sum_in_common
    monkeypatch.setattr(collectives, "SMALL", 64)  # these gradients are
    monkeypatch.setattr(
        collectives.Collectives,
        "_sum_in_common",
        lambda c, everyone, counts: (sums.append(c), summed(c, everyone, counts))[1],
    )
    optimizer = cavs.optim.Adam(lr=0.05)
    together = train_together(size, optimizer, strategy=strategy, max_norm=0.5)
    assert_equal(train_alone(optimizer, max_norm=0.5), together)
    assert len(set(sums)) == size


@pytest.mark.parametrize("messages", range(1, 150, 19))
def test_a_rank_that_dies_in_shared_memory(messages, monkeypatch, capsys):
    monkeypatch.setattr(collectives, "SMALL", 64)
    alone, victim = run_threads(1, fit)[0], messages % 3
    results = survive(3, [(victim, messages)])
    for values, losses, steps, left in results[:victim] + results[victim + 1 :]:
        assert (steps, left) == (alone[2], 2)
        assert losses == pytest.approx(alone[1], rel=1e-9)
        for name, value in alone[0].items():
            np.testing.assert_allclose(values[name], value, rtol=1e-8, atol=1e-10, err_msg=name)
    assert "1 of 3 ranks lost at step" in capsys.readouterr().err
