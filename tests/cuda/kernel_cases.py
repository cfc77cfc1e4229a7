"""Helpers of kernel tests: cases, sources of every row map, guarded outputs, grids."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.cuda import hardware
from tests.cuda.device import Array, Device, gpu, host_twin
from tests.cuda.kernel_signatures import Rows, Sources

SENTINEL = -12345.5
SIZES = (0, 1, 2, 3, 4, 5, 31, 32, 33, 63, 64, 65, 130)
SOURCE_KINDS = ("self", "still", "one", "index", "segment", "segment_index", "segment_still")
SELF, ONE, INDEX, SEGMENT = range(4)


@dataclass(frozen=True)
class Source:
    """A source for rows [r0, r1), the expected rows in float64, and its memory."""

    rows: Rows
    values: np.ndarray
    memory: tuple[Array, ...]


@dataclass(frozen=True)
class Case:
    """A device, "twin", "checked" (the twin that finds races) or "gpu", and a type of values.

    half: float32 that is stored in bfloat16 where that is allowed; all values are representable.
    """

    name: str
    dtype: str
    half: bool = False

    @property
    def device(self) -> Device:
        device = gpu() if self.name == "gpu" else host_twin(self.name == "checked" or None)
        if isinstance(device, str):
            if self.name == "gpu":
                hardware.skip(device)
            pytest.skip(device)
        return device

    @property
    def eps(self) -> float:
        return float(np.finfo(self.dtype).eps)

    @property
    def rounding(self) -> float:
        """Tolerance for the rounding of stored results."""
        return 2.0**-8 if self.half else 0.0

    def normal(self, rng: np.random.Generator, *shape: int) -> np.ndarray:
        return self.fitting(rng.standard_normal(shape))

    def fitting(self, x: np.ndarray) -> np.ndarray:
        """Round to the nearest values that can be stored exactly."""
        return widened(narrowed(x)) if self.half else x.astype(self.dtype)

    def array(self, host: Any, dtype: Any = None) -> Array:
        return self.device.array(host, dtype or self.dtype)

    def ints(self, host: Any) -> Array:
        return self.device.array(host, "i4")

    def stored(self, host: np.ndarray) -> Array:
        """Return an array in the type of packed weights, and flags for rows in that type."""
        return self.device.array(narrowed(host) if self.half else host.astype(self.dtype))

    def launch(self, name: str, grid: tuple[int, ...], *arguments: Any) -> None:
        self.device.launch(name, "half" if self.half else self.dtype, grid, *arguments)

    def guarded(
        self,
        rows: int,
        cols: int,
        fill: Any = SENTINEL,
        aligned: bool = False,
        half: bool = False,
    ) -> Guarded:
        """Return a guarded output; half: stored in bfloat16 if the case is."""
        return Guarded(self, rows, cols, fill, aligned, half and self.half)

    def plain(self, host: np.ndarray, base: int = 0) -> Source:
        """Return the rows of an array as a source that starts at row `base`."""
        memory = self.stored(host)
        width = host.shape[1]
        rows = Rows(memory.address, width, base, 0, 0, SELF, self.half, width)
        return Source(rows, host.astype("f8"), (memory,))

    def source(
        self, rng: np.random.Generator, kind: str, r0: int, r1: int, width: int, aligned: bool
    ) -> Source:
        """Return a source of row map `kind`.

        The buffer starts at another row than r0, has NaN around the columns that may be read, and
        ends with the allocation. aligned: rows start at multiples of 16 bytes, or of 8 in bfloat16,
        in which half of the sources of such a case are stored.
        """
        half = self.half and bool(rng.integers(2))
        rows, base, column = r1 - r0, max(r0 - 2, 0), 4 if aligned else 3
        height = {"self": r1 - base, "still": 1, "one": 1, "segment_still": 1}.get(kind, rows + 3)
        counts = rng.integers(0, 7, r1)
        counts[:r0] = 0
        offsets = np.concatenate([[0], np.cumsum(counts)])
        if kind == "segment":  # segments of consecutive rows
            height = max(int(offsets[-1]), 1)
        stride = column + width + (-width % 4 if aligned else 0)
        data = np.full((height, stride), np.nan, self.dtype)
        data[:, column : column + width] = self.normal(rng, height, width)
        # As short as possible, so that reads past the last row leave the allocation.
        flat = data.reshape(-1)[: data.size - (stride - column - width)]
        memory = self.stored(flat) if half else self.array(flat)
        clean = data[:, column : column + width].astype("f8")
        start = memory.address + column * memory.itemsize
        if kind in ("self", "still", "one"):
            values = clean[r0 - base :] if kind == "self" else np.repeat(clean, rows, 0)
            step = 0 if kind == "still" else stride
            source = Rows(start, step, base, 0, 0, ONE if kind == "one" else SELF, half, width)
            return Source(source, values, (memory,))
        if kind == "index":
            index = rng.integers(-1, height, r1)
            values = np.where(index[r0:, None] < 0, 0.0, clean[index[r0:]])
            where = self.ints(np.where(index < 0, index, index + base))
            source = Rows(start, stride, base, where.address, 0, INDEX, half, width)
            return Source(source, values, (memory, where))
        ends, where, step = self.ints(offsets), None, stride
        picked = np.arange(offsets[-1])
        if kind == "segment_still":
            base, step, picked = 0, 0, np.zeros_like(picked)
        elif kind == "segment":
            base = 0
        else:  # segment_index
            picked = rng.integers(-1, height, int(offsets[-1]))
            where = self.ints(np.where(picked < 0, -1, picked + base))
        values = np.zeros((rows, width))
        for r in range(r0, r1):
            for j in picked[offsets[r] : offsets[r + 1]]:
                values[r - r0] += clean[j] if j >= 0 else 0
        address = where.address if where else 0
        source = Rows(start, step, base, address, ends.address, SEGMENT, half, width)
        return Source(source, values, (memory, ends, *([where] if where else [])))


def narrowed(x: np.ndarray) -> np.ndarray:
    """Return the bits of the nearest bfloat16 values; ties go to even."""
    bits = np.ascontiguousarray(x, "f4").view("u4")
    rounded = (bits.astype("u8") + 0x7FFF + (bits >> np.uint32(16) & 1)) >> 16
    return np.where(np.isnan(x), 0x7FFF, rounded).astype("u2")


def widened(bits: np.ndarray) -> np.ndarray:
    """Return bfloat16 values as float32."""
    return (bits.astype("u4") << np.uint32(16)).view("f4")


def case_of(name: str, dtype: str) -> Case:
    return Case(name, "float32" if dtype == "half" else dtype, dtype == "half")


def cases(*dtypes: str) -> pytest.MarkDecorator:
    """Parametrize a test by cases on the host twin, then on this machine's GPU."""
    return pytest.mark.parametrize(
        "case",
        [
            pytest.param(case_of(name, dtype), marks=marks, id=f"{name}-{dtype}")
            for name, marks in (("twin", ()), ("gpu", pytest.mark.cuda))
            for dtype in dtypes
        ],
    )


