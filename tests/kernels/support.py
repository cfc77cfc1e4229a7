"""Shared parts of the kernel tests: tables of every instruction set, sources, guarded memory."""

from __future__ import annotations

import ctypes
import functools
import math
import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from cavs import _engine

KERNELS = _engine.kernels
RowMap = KERNELS.RowMap
SIZES = (0, 1, 2, 5, 6, 7, 15, 16, 17, 31, 33, 63, 64, 65, 150, 300)
# Instruction sets for products of narrow numbers that this machine has.
INTEGERS = ("avx512-int16", "avx512-int16-winograd")
UNITS = ("amx-bfloat16x3", "amx-bfloat16", "avx512-bfloat16", *INTEGERS)
TABLES = KERNELS.narrow_tables()
SENTINEL = -12345.5
DTYPES = ("float32", "float64")


@functools.cache
def _normal(dtype: str) -> np.ndarray:
    """More numbers than the largest array has; drawing them for each test took longer than it."""
    return np.random.default_rng(0).standard_normal(2_000_003).astype(dtype)


@dataclass(frozen=True)
class Case:
    """A kernel table and the wrappers of its dtype."""

    isa: str
    dtype: str

    @property
    def table(self) -> Any:
        if self.isa in UNITS:
            return TABLES[self.isa]
        return getattr(KERNELS, f"table_{self.dtype}")(self.isa)

    @property
    def eps(self) -> float:
        return float(np.finfo(self.dtype).eps)

    def product_error(self, terms: int) -> float:
        """Rounding error of a sum of products, relative to the sum of their absolute values."""
        if self.isa not in UNITS or self.isa in INTEGERS:  # see rounding_error
            return self.eps * (2 + terms / 2)
        if not self.isa.endswith("x3"):  # each operand is within 2^-8
            return 2.0**-7 + 2.0**-16 + self.eps * (2 + terms / 2)
        # Each operand is within 2^-17, and the product of both remainders, 2^-16 at most, is
        # left out; then a sum of three times as many terms.
        return 2.25 * 2.0**-16 + self.eps * (2 + 1.5 * terms)

    def rounding_error(self, a: np.ndarray, b: np.ndarray) -> np.ndarray | float:
        """Error of a @ b with operands as integers: half a step of each times the other."""
        if self.isa not in INTEGERS:
            return 0.0

        def units(x: np.ndarray) -> np.ndarray:
            """[row, unit, step] of the sum, zeros behind its end."""
            padded = np.pad(x, ((0, 0), (0, -x.shape[1] % 64)))
            return padded.reshape(len(x), padded.shape[1] // 64, 64)

        left, right = units(a), units(b.T)
        norms = [np.linalg.norm(x, axis=2) for x in (left, right)]
        largest = [np.abs(x).max(2) for x in (left, right)]
        steps = [np.maximum(n / 46325, m / 16380) for n, m in zip(norms, largest, strict=True)]
        of_rows = steps[0].max(1, initial=0.0)[:, None] * (1 + 8 * self.eps)
        of_columns = steps[1] * (1 + 8 * self.eps)
        error = 0.5 * of_rows * np.abs(right).sum((1, 2))
        error += 0.5 * np.abs(left).sum(2) @ of_columns.T
        return np.asarray(error + 0.25 * 64 * of_rows * of_columns.sum(1))

    def source(self, data: np.ndarray, **options: Any) -> Any:
        return getattr(KERNELS, f"Source_{self.dtype}")(data, **options)

    def store(self, data: np.ndarray, reg: int, **options: Any) -> Any:
        return getattr(KERNELS, f"Store_{self.dtype}")(data, reg, **options)

    def normal(self, rng: np.random.Generator, *shape: int) -> np.ndarray:
        """Numbers of a normal distribution: a piece of those drawn once, from where `rng` says."""
        drawn, size = _normal(self.dtype), math.prod(shape)
        start = int(rng.integers(0, len(drawn) - size))
        return drawn[start : start + size].reshape(shape).copy()


every_case = pytest.mark.parametrize(
    "case",
    [Case(isa, dtype) for isa in KERNELS.supported_isas() for dtype in DTYPES],
    ids=lambda c: f"{c.isa}-{c.dtype}",
)

_PRODUCTS = [(isa, dtype) for isa in KERNELS.supported_isas() for dtype in DTYPES]
every_product = pytest.mark.parametrize(
    "case",
    [Case(*of) for of in _PRODUCTS]
    + [
        pytest.param(
            Case(unit, "float32"),
            marks=pytest.mark.skipif(unit not in TABLES, reason=f"needs {unit}"),
        )
        for unit in UNITS
    ],
    ids=lambda c: f"{c.isa}-{c.dtype}",
)
PRODUCTS = _PRODUCTS + [(unit, "float32") for unit in TABLES]
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def products_of(dtype: str) -> list[Case]:
    """All tables of products of ``dtype``, for tests that make their operands once for all."""
    return [Case(isa, of) for isa, of in PRODUCTS if of == dtype]


class Guarded:
    """A 2-D output inside a larger array of sentinels; ``check`` fails if they changed."""

    def __init__(self, rows: int, cols: int, dtype: str, fill: float = SENTINEL) -> None:
        self.whole = np.full((rows + 2, cols + 9), SENTINEL, dtype)
        self.view = self.whole[1 : rows + 1, 4 : 4 + cols]
        self.view[...] = fill

    def check(self) -> np.ndarray:
        copy = self.whole.copy()
        copy[1 : 1 + self.view.shape[0], 4 : 4 + self.view.shape[1]] = SENTINEL
        assert (copy == SENTINEL).all(), "written outside the output"
        return self.view


_LIBC = ctypes.CDLL(None, use_errno=True)


def at_page_end(array: np.ndarray) -> np.ndarray:
    """A copy whose last byte is the last of readable memory: reading past it ends the process.

    The memory lives as long as an array that points into it, such as that of a source.
    """
    page = mmap.PAGESIZE
    size = -(-max(array.nbytes, 1) // page) * page
    memory = mmap.mmap(-1, size + page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert _LIBC.mprotect(ctypes.c_void_p(address + size), page, 0) == 0
    flat = np.frombuffer(memory, array.dtype, array.size, size - array.nbytes)
    copy = flat.reshape(array.shape)
    copy[...] = array
    return copy


def make_source(
    case: Case, rng: np.random.Generator, kind: str, r0: int, r1: int, width: int
) -> tuple[Any, np.ndarray]:
    """A source with row map `kind` for rows [r0, r1), and its rows in float64.

    The buffer starts at another row than r0, has NaN next to the columns that may be read, and
    ends where memory ends.
    """
    rows, base, column = r1 - r0, max(r0 - 2, 0), 3
    height = {"self": r1 - base, "one": 1}.get(kind, rows + 3)
    data = np.full((height, column + width), np.nan, case.dtype)
    data[:, column:] = case.normal(rng, height, width)
    data = at_page_end(data)
    clean = data[:, column:].astype("f8")
    options: dict[str, Any] = {"column": column, "width": width, "base": base}
    if kind == "self":
        return case.source(data, map=RowMap.SELF, **options), clean[r0 - base :]
    if kind == "one":
        return case.source(data, map=RowMap.ONE, **options), np.repeat(clean, rows, 0)
    if kind == "index":
        index = rng.integers(-1, height, r1).astype("i4")
        values = np.where(index[r0:, None] < 0, 0.0, clean[index[r0:]])
        index[index >= 0] += base
        return case.source(data, map=RowMap.INDEX, index=index, **options), values
    counts = rng.integers(0, 4, r1)
    counts[:r0] = 0
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype("i4")
    if kind == "segment":  # the segment's own rows
        data = at_page_end(case.normal(rng, max(int(offsets[-1]), 1), width))
        options = {"base": 0, "width": width}
        index, clean, picked = None, data.astype("f8"), np.arange(offsets[-1])
    else:  # "segment_index"
        picked = rng.integers(-1, height, int(offsets[-1])).astype("i4")
        index = np.where(picked < 0, -1, picked + base).astype("i4")
    values = np.zeros((rows, width))
    terms = np.vstack([clean, np.zeros(width)])  # -1 picks the last row, zeros
    for nth in range(3):
        has = counts[r0:] > nth
        values[has] += terms[picked[offsets[r0:r1][has] + nth]]
    source = case.source(data, map=RowMap.SEGMENT_SUM, index=index, offsets=offsets, **options)
    return source, values


SOURCE_KINDS = ("self", "one", "index", "segment", "segment_index")


def packed_weight(case: Case, w: np.ndarray) -> np.ndarray:
    """The packed copy of a K x N matrix."""
    k, n = w.shape
    packed = case.table.packed(k, n)
    case.table.pack([(w, 0, 0)], k, n, packed)
    return packed
