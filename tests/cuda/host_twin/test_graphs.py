"""The host twin: stream capture and graphs."""

from __future__ import annotations

import ctypes
import threading
from itertools import pairwise

import numpy as np
import pytest

from tests.cuda.twin import Twin
from tests.cuda.twin.launch import Array, Context, DriverError, Module

GLOBAL, THREAD, RELAXED = range(3)
N = 10
ADD = """
extern "C" __global__ void add(int* x, int n, int value) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] += value;
}
extern "C" __global__ void twice(int* x, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] *= 2;
}"""
Handle = ctypes.c_void_p


class Driver(Context):
    """Streams, events and graphs by handle."""

    def made(self, name: str, *arguments: object) -> Handle:
        handle = Handle()
        self.call(name, ctypes.byref(handle), *arguments)
        return handle

    def stream(self, flags: int = 1) -> Handle:
        return self.made("cuStreamCreate", flags)

    def event(self) -> Handle:
        return self.made("cuEventCreate", 2)

    def begin(self, stream: Handle, mode: int = RELAXED) -> None:
        self.call("cuStreamBeginCapture_v2", stream, mode)

    def end(self, stream: Handle) -> Handle:
        graph = Handle()
        self.call("cuStreamEndCapture", stream, ctypes.byref(graph))
        return graph

    def executable(self, graph: Handle) -> Handle:
        return self.made("cuGraphInstantiateWithFlags", graph, ctypes.c_ulonglong(0))

    def after(self, first: Handle, second: Handle) -> None:
        """Order later work of `second` after the work in `first`."""
        event = self.event()
        self.call("cuEventRecord", event, first)
        self.call("cuStreamWaitEvent", second, event, 0)
        self.call("cuEventDestroy_v2", event)

    def wait(self, stream: Handle) -> None:
        self.call("cuStreamSynchronize", stream)


@pytest.fixture
def driver(twin: Twin) -> Driver:
    return Driver(twin)


@pytest.fixture
def module(driver: Driver) -> Module:
    return driver.module("add.cu", ADD)


def zeros(driver: Driver) -> Array:
    x = driver.array(np.zeros(N, np.int32))
    driver.synchronize()
    return x


def value(x: Array) -> int:
    (found,) = set(x.get())
    return int(found)


def refused(name: str, work, *arguments: object) -> None:
    with pytest.raises(DriverError, match=name):
        work(*arguments)


def diamond(driver: Driver, module: Module, x: Array, y: Array, joined: bool = True) -> Handle:
    """x = (x + 1) * 2 and y = (y + 1) * 2 on two streams, which join, then both + 3."""
    first, second = driver.stream(), driver.stream()
    driver.begin(first)
    driver.after(first, second)
    for stream, array in ((first, x), (second, y)):
        module.launch("add", 1, 32, array, N, 1, stream=stream)
        module.launch("twice", 1, 32, array, N, stream=stream)
    if joined:
        driver.after(second, first)
        for array in (x, y):
            module.launch("add", 1, 32, array, N, 3, stream=first)
    return driver.end(first)


def test_captured_operations_run_with_their_graph(driver: Driver, module: Module) -> None:
    x, y, stream = zeros(driver), zeros(driver), driver.stream()
    before = driver.twin.live()["graphs"]
    graph = diamond(driver, module, x, y)
    run = driver.executable(graph)
    driver.call("cuGraphDestroy", graph)
    assert (value(x), value(y)) == (0, 0)
    driver.twin.reset()
    for expected in (5, 15, 35):  # 2 (x + 1) + 3
        driver.call("cuGraphLaunch", run, stream)
        driver.wait(stream)
        assert (value(x), value(y)) == (expected, expected)
    log = driver.twin.operations()
    assert [o.arguments for o in log if o.kind == "graph"] == [(6,)] * 3
    assert sum(o.kind == "launch" for o in log) == 18
    assert len({o.stream for o in log if o.kind in ("graph", "launch")}) == 1
    driver.call("cuGraphExecDestroy", run)
    assert driver.twin.live()["graphs"] == before


@pytest.mark.parametrize("seed", range(1, 13))
def test_nodes_run_in_any_order_that_streams_and_events_allow(
    driver: Driver, module: Module, seed: int
) -> None:
    x, y = zeros(driver), zeros(driver)
    run = driver.executable(diamond(driver, module, x, y))
    first, second = driver.stream(), driver.stream()
    driver.twin.adversarial(seed)
    driver.twin.reset()
    driver.twin.adversarial(seed)
    module.launch("add", 1, 32, x, N, 10, stream=first)
    driver.call("cuGraphLaunch", run, first)
    driver.call("cuGraphExecDestroy", run)  # launched work goes on
    module.launch("twice", 1, 32, x, N, stream=first)
    driver.after(first, second)
    module.launch("add", 1, 32, x, N, 1, stream=second)
    driver.wait(second)
    driver.wait(first)
    assert (value(x), value(y)) == (51, 5)  # 2 (2 (10 + 1) + 3) + 1