every_case = cases("float32", "float64", "half")
exact_case = cases("float32", "float64")


def side_by_side(sources: Iterable[Source]) -> Sources:
    sources = list(sources)
    return Sources((Rows * 8)(*(s.rows for s in sources)), len(sources))


class Guarded:
    """A 2-D output inside a larger array of sentinels; ``get`` checks that nothing else changed."""

    def __init__(
        self, case: Case, rows: int, cols: int, fill: Any, aligned: bool, half: bool = False
    ):
        self.half = half
        self.rows, self.cols, self.left = rows, cols, 4 if aligned else 3
        self.stride = cols + 8 + (-cols % 4 if aligned else 1)
        whole = np.full((rows + 2, self.stride), SENTINEL, case.dtype)
        self._inner(whole)[...] = fill
        self.memory = case.stored(whole) if half else case.array(whole)
        self.untouched = widened(narrowed(whole[:1, :1])) if half else whole[:1, :1]
        start = self.stride + self.left
        self.address = self.memory.address + start * self.memory.itemsize

    def _inner(self, whole: np.ndarray) -> np.ndarray:
        return whole[1 : 1 + self.rows, self.left : self.left + self.cols]

    def get(self) -> np.ndarray:
        whole = widened(self.memory.get()) if self.half else self.memory.get()
        found = self._inner(whole).copy()
        self._inner(whole)[...] = self.untouched
        assert (whole == self.untouched).all(), "written outside the output"
        return found


def agree(
    case: Case, grids: Iterable[tuple[int, ...]], call: Callable[..., np.ndarray], *arguments: Any
) -> np.ndarray:
    """Return the result of call(case, grid, ...), equal in bits for all grids and thread orders."""
    first: np.ndarray | None = None
    for seed, grid in enumerate(grids):
        if case.device.twin:
            case.device.twin.adversarial(seed)
        got = call(case, grid, *arguments)
        if first is None:
            first = got
        assert first.tobytes() == got.tobytes(), f"other bits on a grid of {grid}"
    if case.device.twin:
        case.device.twin.check_guards()
        case.device.twin.reset()  # to limit the size of its log
    assert first is not None
    return first
