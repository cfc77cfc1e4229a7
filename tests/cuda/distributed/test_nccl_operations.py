"""A communicator on devices: every operation and type, bytes, streams, handles."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cavs.distributed.comm import (
    DeviceArray,
    NCCLCommunicator,
    SingleCommunicator,
    run_threads,
)
from cavs.distributed.comm.messages import offsets
from cavs.distributed.comm.nccl.device_array import SIZES
from cavs.errors import ConfigError
from tests.cuda import hardware
from tests.cuda.kernel_cases import narrowed, widened
from tests.cuda.nccl_threads import Array, alone, device_ranks, ended, run_devices
from tests.distributed.mpirun import needs_mpi, run_ranks
from tests.patience import patience


@pytest.fixture(scope="module")
def device_run():
    with device_ranks() as run:
        yield run


def terms(dtype, size, n):
    """Return values of every rank, whose sums are exact in any order."""
    rng = np.random.default_rng((n, size))
    whole = rng.integers(0, 4, (size, n))
    return narrowed(whole) if dtype == "bfloat16" else whole.astype(dtype)


def total(values, dtype):
    return narrowed(widened(values).sum(0)) if dtype == "bfloat16" else values.sum(0, values.dtype)


# ---- every operation, on the stand-in and on GPUs ------------------------------------------------


def check_every_operation(c, put, get):
    """All operations on one rank. put, get: copy values to an array on its device and back."""
    for dtype in SIZES:
        counts = [(3 * r + 2) % 5 for r in range(c.size)]
        for parts in (counts, [4] * c.size, [0] * c.size):
            n = sum(parts)
            every = terms(dtype, c.size, n)
            mine, sums = every[c.rank], total(every, dtype)
            begin, end = offsets(parts)[c.rank]
            a = put(mine, dtype)
            c.all_reduce(a)
            np.testing.assert_array_equal(get(a), sums)
            a = put(mine, dtype)
            c.reduce(a, c.size - 1)
            if c.rank == c.size - 1:
                np.testing.assert_array_equal(get(a), sums)
            a = put(mine, dtype)
            part = c.reduce_scatter(a, parts)
            np.testing.assert_array_equal(get(part), sums[begin:end])
            c.all_gather_into(a, parts)
            np.testing.assert_array_equal(get(a), sums)
            a = put(mine, dtype)
            c.broadcast(a, 0)
            np.testing.assert_array_equal(get(a), every[0])
            # Rows: rank r has parts[r] rows for all ranks, and r + s rows for rank s.
            rows = put(every[c.rank][: parts[c.rank]].reshape(-1, 1), dtype)
            for r, got in enumerate(c.all_gather(rows)):
                np.testing.assert_array_equal(get(got), every[r][: parts[r]].reshape(-1, 1))
            given = [put(np.resize(every[c.rank], c.rank + s), dtype) for s in range(c.size)]
            for r, got in enumerate(c.all_to_all(given)):
                if n:
                    np.testing.assert_array_equal(get(got), np.resize(every[r], r + c.rank))
            if c.size > 1 and c.rank < 2:
                a = put(mine, dtype)
                if c.rank == 0:
                    c.send(a, 1)
                else:
                    c.receive(a, 0)
                np.testing.assert_array_equal(get(a), every[0])
            c.barrier()
    half = c.split(c.rank % 2, -c.rank)
    with ended(half):
        a = put(np.full(6, c.rank, np.int32), "int32")
        handles = [half.start(half.all_reduce, a), half.start(half.broadcast, a, 0)]
        for handle in handles:
            handle.wait()
        assert all(handle.done for handle in handles)
        same = range(c.rank % 2, c.size, 2)
        assert (half.rank, half.size) == (list(reversed(same)).index(c.rank), len(same))
        np.testing.assert_array_equal(get(a), np.full(6, sum(same)))


@pytest.mark.parametrize("size", [1, 3])
def test_every_operation_and_type(nccl, size):
    def work(wrapped):
        c = wrapped.c

        def put(values, dtype):
            return DeviceArray(nccl.put(c.ordinal, values), values.shape, dtype)

        def get(array):
            dtype = "uint16" if array.dtype == "bfloat16" else array.dtype
            return nccl.get(array.address, array.shape, dtype)

        check_every_operation(c, put, get)

    run_devices(nccl, size, work)


def on_gpu(control, ordinal):
    """All operations of one rank on a real GPU, with CuPy's arrays."""
    import cupy

    c = NCCLCommunicator(control, ordinal)

    def put(values, dtype):
        at = cupy.asarray(values)
        return DeviceArray(at.data.ptr, at.shape, dtype, owner=at) if dtype == "bfloat16" else at

    def get(array):
        if isinstance(array, DeviceArray) and array.dtype == "bfloat16":
            bits = cupy.asarray(DeviceArray(array.address, (array.nbytes,), "uint8", owner=array))
            return cupy.asnumpy(bits).view(np.uint16).reshape(array.shape)
        return cupy.asnumpy(cupy.asarray(array))

    cupy.cuda.Device(ordinal).use()
    with ended(c):
        check_every_operation(c, put, get)
    return c.size


