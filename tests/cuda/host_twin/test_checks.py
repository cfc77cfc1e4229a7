"""The host twin: undefined behaviour in all modules, bounds and races in checked ones."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tests.cuda.twin import Twin, TwinCompiler
from tests.cuda.twin.launch import Context, DriverError


@pytest.fixture
def checked(twin: Twin) -> Context:
    """A context whose kernels report every access to the driver."""
    twin.compiler = TwinCompiler(checked=True)
    return Context(twin)


def run(context: Context, body: str, *arguments: object, grid: int = 1, block: int = 64) -> None:
    """Return a kernel of integers ``x`` and a number ``n``, with shared ``s``; body from line 2."""
    first = (
        'extern "C" __global__ void kernel(int* x, int n) { __shared__ int s[64];'
        " const int t = threadIdx.x, at = blockIdx.x * 64 + t;"
    )
    source = f"{first}\n{body}\n}}"
    given = arguments or (context.array(np.zeros(1024, np.int32)), 7)
    context.module("wrong.cu", source).launch("kernel", grid, block, *given)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("\ns[n + threadIdx.x] = 1;", "an index outside of its array in .*:3$"),
        ("int four[4] = {1, 2, 3, 4};\nx[0] = four[n];", "an index outside of its array in .*:3$"),
        ("x[0] = 1 << (n * 5);", "a shift by more bits than there are in .*:2$"),
        ("x[0] = 0x7ffffff9 + n;", "a sum that overflows its integer in .*:2$"),
        ("x[0] = -0x7ffffff9 - n - n;", "a difference that overflows its integer"),
        ("x[0] = 0x20000000 * n;", "a product that overflows its integer"),
        ("x[0] = n / (n - 7);", "an integer is divided by zero in .*:2$"),
        (
            "x[0] = reinterpret_cast<int4*>(x + n)->y;",
            r"a value that is not aligned as its type in wrong\.cu:2$",
        ),
    ],
)
def test_undefined_behaviour(context: Context, body: str, message: str) -> None:
    with pytest.raises(DriverError, match=message):
        run(context, body)


def test_errors_name_the_line_of_the_access(context: Context) -> None:
    with pytest.raises(DriverError, match=r"access to 0x.* in wrong\.cu:3$"):
        run(context, "if (threadIdx.x == 9)\n  x[1 << 28] = 1;")


RACES = [
    # Shared memory, words of other threads.
    (
        "s[t] = 1;\nx[at] = s[63 - t];",
        "s[t] = 1;\n__syncthreads();\nx[at] = s[63 - t];",
        r"reads shared memory in wrong\.cu:3; no barrier parts it from thread .* wrote it in .*:2|"
        r"writes shared memory in wrong\.cu:2; no barrier parts it from thread .* read it in .*:3",
    ),
    # Overwritten before all threads have read.
    (
        "for (int i = 0; i < 2; ++i) { s[t] = i; __syncthreads(); x[at] = s[63 - t]; }",
        "for (int i = 0; i < 2; ++i) {\n"
        "s[t] = i; __syncthreads(); x[at] = s[63 - t]; __syncthreads(); }",
        "which (read|wrote) it",
    ),
    # Within a warp: a shuffle does not order accesses to memory.
    (
        "s[t] = 1;\n__shfl_sync(~0u, 1, 0);\nx[at] = s[t ^ 1];",
        "s[t] = 1;\n__syncwarp();\nx[at] = s[t ^ 1];",
        "a race: it reads shared memory",
    ),
    # Device memory, one block.
    (
        "x[t / 2] = 1;",
        "x[t] = 1;",
        r"a race: it writes 0x.* bytes from the start of one of 4096 bytes in wrong\.cu:2; "
        r"no barrier parts it from thread \(\d+, 0, 0\), which wrote it in wrong\.cu:2",
    ),
    # Device memory, several blocks.
    (
        "if (threadIdx.x == 0) x[blockIdx.x + 1] = x[blockIdx.x] + 1;",
        "if (threadIdx.x == 0) x[blockIdx.x] = x[blockIdx.x] + 1;",
        r"; block \([012], 0, 0\), thread \(0, 0, 0\), which (read|wrote) it in wrong\.cu:2",
    ),
    # Words of which each thread uses one byte.
    (
        "if (threadIdx.x < 2) reinterpret_cast<char*>(x)[2] = 1;",
        "reinterpret_cast<char*>(x)[threadIdx.x] = 1;",
        "a race: it writes 0x",
    ),
]


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("racing", "right", "message"), RACES)
def test_races(checked: Context, racing: str, right: str, message: str, seed: int) -> None:
    checked.twin.adversarial(seed)
    grid = 3 if "at" in right or "blockIdx" in right else 1
    run(checked, right, grid=grid)
    with pytest.raises(DriverError, match=message):
        run(checked, racing, grid=grid)


def test_threads_may_read_the_same(checked: Context) -> None:
    run(checked, "x[100 + blockIdx.x * 64 + threadIdx.x] = x[0] + x[1] + n;", grid=3)


def test_bytes_outside_of_an_allocation(checked: Context) -> None:
    """Guard bytes would show a write, but not a read."""
    x = checked.array(np.zeros(1001, np.int32))
    run(checked, "x[1000] = x[1000];", x, 0, block=1)
    for body, where in (
        ("x[0] = x[1001];", "4004 bytes from the start of"),
        ("x[1001] = 1;", "4004 bytes from the start of"),
        ("x[0] = x[-1];", "4 bytes before"),
    ):
        message = rf"access to .*, {where} one of 4004 bytes in wrong\.cu:2"
        with pytest.raises(DriverError, match=message) as error:
            run(checked, body, x, 0, block=1)
        assert error.value.code == 700
        checked.twin.reset()
        checked.twin.compiler = TwinCompiler(checked=True)


def test_an_address_of_the_host_inside_of_a_structure(checked: Context) -> None:
    class Holder(ctypes.Structure):
        _fields_ = (("x", ctypes.c_void_p),)

    source = """
        struct Holder { int* x; };
        extern "C" __global__ void kernel(Holder h, int* y) { y[0] = h.x[0]; }"""
    module = checked.module("holder.cu", source)
    x, y = checked.array([3], np.int32), checked.array([0], np.int32)
    module.launch("kernel", 1, 1, Holder(x.address), y)
    assert y.get() == 3
    host = np.zeros(1, np.int32)
    with pytest.raises(DriverError, match="which is no device memory"):
        module.launch("kernel", 1, 1, Holder(host.ctypes.data), y)


def test_dynamic_shared_memory_in_checked_modules(checked: Context) -> None:
    source = """
        extern "C" __global__ void kernel(int* y, int n) {
          extern __shared__ __align__(16) unsigned char shared_memory[];
          int* s = reinterpret_cast<int*>(shared_memory);
          for (int i = threadIdx.x; i < n; i += 32) s[i] = i;
          __syncthreads();
          y[threadIdx.x] = s[n - 1 - threadIdx.x];
        }"""
    module = checked.module("dynamic.cu", source)
    y = checked.array(np.zeros(32, np.int32))
    module.launch("kernel", 1, 32, y, 100, shared=400)
    np.testing.assert_array_equal(y.get(), 99 - np.arange(32))
    with pytest.raises(DriverError, match=r"access beyond the 400 bytes .*dynamic\.cu:5"):
        module.launch("kernel", 1, 32, y, 101, shared=400)


STREAMS = """
extern "C" __global__ void add(int* x, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] += 1;
}
extern "C" __global__ void sum(const int* x, int n, int* y) {
  for (int i = 0; i < n; ++i) *y += x[i];
}"""


def made(context: Context, what: str) -> ctypes.c_void_p:
    """Create a stream that is independent of the default one, or an event."""
    found = ctypes.c_void_p()
    context.call(f"cu{what}Create", ctypes.byref(found), 1)
    return found


class Streams:
    """Two streams that work on the same array, and calls that may order them."""

    def __init__(self, context: Context):
        self.context, self.module = context, context.module("streams.cu", STREAMS)
        self.x, self.y, self.z = (context.array(np.zeros(64, np.int32)) for _ in range(3))
        self.first, self.second = made(context, "Stream"), made(context, "Stream")
        context.synchronize()
        context.twin.watch_order()

    def add(self, stream: ctypes.c_void_p, n: int = 64) -> None:
        self.module.launch("add", 1, 32, self.x, n, stream=stream)

    def sum(self, stream: ctypes.c_void_p, n: int = 64) -> None:
        self.module.launch(
            "sum", 1, 1, self.x, n, self.y if stream is self.first else self.z, stream=stream
        )

    def after(self, earlier: ctypes.c_void_p, later: ctypes.c_void_p) -> None:
        event = made(self.context, "Event")
        self.context.call("cuEventRecord", event, earlier)
        self.context.call("cuStreamWaitEvent", later, event, 0)
        self.context.call("cuEventDestroy_v2", event)

    def wait(self) -> None:
        for stream in (self.first, self.second):
            self.context.call("cuStreamSynchronize", stream)


def by_event(s: Streams) -> None:
    s.add(s.first)
    s.after(s.first, s.second)
    s.add(s.second)


def by_host(s: Streams) -> None:
    s.add(s.first)
    s.context.call("cuStreamSynchronize", s.first)
    s.add(s.second)


def by_query(s: Streams) -> None:
    event = made(s.context, "Event")
    s.add(s.first)
    s.context.call("cuEventRecord", event, s.first)
    while s.context.calls.cuEventQuery(event) != 0:
        pass
    s.add(s.second)


def by_two_events(s: Streams) -> None:
    third = made(s.context, "Stream")
    s.add(s.first)
    s.after(s.first, third)
    s.after(third, s.second)
    s.add(s.second)


def both_read(s: Streams) -> None:
    s.sum(s.first)
    s.sum(s.second)


def independent(s: Streams) -> None:
    s.add(s.first, 32)
    x = ctypes.c_ulonglong(s.x.address + 128)
    s.context.call("cuMemsetD8Async", x, 0, ctypes.c_size_t(128), s.second)


def two_graphs(s: Streams) -> None:
    """Two chains in each of two graphs; the second graph is ordered after the first."""
    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    s.context.call("cuStreamBeginCapture_v2", s.first, 2)
    s.after(s.first, s.second)
    s.add(s.second)
    s.after(s.second, s.first)
    s.sum(s.first)
    s.context.call("cuStreamEndCapture", s.first, ctypes.byref(graph))
    s.context.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, 0)
    for _ in range(2):
        s.context.call("cuGraphLaunch", executable, s.first)
    s.add(s.first)


@pytest.mark.parametrize(
    "run",
    [by_event, by_host, by_query, by_two_events, both_read, independent, two_graphs],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_streams_that_are_ordered(checked: Context, run: object, seed: int) -> None:
    streams = Streams(checked)
    checked.twin.adversarial(seed)
    run(streams)  # type: ignore[operator]
    streams.wait()
    assert checked.twin.fault() == ""


def no_event(s: Streams) -> None:
    s.add(s.first)
    s.add(s.second)


def event_before(s: Streams) -> None:
    s.after(s.first, s.second)
    s.add(s.first)
    s.add(s.second)


def event_the_other_way(s: Streams) -> None:
    s.add(s.first)
    s.after(s.second, s.first)
    s.add(s.second)


def read_is_overwritten(s: Streams) -> None:
    s.sum(s.first)
    s.after(s.first, s.second)
    s.sum(s.first)
    s.add(s.second)


def two_read_and_one_is_waited_for(s: Streams) -> None:
    third = made(s.context, "Stream")
    s.sum(s.first)
    s.sum(s.second)
    s.after(s.first, third)
    s.add(third)
    s.context.call("cuStreamSynchronize", third)


def fill(s: Streams) -> None:
    s.add(s.first)
    x = ctypes.c_ulonglong(s.x.address + 252)
    s.context.call("cuMemsetD8Async", x, 0, ctypes.c_size_t(4), s.second)


def graph_next_to_a_stream(s: Streams) -> None:
    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    s.context.call("cuStreamBeginCapture_v2", s.first, 2)
    s.add(s.first)
    s.context.call("cuStreamEndCapture", s.first, ctypes.byref(graph))
    s.context.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, 0)
    s.context.call("cuGraphLaunch", executable, s.first)
    s.sum(s.second)


@pytest.mark.parametrize(
    "run",
    [
        no_event,
        event_before,
        event_the_other_way,
        read_is_overwritten,
        two_read_and_one_is_waited_for,
        fill,
        graph_next_to_a_stream,
    ],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_streams_that_race(checked: Context, run: object, seed: int) -> None:
    """Races are found in any order of execution, even in issue order, where results are right."""
    streams = Streams(checked)
    checked.twin.adversarial(seed)
    with pytest.raises(DriverError, match=r"a race of streams: .* no event and no wait orders it"):
        run(streams)  # type: ignore[operator]
        streams.wait()
    fault = checked.twin.fault()
    assert "256 bytes" in fault and "launch " in fault and fault.count(" on stream ") == 2
