"""Errors of a communicator on devices, and of its stand-in."""

from __future__ import annotations

import functools
import threading
import time

import numpy as np
import pytest

from cavs.distributed.comm import (
    DeviceArray,
    NCCLCommunicator,
    SingleCommunicator,
    run_threads,
)
from cavs.errors import CommunicationError, ConfigError, DeviceError
from tests.cuda.nccl_stand_in import NcclError
from tests.cuda.nccl_threads import Array, OnDevice, alone, ended, run_devices
from tests.distributed.step.test_consensus import outcomes
from tests.patience import patience

# ---- invalid calls ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda c, a: c.all_reduce(np.zeros(3)), "a ndarray is not in the memory of a device"),
        (lambda c, a: c.all_reduce(Array(a, (4, 2), strides=(8, 32))), "is not C-contiguous"),
        (lambda c, a: c.all_reduce(Array(a, (4,), "<c16")), "uint8, not <c16"),
        (lambda c, a: c.all_reduce(Array(a, (4,), data=(a, True))), "may not be written"),
        (lambda c, a: c.all_reduce(DeviceArray(a, (4,), "int16")), "uint8, not int16"),
        (lambda c, a: c.all_reduce(DeviceArray(a, (-4,), "int32")), r"no array of shape \(-4,\)"),
        (lambda c, a: c.all_reduce(Array(64, (4,))), "memory of the host.*sends from cuda:1"),
        (lambda c, a: c.all_gather(Array(a, ())), "more than their first axis"),
        (lambda c, a: c.reduce_scatter(Array(a, (4,)), [3]), "do not cut 4 elements for 1 ranks"),
        (lambda c, a: c.all_gather_into(Array(a, (4,)), [5, -1]), "do not cut 4 elements"),
        (lambda c, a: c.all_to_all([]), "0 parts for 1 ranks"),
        (lambda c, a: c.reduce(Array(a, (4,)), -1), "there is no rank -1"),
        (lambda c, a: c.send(Array(a, (4,)), 1), "there is no rank 1"),
        (lambda c, a: c.receive(Array(a, (4,)), 0), "rank 0 is this one"),
    ],
)
def test_invalid_calls_are_errors_and_the_group_goes_on(nccl, ask, says):
    def work(c):
        with pytest.raises(ConfigError, match=says):
            ask(c, nccl.put(1, np.zeros(8)))
        c.barrier()

    alone(work)


def test_arrays_on_another_device_or_of_an_unknown_type(nccl, monkeypatch):
    def work(c):
        with pytest.raises(ConfigError, match="memory of cuda:3, but rank 0 sends from cuda:1"):
            c.all_reduce(Array(nccl.put(3, np.zeros(4)), (4,)))
        monkeypatch.delattr(nccl, "NCCL_BFLOAT16")
        with pytest.raises(ConfigError, match="int64, uint8, not bfloat16"):
            c.all_reduce(Array(nccl.put(1, np.zeros(4)), (4,), "<V2"))

    alone(work)


def test_rows_of_different_shapes_are_an_error_on_all_ranks(nccl):
    def work(wrapped):
        wrapped.c.all_gather(wrapped.put(np.zeros((2, 3 + wrapped.c.rank))))

    for error in outcomes_on_devices(nccl, 2, work):
        assert isinstance(error, ConfigError)
        assert "differ in more than their first axis: [\"('float64', 3)\"" in str(error)


# ---- faults -------------------------------------------------------------------------------------


def outcomes_on_devices(nccl, size, work):
    """Return what `work` raises or returns on every rank."""

    def on_device(control):
        c = NCCLCommunicator(control, control.rank)
        try:
            return work(OnDevice(c, nccl))
        finally:
            c.abort()

    return outcomes(size, on_device)


