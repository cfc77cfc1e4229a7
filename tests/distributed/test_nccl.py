"""What NCCL is called with, seen by a stand-in for CuPy; nothing here runs on a GPU."""

import sys
import types

import numpy as np
import pytest

from cavs.distributed.communicator import SingleCommunicator
from cavs.distributed.communicator.nccl import NCCLCommunicator
from cavs.errors import ConfigError, DeviceError

CALLS = []


class Device:
    """A device array, as far as the communicator looks at it."""

    def __init__(self, values, at=1000):
        self.values, self.at = np.asarray(values), at
        self.dtype, self.size = self.values.dtype, self.values.size
        self.data = types.SimpleNamespace(ptr=at)

    def reshape(self, *shape):
        return Device(self.values.reshape(*shape), self.at)

    def __getitem__(self, part):
        return Device(self.values[part], self.at + part.start * self.dtype.itemsize)


class Comm:
    def __init__(self, size, unique, rank):
        CALLS.append(("init", size, unique, rank))

    def __getattr__(self, name):
        return lambda *arguments: CALLS.append((name, *arguments))


class Control(SingleCommunicator):
    """Rank 1 of 3, as far as the stand-in needs it."""

    rank, size = 1, 3

    def share(self, value):
        assert value is None  # only rank 0 makes the id
        return [[7, 8], None, None]


@pytest.fixture
def cupy(monkeypatch):
    CALLS.clear()
    nccl = types.ModuleType("cupy.cuda.nccl")
    nccl.available, nccl.NcclCommunicator = True, Comm
    nccl.get_unique_id = lambda: (7, 8)
    nccl.NCCL_SUM, nccl.NCCL_FLOAT32, nccl.NCCL_FLOAT64, nccl.NCCL_FLOAT16 = 0, 7, 8, 6
    cuda = types.ModuleType("cupy.cuda")
    cuda.nccl = nccl
    cuda.get_current_stream = lambda: types.SimpleNamespace(ptr=99)
    module = types.ModuleType("cupy")
    module.cuda = cuda
    for name, value in (("cupy", module), ("cupy.cuda", cuda), ("cupy.cuda.nccl", nccl)):
        monkeypatch.setitem(sys.modules, name, value)
    return nccl


def test_operations_pass_pointers_counts_types_and_stream(cupy):
    c = NCCLCommunicator(Control())
    array = Device(np.zeros(12, np.float32))
    c.all_reduce(array)
    c.reduce(array, 2)
    c.broadcast(Device(np.zeros(3)), 0)
    part = c.reduce_scatter(array, [4, 4, 4])
    c.all_gather_into(array, [4, 4, 4])
    c.close()
    assert part.at == 1016
    assert CALLS == [
        ("init", 3, (7, 8), 1),
        ("allReduce", 1000, 1000, 12, 7, 0, 99),
        ("reduce", 1000, 1000, 12, 7, 0, 2, 99),
        ("broadcast", 1000, 1000, 3, 8, 0, 99),
        ("reduceScatter", 1000, 1016, 4, 7, 0, 99),
        ("allGather", 1016, 1000, 4, 7, 99),
        ("destroy",),
    ]


def test_what_nccl_cannot_do_is_a_clear_error(cupy):
    c = NCCLCommunicator(Control())
    with pytest.raises(ConfigError, match="NCCL sums float32, float64, float16, not int32"):
        c.all_reduce(Device(np.zeros(3, np.int32)))
    with pytest.raises(ConfigError, match=r"equal parts of 12 elements, not \[6, 6, 0\]"):
        c.reduce_scatter(Device(np.zeros(12, np.float32)), [6, 6, 0])
    cupy.available = False
    with pytest.raises(DeviceError, match="CuPy finds no NCCL library"):
        NCCLCommunicator(Control())
