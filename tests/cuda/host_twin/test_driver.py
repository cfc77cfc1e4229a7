"""The host twin: streams, events, memory, the log, and failing drivers."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.cuda.twin import Twin, build
from tests.cuda.twin.launch import Array, Context, DriverError, Module

ROOT = Path(__file__).resolve().parents[3]
SEEDS = range(1, 13)

ADD = """
extern "C" __global__ void add(int* x, int n, int value) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] += value;
}
extern "C" __global__ void twice(int* x, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] *= 2;
}"""
N = 100
SIZE = ctypes.c_size_t(4 * N)


@pytest.fixture
def module(context: Context) -> Module:
    return context.module("add.cu", ADD)


def handle(context: Context, what: str, flags: int = 1) -> ctypes.c_void_p:
    """Create a stream (flags 1: non-blocking) or an event (flags 1: blocking waits)."""
    made = ctypes.c_void_p()
    context.call(f"cu{what}Create", ctypes.byref(made), flags)
    return made


def address(array: Array) -> ctypes.c_ulonglong:
    return ctypes.c_ulonglong(array.address)


def pinned(context: Context) -> tuple[ctypes.c_void_p, np.ndarray]:
    """Return pinned memory of N integers, also as an array."""
    where = ctypes.c_void_p()
    context.call("cuMemHostAlloc", ctypes.byref(where), SIZE, 0)
    kind = ctypes.POINTER(ctypes.c_int)
    return where, np.ctypeslib.as_array(ctypes.cast(where, kind), shape=(N,))


def two_streams(context: Context, module: Module, seed: int, with_event: bool) -> int:
    """Compute (0 + 1) * 2 over two streams."""
    context.twin.adversarial(seed)
    x = context.array(np.zeros(N, np.int32))
    first, second, event = (handle(context, kind) for kind in ("Stream", "Stream", "Event"))
    context.synchronize()
    module.launch("add", 1, 32, x, N, 1, stream=first)
    context.call("cuEventRecord", event, first)
    if with_event:
        context.call("cuStreamWaitEvent", second, event, 0)
    module.launch("twice", 1, 32, x, N, stream=second)
    context.call("cuStreamSynchronize", second)
    context.call("cuStreamSynchronize", first)
    for stream in (first, second):
        context.call("cuStreamDestroy_v2", stream)
    context.call("cuEventDestroy_v2", event)
    (result,) = set(x.get())
    return int(result)


def test_a_missing_event_gives_wrong_results(context: Context, module: Module) -> None:
    assert two_streams(context, module, 0, with_event=False) == 2  # in issue order
    for seed in SEEDS:
        assert two_streams(context, module, seed, with_event=True) == 2
    assert {two_streams(context, module, seed, with_event=False) for seed in SEEDS} == {1, 2}


def test_the_default_stream_waits_for_blocking_ones(context: Context, module: Module) -> None:
    for seed in SEEDS:
        context.twin.adversarial(seed)
        x = context.array(np.zeros(N, np.int32))
        stream = handle(context, "Stream", 0)
        module.launch("add", 1, 32, x, N, 1, stream=stream)
        module.launch("twice", 1, 32, x, N, stream=ctypes.c_void_p())
        module.launch("add", 1, 32, x, N, 3, stream=stream)
        context.call("cuStreamSynchronize", stream)
        assert set(x.get()) == {5}


def test_a_wait_refers_to_the_last_record(context: Context, module: Module) -> None:
    x = context.array(np.zeros(N, np.int32))
    first, second, event = (handle(context, kind) for kind in ("Stream", "Stream", "Event"))
    context.call(
        "cuStreamWaitEvent", second, event, 0
    )  # never recorded, so there is nothing to wait for
    context.call("cuStreamSynchronize", second)
    context.call("cuEventRecord", event, first)
    context.call("cuStreamWaitEvent", second, event, 0)
    module.launch("add", 1, 32, x, N, 1, stream=first)
    context.call("cuEventRecord", event, first)
    context.call("cuStreamSynchronize", second)
    assert context.twin.launches()[0].ran == -1  # ordered after the awaited work
    context.call("cuEventSynchronize", event)
    assert context.twin.launches()[0].ran > 0
    assert set(x.get()) == {1}


def test_host_memory_is_read_when_the_copy_runs(context: Context) -> None:
    where, host = pinned(context)
    x = context.array(np.zeros(N, np.int32))
    stream = handle(context, "Stream")
    host[:] = 1
    context.call("cuMemcpyHtoDAsync_v2", address(x), where, SIZE, stream)
    host[:] = 2  # too early
    context.call("cuStreamSynchronize", stream)
    assert set(x.get()) == {2}
    pageable = np.full(N, 3, np.int32)
    source = ctypes.c_void_p(pageable.ctypes.data)
    context.call("cuMemcpyHtoDAsync_v2", address(x), source, SIZE, stream)
    pageable[:] = 4  # too early as well: a copy is not promised
    context.call("cuStreamSynchronize", stream)
    assert set(x.get()) == {4}
    host[:] = 0
    context.call("cuMemcpyDtoHAsync_v2", where, address(x), SIZE, stream)
    assert set(host) == {0}  # without a wait
    context.call("cuStreamSynchronize", stream)
    assert set(host) == {4}
    context.call("cuMemFreeHost", where)
    with pytest.raises(DriverError, match="INVALID_VALUE"):
        context.call("cuMemFreeHost", where)


def test_new_memory_is_nan_and_a_large_integer(context: Context) -> None:
    for dtype in (np.float32, np.float64):
        where = ctypes.c_ulonglong()
        context.call("cuMemAlloc_v2", ctypes.byref(where), SIZE)
        host = np.zeros(SIZE.value // np.dtype(dtype).itemsize, dtype)
        to = ctypes.c_void_p(host.ctypes.data)
        context.call("cuMemcpyDtoHAsync_v2", to, where, SIZE, None)
        assert np.isnan(host).all()
        assert (host.view(np.int32) > 1 << 30).all()
        context.call("cuMemFree_v2", where)


def test_copies_and_fills_stay_inside(context: Context) -> None:
    x, y = context.array(np.zeros(N, np.int32)), context.array(np.arange(N, dtype=np.int32))
    context.call("cuMemcpyDtoDAsync_v2", address(x), address(y), SIZE, None)
    np.testing.assert_array_equal(x.get(), np.arange(N))
    half = ctypes.c_size_t(2 * N)
    context.call("cuMemsetD8Async", address(x), 255, half, None)
    np.testing.assert_array_equal(x.get(), [-1] * (N // 2) + list(range(N // 2, N)))
    beyond = ctypes.c_size_t(4 * N + 1)
    for name, arguments in (
        ("cuMemsetD8Async", (address(x), 0)),
        ("cuMemcpyDtoDAsync_v2", (address(x), address(y))),
        ("cuMemcpyHtoDAsync_v2", (address(x), bytes(4 * N + 1))),
        ("cuMemcpyDtoHAsync_v2", (ctypes.create_string_buffer(4 * N + 1), address(x))),
    ):
        with pytest.raises(DriverError, match="INVALID_VALUE"):
            context.call(name, *arguments, beyond, None)


def test_time_between_events(context: Context) -> None:
    start, end, plain = (
        handle(context, "Event"),
        handle(context, "Event"),
        handle(context, "Event", 2),
    )
    time = ctypes.c_float(-1)
    for event in (start, end, plain):
        context.call("cuEventRecord", event, None)
    with pytest.raises(DriverError, match="NOT_READY"):
        context.call("cuEventElapsedTime", ctypes.byref(time), start, end)
    context.call("cuEventSynchronize", plain)
    context.call("cuEventElapsedTime", ctypes.byref(time), start, end)
    assert 0 <= time.value < 1000
    with pytest.raises(DriverError, match="INVALID_HANDLE"):  # created without timing
        context.call("cuEventElapsedTime", ctypes.byref(time), start, plain)


def test_the_log(context: Context, module: Module) -> None:
    gc.collect()  # sessions held by errors of earlier tests wait for the device when freed
    context.twin.reset()
    x = context.array(np.zeros(N, np.int32))
    stream = handle(context, "Stream")
    context.call("cuMemsetD8Async", address(x), 0, SIZE, stream)
    module.launch("add", (2, 3), 32, x, N, -7, stream=stream)
    copy, fill, launch = context.twin.operations()
    assert (copy.kind, copy.name, copy.to, copy.bytes) == ("copy", "to device", x.address, 4 * N)
    assert (fill.kind, fill.to, fill.issued, fill.ran) == ("set", x.address, 1, -1)
    assert (copy.stream, fill.stream > 0) == (0, True)
    assert fill.stream == launch.stream
    assert launch.name == "add"
    assert (launch.grid, launch.block, launch.shared) == ((2, 3, 1), (32, 1, 1), 0)
    assert launch.arguments == (x.address, N, -7)
    assert launch.ran == -1
    context.call("cuStreamSynchronize", stream)
    assert [o.ran for o in context.twin.operations()] == [0, 1, 2, 3]
    waited = context.twin.operations()[-1]
    assert (waited.kind, waited.stream, waited.from_) == ("synchronize", fill.stream, 0)
    event = handle(context, "Event")
    context.call("cuEventRecord", event, stream)
    context.call("cuEventSynchronize", event)
    recorded, waited = context.twin.operations()[-2:]
    assert (waited.kind, waited.from_) == ("synchronize", recorded.to)
    assert recorded.ran < waited.ran
    context.twin.reset()
    assert context.twin.operations() == []


@pytest.mark.parametrize("seed", [0, 1])
def test_waiting_reports_a_fault(context: Context, module: Module, seed: int) -> None:
    context.twin.adversarial(seed)
    context.twin.fail_launch(nth=2, code=700)
    x = context.array(np.zeros(N, np.int32))
    module.launch("add", 1, 32, x, N, 1, stream=ctypes.c_void_p())
    module.launch("add", 1, 32, x, N, 1, stream=ctypes.c_void_p())
    module.launch("add", 1, 32, x, N, 1, stream=ctypes.c_void_p())
    for _ in range(2):
        with pytest.raises(DriverError, match=r"ILLEGAL_ADDRESS .700.: .*the test asked for") as e:
            context.synchronize()
        assert e.value.code == 700
    context.twin.reset()
    assert set(x.get()) == {1}  # operations after the fault did not run


def test_live_objects(context: Context, module: Module) -> None:
    """Even after a fault everything can be released, although every call reports it."""
    gc.collect()  # arrays held by errors of earlier tests
    before = context.twin.live()
    assert before["modules"] >= 1
    for faulty in (False, True):
        x = context.array(np.zeros(N, np.int32))
        where, _ = pinned(context)
        stream, event = handle(context, "Stream"), handle(context, "Event")
        other = context.module("add.cu", ADD)
        live = context.twin.live()
        assert {name: live[name] - before[name] for name in live} == {
            **dict.fromkeys(("allocations", "pinned", "streams", "events", "modules"), 1),
            "graphs": 0,
            "bytes": 4 * N,
        }
        if faulty:
            context.twin.fail_launch()
            module.launch("add", 1, 32, x, N, 1, stream=ctypes.c_void_p())
        codes = [
            context.calls.cuStreamSynchronize(None),
            context.calls.cuMemFree_v2(address(x)),
            context.calls.cuMemFreeHost(where),
            context.calls.cuStreamDestroy_v2(stream),
            context.calls.cuEventDestroy_v2(event),
            context.calls.cuModuleUnload(other.handle),
        ]
        x.address = 0
        assert set(codes) == {700 if faulty else 0}
        assert context.twin.live() == before


def test_out_of_memory(context: Context) -> None:
    used = context.twin.used()
    context.twin.memory(used + 10_000)
    one = context.array(np.zeros(9_000, np.uint8))
    with pytest.raises(DriverError, match="OUT_OF_MEMORY") as error:
        context.array(np.zeros(1_001, np.uint8))
    assert error.value.code == 2
    assert (context.twin.used(), one.nbytes) == (used + 9_000, 9_000)
    del one
    context.array(np.zeros(10_000, np.uint8))
    assert context.twin.used() == used


@pytest.mark.parametrize("arguments", [(0, 1), (65536, 1), (1, 0), (1, 1025)])
def test_grids_that_a_device_refuses(
    context: Context, module: Module, arguments: tuple[int, int]
) -> None:
    y, block = arguments
    with pytest.raises(DriverError, match="INVALID_VALUE"):
        module.launch("add", (1, y), block, context.array(np.zeros(N, np.int32)), N, 1)


def test_invalid_modules(context: Context, module: Module) -> None:
    for image in (b"\x7fELF", b"/nowhere.twin.so", b"/etc/passwd", bytes(8)):
        with pytest.raises(DriverError, match="INVALID_IMAGE"):
            Module(context, image)
    with pytest.raises(DriverError, match="NOT_FOUND"):
        module.launch("absent", 1, 32)
    context.call("cuModuleUnload", module.handle)
    with pytest.raises(DriverError, match="INVALID_HANDLE"):
        module.launch("add", 1, 32)


@pytest.mark.parametrize(("made", "runs"), [(80, "80 86 89"), (86, "86 89"), (90, "90"), (75, "")])
def test_code_runs_on_devices_of_its_architecture_and_newer_ones_of_its_kind(
    context: Context, made: int, runs: str
) -> None:
    image = context.twin.compiler.compile("add.cu", ADD, {}, [f"--gpu-architecture=sm_{made}"])
    found = []
    for capability in (80, 86, 89, 90, 100):
        context.twin.capability(capability)
        try:
            Module(context, image)
            found.append(str(capability))
        except DriverError as error:
            assert error.code == 209
    assert " ".join(found) == runs


def test_an_image_need_not_end_with_zero(context: Context) -> None:
    image = context.twin.compiler.compile("add.cu", ADD, {}, [])
    assert image.endswith(b".twin.so") and Path(image.decode()).exists()
    module = Module(context, image + b"garbage behind it")
    x = context.array(np.zeros(N, np.int32))
    module.launch("add", 1, 32, x, N, 4)
    assert set(x.get()) == {4}


def test_queries_of_events(context: Context, module: Module) -> None:
    x = context.array(np.zeros(N, np.int32))
    context.synchronize()
    stream, event = handle(context, "Stream"), handle(context, "Event")
    module.launch("add", 1, 32, x, N, 1, stream=stream)
    module.launch("add", 1, 32, x, N, 1, stream=stream)
    context.call("cuEventRecord", event, stream)
    answers = []
    for _ in range(5):
        ran = sum(o.ran >= 0 for o in context.twin.launches())
        answers.append((context.calls.cuEventQuery(event), ran))
    assert answers == [(600, 0), (600, 1), (600, 2), (0, 2), (0, 2)]


def test_a_thread_without_a_context(context: Context) -> None:
    codes = []
    thread = threading.Thread(target=lambda: codes.append(context.calls.cuStreamSynchronize(None)))
    thread.start()
    thread.join()
    assert codes == [201]


def test_errors_have_names(context: Context) -> None:
    text = ctypes.c_char_p()
    context.call("cuGetErrorName", 700, ctypes.byref(text))
    assert text.value == b"CUDA_ERROR_ILLEGAL_ADDRESS"
    context.call("cuGetErrorString", 700, ctypes.byref(text))
    assert text.value == b"an illegal memory access was encountered"
    with pytest.raises(DriverError, match="INVALID_VALUE"):
        context.call("cuGetErrorName", 12345, ctypes.byref(text))


def attribute(context: Context, number: int) -> int:
    value = ctypes.c_int()
    context.call("cuDeviceGetAttribute", ctypes.byref(value), number, 0)
    return value.value


def test_settings_of_drivers_and_devices(twin: Twin) -> None:
    twin.no_device()
    with pytest.raises(DriverError, match="NO_DEVICE"):
        Context(twin)
    twin.reset()
    twin.fail_init(803)
    with pytest.raises(DriverError, match="SYSTEM_DRIVER_MISMATCH"):
        Context(twin)
    twin.reset()
    context = Context(twin)
    assert (attribute(context, 75), attribute(context, 76)) == (9, 0)
    twin.capability(75)
    assert (attribute(context, 75), attribute(context, 76)) == (7, 5)
    version = ctypes.c_int()
    twin.driver_version(11040)
    context.call("cuDriverGetVersion", ctypes.byref(version))
    assert version.value == 11040
    with pytest.raises(KeyError):
        twin.set("colour", 3)


def test_a_driver_without_a_symbol(twin: Twin) -> None:
    old = Twin(without=("cuMemHostAlloc", "cublasLtMatmul"))
    assert old.library != twin.library
    for name in ("cuMemHostAlloc", "cublasLtMatmul"):
        assert hasattr(twin.calls, name)
        assert not hasattr(old.calls, name)
    assert hasattr(old.calls, "cuMemFreeHost")
    assert not hasattr(twin.calls, "cuMemAllocManaged")


def test_settings_of_the_environment(twin: Twin) -> None:
    program = (
        "from tests.cuda.twin import Twin\n"
        "from tests.cuda.twin.launch import Context\n"
        "import sys, ctypes\n"
        "value = ctypes.c_int()\n"
        "Twin().reset()\n"
        "Context(Twin()).call('cuDeviceGetAttribute', ctypes.byref(value), 75, 0)\n"
        "print(value.value)\n"
    )

    def run(setting: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "CAVS_TWIN": setting},
            capture_output=True,
            text=True,
            check=False,
        )

    assert run("capability=80,memory=1000000").stdout == "8\n"
    wrong = run("colour=3")
    assert wrong.returncode != 0
    assert "CAVS_TWIN has no setting colour=3" in wrong.stderr


def test_a_machine_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "COMPILER", "no-such-compiler")
    assert "no-such-compiler was not found" in build.missing()