def test_nodes_of_two_streams_run_in_either_order(driver: Driver, module: Module) -> None:
    """And between operations of a stream that does not wait for the graph."""
    orders, between = set(), set()
    for seed in range(1, 30):
        x, y, z = zeros(driver), zeros(driver), zeros(driver)
        run = driver.executable(diamond(driver, module, x, y))
        stream, other = driver.stream(), driver.stream()
        driver.twin.reset()
        driver.twin.adversarial(seed)
        driver.call("cuGraphLaunch", run, stream)
        module.launch("add", 1, 32, z, N, 1, stream=other)
        driver.wait(stream)
        driver.wait(other)
        ran = {o.arguments[0]: o.ran for o in driver.twin.launches() if o.name != "add"}
        orders.add(ran[x.address] < ran[y.address])
        (other,) = [o.ran for o in driver.twin.launches() if o.arguments[0] == z.address]
        nodes = [o.ran for o in driver.twin.launches() if o.arguments[0] != z.address]
        between.add(min(nodes) < other < max(nodes))
        driver.twin.adversarial(0)
    assert orders == {True, False}
    assert True in between


def test_arguments_fills_and_copies_are_those_of_the_capture(
    driver: Driver, module: Module
) -> None:
    x, y, stream = zeros(driver), zeros(driver), driver.stream()
    size, number = ctypes.c_size_t(4 * N), ctypes.c_int(7)
    function = module.function("add")
    address = ctypes.c_ulonglong(x.address)
    given = [address, ctypes.c_int(N), number]
    pointers = (Handle * 3)(*[ctypes.addressof(a) for a in given])
    driver.begin(stream)
    driver.call("cuMemsetD8Async", ctypes.c_ulonglong(x.address), 0, size, stream)
    driver.call("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, stream, pointers, None)
    number.value = 8  # copied already
    to, source = (ctypes.c_ulonglong(a.address) for a in (y, x))
    driver.call("cuMemcpyDtoDAsync_v2", to, source, size, stream)
    host = (ctypes.c_int * N)()
    refused("CAPTURE_UNSUPPORTED", driver.call, "cuMemcpyHtoDAsync_v2", to, host, size, stream)
    refused("CAPTURE_INVALIDATED", driver.call, "cuMemsetD8Async", to, 0, size, stream)
    refused("CAPTURE_INVALIDATED", driver.end, stream)
    driver.begin(stream)
    driver.call("cuMemsetD8Async", ctypes.c_ulonglong(x.address), 0, size, stream)
    driver.call("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, stream, pointers, None)
    number.value = 9
    driver.call("cuMemcpyDtoDAsync_v2", to, source, size, stream)
    run = driver.executable(driver.end(stream))
    for _ in range(2):
        driver.call("cuGraphLaunch", run, stream)
        driver.wait(stream)
        assert (value(x), value(y)) == (8, 8)


def test_a_capture_with_a_refused_call_has_no_graph(driver: Driver, module: Module) -> None:
    x, stream, other, event = zeros(driver), driver.stream(), driver.stream(), driver.event()
    driver.call("cuEventRecord", event, other)

    def launch() -> None:
        module.launch("add", 1, 32, x, N, 1, stream=stream)

    for name, call in (
        ("CAPTURE_UNSUPPORTED", ("cuStreamSynchronize", stream)),
        ("CAPTURE_UNSUPPORTED", ("cuStreamDestroy_v2", stream)),
        ("CAPTURE_ISOLATION", ("cuStreamWaitEvent", stream, event, 0)),
    ):
        driver.begin(stream)
        launch()
        refused(name, driver.call, *call)
        refused("CAPTURE_INVALIDATED", launch)
        refused("CAPTURE_INVALIDATED", driver.end, stream)
        driver.wait(stream)
    assert value(x) == 0


def test_calls_that_a_capture_forbids(driver: Driver, module: Module) -> None:
    stream, other, blocking = driver.stream(), driver.stream(), driver.stream(0)
    event, late, x = driver.event(), driver.event(), zeros(driver)
    refused("CAPTURE_UNSUPPORTED", driver.begin, None)  # the default stream
    refused("ILLEGAL_STATE", driver.end, stream)
    driver.begin(blocking)
    refused("CAPTURE_IMPLICIT", x.get)
    refused("CAPTURE_INVALIDATED", driver.end, blocking)
    driver.begin(stream)
    refused("ILLEGAL_STATE", driver.begin, stream)
    driver.call(
        "cuStreamWaitEvent", stream, late, 0
    )  # never recorded, so there is nothing to wait for
    driver.call("cuEventRecord", event, stream)
    refused("CAPTURED_EVENT", driver.call, "cuEventSynchronize", event)
    refused("CAPTURED_EVENT", driver.call, "cuEventQuery", event)
    driver.call("cuStreamWaitEvent", other, event, 0)
    refused("CAPTURE_UNMATCHED", driver.end, other)
    refused("CAPTURE_INVALIDATED", driver.end, stream)
    refused("CAPTURED_EVENT", driver.call, "cuStreamWaitEvent", other, event, 0)
    refused("CAPTURE_UNJOINED", diamond, driver, module, x, zeros(driver), False)
    driver.begin(stream)
    driver.begin(other)
    driver.call("cuEventRecord", event, stream)
    refused("CAPTURE_MERGE", driver.call, "cuStreamWaitEvent", other, event, 0)
    for each in (stream, other):
        refused("CAPTURE_INVALIDATED", driver.end, each)
    assert value(x) == 0


def test_some_capture_modes_forbid_calls_that_may_wait(driver: Driver) -> None:
    stream, where = driver.stream(), ctypes.c_ulonglong()

    def allocate() -> None:
        driver.call("cuCtxSetCurrent", driver.made("cuDevicePrimaryCtxRetain", 0))
        driver.call("cuMemAlloc_v2", ctypes.byref(where), ctypes.c_size_t(64))
        driver.call("cuMemFree_v2", where)

    def elsewhere() -> str:
        found = []

        def run() -> None:
            try:
                allocate()
            except DriverError as error:
                found.append(str(error))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return "".join(found)

    driver.begin(stream, RELAXED)
    allocate()
    assert elsewhere() == ""
    driver.call("cuGraphDestroy", driver.end(stream))
    driver.begin(stream, THREAD)
    assert elsewhere() == ""
    refused("CAPTURE_UNSUPPORTED", allocate)
    refused("CAPTURE_INVALIDATED", driver.end, stream)
    driver.begin(stream, GLOBAL)
    assert "CAPTURE_UNSUPPORTED" in elsewhere()
    refused("CAPTURE_INVALIDATED", driver.end, stream)


def test_calls_fail_on_request(driver: Driver, module: Module) -> None:
    x, stream = zeros(driver), driver.stream()
    twin = driver.twin

    def capture() -> Handle:
        driver.begin(stream)
        module.launch("add", 1, 32, x, N, 1, stream=stream)
        return driver.end(stream)

    twin.fail_call("cuStreamBeginCapture_v2", 999)
    refused("UNKNOWN", capture)
    twin.fail_call("cuStreamBeginCapture_v2", 0)
    twin.fail_call("capture", 999)
    refused("UNKNOWN", capture)
    twin.fail_call("capture", 0)
    refused("CAPTURE_INVALIDATED", driver.end, stream)
    twin.fail_call("cuStreamEndCapture", 901)
    refused("INVALIDATED", capture)
    twin.fail_call("cuStreamEndCapture", 0)
    graph = capture()
    twin.fail_call("cuGraphInstantiateWithFlags", 2)
    refused("OUT_OF_MEMORY", driver.executable, graph)
    twin.fail_call("cuGraphInstantiateWithFlags", 0)
    run = driver.executable(graph)
    twin.fail_call("cuGraphLaunch", 2)
    refused("OUT_OF_MEMORY", driver.call, "cuGraphLaunch", run, stream)
    twin.reset()
    driver.call("cuGraphLaunch", run, stream)
    driver.wait(stream)
    assert value(x) == 1
    for name, bad in (("cuGraphDestroy", run), ("cuGraphExecDestroy", graph)):
        refused("INVALID_HANDLE", driver.call, name, bad)
    refused("INVALID_HANDLE", driver.call, "cuGraphLaunch", graph, stream)
    with pytest.raises(KeyError):
        twin.fail_call("cuMemAlloc_v2", 2)


def test_waiting_reports_a_fault_in_a_graph(driver: Driver, module: Module) -> None:
    x, y, stream = zeros(driver), zeros(driver), driver.stream()
    run = driver.executable(diamond(driver, module, x, y))
    driver.twin.fail_launch(nth=3)
    driver.call("cuGraphLaunch", run, stream)
    refused("ILLEGAL_ADDRESS", driver.wait, stream)
    driver.twin.reset()
    driver.call("cuGraphLaunch", run, stream)
    driver.wait(stream)
    launched = driver.twin.launches()
    assert len(launched) == 6
    assert all(o.ran >= 0 for o in launched)


def test_the_clock_of_events_can_be_set(driver: Driver, module: Module) -> None:
    x, y, stream = zeros(driver), zeros(driver), driver.stream()
    run = driver.executable(diamond(driver, module, x, y))
    driver.twin.clock(command=1000, node=10)
    events = [driver.made("cuEventCreate", 0) for _ in range(3)]
    driver.call("cuEventRecord", events[0], stream)
    for _ in range(3):
        module.launch("add", 1, 32, x, N, 1, stream=stream)
    driver.call("cuEventRecord", events[1], stream)
    driver.call("cuGraphLaunch", run, stream)
    driver.call("cuEventRecord", events[2], stream)
    driver.wait(stream)
    times = []
    for start, end in pairwise(events):
        time = ctypes.c_float()
        driver.call("cuEventElapsedTime", ctypes.byref(time), start, end)
        times.append(round(time.value * 1e6))
    assert times == [4000, 2060]  # at the record, at the launch of the graph
