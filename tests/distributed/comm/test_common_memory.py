"""Sums in memory that ranks of one host share."""

import gc
import os
import threading
import time

import numpy as np
import pytest

import cavs
from cavs.distributed.comm import (
    LostPeerError,
    SingleCommunicator,
    ThreadCommunicator,
    collectives,
    run_threads,
)
from cavs.distributed.comm.common_memory import CommonMemory, map_common
from tests.distributed.elastic.test_survivors import fit, survive
from tests.distributed.test_trainer import assert_equal, train_alone, train_together
from tests.patience import patience

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


HOSTS = [["a", "a", "b"], ["a", "b", "b", "a"], ["a", "b", "b", "c", "c", "c", "a"]]


@pytest.mark.parametrize("op", ["sum", "mean", "min", "max"])
@pytest.mark.parametrize("hosts", HOSTS)
def test_hosts_sum_inside_before_they_send(hosts, op):
    """Only the first ranks of hosts send arrays, as a communicator of these ranks would."""
    size, n = 9_001, len(hosts)
    values = [np.random.default_rng(r).standard_normal(size) for r in range(n)]
    first = sorted({hosts.index(host) for host in hosts})

    def work(c):
        memory = c.common_memory(values[0].nbytes + 80).view("f8")
        mine = memory[5 : 5 + size]
        for _ in range(2):
            memory[...] = 7
            mine[...] = values[c.rank]
            before, sent = c.sent_bytes, c.traffic.totals(c.names)[0]
            c.all_reduce(mine, op)
            assert (np.delete(memory, np.s_[5 : 5 + size]) == 7).all()
        across = (c.traffic.totals(c.names)[0] - sent)[[host != hosts[c.rank] for host in hosts]]
        return mine.copy(), across.sum(), c.sent_bytes - before

    reduced = {"min": np.min, "max": np.max, "mean": np.mean, "sum": np.sum}[op](values, axis=0)
    results = run_threads(n, work, hosts=hosts)
    for rank, (got, across, sent) in enumerate(results):
        np.testing.assert_allclose(got, reduced, rtol=1e-12, atol=1e-12)
        assert got.tobytes() == results[0][0].tobytes()
        k = len(first)
        expected = 2 * (k - 1) / k * got.nbytes if rank in first else 0
        assert across == pytest.approx(expected, abs=16 * k)
        assert sent >= across


def test_integers_give_the_same_sums_on_any_hosts():
    def work(c):
        memory = c.common_memory(80_000).view("i8")
        memory[...] = np.arange(10_000) * (c.rank + 1)
        c.all_reduce(memory)
        return memory.copy()

    for hosts in (["a"] * 4, ["a", "b", "a", "b"], ["a", "b", "c", "c"]):
        for got in run_threads(4, work, hosts=hosts):
            np.testing.assert_array_equal(got, np.arange(10_000) * 10)


def test_ranks_with_hosts_of_their_own_have_none():
    assert run_threads(3, lambda c: c.common_memory(100), hosts="abc") == [None] * 3


def test_no_rank_has_memory_where_one_host_has_none(monkeypatch):
    def work(c):
        found = c.common_memory(100)
        c.barrier()
        return found

    def mapped(rank, nbytes, share):
        return None if 2 in share.__self__.names else map_common(rank, nbytes, share)

    monkeypatch.setattr(collectives, "map_common", mapped)
    assert run_threads(5, work, hosts=["a", "a", "b", "b", "c"]) == [None] * 5


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


def test_memory_of_several_hosts_may_be_made_again():
    """The groups inside of the hosts and between them are made once."""

    def work(c):
        sums, groups = [], []
        for n in (3000, 4000):
            memory = c.common_memory(8 * n).view("f8")
            memory[...] = c.rank + 1
            c.all_reduce(memory)
            sums.append({float(x) for x in memory})
            groups.append(list(c._split_by_host()))
        assert groups[0] == groups[1]
        return sums

    assert run_threads(4, work, hosts="aabb") == [[{10.0}, {10.0}]] * 4


def test_a_system_without_anonymous_files_has_none(monkeypatch):
    def missing(name):
        raise OSError("no memfd")

    monkeypatch.setattr(os, "memfd_create", missing)
    assert run_threads(2, lambda c: map_common(c.rank, 100, c.share)) == [None, None]


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
        lambda c, everyone, *more: (sums.append(c), summed(c, everyone, *more))[1],
    )
    optimizer = cavs.optim.Adam(lr=0.05)
    together = train_together(size, optimizer, strategy=strategy, max_norm=0.5)
    assert_equal(train_alone(optimizer, max_norm=0.5), together)
    assert len(set(sums)) == size


@pytest.mark.parametrize("strategy", [None, "PartitionedAR"])
@pytest.mark.parametrize("hosts", ["aab", "abab"])
def test_training_on_several_hosts_equals_one_process(hosts, strategy, monkeypatch):
    copied = []
    copy = collectives.Collectives._copy_in_common
    monkeypatch.setattr(collectives, "SMALL", 64)  # these gradients are
    monkeypatch.setattr(ThreadCommunicator, "_host", lambda c: hosts[c.names[c.rank]])
    monkeypatch.setattr(
        collectives.Collectives,
        "_copy_in_common",
        lambda c, *more: (copied.append(c.names[c.rank]), copy(c, *more))[1],
    )
    optimizer = cavs.optim.Adam(lr=0.05)
    together = train_together(len(hosts), optimizer, strategy=strategy, max_norm=0.5)
    assert_equal(train_alone(optimizer, max_norm=0.5), together)
    assert set(copied) == {r for r, host in enumerate(hosts) if hosts.count(host) > 1}


@pytest.mark.parametrize("victim", range(5))
@pytest.mark.parametrize("exchanges", [0, 1, 2, 3, 5])
def test_a_death_on_one_host_ends_the_sum_on_all(victim, exchanges):
    """Ranks of other hosts wait for another rank than the one that died."""
    ready = threading.Barrier(5)  # none dies while another one is still in an operation before

    def work(c):
        memory = c.common_memory(80_000).view("f8")
        c.barrier()
        ready.wait()
        groups = [c, *c._by_host]
        left = [exchanges]

        def counted(group, exchange):
            def run(*arguments):
                if c.rank == victim and not left[0]:
                    c.die()
                    raise LostPeerError("this one")
                left[0] -= 1
                exchange(*arguments)

            return run

        for group in groups:
            group._exchange = counted(group, group._exchange)
        begun = time.monotonic()
        with pytest.raises(LostPeerError):
            for _ in range(20):
                c.all_reduce(memory)
        if c.rank == victim:
            return None
        left_over = c.shrink()
        total = np.ones(1)
        left_over.all_reduce(total)
        assert time.monotonic() - begun < patience(10)
        return total[0]

    hosts = ["a", "b", "b", "a", "c"]
    results = run_threads(5, work, hosts=hosts, timeout=patience(30))
    assert [r for r in results if r is not None] == [4] * 4


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
