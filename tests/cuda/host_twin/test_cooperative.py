"""The host twin: cooperative launches, whose blocks wait at barriers of the grid."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from tests.cuda.twin import Twin, TwinCompiler
from tests.cuda.twin.launch import Array, Context, DriverError, Module

SEEDS = range(1, 9)
THREADS = 64
ROUNDS = 5

RING = """
extern "C" __global__ void ring(int* x, int rounds) {
  const int n = gridDim.x, b = blockIdx.x, t = threadIdx.x, left = (b + n - 1) % n;
  for (int i = 0; i < rounds; ++i) {
    const int *from = x + i % 2 * n * 64;
    int* to = x + (i + 1) % 2 * n * 64;
    to[b * 64 + t] = 3 * from[left * 64 + 63 - t] + b;
    BARRIER
  }
}"""


@pytest.fixture
def checked(twin: Twin) -> Context:
    """A context whose kernels report every access to the driver."""
    twin.compiler = TwinCompiler(checked=True)
    return Context(twin)


def ring(context: Context, barrier: str = "twin::grid_barrier();") -> Module:
    return context.module("ring.cu", RING.replace("BARRIER", barrier))


def start(blocks: int) -> np.ndarray:
    """Two buffers of the ring, the second one empty."""
    x = np.zeros((2, blocks, THREADS), np.int32)
    x[0] = np.arange(blocks * THREADS).reshape(blocks, THREADS)
    return x


def after(blocks: int, rounds: int = ROUNDS) -> np.ndarray:
    """The expected contents of both buffers."""
    x = start(blocks)
    for i in range(rounds):
        x[(i + 1) % 2] = 3 * np.roll(x[i % 2], 1, axis=0)[:, ::-1] + np.arange(blocks)[:, None]
    return x


def stream_of(context: Context) -> ctypes.c_void_p:
    stream = ctypes.c_void_p()
    context.call("cuStreamCreate", ctypes.byref(stream), 1)
    return stream


@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_a_ring_of_blocks(context: Context, blocks: int) -> None:
    module = ring(context)
    for seed in (0, *SEEDS):
        context.twin.adversarial(seed)
        x = start(blocks)
        module.launch("ring", blocks, THREADS, x, ROUNDS, cooperative=True)
        np.testing.assert_array_equal(x, after(blocks))


def test_a_ring_without_its_barrier_is_wrong(context: Context) -> None:
    module = ring(context, "__syncthreads();")
    for seed in (0, *SEEDS):
        context.twin.adversarial(seed)
        x = start(4)
        module.launch("ring", 4, THREADS, x, ROUNDS, cooperative=True)
        assert not np.array_equal(x, after(4))


def test_blocks_continue_in_another_order(context: Context) -> None:
    source = """
        extern "C" __global__ void turns(unsigned* counts, unsigned* turn) {
          for (int i = 0; i < 4; ++i) {
            if (threadIdx.x == 0) turn[i * 4 + blockIdx.x] = atomicAdd(counts + i, 1u);
            twin::grid_barrier();
          }
        }"""
    module = context.module("turns.cu", source)
    found = set()
    for seed in (0, *SEEDS):
        context.twin.adversarial(seed)
        turns = np.zeros((4, 4), np.uint32)
        module.launch("turns", 4, 32, np.zeros(4, np.uint32), turns, cooperative=True)
        np.testing.assert_array_equal(np.sort(turns), [range(4)] * 4)
        orders = {tuple(turn) for turn in turns}
        assert orders == {tuple(range(4))} if seed == 0 else len(orders) > 1
        found |= orders
    assert len(found) > 8


SHARED = """
extern "C" __global__ void keep(int* y, int rounds) {
  extern __shared__ int dynamic[];
  __shared__ int fixed[64];
  const int t = threadIdx.x, b = blockIdx.y * gridDim.x + blockIdx.x;
  int own[4] = {b, t, b + t, b * t};
  fixed[t] = 1000 * b + t;
  for (int i = t; i < SIZE; i += 64) dynamic[i] = -1000 * b - i;
  for (int i = 0; i < rounds; ++i) {
    twin::grid_barrier();
    const int other = fixed[63 - t];
    __syncthreads();
    fixed[t] = other + 1;
    own[i % 4] += 1;
  }
  int wrong = 0;
  for (int i = 0; i < SIZE; ++i) wrong += dynamic[i] != -1000 * b - i;
  y[64 * b + t] = wrong != 0 ? -1 : fixed[t] + 100000 * (own[0] + own[1] + own[2] + own[3]);
}"""


@pytest.mark.parametrize("seed", [0, *SEEDS])
def test_blocks_keep_their_shared_memory(context: Context, seed: int) -> None:
    module = context.module("keep.cu", SHARED.replace("SIZE", "300"))
    context.twin.adversarial(seed)
    y = np.zeros((4, THREADS), np.int32)
    module.launch("keep", (2, 2), THREADS, y, 3, shared=1200, cooperative=True)
    b, t = np.arange(4)[:, None], np.arange(THREADS)
    own = 2 * b + 2 * t + b * t + 3
    np.testing.assert_array_equal(y, 1000 * b + 63 - t + 3 + 100000 * own)


def test_shared_memory_of_the_largest_size(context: Context) -> None:
    most = attribute(context, 97)
    module = context.module("keep.cu", SHARED.replace("SIZE", str(most // 4)))
    y = np.zeros((3, THREADS), np.int32)
    with pytest.raises(DriverError, match="INVALID_VALUE"):
        module.launch("keep", 3, THREADS, y, 1, shared=most, cooperative=True)
    module.allow_shared("keep", most)
    module.launch("keep", 3, THREADS, y, 1, shared=most, cooperative=True)
    assert (y > 0).all()


RACES = [
    # Device memory, between blocks.
    (
        "x[b * 64 + t] = 1;\nBARRIER\nx[256 + b * 64 + t] = x[(b + 1) % 3 * 64 + t];",
        "__syncthreads();",
        r"a race: it (reads|writes) 0x.*; block \([012], 0, 0\), thread .*, which (read|wrote) it",
    ),
    # After a barrier as well as before it.
    (
        "twin::grid_barrier();\nx[b * 64 + t] = 1;\nBARRIER\nx[(b + 1) % 3 * 64 + t] = 2;",
        "",
        r"a race: it writes 0x.*; block \([012], 0, 0\), thread .*, which wrote it",
    ),
    # Read before another block overwrites it.
    (
        "const int before = x[(b + 1) % 3 * 64 + t];\nBARRIER\nx[b * 64 + t] = before;",
        "__syncthreads();",
        r"which (read|wrote) it",
    ),
    # Shared memory, at the same addresses in all blocks; a barrier of the grid is one of each
    # block.
    (
        "s[t] = b;\nBARRIER\nx[b * 64 + t] = s[63 - t];",
        "",
        r"a race: it (reads|writes) shared memory in .*; no barrier parts it from thread",
    ),
    (
        "twin::grid_barrier();\ns[t] = b;\nBARRIER\nx[b * 64 + t] = s[63 - t];",
        "__syncwarp();",
        r"a race: it (reads|writes) shared memory in .*; no barrier parts it from thread",
    ),
]


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("body", "instead", "message"), RACES)
def test_races(checked: Context, body: str, instead: str, message: str, seed: int) -> None:
    first = (
        'extern "C" __global__ void kernel(int* x) { __shared__ int s[64];'
        " const int t = threadIdx.x, b = blockIdx.x; s[t] = t;"
    )
    checked.twin.adversarial(seed)
    for barrier in ("twin::grid_barrier();", instead):
        source = f"{first}\n{body.replace('BARRIER', barrier)}\n}}"
        module = checked.module("race.cu", source)
        x = checked.array(np.zeros(512, np.int32))
        if barrier != instead:
            for _ in range(2):  # no state is left of the previous launch
                module.launch("kernel", 3, THREADS, x, cooperative=True)
            continue
        with pytest.raises(DriverError, match=message):
            module.launch("kernel", 3, THREADS, x, cooperative=True)


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_a_checked_ring(checked: Context, seed: int) -> None:
    checked.twin.adversarial(seed)
    x = start(4)
    ring(checked).launch("ring", 4, THREADS, x, ROUNDS, cooperative=True)
    np.testing.assert_array_equal(x, after(4))
    with pytest.raises(DriverError, match=r"a race: .* in ring\.cu:\d+; block"):
        ring(checked, "__syncthreads();").launch("ring", 4, THREADS, x, ROUNDS, cooperative=True)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("ordered", [True, False])
def test_streams_of_cooperative_launches(checked: Context, ordered: bool, seed: int) -> None:
    """All phases of a launch are one operation of its stream."""
    module, x = ring(checked), checked.array(start(4))
    first, second = stream_of(checked), stream_of(checked)
    checked.synchronize()
    checked.twin.watch_order()
    checked.twin.adversarial(seed)
    module.launch("ring", 4, THREADS, x, ROUNDS, stream=first, cooperative=True)
    if ordered:
        checked.call("cuStreamSynchronize", first)
    module.launch("ring", 4, THREADS, x, 1, stream=second, cooperative=True)
    if ordered:
        checked.call("cuStreamSynchronize", second)
        return
    with pytest.raises(DriverError, match="a race of streams: launch ring on stream"):
        checked.call("cuStreamSynchronize", second)
        checked.call("cuStreamSynchronize", first)


LINES = "in line 3, while other threads wait in that of line 5"
OTHERWISE = "in line 5, while other threads wait in that of line 3"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "if (b == 1) return;\ntwin::grid_barrier();",
            r"block \([02], 0, 0\): its threads wait at twin::grid_barrier\(\) in line 3, "
            r"block \(1, 0, 0\) has left the kernel",
        ),
        (
            "twin::grid_barrier();\nfor (int i = 0; i < b; ++i)\n twin::grid_barrier();",
            r"block \(1, 0, 0\): its threads wait at twin::grid_barrier\(\) in line 4, "
            r"block \(0, 0, 0\) has left the kernel",
        ),
        (
            "if (b == 1 && t < 5) return;\ntwin::grid_barrier();",
            r"block \(1, 0, 0\): thread \(5, 0, 0\) waits at twin::grid_barrier\(\) in line 3, "
            r"thread \(0, 0, 0\) has left the kernel",
        ),
        (
            "twin::grid_barrier();\nif (b == 2 && t == 7) return;\ntwin::grid_barrier();",
            r"block \(2, 0, 0\): thread \(0, 0, 0\) waits at twin::grid_barrier\(\) in line 4, "
            r"thread \(7, 0, 0\) has left the kernel",
        ),
        (
            "if (t % 2) {\ntwin::grid_barrier();\n} else {\ntwin::grid_barrier();\n}",
            rf"twin::grid_barrier\(\) {LINES}|twin::grid_barrier\(\) {OTHERWISE}",
        ),
        (
            "if (t % 2) {\ntwin::grid_barrier();\n} else {\n__syncthreads();\n}",
            r"twin::grid_barrier\(\) in line 3, while .* wait at __syncthreads\(\) in line 5|"
            r"__syncthreads\(\) in line 5, while .* wait at twin::grid_barrier\(\) in line 3",
        ),
        (
            "if (t % 2) twin::grid_barrier(); else __syncthreads();",
            r"in line 2, while other threads wait at (twin::grid_barrier|__syncthreads)\(\)",
        ),
        (
            "twin::grid_barrier();\nif (t == 3)\ntwin::grid_barrier();\nelse __syncwarp();",
            r"thread \(3, 0, 0\) waits at twin::grid_barrier\(\) in line 4, "
            r"thread \(\d+, 0, 0\) waits in a warp operation in line 5",
        ),
        (
            "twin::grid_barrier();\nif (t == 3) return;\n__syncthreads();",
            r"thread \(0, 0, 0\) waits at __syncthreads\(\) in line 4, thread \(3, 0, 0\) has left",
        ),
        (
            "twin::grid_barrier();\nif (b == 2 && t == 9) __trap();",
            r"block \(2, 0, 0\), thread \(9, 0, 0\): __trap\(\)",
        ),
    ],
)
@pytest.mark.parametrize("seed", [0, 2])
def test_faults_of_cooperative_launches(
    context: Context, body: str, message: str, seed: int
) -> None:
    first = 'extern "C" __global__ void wrong() { const int t = threadIdx.x, b = blockIdx.x;'
    module = context.module("wrong.cu", f"{first}\n{body}\n}}")
    context.twin.adversarial(seed)
    with pytest.raises(DriverError, match=message) as error:
        module.launch("wrong", 3, THREADS, cooperative=True)
    assert error.value.code == 719
    context.twin.reset()  # the threads of the failed launch are dropped
    x = start(4)
    ring(context).launch("ring", 4, THREADS, x, ROUNDS, cooperative=True)
    np.testing.assert_array_equal(x, after(4))


def test_blocks_may_wait_at_different_lines(context: Context) -> None:
    source = """
        extern "C" __global__ void two(int* x) {
          if (blockIdx.x == 0) {
            x[threadIdx.x] = 5;
            twin::grid_barrier();
          } else {
            twin::grid_barrier();
            x[32 + threadIdx.x] = x[31 - threadIdx.x] + 1;
          }
        }"""
    for seed in (0, *SEEDS):
        context.twin.adversarial(seed)
        x = np.zeros(64, np.int32)
        context.module("two.cu", source).launch("two", 2, 32, x, cooperative=True)
        np.testing.assert_array_equal(x, [5] * 32 + [6] * 32)


def test_a_grid_barrier_in_another_launch(context: Context) -> None:
    message = r"line 8: a grid barrier in a launch that is not cooperative"
    with pytest.raises(DriverError, match=message) as error:
        ring(context).launch("ring", 1, 32, start(1), 1)
    assert error.value.code == 719


def test_a_kernel_without_barriers(context: Context) -> None:
    source = 'extern "C" __global__ void mark(int* x) { x[blockIdx.x * 64 + threadIdx.x] = 1; }'
    x = np.zeros(4 * THREADS, np.int32)
    context.module("mark.cu", source).launch("mark", 4, THREADS, x, cooperative=True)
    assert x.all()


def test_stacks_are_reused(context: Context) -> None:
    """Otherwise a launch would leave two mappings per thread, these about 15 thousand."""

    def mappings() -> int:
        return len(Path("/proc/self/maps").read_text().splitlines())

    module, before = ring(context), mappings()
    for _ in range(30):
        module.launch("ring", 4, THREADS, start(4), 2, cooperative=True)
    assert mappings() < before + 10_000


def test_a_grid_that_is_too_large(context: Context) -> None:
    module, twin = ring(context), context.twin
    x = context.array(start(6))
    twin.set("multiprocessors", 2)
    for blocks_each, grid, fits in ((1, 3, False), (3, (6, 1), True), (3, (2, 2, 2), False)):
        twin.cooperative(blocks_each)
        if fits:
            module.launch("ring", grid, THREADS, x, ROUNDS, cooperative=True)
            np.testing.assert_array_equal(x.get(), after(6))
            continue
        with pytest.raises(DriverError, match="COOPERATIVE_LAUNCH_TOO_LARGE") as error:
            module.launch("ring", grid, THREADS, x, ROUNDS, cooperative=True)
        assert error.value.code == 720
    assert [(o.grid, o.cooperative) for o in twin.launches()] == [((6, 1, 1), True)]


def test_more_threads_than_the_twin_supports(context: Context) -> None:
    context.twin.set("multiprocessors", 33)
    module, x = ring(context), context.array(start(33))
    with pytest.raises(DriverError, match="more than the 16384 threads") as error:
        module.launch("ring", 33, 512, x, 1, cooperative=True)
    assert error.value.code == 701


def test_devices_that_refuse(context: Context) -> None:
    module, x = ring(context), context.array(start(1))
    assert attribute(context, 95) == 1
    context.twin.cooperative(0)
    assert attribute(context, 95) == 0
    with pytest.raises(DriverError, match="NOT_SUPPORTED"):
        module.launch("ring", 1, THREADS, x, 1, cooperative=True)
    context.twin.cooperative(1)
    context.twin.fail_call("cuLaunchCooperativeKernel", 701)
    with pytest.raises(DriverError, match="LAUNCH_OUT_OF_RESOURCES"):
        module.launch("ring", 1, THREADS, x, 1, cooperative=True)
    context.twin.fail_call("cuLaunchCooperativeKernel", 0)
    context.twin.fail_launch(2, 700)
    module.launch("ring", 1, THREADS, x, 1, cooperative=True)
    with pytest.raises(DriverError, match="a fault that the test asked for"):
        module.launch("ring", 1, THREADS, x, 1, cooperative=True)


def attribute(context: Context, number: int) -> int:
    value = ctypes.c_int()
    context.call("cuDeviceGetAttribute", ctypes.byref(value), number, 0)
    return value.value


def resident(context: Context, function: ctypes.c_void_p, threads: int, shared: int) -> int:
    blocks = ctypes.c_int(-1)
    name = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
    context.call(name, ctypes.byref(blocks), function, threads, ctypes.c_size_t(shared))
    return blocks.value


def test_attributes_of_blocks(context: Context) -> None:
    module = context.module("keep.cu", SHARED.replace("SIZE", "300"))
    function = module.function("keep")
    assert attribute(context, 97) == 232448
    assert [resident(context, function, 64, n) for n in (0, 232448, 232449)] == [1, 1, 0]
    assert [resident(context, function, n, 0) for n in (1024, 1025)] == [1, 0]
    with pytest.raises(DriverError, match="INVALID_VALUE"):
        resident(context, function, 0, 0)
    context.twin.cooperative(2)
    context.twin.set("shared_optin", 100_000)
    assert attribute(context, 97) == 100_000
    assert [resident(context, function, 64, n) for n in (100_000, 100_001)] == [2, 0]
    module.allow_shared("keep", 100_000)
    with pytest.raises(DriverError, match="INVALID_VALUE"):
        module.allow_shared("keep", 100_001)
    y = np.zeros((2, THREADS), np.int32)
    module.launch("keep", 2, THREADS, y, 1, shared=100_000, cooperative=True)
    assert (y > 0).all()
    context.twin.set("shared_optin", 300_000)  # more than the compiler reserves
    module.allow_shared("keep", 300_000)
    with pytest.raises(DriverError, match="INVALID_VALUE"):
        module.launch("keep", 2, THREADS, y, 1, shared=300_000)
    context.twin.reset()
    context.twin.capability(80)
    assert attribute(context, 97) == 166912


def captured(context: Context, module: Module, x: Array, stream: ctypes.c_void_p) -> object:
    """Two cooperative launches with an ordinary one between them."""
    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    context.call("cuStreamBeginCapture_v2", stream, 2)
    with pytest.raises(DriverError, match="COOPERATIVE_LAUNCH_TOO_LARGE"):
        module.launch("ring", 5, THREADS, x, 2, stream=stream, cooperative=True)
    module.launch("ring", 4, THREADS, x, 2, stream=stream, cooperative=True)
    module.launch("ring", 4, THREADS, x, 0, stream=stream)
    module.launch("ring", 4, THREADS, x, 4, stream=stream, cooperative=True)
    context.call("cuStreamEndCapture", stream, ctypes.byref(graph))
    context.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, 0)
    context.call("cuGraphDestroy", graph)
    return executable


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_graphs_and_the_log(context: Context, seed: int) -> None:
    module, x = ring(context), context.array(start(4))
    stream = stream_of(context)
    context.synchronize()
    executable = captured(context, module, x, stream)
    np.testing.assert_array_equal(x.get(), start(4))
    context.twin.reset()
    context.twin.adversarial(seed)
    for _ in range(2):
        context.call("cuGraphLaunch", executable, stream)
    context.call("cuStreamSynchronize", stream)
    np.testing.assert_array_equal(x.get(), after(4, 12))
    log = context.twin.launches()
    assert [o.cooperative for o in log] == [True, False, True] * 2
    assert [o.arguments[1] for o in log] == [2, 0, 4] * 2
    assert not any(o.cooperative for o in context.twin.operations() if o.kind != "launch")
    context.call("cuGraphExecDestroy", executable)
    context.call("cuStreamDestroy_v2", stream)