def test_a_missing_rank_ends_the_operation(nccl):
    def work(wrapped):
        c = wrapped.c
        if c.rank == 1:
            time.sleep(0.4)
            return
        c.timeout = 0.2
        handle = c.start(c.all_reduce, wrapped.put(np.ones(5)))
        late = r"0 waited 0.2 s for NCCL in all-reduce of 40 bytes: rank 1 did not come"
        with pytest.raises(CommunicationError, match=late):
            handle.wait()
        with pytest.raises(CommunicationError, match=r"waited 0.2 s"):
            c.barrier()
        assert handle.done
        with pytest.raises(DeviceError, match="the group of 2 was given up"):
            c.sum_ranges([(8, 1)], "float64", 0)

    assert outcomes_on_devices(nccl, 2, work) == [None, None]


def test_errors_name_the_rank_that_is_waited_for(nccl):
    """Rank 3 waits in a subgroup for rank 2, and rank 2 on the host for rank 1."""
    gave_up = threading.Semaphore(0)

    def work(wrapped):
        c = wrapped.c
        part = wrapped.split(c.rank // 2)
        part.c.timeout = c._control.timeout = 0.3
        try:
            if c.rank < 2:
                assert gave_up.acquire(timeout=20)
            elif c.rank == 2:
                c._control.receive(np.zeros(1), 1)
            else:
                part.c.receive(part.put(np.ones(2)), 0)
        finally:
            gave_up.release()
            part.c.abort()

    *_, third, fourth = outcomes_on_devices(nccl, 4, work)
    assert "rank 2 waited 0.3 s in receive from rank 1: rank 1 did not come" in str(third)
    assert "NCCL in receive of 16 bytes from rank 2: rank 1 did not come" in str(fourth)


def test_a_send_without_a_receive_is_an_error(nccl):
    def work(wrapped):
        wrapped.c.timeout = 0.2
        wrapped.c.send(wrapped.put(np.ones(5)), 1 - wrapped.c.rank)

    for rank, error in enumerate(outcomes_on_devices(nccl, 2, work)):
        assert isinstance(error, CommunicationError)
        assert f"in send of 40 bytes to rank {1 - rank}" in str(error)


def test_asynchronous_errors_of_nccl_are_raised(nccl, monkeypatch):
    monkeypatch.setattr("cavs.distributed.comm.nccl.group._GLANCE", 0.05)

    def work(wrapped):
        c = wrapped.c
        if c.rank == 0:
            nccl.open_of(0)[0].error = "NCCL_ERROR_REMOTE_ERROR: a peer is gone"
            c.all_reduce(wrapped.put(np.ones(5)))
        time.sleep(0.2)

    first, _ = outcomes_on_devices(nccl, 2, work)
    assert isinstance(first, DeviceError) and "a peer is gone" in str(first)


@pytest.mark.parametrize("status", [7, 8])
def test_errors_without_a_name_in_cupy(nccl, monkeypatch, status):
    def work(c):
        nccl.open_of(0)[0].error = status
        with pytest.raises(DeviceError, match=f"0, cuda:1: error {status}, see ncclResult_t"):
            c.check()

    alone(work)

    def no_id():
        raise NcclError(status)

    monkeypatch.setattr(nccl, "get_unique_id", no_id)
    with pytest.raises(DeviceError, match=f"makes no id: error {status}, see ncclResult_t"):
        NCCLCommunicator(SingleCommunicator(), 1)


def test_an_operation_that_never_ends_is_aborted(nccl):
    """NCCL has accepted it, but the stream hangs."""
    c, before = NCCLCommunicator(SingleCommunicator(), 1), threads()
    c.timeout = patience(20)
    c.barrier()
    nccl.never.update(stream.value for stream in nccl.streams)
    handle, c.timeout = c.start(c.barrier), 0.2
    assert not handle.done and threads() > before
    with pytest.raises(CommunicationError, match=r"waited 0.2 s for NCCL in all-reduce of 1 b"):
        handle.wait()
    assert handle.done and threads() == before
    c.close()


def threads():
    """Return the number of ranks with an operation in NCCL."""
    return sum(thread.name == "cavs-progress" for thread in threading.enumerate())


def test_an_abort_ends_the_operation_on_waiting_ranks(nccl):
    def work(wrapped):
        c = wrapped.c
        if c.rank == 0:
            handle = c.start(c.barrier)
            later = threading.Timer(0.1, c.abort)
            later.start()
            with pytest.raises(DeviceError, match="the group of 2 was given up"):
                handle.wait()
            later.join()
            c.close()

    assert outcomes_on_devices(nccl, 2, work) == [None, None]


def test_a_refused_call_leaves_no_group_open(nccl):
    """NCCL would defer all later calls of that thread."""

    def work(control):
        c = NCCLCommunicator(control, control.rank)
        nccl.fails.add(control.rank)
        with pytest.raises(DeviceError, match="unhandled system error"):
            c.sum_ranges([(nccl.put(c.ordinal, np.ones(3)), 3)], "float64", 0)
        c.abort()
        c = NCCLCommunicator(control, control.rank)
        with ended(c):
            at = nccl.put(c.ordinal, np.ones(3))
            c.sum_ranges([(at, 3)], "float64", 0)
            return nccl.get(at, 3, float)

    assert [list(a) for a in run_threads(2, work)] == [[2, 2, 2]] * 2


def test_a_failing_split_is_an_error_on_the_whole_subgroup(nccl):
    def work(wrapped):
        nccl.refuses.add(1)  # in each half
        with pytest.raises(DeviceError, match="no such network"):
            wrapped.c.split(wrapped.c.rank % 2)

    run_devices(nccl, 4, work)


# ---- the stand-in -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda c, r, at: c.allReduce(at, at, 2 + r, 8, 0, 0), "rank 0 calls"),
        (lambda c, r, at: c.broadcast(at, at, 2, 8, r, 0), "rank 0 calls"),
        (
            lambda c, r, at: c.recv(at, 3, 8, 0, 0) if r else c.send(at, 2, 8, 1, 0),
            "rank 0 sends 2, rank 1 receives 3",
        ),
        (lambda c, r, at: c.reduce(at, at + 8, 2, 8, 0, 0, 0), "arrays overlap"),
        (lambda c, r, at: c.reduceScatter(at, at, 2, 8, 0, 0) if r else 0, "arrays overlap"),
        (lambda c, r, at: c.allGather(at, at, 1, 8, 0) if r else 0, "arrays overlap"),
        (lambda c, r, at: c.broadcast(at, at, 2, 8, 2, 0), "no rank 2"),
        (lambda c, r, at: c.allReduce(at, at, 2, 3, 0, 0), "no such type"),
    ],
)
def test_the_stand_in_refuses_undefined_behaviour(nccl, ask, says):
    ended = set()

    def work(c):
        comm = nccl.NcclCommunicator(2, bytes(128), c.rank)
        at = nccl.put(c.rank, np.zeros(8))
        try:
            ask(comm, c.rank, at)
        except NcclError as error:
            assert says in str(error)
            ended.add(c.rank)
        comm.destroy()

    run_threads(2, work)
    assert 1 in ended


def test_the_stand_in_begins_a_group_at_its_end_and_pairs_sends_in_order(nccl):
    def work(c):
        comm = nccl.NcclCommunicator(2, bytes(128), c.rank)
        at = functools.partial(nccl.put, c.rank)
        mine, first, second = at(np.full(2, 1.0 + c.rank)), at(np.zeros(2)), at(np.zeros(2))
        nccl.groupStart()
        comm.send(mine, 2, 8, 1 - c.rank, 0)
        comm.send(mine, 1, 8, 1 - c.rank, 0)
        comm.recv(first, 2, 8, 1 - c.rank, 0)
        comm.recv(second, 1, 8, 1 - c.rank, 0)
        assert (nccl.get(first, 2, float) == 0).all()
        nccl.groupEnd()
        comm.destroy()
        return nccl.get(first, 2, float).tolist(), nccl.get(second, 2, float).tolist()

    assert run_threads(2, work) == [([2, 2], [2, 0]), ([1, 1], [1, 0])]
