"""Calls of NCCL, recorded by a stand-in for CuPy; nothing here runs on a GPU."""

import contextlib
import sys
import threading
import types

import numpy as np
import pytest

from cavs.distributed.comm import SingleCommunicator, run_threads
from cavs.distributed.comm.nccl import group
from cavs.distributed.comm.nccl.communicator import NCCLCommunicator
from cavs.errors import CommunicationError, ConfigError, DeviceError
from tests.cuda.nccl_threads import device_ranks
from tests.patience import patience

CALLS = []


class Comm:
    def __init__(self, size, unique, rank):
        CALLS.append(("init", size, unique, rank))

    def __getattr__(self, name):
        return lambda *arguments: CALLS.append((name, *arguments))


class Control(SingleCommunicator):
    """Rank 1 of 3, as far as the stand-in needs it."""

    told = ([7, 8], "tuple", "")

    def __init__(self):
        super().__init__()
        self.rank, self.size, self.names = 1, 3, (0, 1, 2)

    def share(self, value):
        assert value == [None, "NoneType", ""]  # only rank 0 creates the id
        return [list(self.told), value, value]

    def all_reduce(self, array):
        array *= self.size  # the other ranks have come as far


@pytest.fixture
def nccl(monkeypatch):
    CALLS.clear()
    nccl = types.ModuleType("cupy.cuda.nccl")
    nccl.available, nccl.NcclCommunicator = True, Comm
    nccl.get_unique_id = lambda: (7, 8)
    nccl.NCCL_SUM, nccl.NCCL_FLOAT32, nccl.NCCL_FLOAT64 = 0, 7, 8
    nccl.groupStart, nccl.groupEnd = lambda: CALLS.append("start"), lambda: CALLS.append("end")
    cuda = types.ModuleType("cupy.cuda")
    cuda.nccl = nccl

    @contextlib.contextmanager
    def device(ordinal):
        CALLS.append(("device", ordinal))
        yield

    cuda.Device = device
    cuda.driver = types.SimpleNamespace(ctxGetCurrent=lambda: 1)
    module = types.ModuleType("cupy")
    module.cuda = cuda
    for name, value in (("cupy", module), ("cupy.cuda", cuda), ("cupy.cuda.nccl", nccl)):
        monkeypatch.setitem(sys.modules, name, value)
    return nccl


def test_arguments_of_sums_on_the_device_of_the_rank(nccl):
    c = NCCLCommunicator(Control(), 5)
    c.sum_ranges([(1000, 12), (4096, 300)], "float32", 99)
    c.sum_ranges([(8, 6)], "float64", 98)
    c.check()
    assert c.sent_bytes == 2 * 2 * (312 * 4 + 6 * 8) // 3  # bytes of a ring of three
    c.close()
    c.close()  # nothing is freed twice
    at = ("device", 5)
    assert [
        *(at, ("init", 3, (7, 8), 1)),
        *(at, "start", ("allReduce", 1000, 1000, 12, 7, 0, 99)),
        *(("allReduce", 4096, 4096, 300, 7, 0, 99), "end"),
        *(at, "start", ("allReduce", 8, 8, 6, 8, 0, 98), "end"),
        *(at, ("check_async_error",)),
        *(at, ("destroy",)),
    ] == CALLS


def test_a_group_is_given_up_once(nccl):
    c = NCCLCommunicator(Control(), 0)
    c.abort()
    c.abort()
    c.close()
    assert [call for call in CALLS if call[0] in ("abort", "destroy")] == [("abort",)]


def test_unsupported_operations_are_clear_errors(nccl, monkeypatch):
    c = NCCLCommunicator(Control(), 2)
    with pytest.raises(ConfigError, match="NCCL of this CuPy sums float32, float64, not int32"):
        c.sum_ranges([(0, 1)], "int32", 0)

    def fails():
        raise RuntimeError("NCCL_ERROR_INVALID_USAGE: invalid usage")

    nccl.groupEnd = fails
    with pytest.raises(DeviceError, match="NCCL on rank 1, cuda:2: NCCL_ERROR_INVALID_USAGE"):
        c.sum_ranges([(0, 1)], "float32", 0)
    monkeypatch.setattr(Control, "told", (None, "NoneType", "no network"))
    with pytest.raises(DeviceError, match="NCCL on rank 0 makes no id: no network"):
        NCCLCommunicator(Control(), 0)
    nccl.available = False
    with pytest.raises(DeviceError, match="CuPy finds no NCCL library"):
        NCCLCommunicator(Control(), 0)


def test_ranks_that_do_not_join_are_named_on_all(nccl):
    """NCCL waits without end for a hanging rank; a late rank is released."""
    hangs, made = threading.Event(), []

    class Slow(Comm):
        def __init__(self, size, unique, rank):
            if rank != 1:
                assert hangs.wait(60)
            super().__init__(size, unique, rank)
            made.append(rank)

        def abort(self):
            CALLS.append(("abort",))
            gone.release()

    gone = threading.Semaphore(0)
    nccl.NcclCommunicator = Slow

    def work(c):
        c.timeout = 0.5
        with pytest.raises(DeviceError) as caught:
            NCCLCommunicator(c, c.rank)
        return str(caught.value)

    for rank, said in enumerate(run_threads(3, work)):
        found = f"NCCL on rank {rank}: ranks [0, 2] have not joined the group of 3 within 0.5 s"
        assert said.startswith(found)
    assert made == [1]
    hangs.set()
    assert all(gone.acquire(timeout=60) for _ in range(3))


def test_no_rank_waits_in_nccl_for_a_failed_one(nccl):
    fails = threading.Event()

    class Broken(Comm):
        def __init__(self, size, unique, rank):
            if rank == 1:
                raise RuntimeError("NCCL_ERROR_SYSTEM_ERROR: no such network")
            assert fails.wait(60)

    nccl.NcclCommunicator = Broken

    def work(c):
        try:
            NCCLCommunicator(c, c.rank).close()
        except DeviceError as error:
            return str(error)

    first, second = run_threads(2, work)
    fails.set()
    assert first is None  # it continues to the consensus
    assert "NCCL on rank 1, cuda:1: NCCL_ERROR_SYSTEM_ERROR: no such network" in second


def test_an_operation_behind_one_that_did_not_end_raises_its_error(monkeypatch):
    monkeypatch.setattr(group, "_GLANCE", 0.02)  # seconds between two looks at the ranks
    gave_up = threading.Event()

    def work(wrapped):
        c = wrapped.c
        if c.rank == 1:
            assert gave_up.wait(patience(20))
            c.abort()
            return
        c.timeout = 0.1
        first, second = (c.start(c.all_reduce, wrapped.put(np.ones(5))) for _ in range(2))
        late = "rank 0 waited 0.1 s for NCCL in all-reduce of 40 bytes: rank 1 did not come"
        with pytest.raises(CommunicationError, match=late) as caught:
            first.wait()
        gave_up.set()
        assert second.done
        with pytest.raises(CommunicationError) as again:
            second.wait()
        assert again.value is caught.value

    with device_ranks() as run:
        run(2, work)