def on_gpus(control):
    """In a process started by mpirun, on the rank's own GPU."""
    return on_gpu(control, control.rank)


@pytest.mark.cuda
def test_every_operation_on_the_gpu_of_this_machine():
    hardware.gpu()
    assert on_gpu(SingleCommunicator(), 0) == 1


@pytest.mark.cuda
class TestGPUs:
    pytestmark = needs_mpi

    def test_every_operation_between_the_gpus_of_this_machine(self):
        devices = hardware.several_gpus(4)
        assert run_ranks(devices, __name__, "on_gpus", timeout=300) == devices


# ---- counts and bytes ---------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.data())
def test_bytes_are_those_of_ranks_on_the_host(device_run, size, data):
    """Except for numbers of rows, which gathers on the host send in addition."""
    counts = data.draw(st.lists(st.integers(0, 3000), min_size=size, max_size=size))
    root = data.draw(st.integers(0, size - 1))

    def work(c):
        rng = np.random.default_rng(c.rank)
        whole, sent = rng.normal(size=sum(counts)), []

        def note():
            sent.append(c.sent_bytes - sum(sent))

        c.reduce(whole, root)
        note()
        c.broadcast(whole, root)
        note()
        part = c.reduce_scatter(rng.normal(size=sum(counts)), counts)
        note()
        c.all_gather_into(whole, counts)
        note()
        c.all_gather(rng.normal(size=counts[c.rank]))
        note()
        c.all_to_all([rng.normal(size=n) for n in counts])
        note()
        return part, sent

    words = 8 * (size - 1)
    pairs = zip(device_run(size, work), run_threads(size, work), strict=True)
    for (part, sent), (expected, others) in pairs:
        np.testing.assert_allclose(part, expected, rtol=1e-12, atol=1e-12)
        assert [*sent[:4], sent[4] + words, sent[5] + words] == others


def test_nothing_is_copied_and_results_are_freed(nccl, twin):
    def work(wrapped):
        c = wrapped.c
        a = wrapped.put(np.arange(6.0))
        part = c.reduce_scatter(a, [2, 4])
        assert part.address == a.address + 16 * c.rank and part.shape == (2 + 2 * c.rank,)
        own = wrapped.put(np.ones(3))
        kept = c.all_to_all([own, own])
        assert kept[c.rank].address == own.address
        kept += c.all_gather(own)
        view = kept[-1].__cuda_array_interface__
        assert view["data"] == (kept[-1].address, False) and view["typestr"] == "<f8"
        assert c._memory.used() == 3 * 8 + 6 * 8
        kept.clear()
        assert c._memory.used() == 0

    run_devices(nccl, 2, work)
    assert not [o for o in twin.operations() if o.kind == "copy"]


# ---- streams and handles ------------------------------------------------------------------------


def test_empty_arrays_may_have_any_address(nccl):
    def work(c):
        for more in ({"strides": (72, 8)}, {}, {"strides": (1, 1)}):
            c.all_reduce(Array(0, (3, 0), **more))
        one = Array(nccl.put(1, np.ones(4)), (4, 1), strides=(8, 400))
        c.all_reduce(one)
        assert c.all_gather(one)[0].shape == (4, 1)
        assert c.reduce_scatter(Array(0, (0,)), [0]).size == 0

    alone(work)


def test_operations_run_after_earlier_work_of_their_streams(nccl):
    def work(c):
        own = nccl._stream(non_blocking=True).ptr
        for more, stream in (({"stream": own}, own), ({"stream": 1}, 0), ({"version": 2}, 0)):
            nccl.waits.clear()
            c.all_reduce(Array(nccl.put(1, np.ones(4)), (2, 2), strides=(16, 8), **more))
            ((mine, after),) = nccl.waits
            assert after == stream and mine not in {own, 0, None}

    alone(work)


def test_started_operations_run_in_order_next_to_the_caller(nccl):
    """Rank 0 starts an operation that rank 1 joins later; rank 0 goes on meanwhile."""
    free = threading.Event()

    def work(wrapped):
        c, a, b = wrapped.c, wrapped.put(np.ones(4)), wrapped.put(np.full(3, 2.0))
        if c.rank == 1:
            assert free.wait(patience(10))
        first = c.start(c.all_reduce, a)
        second = c.start(c.reduce_scatter, a, [3, 1])
        if c.rank == 0:
            assert not first.done and not second.done
            free.set()
        third = c.start(c.all_gather, b)
        c.all_reduce(b)  # waits for the earlier operation
        assert first.done and second.done and third.done and first.wait() is None
        return wrapped.get(second.wait()), wrapped.get(third.wait()), wrapped.get(b)

    for part, every, b in run_devices(nccl, 2, work):
        assert (part == 4).all() and (b == 4).all()
        assert all((one == 2).all() for one in every)


def test_waiting_raises_errors_of_a_started_operation(nccl):
    def work(c):
        handle = c.start(c.broadcast, Array(nccl.put(1, np.ones(4)), (4,)), 5)
        assert handle.done
        with pytest.raises(ConfigError, match="there is no rank 5"):
            handle.wait()
        c.barrier()  # the group still works

    alone(work)
