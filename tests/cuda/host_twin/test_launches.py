"""The host twin: the device language, launches, and the errors of kernels that it finds."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import numpy as np
import pytest

from tests.cuda.twin import CompileError, Twin, build
from tests.cuda.twin.compile import definitions
from tests.cuda.twin.launch import Context, DriverError, Module

SEEDS = range(1, 11)


def kernels(context: Context, body: str, **headers: str) -> Module:
    return context.module("test.cu", body, {f"{k}.cuh": v for k, v in headers.items()})


def numbers(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


SUM = """
extern "C" __global__ void __launch_bounds__(256) total(const float* x, float* y, int n) {
  __shared__ float part[256];
  float sum = 0;
  for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256) sum += x[i];
  part[threadIdx.x] = sum;
  __syncthreads();
  for (int half = 128; half > 0; half /= 2) {
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) y[blockIdx.x] = part[0];
}
"""


@pytest.mark.parametrize("grid", [1, 3, 16])
@pytest.mark.parametrize("seed", [0, 7])
def test_a_grid_stride_loop_covers_all(context: Context, grid: int, seed: int) -> None:
    module = kernels(
        context,
        """
        extern "C" __global__ void axpy(float a, const float* __restrict__ x, float* y, int n) {
          for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
            y[i] = fmaf(a, x[i], y[i]);
        }""",
    )
    context.twin.adversarial(seed)
    x, y = numbers(1000), numbers(1000, 1)
    expected = y + np.float32(2.5) * x
    module.launch("axpy", grid, 256, 2.5, x, y, 1000)
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", [0, *SEEDS])
def test_a_sum_with_barriers(context: Context, seed: int) -> None:
    context.twin.adversarial(seed)
    x, y = numbers(5000), np.zeros(4, np.float32)
    kernels(context, SUM).launch("total", 4, 256, x, y, 5000)
    np.testing.assert_allclose(y.sum(), x.sum(dtype=np.float64), atol=1e-3)


@pytest.mark.parametrize("dtype", ["float", "double", "int"])
@pytest.mark.parametrize("seed", [0, 3])
def test_shuffles(context: Context, dtype: str, seed: int) -> None:
    module = kernels(
        context,
        f"typedef {dtype} T;\n"
        """
        extern "C" __global__ void shuffles(const T* x, T* y, int width) {
          const int i = threadIdx.x, n = blockDim.x;
          y[i] = __shfl_xor_sync(~0u, x[i], 5, width);
          y[n + i] = __shfl_down_sync(~0u, x[i], 3, width);
          y[2 * n + i] = __shfl_up_sync(~0u, x[i], 3, width);
          y[3 * n + i] = __shfl_sync(~0u, x[i], 9, width);
          y[4 * n + i] = __ballot_sync(~0u, i % 3 == 0) >> (i % 32) & 1;
        }""",
    )
    context.twin.adversarial(seed)
    numpy_type = {"float": np.float32, "double": np.float64, "int": np.int32}[dtype]
    x = np.arange(1, 65).astype(numpy_type)
    lane = np.arange(64) % 32
    for width in (32, 8):
        y = np.zeros((5, 64), numpy_type)
        module.launch("shuffles", 1, 64, x, y, width)
        low = lane // width * width

        def read(source: np.ndarray, inside: np.ndarray) -> np.ndarray:
            return x[np.arange(64) // 32 * 32 + np.where(inside, source, lane)]

        expected = [
            read(lane ^ 5, (lane ^ 5) < low + width),
            read(lane + 3, lane + 3 < low + width),
            read(lane - 3, lane - 3 >= low),
            read(low + 9 % width, lane >= 0),
            np.arange(64) % 3 == 0,
        ]
        np.testing.assert_array_equal(y, np.array(expected).astype(numpy_type))


def test_half_a_warp_may_shuffle(context: Context) -> None:
    module = kernels(
        context,
        """
        extern "C" __global__ void half(int* y) {
          int x = threadIdx.x;
          if (threadIdx.x < 16) x = __shfl_xor_sync(0xffffu, x, 1);
          else __syncwarp(0xffff0000u);
          y[threadIdx.x] = x;
        }""",
    )
    y = np.zeros(32, np.int32)
    module.launch("half", 1, 32, y)
    np.testing.assert_array_equal(y, [*(i ^ 1 for i in range(16)), *range(16, 32)])


def test_a_gather_of_the_values_of_a_warp(context: Context) -> None:
    module = kernels(
        context,
        """
        extern "C" __global__ void gather(float2* y) {
          float2 all[32];
          twin::warp_gather(make_float2(threadIdx.x, -1.0f), all);
          y[threadIdx.x] = all[31 - threadIdx.x];
        }""",
    )
    y = np.zeros((32, 2), np.float32)
    module.launch("gather", 1, 32, y)
    np.testing.assert_array_equal(y, np.stack([np.arange(31, -1, -1), np.full(32, -1)], axis=1))


def test_vectors_functions_structures_and_every_index(context: Context) -> None:
    class Pair(ctypes.Structure):
        _fields_ = (("a", ctypes.c_int), ("b", ctypes.c_double))

    module = kernels(
        context,
        """
        #include "pair.cuh"
        extern "C" __global__ void mixed(Pair p, const float4* x, double* y, unsigned char z) {
          const int t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
          const int b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
          const int n = blockDim.x * blockDim.y * blockDim.z;
          const float4 v = __ldg(x);
          y[b * n + t] = p.a + p.b + tanh(v.x) + exp(double(v.w)) + max(v.y, v.z) + z;
        }""",
        pair="struct Pair { int a; double b; };",
    )
    x, y = numbers(4), np.zeros(24 * 12)
    module.launch("mixed", (2, 3, 4), (3, 2, 2), Pair(3, 0.25), x, y, 200)
    expected = 3 + 0.25 + np.tanh(x[0]) + np.exp(np.float64(x[3])) + max(x[1], x[2]) + 200
    np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_kernels_defined_by_macros_and_bounds_before_the_type(context: Context) -> None:
    module = kernels(
        context,
        """
        #define KERNEL(name, value)                                        \\
          extern "C" __global__ __launch_bounds__(64) void name(int* y) {  \\
            y[threadIdx.x] = value;                                        \\
          }
        KERNEL(one, 1)
        KERNEL(two, 2)""",
    )
    y = np.zeros(64, np.int32)
    module.launch("two", 1, 64, y)
    assert (y == 2).all()
    with pytest.raises(DriverError, match="LAUNCH_OUT_OF_RESOURCES"):
        module.launch("one", 1, 65, y)


@pytest.mark.parametrize("seed", [0, 5])
def test_unset_shared_memory_is_nan_in_every_block(context: Context, seed: int) -> None:
    module = kernels(
        context,
        """
        template <class T> __device__ void copy(T* y) {
          __shared__ T s[64];
          if (threadIdx.x % 2 == 0) s[threadIdx.x] = 1;
          __syncthreads();
          y[blockIdx.x * 64 + threadIdx.x] = s[(threadIdx.x + blockIdx.x) % 64];
        }
        extern "C" __global__ void reals(float* y) { copy<float>(y); }
        extern "C" __global__ void doubles(double* y) { copy<double>(y); }""",
    )
    context.twin.adversarial(seed)
    for name, dtype in (("reals", np.float32), ("doubles", np.float64)):
        y = np.zeros((2, 64), dtype)
        module.launch(name, 2, 64, y)
        assert (np.isnan(y[0]) == (np.arange(64) % 2 == 1)).all()
        assert (np.isnan(y[1]) == (np.arange(64) % 2 == 0)).all()


def test_a_missing_barrier_gives_wrong_results(context: Context) -> None:
    """Thread by thread, in order, this kernel is right; on a device it is not."""
    module = kernels(
        context,
        """
        extern "C" __global__ void shift(const float* x, float* y) {
          __shared__ float s[256];
          s[threadIdx.x] = x[threadIdx.x];
          y[threadIdx.x] = threadIdx.x == 0 ? 0 : s[threadIdx.x - 1];
        }""",
    )
    x = numbers(256)
    expected = np.concatenate([[np.float32(0)], x[:-1]])
    wrong = 0
    for seed in (0, *SEEDS):
        context.twin.adversarial(seed)
        y = np.zeros(256, np.float32)
        module.launch("shift", 1, 256, x, y)
        wrong += not np.array_equal(y, expected)
        assert seed != 0 or wrong == 0
    assert wrong == len(SEEDS)


def test_a_missing_barrier_after_reading_gives_wrong_results(context: Context) -> None:
    """The second round overwrites values of the first that slow threads have yet to read."""
    source = """
        extern "C" __global__ void rounds(const float* x, float* y) {
          __shared__ float s[64];
          for (int i = 0; i < 4; ++i) {
            s[threadIdx.x] = x[i * 64 + threadIdx.x];
            __syncthreads();
            y[i * 64 + threadIdx.x] = s[63 - threadIdx.x];
            BETWEEN
          }
        }"""
    x = numbers(256)
    expected = x.reshape(4, 64)[:, ::-1].reshape(-1)
    for between, right in (("__syncthreads();", True), ("", False)):
        module = kernels(context, source.replace("BETWEEN", between))
        same = []
        for seed in SEEDS:
            context.twin.adversarial(seed)
            y = np.zeros(256, np.float32)
            module.launch("rounds", 1, 64, x, y)
            same.append(np.array_equal(y, expected))
        assert all(same) if right else not any(same)


def test_a_race_between_blocks_gives_wrong_results(context: Context) -> None:
    module = kernels(
        context,
        """
        extern "C" __global__ void chain(int* y) {
          if (threadIdx.x == 0) y[blockIdx.x + 1] = y[blockIdx.x] + 1;
        }""",
    )
    results = []
    for seed in (0, *SEEDS):
        context.twin.adversarial(seed)
        y = np.zeros(9, np.int32)
        module.launch("chain", 8, 32, y)
        results.append(list(y))
    assert results[0] == list(range(9))
    assert all(result != results[0] for result in results[1:])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "if (threadIdx.x < 5) return;\n__syncthreads();",
            r"thread \(5, 0, 0\) waits at __sync.* line 3",
        ),
        (
            "if (threadIdx.x % 2) {\n __syncthreads();\n } else {\n __syncthreads();\n }",
            r"__syncthreads\(\) in line 3, while other threads wait in that of line 5|"
            r"__syncthreads\(\) in line 5, while other threads wait in that of line 3",
        ),
        ("if (threadIdx.x % 2) x[0] = __shfl_sync(~0u, x[0], 0);", "has left the kernel"),
        ("if (threadIdx.x < 32) __syncthreads(); else __syncwarp();", "waits at __syncthreads"),
        ("x[0] = __shfl_sync(1u, x[0], 0);", "leaves out the lane"),
        ("x[0] = __shfl_sync(~0u, x[0], 0, 12);", "a shuffle over 12 lanes"),
        ("if (threadIdx.x == 40) __trap();", r"thread \(40, 0, 0\): __trap"),
        ("x[0] = 1 / (int)blockDim.y - 1 / ((int)blockDim.y - 1);", "divided by zero"),
    ],
)
@pytest.mark.parametrize("seed", [0, 2])
def test_faults_of_kernels(context: Context, body: str, message: str, seed: int) -> None:
    module = kernels(context, f'extern "C" __global__ void wrong(float* x) {{\n{body}\n}}')
    context.twin.adversarial(seed)
    with pytest.raises(DriverError, match=message) as error:
        module.launch("wrong", 2, 64, context.array(np.zeros(4, np.float32)))
    assert error.value.code == 719
    with pytest.raises(DriverError):  # the context is lost
        context.synchronize()


def test_an_incomplete_warp_is_refused(context: Context) -> None:
    module = kernels(context, 'extern "C" __global__ void k() { __syncwarp(); }')
    module.launch("k", 1, 64)
    with pytest.raises(DriverError, match="lane 8, which is not in the block"):
        module.launch("k", 1, 40)


READ = """
extern "C" __global__ void read(const float* x, float* y, long long i) {
  if (threadIdx.x == 3) y[0] = x[i];
}"""


@pytest.mark.parametrize("index", [1024, None])
def test_a_read_outside_of_every_allocation(context: Context, index: int | None) -> None:
    """Right after one, and in the first page of the memory, which no allocation has."""
    module = kernels(context, READ)
    x = context.array(numbers(1000))
    if index is None:
        index = (64 - x.address) // 4
    with pytest.raises(DriverError, match=r"thread \(3, 0, 0\): access to 0x") as error:
        module.launch("read", 1, 32, x, context.array(numbers(1)), index)
    assert error.value.code == 700


def test_memory_that_was_freed(context: Context) -> None:
    module = kernels(context, READ)
    x, y = context.array(numbers(1000)), context.array(numbers(1))
    address = x.address
    del x
    with pytest.raises(DriverError, match="access to"):
        module.launch("read", 1, 32, address, y, 0)


def test_an_address_of_the_host(context: Context) -> None:
    host = numbers(4)
    with pytest.raises(DriverError, match=r"argument 0 is .* which is no device memory") as error:
        kernels(context, READ).launch("read", 1, 32, host.ctypes.data, context.array(host), 0)
    assert error.value.code == 700


def test_infinite_recursion(context: Context) -> None:
    module = kernels(
        context,
        """
        __device__ __noinline__ int deep(volatile int* x, int n) {
          volatile int room[100];
          room[n % 100] = x[0];
          return n == 0 ? 0 : deep(x, n - 1) + room[n % 100];
        }
        extern "C" __global__ void k(int* x, int n) { x[1] = deep(x, n); }""",
    )
    x = context.array([2, 0], np.int32)
    module.launch("k", 1, 1, x, 10)
    assert list(x.get()) == [2, 20]
    with pytest.raises(DriverError, match="access to"):
        module.launch("k", 1, 1, x, 100_000)


def test_guards(context: Context) -> None:
    module = kernels(
        context,
        """
        extern "C" __global__ void put(unsigned char* x, int i) {
          if (threadIdx.x == 0) x[i] = 7;
        }""",
    )
    x = context.array(np.zeros(1000, np.uint8))
    module.launch("put", 1, 32, x, 999)
    context.twin.check_guards()
    module.launch("put", 1, 32, x, 1002)
    with pytest.raises(AssertionError, match="written 3 bytes behind an allocation of 1000 bytes"):
        context.twin.check_guards()
    module.launch("put", 1, 32, x, -1)
    with pytest.raises(AssertionError, match="1 bytes before and 3 bytes behind"):
        context.twin.check_guards()
    del x
    with pytest.raises(AssertionError, match="1 bytes before and 3 bytes behind"):
        context.twin.check_guards()
    context.twin.reset()  # or the fixture would find it as well


def test_dynamic_shared_memory(context: Context) -> None:
    module = kernels(
        context,
        """
        extern __shared__ unsigned char shared_memory[];
        extern "C" __global__ void turn(const float* x, float* y, int n) {
          float* s = reinterpret_cast<float*>(shared_memory);
          for (int i = threadIdx.x; i < n; i += blockDim.x) s[i] = x[i];
          __syncthreads();
          for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = s[n - 1 - i];
        }""",
    )
    n = 30000
    x, y = numbers(n), np.zeros(n, np.float32)
    module.launch("turn", 1, 64, x, y, 1000, shared=4000)
    np.testing.assert_array_equal(y[:1000], x[:1000][::-1])
    with pytest.raises(DriverError, match="INVALID_VALUE"):
        module.launch("turn", 1, 64, x, y, n, shared=4 * n)
    module.allow_shared("turn", 4 * n)
    module.launch("turn", 1, 64, x, y, n, shared=4 * n)
    np.testing.assert_array_equal(y, x[::-1])
    with pytest.raises(DriverError, match="INVALID_VALUE"):
        module.allow_shared("turn", 300_000)
    with pytest.raises(DriverError, match="a write beyond the 3996 bytes of dynamic shared"):
        module.launch("turn", 1, 64, x, y, 1000, shared=3996)


@pytest.mark.parametrize("seed", [0, 1])
def test_another_grid_gives_the_same_bits(context: Context, seed: int) -> None:
    context.twin.adversarial(seed)
    y = np.zeros((2, 3), np.float32)
    for row in y:
        kernels(context, SUM).launch("total", 3, 256, numbers(5000), row, 5000)
    assert y[0].tobytes() == y[1].tobytes()


def test_messages_of_the_compiler_name_the_line(twin: Twin) -> None:
    wrong = 'extern "C" __global__ void k(float* x) {\n  int i;\n  x[i] = undeclared;\n}\n'
    with pytest.raises(CompileError, match=r"wrong\.cu:3:\d+: error: .undeclared."):
        twin.compiler.compile("wrong.cu", wrong, {}, [])
    with pytest.raises(CompileError, match=r"part\.cuh:1:\d+: error"):
        twin.compiler.compile("wrong.cu", '#include "part.cuh"\n', {"part.cuh": "int = 3;"}, [])
    unset = wrong.replace("undeclared", "1")
    with pytest.raises(CompileError, match=r"wrong\.cu:3:\d+: error: .i. is used uninitialized"):
        twin.compiler.compile("wrong.cu", unset, {}, [])


def test_a_module_is_compiled_once(twin: Twin, monkeypatch: pytest.MonkeyPatch) -> None:
    source = 'extern "C" __global__ void k(REAL* x) { x[0] = sizeof(REAL); }'
    one = twin.compiler.compile("k.cu", source, {}, ["-DREAL=float"])
    two = twin.compiler.compile("k.cu", source, {}, ["-D", "REAL=double", "-arch=sm_90"])
    assert one != two
    monkeypatch.setattr(build, "run", None)
    assert one == twin.compiler.compile("k.cu", source, {}, ["--define-macro=REAL=float"])


def test_old_modules_are_removed(
    twin: Twin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "CACHE", tmp_path)
    made = [Path(twin.compiler.compile("k.cu", f"// {i}", {}, []).decode()) for i in range(2)]
    for path in made:
        os.utime(path, (0, 0))
    twin.compiler.compile("k.cu", "// 1", {}, [])  # used again
    build.forget_old()
    assert [path.exists() for path in made] == [False, True]
    assert [path for path in tmp_path.iterdir() if path.suffix != ".lock"] == made[1:]


def test_definitions_in_every_form() -> None:
    options = [
        "-DA=1",
        "-D",
        "B",
        "--define-macro=C=2",
        "--define-macro",
        "D",
        "-UE",
        "-arch=sm_80",
    ]
    assert definitions(options) == ["-DA=1", "-DB", "-DC=2", "-DD", "-UE"]
