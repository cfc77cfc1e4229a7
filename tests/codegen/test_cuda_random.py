"""Random maps on the host twin give what the reference gives."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cavs.codegen.cuda import Load, Store, kernel_text, shape_of
from cavs.codegen.map import MapOp
from tests.codegen.device import SENTINEL, runner  # noqa: F401
from tests.cuda.kernel_cases import narrowed, widened
from tests.kernels.map_reference import CODE, Program
from tests.kernels.map_reference import Load as Read

UNARY = ("neg", "abs", "tanh", "sigmoid", "copy")
BINARY = ("add", "sub", "mul", "max", "min", "greater")
INNER = (1, 2, 3, 4, 5, 6, 8, 12, 33, 64, 130, 150)
DTYPE = {"float": "f4", "double": "f8"}


@dataclass
class Map:
    """A kernel, the memory it is given and what its stores must hold."""

    loads: list[Load]
    ops: list[MapOp]
    stores: list[Store]
    outer: int
    inner: int
    begin: int
    end: int
    seed: int


@st.composite
def maps(draw, half):
    halves = st.booleans() if half else st.just(False)
    outer = draw(st.sampled_from((1, 1, 2, 3)))
    inner = draw(st.sampled_from(INNER))
    begin = draw(st.integers(0, 5))
    end = begin + draw(st.sampled_from((0, 1, 2, 7, 40)))
    loads = []
    for _ in range(draw(st.integers(1, 4))):
        scalar = draw(st.booleans())
        gap = draw(st.integers(0, 4))
        outer_stride = draw(st.sampled_from((0, 1 if scalar else inner + gap)))
        width = 1 if scalar else inner
        needed = (outer - 1) * outer_stride + width
        column = draw(st.integers(0, 4))
        stride = column + needed + draw(st.integers(0, 3))
        rows = draw(st.sampled_from(("self", "one", "index", "segment_sum")))
        indexed = rows == "segment_sum" and draw(st.booleans())
        aligned, half = draw(st.booleans()), draw(halves)
        loads.append(Load(stride, column, rows, indexed, outer_stride, scalar, aligned, half))
    ops, registers = [], len(loads)
    for _ in range(draw(st.integers(1, 5))):
        pick = st.integers(0, registers - 1)
        code = draw(st.sampled_from((*UNARY, *BINARY, "fma", "select", "constant", "uniform")))
        imm = {"constant": 0.3, "uniform": float(draw(st.integers(0, 3)))}.get(code, 0.0)
        ops.append(MapOp(code, registers, draw(pick), draw(pick), draw(pick), imm))
        registers += 1
    stores = []
    for _ in range(draw(st.integers(1, 3))):
        mode = draw(st.sampled_from(("write", "write", "sum", "max")))
        width = inner if mode == "write" else 1
        outer_stride = width + draw(st.integers(0, 3))
        column = draw(st.integers(0, 4))
        stride = column + (outer - 1) * outer_stride + width + draw(st.integers(0, 3))
        register = draw(st.integers(0, registers - 1))
        half = mode == "write" and draw(halves)
        stores.append(Store(register, stride, column, outer_stride, mode, half))
    return Map(loads, ops, stores, outer, inner, begin, end, draw(st.integers(0, 2**20)))


def memory_of(load: Load, m: Map, rng, dtype, arguments):
    """Adds an operand to the arguments; its rows [begin, end) in float64."""
    rows = m.end + 3
    memory = rng.standard_normal((rows, load.stride)).astype(dtype)
    bits = narrowed(memory) if load.half else memory
    memory = widened(bits) if load.half else memory
    arguments.append(bits)
    values = memory.astype("f8")[:, load.column :]
    here = slice(m.begin, m.end)
    if load.rows == "one":
        return np.repeat(values[:1], m.end - m.begin, 0)
    if load.rows == "self":
        return values[here]
    if load.rows == "index":
        index = rng.integers(-1, rows, m.end).astype("i4")
        arguments.append(index)
        return np.where(index[:, None] < 0, 0.0, values[index])[here]
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 4, m.end))]).astype("i4")
    offsets = np.minimum(offsets, rows)
    picked = np.arange(rows, dtype="i4")
    arguments.append(offsets)
    if load.indexed:
        picked = rng.integers(-1, rows, rows).astype("i4")
        arguments.append(picked)
    padded = np.concatenate([values, np.zeros_like(values[:1])])  # row -1 adds nothing
    sums = [padded[picked[a:b]].sum(0) for a, b in pairwise(offsets)]
    return np.array(sums, "f8").reshape(m.end, values.shape[1])[here]


def check(runner, module, name, m: Map, real: str):  # noqa: F811
    rng = np.random.default_rng(m.seed)
    dtype = DTYPE[real]
    arguments: list[np.ndarray] = []
    values = [memory_of(load, m, rng, dtype, arguments) for load in m.loads]
    reads = [
        Read(None, v, load.outer_stride, load.scalar)
        for v, load in zip(values, m.loads, strict=True)
    ]
    ids = rng.permutation(1000)[: m.end].astype("i4")
    random = any(op[0] == "uniform" for op in m.ops)
    last = runner.drawing(7, m.seed, ids) if random else ()
    outs = [np.full((m.end, store.stride), SENTINEL, dtype) for store in m.stores]
    outs = [narrowed(out) if store.half else out for out, store in zip(outs, m.stores, strict=True)]
    threads = shape_of(m.loads, m.stores, m.outer, m.inner, real).threads
    outs = runner.run(module, name, threads, m.begin, m.end, arguments, outs, last)
    codes = [(getattr(CODE, op[0].upper()), *op[1:]) for op in m.ops]
    registers = len(m.loads) + len(m.ops)
    made_by = Program(reads, codes, m.outer, m.inner, m.begin, m.end, registers, 7, m.seed, ids)
    reference = made_by.reference()
    tolerance = 200 * m.inner * np.finfo(dtype).eps
    for raw, store in zip(outs, m.stores, strict=True):
        out, stored = (widened(raw), 2.0**-8) if store.half else (raw, 0.0)
        untouched = widened(narrowed(np.array(SENTINEL))) if store.half else SENTINEL
        expected = np.full(out.shape, untouched)
        made = reference[store.register]
        if store.mode != "write":
            made = (made.sum(-1) if store.mode == "sum" else made.max(-1))[:, :, None]
        for o in range(m.outer):
            start = store.column + o * store.outer_stride
            expected[m.begin :, start : start + made.shape[2]] = made[:, o]
        np.testing.assert_allclose(out, expected, rtol=tolerance + stored, atol=tolerance)


RANDOM = settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.mark.parametrize("real", DTYPE)
@RANDOM
@given(st.lists(maps(half=False), min_size=8, max_size=12))
def test_random_maps(runner, real, drawn):  # noqa: F811
    check_all(runner, real, drawn)


@RANDOM
@given(st.lists(maps(half=True), min_size=8, max_size=12))
def test_random_maps_of_operands_in_bfloat16(runner, drawn):  # noqa: F811
    check_all(runner, "float", drawn)


def check_all(runner, real, drawn):  # noqa: F811
    texts = [
        kernel_text(f"map_{n}", m.loads, m.ops, m.stores, m.outer, m.inner, real)
        for n, m in enumerate(drawn)
    ]
    module = runner.module("".join(texts))
    for n, m in enumerate(drawn):
        check(runner, module, f"map_{n}", m, real)
