"""The host twin: functions of the device language against NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.cuda.twin.launch import Context

UNARY = {
    **{f: getattr(np, f) for f in ("exp", "exp2", "expm1", "sin", "cos", "tan", "sinh", "cosh")},
    **{f: getattr(np, f) for f in ("tanh", "fabs", "floor", "ceil", "trunc", "rint", "cbrt")},
    **{f: (lambda x, f=f: getattr(np, f)(np.abs(x))) for f in ("log", "log2", "log10", "log1p")},
    "sqrt": lambda x: np.sqrt(np.abs(x)),
    "rsqrt": lambda x: 1 / np.sqrt(np.abs(x)),
    "erf": np.vectorize(math.erf),
    "round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
    "abs": np.abs,
}
OF_POSITIVE = ("log", "log2", "log10", "log1p", "sqrt", "rsqrt")
BINARY = {
    **{f: getattr(np, f) for f in ("fmax", "fmin", "fmod", "copysign", "hypot")},
    "atan2": np.arctan2,
    "pow": lambda x, y: np.power(np.abs(x), y),
    "max": np.maximum,
    "min": np.minimum,
}


@pytest.mark.parametrize("real", ["float", "double"])
def test_functions_of_reals(context: Context, real: str) -> None:
    dtype = np.float32 if real == "float" else np.float64
    calls = [f"{f}({'fabs(a)' if f in OF_POSITIVE else 'a'})" for f in UNARY]
    calls += [f"{f}({'fabs(a)' if f == 'pow' else 'a'}, b)" for f in BINARY]
    calls += ["fma(a, b, a)"]
    lines = "\n".join(f"z[{i} * n + t] = {call};" for i, call in enumerate(calls))
    module = context.module(
        "reals.cu",
        f"""typedef {real} real;
        extern "C" __global__ void all(const real* x, const real* y, real* z, int n) {{
          const int t = threadIdx.x;
          const real a = x[t], b = y[t];
          {lines}
        }}""",
    )
    rng = np.random.default_rng(0)
    x, y = (rng.uniform(-3, 3, 64).astype(dtype) for _ in range(2))
    z = np.zeros((len(calls), 64), dtype)
    module.launch("all", 1, 64, x, y, z, 64)
    wide, other = x.astype(np.float64), y.astype(np.float64)
    expected = [f(wide) for f in UNARY.values()] + [f(wide, other) for f in BINARY.values()]
    expected += [wide * other + wide]
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(z, np.array(expected), rtol=200 * eps, atol=10 * eps)


def test_floats_of_c_and_bits(context: Context) -> None:
    module = context.module(
        "bits.cu",
        """
        extern "C" __global__ void bits(float x, double y, float* f, int* i, long long* l) {
          f[0] = expf(x) + tanhf(x) + fmaf(x, x, x) + rsqrtf(x) + fmaxf(x, 1) + powf(x, 2.0f);
          f[1] = __fdiv_rn(__fadd_rn(x, 1), __fmul_rn(x, 2)) - __fsub_rn(x, 1) + __frcp_rn(x);
          f[2] = __int_as_float(__float_as_int(x)) + __uint_as_float(__float_as_uint(x));
          i[0] = __popc(0xf0f), i[1] = __clz(1), i[2] = __clz(0), i[3] = __ffs(8);
          i[4] = isnan(x) + 2 * isnan(x - x / 0.0f * 0) + 4 * isinf(x / 0.0f) + 8 * isfinite(y);
          i[5] = max(2u, 3u) + min(-1, 4) + abs(-7) + warpSize;
          l[0] = __double_as_longlong(y) + max(1ll << 40, 2ll);
          f[3] = float(__longlong_as_double(__double_as_longlong(y)));
        }""",
    )
    f, i, number = np.zeros(4, np.float32), np.zeros(6, np.int32), np.zeros(1, np.int64)
    x = 1.75
    module.launch("bits", 1, 1, x, 2.5, f, i, number)
    first = math.exp(x) + math.tanh(x) + x * x + x + 1 / math.sqrt(x) + x + x * x
    expected = [first, (x + 1) / (x * 2) - (x - 1) + 1 / x, 2 * x, 2.5]
    np.testing.assert_allclose(f, expected, rtol=1e-6)
    assert list(i) == [8, 31, 32, 4, 2 + 4 + 8, 3 - 1 + 7 + 32]
    assert number[0] == int(np.float64(2.5).view(np.int64)) + (1 << 40)


def test_votes(context: Context) -> None:
    module = context.module(
        "votes.cu",
        """
        extern "C" __global__ void votes(int* y) {
          const int t = threadIdx.x;
          y[t] = __any_sync(~0u, t == 40) + 2 * __all_sync(~0u, t < 32);
        }""",
    )
    y = np.zeros(64, np.int32)
    module.launch("votes", 1, 64, y)
    np.testing.assert_array_equal(y, [2] * 32 + [1] * 32)


@pytest.mark.parametrize("kind", ["int", "uint", "float", "double", "longlong"])
def test_vectors(context: Context, kind: str) -> None:
    sizes = {"int": "234", "uint": "24", "float": "234", "double": "24", "longlong": "2"}[kind]
    dtype = {"int": np.int32, "uint": np.uint32, "longlong": np.int64}.get(
        kind, np.float32 if kind == "float" else np.float64
    )
    element = {"uint": "unsigned", "longlong": "long long"}.get(kind, kind)
    for size in map(int, sizes):
        module = context.module(
            "vectors.cu",
            f"""
            extern "C" __global__ void turn(const {element}* x, {kind}{size}* y) {{
              y[0] = make_{kind}{size}({", ".join(f"x[{i}]" for i in reversed(range(size)))});
            }}""",
        )
        x, y = np.arange(1, size + 1).astype(dtype), np.zeros(size, dtype)
        module.launch("turn", 1, 1, x, y)
        np.testing.assert_array_equal(y, x[::-1])
