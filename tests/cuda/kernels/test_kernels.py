"""Kernels over rows, packing, lookups and updates against NumPy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.cuda.kernel_cases import (
    SEGMENT,
    SIZES,
    SOURCE_KINDS,
    Case,
    Source,
    agree,
    cases,
    every_case,
    exact_case,
    side_by_side,
)
from tests.cuda.kernel_signatures import Piece, Rows, Sources, Sum, Sums
from tests.draws import EXAMPLES

GRIDS = ((1, 1), (3, 2), (2, 5))
RANGES = ((0, 1), (3, 3), (2, 9), (1, 70))
aligned_or_not = pytest.mark.parametrize("aligned", [False, True])
Grid = tuple[int, ...]


def grids(width: int) -> tuple[Grid, ...]:
    """Yield every grid for some widths, and one for the others."""
    return GRIDS if width in (1, 64, 65) else GRIDS[1:2]


def rows_kernel(
    case: Case, grid: Grid, name: str, source: Rows, r0: int, r1: int, aligned: bool
) -> np.ndarray:
    out = case.guarded(r1 - r0, source.width, aligned=aligned, half=True)
    given = Sources((Rows * 8)(source), 1) if name == "copy_rows" else source
    case.launch(name, grid, given, r0, r1, out, out.stride, r0, out.half)
    return out.get()


@every_case
@aligned_or_not
@pytest.mark.parametrize("kind", SOURCE_KINDS)
def test_copy_rows(case: Case, kind: str, aligned: bool) -> None:
    rng = np.random.default_rng(0)
    for width in SIZES:
        for r0, r1 in RANGES:
            source = case.source(rng, kind, r0, r1, width, aligned)
            arguments = ("copy_rows", source.rows, r0, r1, aligned)
            got = agree(case, grids(width), rows_kernel, *arguments)
            bound = {"rtol": case.rounding, "atol": 40 * case.eps}
            np.testing.assert_allclose(got, source.values, **bound)


def copied(
    case: Case, grid: Grid, sources: list[Source], r0: int, r1: int, aligned: bool
) -> np.ndarray:
    width = sum(s.rows.width for s in sources)
    out = case.guarded(r1 - r0, width, aligned=aligned, half=True)
    case.launch("copy_rows", grid, side_by_side(sources), r0, r1, out, out.stride, r0, out.half)
    return out.get()


@every_case
@aligned_or_not
def test_copies_of_several_sources(case: Case, aligned: bool) -> None:
    rng = np.random.default_rng(3)
    for widths in ((4,), (8, 12, 4), (5, 0, 3, 64), (1,) * 8):
        sources = [
            case.source(rng, kind, 2, 40, width, aligned)
            for width, kind in zip(widths, itertools.cycle(SOURCE_KINDS))
        ]
        got = agree(case, ((3, 2, 1), (1, 1, 3), (2, 5, 8)), copied, sources, 2, 40, aligned)
        expected = np.concatenate([s.values for s in sources], 1)
        np.testing.assert_allclose(got, expected, rtol=case.rounding, atol=40 * case.eps)


@every_case
@aligned_or_not
@pytest.mark.parametrize("indexed", [False, True])
def test_long_segments_are_added_in_order(case: Case, aligned: bool, indexed: bool) -> None:
    """However many loads are in flight."""
    rng = np.random.default_rng(5)
    counts = np.array([0, 1, 3, 4, 5, 7, 8, 9, 11, 12, 15, 16, 17, 31, 100])
    offsets = np.concatenate([[0], np.cumsum(counts)])
    for width in (1, 5, 8, 132):
        data = case.normal(rng, int(offsets[-1]), width)
        index = rng.integers(-1, len(data), len(data)) if indexed else np.arange(len(data))
        memory, ends, where = case.stored(data), case.ints(offsets), case.ints(index)
        maps = (where.address if indexed else 0, ends.address, SEGMENT, case.half)
        source = Rows(memory.address, width, 0, *maps, width)
        got = agree(case, GRIDS, rows_kernel, "copy_rows", source, 0, len(counts), aligned)
        expected = np.zeros((len(counts), width), case.dtype)
        for r, (begin, end) in enumerate(itertools.pairwise(offsets)):
            for j in index[begin:end]:
                expected[r] += data[j] if j >= 0 else 0
        np.testing.assert_array_equal(got, case.fitting(expected))


def sum_rows(
    case: Case, grid: Grid, sources: list[Source], r0: int, r1: int, start: float, parts: int
) -> np.ndarray:
    """Sum sources into adjacent columns; every other sum is added to `start`, if that is not 0."""
    starts = [start * (i % 2 == 0) for i in range(len(sources))]
    outputs = [case.guarded(1, s.rows.width, x) for s, x in zip(sources, starts, strict=True)]
    sums = Sums()
    for i, (source, x, out) in enumerate(zip(sources, starts, outputs, strict=True)):
        sums.of[i] = Sum(out.address, source.rows.width, x != 0)
    total = sum(s.rows.width for s in sources)
    partial = case.guarded(1, parts * total, fill=np.nan)
    case.launch("sum_rows", grid, side_by_side(sources), sums, r0, r1, partial, parts)
    if parts > 1:
        case.launch("sum_parts_of_rows", grid[:1], partial, parts, total, sums)
    partial.get()
    return np.concatenate([out.get()[0] for out in outputs])


STARTS_AND_PARTS = ((0.0, 1), (3.0, 1), (0.0, 3), (3.0, 5))


def assert_sums(
    case: Case,
    grids: tuple[Grid, ...],
    sources: list[Source],
    r0: int,
    r1: int,
    ways: Sequence[tuple[float, int]] = STARTS_AND_PARTS,
) -> None:
    """ways: starts and parts."""
    starts = np.repeat([i % 2 == 0 for i in range(len(sources))], [s.rows.width for s in sources])
    values = np.concatenate([s.values for s in sources], 1)
    for start, parts in ways:
        got = agree(case, grids, sum_rows, sources, r0, r1, start, parts)
        # Each term, and each row of a segment, may be rounded once.
        bound = case.eps * (4 + 6 * (r1 - r0)) * (np.abs(values).sum(0) + start + 4)
        assert (np.abs(got - start * starts - values.sum(0)) <= bound).all()


@every_case
@pytest.mark.parametrize("kind", SOURCE_KINDS)
def test_sum_rows(case: Case, kind: str) -> None:
    """With two starts and parts in turn; every range, and every width, meets all of them."""
    rng = np.random.default_rng(1)
    for (i, width), (j, (r0, r1)) in itertools.product(enumerate(SIZES), enumerate(RANGES)):
        source = case.source(rng, kind, r0, r1, width, width % 4 == 0)
        ways = STARTS_AND_PARTS if EXAMPLES else STARTS_AND_PARTS[(i + j) % 2 :: 2]
        assert_sums(case, grids(width), [source], r0, r1, ways)


@every_case
def test_sums_over_the_same_rows(case: Case) -> None:
    rng = np.random.default_rng(2)
    widths = [5, 0, 33, 32, 1, 70, 64]
    for (r0, r1), count in itertools.product(RANGES, (2, 7)):
        kinds = zip(SOURCE_KINDS[:count], widths, strict=False)
        sources = [case.source(rng, kind, r0, r1, width, False) for kind, width in kinds]
        assert_sums(case, GRIDS, sources, r0, r1)


@every_case
@pytest.mark.parametrize("parts", [1, 3])
def test_sums_that_nearly_cancel(case: Case, parts: int) -> None:
    """Only stored results are rounded: the sum of a part, and the whole."""
    rng = np.random.default_rng(4)
    for count in (9, 60, 600):
        terms = case.normal(rng, count, 40)
        terms[count // 2 : count // 2 * 2] = -terms[: count // 2]
        data = case.fitting(rng.permuted(terms, axis=0) + terms[-1] / 64)
        got = agree(case, GRIDS, sum_rows, [case.plain(data)], 0, count, 0.0, parts)
        ends = [count * i // parts for i in range(parts + 1)]
        for column, found in zip(data.T.astype("f8"), got, strict=True):
            stored = [math.fsum(column[a:b]) for a, b in itertools.pairwise(ends)]
            stored += [math.fsum(column)]
            assert abs(found - stored[-1]) <= 0.5001 * case.eps * sum(map(abs, stored))


@exact_case
@pytest.mark.parametrize("parts", [1, 3])
def test_sums_that_are_not_finite(case: Case, parts: int) -> None:
    most = np.finfo(case.dtype).max
    data = np.array([[np.inf, -np.inf, np.inf, most, np.nan], [1, 2, -np.inf, most, 1]], case.dtype)
    source = case.plain(np.repeat(data, 20, 0))
    got = agree(case, GRIDS, sum_rows, [source], 0, 40, 0.0, parts)
    np.testing.assert_array_equal(got, [np.inf, -np.inf, np.nan, np.inf, np.nan])


@every_case
@aligned_or_not
@pytest.mark.parametrize("name", ["max", "product"])
def test_segment_folds(case: Case, aligned: bool, name: str) -> None:
    fold, empty = {"max": (np.max, 0.0), "product": (np.prod, 1.0)}[name]
    rng = np.random.default_rng(2)
    offsets = np.array([0, 0, 2, 2, 3, 9, 12])
    for width in SIZES:
        data = case.fitting(
            rng.standard_normal((30, width)) - 5
        )  # a maximum below zero differs from that of an empty segment
        index = rng.integers(4, 34, 12)
        index[[0, 2]] = -1  # a segment with an absent row, and one with nothing else
        memory, where, ends = case.stored(data), case.ints(index), case.ints(offsets)
        maps = (where.address, ends.address, SEGMENT, case.half)
        source = Rows(memory.address, width, 4, *maps, width)
        got = agree(case, GRIDS, rows_kernel, f"segment_{name}", source, 0, 6, aligned)
        for r in range(6):
            rows = [i - 4 for i in index[offsets[r] : offsets[r + 1]] if i >= 0]
            expected = case.fitting(fold(data[rows], 0) if rows else np.full(width, empty))
            np.testing.assert_array_equal(got[r], expected)


@every_case
def test_segment_max_propagates_nan(case: Case) -> None:
    data = case.array(np.array([[1, np.nan, 3], [np.nan, 2, 1]]))
    ends = case.ints([0, 2])
    source = Rows(data.address, 3, 0, 0, ends.address, SEGMENT, 0, 3)
    got = agree(case, GRIDS, rows_kernel, "segment_max", source, 0, 1, False)
    np.testing.assert_array_equal(got, [[np.nan, np.nan, 3]])


def loss_and_gradient(x: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    e = np.exp(x - x.max(1, keepdims=True))
    p = e / e.sum(1, keepdims=True)
    rows, safe = np.arange(len(x)), np.maximum(label, 0)
    loss = np.log(e.sum(1)) + x.max(1) - x[rows, safe]
    p[rows, safe] -= 1
    return np.where(label < 0, 0, loss), np.where(label[:, None] < 0, 0, p)


def cross_entropy(
    case: Case, grid: Grid, logits: Rows, label: Any, r0: int, r1: int, slope: Rows | None = None
) -> np.ndarray:
    """Return the loss followed by its gradient, multiplied by the slope if there is one."""
    loss, grad = case.guarded(r1 - r0, 1), case.guarded(r1 - r0, logits.width, half=True)
    rows = (label, r0, r1)
    case.launch("cross_entropy", grid, logits, *rows, loss, loss.stride, r0, loss.half)
    operands = (logits, slope or Rows())
    case.launch("cross_entropy_grad", grid, *operands, *rows, grad, grad.stride, r0, grad.half)
    return np.concatenate([loss.get(), grad.get()], 1)


@every_case
@pytest.mark.parametrize("kind", ["self", "still", "one", "index"])
@pytest.mark.parametrize("classes", [1, 2, 5, 31, 32, 33, 300, 5000])
def test_cross_entropy(case: Case, kind: str, classes: int) -> None:
    rng = np.random.default_rng(classes)
    for r0, r1 in ((2, 13), (4, 4)):
        source = case.source(rng, kind, r0, r1, classes, False)
        label = rng.integers(0, classes, r1)
        label[[0, 3]] = -1
        where = case.ints(label)
        got = agree(case, ((1,), (3,)), cross_entropy, source.rows, where, r0, r1)
        loss, grad = loss_and_gradient(source.values, label[r0:])
        np.testing.assert_allclose(got[:, 0], loss, rtol=20 * case.eps, atol=20 * case.eps)
        np.testing.assert_allclose(got[:, 1:], grad, rtol=case.rounding, atol=20 * case.eps)


@every_case
@pytest.mark.parametrize("kind", ["self", "still", "one", "index"])
@pytest.mark.parametrize("classes", [5, 40, 5000])
def test_slopes_of_cross_entropy(case: Case, kind: str, classes: int) -> None:
    rng, (r0, r1) = np.random.default_rng(classes), (2, 13)
    logits = case.source(rng, "self", r0, r1, classes, False)
    slope = case.source(rng, kind, r0, r1, 1, False)
    label = rng.integers(0, classes, r1)
    label[[0, 3]] = -1
    where = case.ints(label)
    got = agree(case, ((1,), (3,)), cross_entropy, logits.rows, where, r0, r1, slope.rows)
    grad = loss_and_gradient(logits.values, label[r0:])[1] * slope.values
    close = 20 * case.eps * max(1.0, np.abs(slope.values).max())
    np.testing.assert_allclose(got[:, 1:], grad, rtol=case.rounding, atol=close)


@cases("float32")
@pytest.mark.parametrize("classes", [2, 3, 31, 32])
def test_few_classes_are_rounded_once(case: Case, classes: int) -> None:
    """Only stored results of loss and gradient are rounded, whatever cancels in them."""
    rng, count = np.random.default_rng(classes), 300
    label = rng.integers(0, classes, count)
    x = 3 * case.normal(rng, count, classes)
    x[np.arange(count), label] += 4  # most rows nearly predict their label
    slope = case.plain(case.normal(rng, count, 1))
    logits, where = case.plain(x), case.ints(label)
    got = agree(case, ((1,), (3,)), cross_entropy, logits.rows, where, 0, count, slope.rows)
    loss, grad = loss_and_gradient(logits.values, label)
    exact = np.concatenate([loss[:, None], grad * slope.values], 1)
    assert (np.abs(got - exact) <= 0.501 * np.spacing(np.abs(exact).astype("f4"))).all()


@exact_case
@pytest.mark.parametrize("classes", [3, 40, 3000])
def test_slopes_of_cross_entropy_that_are_not_finite(case: Case, classes: int) -> None:
    x = case.plain(np.zeros((4, classes), case.dtype))
    slope = case.plain(np.array([[np.inf], [np.nan], [-np.inf], [-2]], case.dtype))
    label = case.ints([-1, -1, 0, -1])
    got = agree(case, ((1,), (2,)), cross_entropy, x.rows, label, 0, 4, slope.rows)[:, 1:]
    assert np.isnan(got[:2]).all()
    np.testing.assert_array_equal(got[2], [np.inf, *[-np.inf] * (classes - 1)])
    np.testing.assert_array_equal(np.copysign(1, got[3]), -1)


@exact_case
def test_cross_entropy_of_large_logits_and_bad_labels(case: Case) -> None:
    x = np.array([[1e4, -1e4, 0], [3e4, 3e4, 3e4], [np.nan, 0, 0], [0, 1, 2]])
    source, label = case.plain(x.astype(case.dtype)), case.ints([1, 0, 0, 3])
    got = agree(case, ((1,), (2,)), cross_entropy, source.rows, label, 0, 4)
    np.testing.assert_allclose(got[:2, 0], [2e4, np.log(3)], rtol=1e-3)
    np.testing.assert_allclose(got[0, 1:], [1, -1, 0])
    assert np.isnan(got[2, 0])
    assert np.isnan(got[3, 0]), "a label beyond the classes"


def pack(
    case: Case, grid: Grid, inputs: list[tuple[Any, tuple[int, int], np.ndarray]]
) -> np.ndarray:
    """Pack all pieces in one launch; `inputs`: memory, strides and shape of each piece."""
    outputs = [
        case.guarded(*x.shape, aligned=i % 2 == 0, half=True) for i, (_, _, x) in enumerate(inputs)
    ]
    pieces = [
        Piece(memory.address, out.address, *strides, *x.shape, out.stride)
        for (memory, strides, x), out in zip(inputs, outputs, strict=True)
    ]
    case.launch("pack", grid, case.device.structures(pieces), len(pieces))
    return np.concatenate([np.zeros(0, case.dtype), *(out.get().reshape(-1) for out in outputs)])


@every_case
def test_pack(case: Case) -> None:
    rng = np.random.default_rng(3)
    inputs: list[tuple[Any, tuple[int, int], np.ndarray]] = []
    for rows, cols in ((0, 3), (1, 1), (5, 0), (31, 33), (64, 65), (70, 40)):
        data = case.normal(rng, 2 * rows + 1, 2 * cols + 1)
        memory, width = case.array(data), data.shape[1]
        inputs.append((memory, (width, 1), data[:rows, :cols]))
        turned = data.reshape(-1)[: rows * cols].reshape(cols, rows).T
        inputs.append((memory, (1, rows), turned))
        inputs.append((memory, (2 * width, 2), data[: 2 * rows : 2, : 2 * cols : 2]))
    got = agree(case, ((1, 1), (3, 4), (9, 25)), pack, inputs)
    np.testing.assert_array_equal(got, np.concatenate([x.reshape(-1) for _, _, x in inputs]))
    assert agree(case, ((1, 1),), pack, []).size == 0


def unpack(
    case: Case, grid: Grid, inputs: list[tuple[Any, tuple[int, int], np.ndarray]]
) -> np.ndarray:
    """Like `pack`, added to 2."""
    outputs = [
        case.guarded(*x.shape, fill=2, aligned=i % 2 == 0) for i, (*_, x) in enumerate(inputs)
    ]
    pieces = [
        Piece(memory.address, out.address, *strides, *x.shape, out.stride)
        for (memory, strides, x), out in zip(inputs, outputs, strict=True)
    ]
    case.launch("unpack", grid, case.device.structures(pieces), len(pieces))
    return np.concatenate([out.get().reshape(-1) for out in outputs])


@every_case
def test_unpack(case: Case) -> None:
    rng = np.random.default_rng(4)
    inputs: list[tuple[Any, tuple[int, int], np.ndarray]] = []
    for rows, cols in ((1, 1), (0, 3), (33, 31), (70, 65)):
        data = case.normal(rng, rows, cols)
        inputs.append((case.array(data), (cols, 1), data))
        inputs.append((case.array(data.T), (1, rows), data))
    got = agree(case, ((1, 1), (3, 4)), unpack, inputs)
    wanted = np.concatenate([x.reshape(-1) for *_, x in inputs]) + np.asarray(2, case.dtype)
    np.testing.assert_array_equal(got, wanted)


def lookup_grad(
    case: Case, grid: Grid, values: Rows, lists: tuple[Any, ...], count: int, *start: np.ndarray
) -> np.ndarray:
    """start: initial values; without it the gradient is written."""
    rows = len(start[0]) if start else count
    out = case.guarded(1, rows * values.width, fill=start[0].reshape(1, -1) if start else np.nan)
    case.launch("lookup_grad", grid[:1], values, *lists, count, out, not start)
    return out.get().reshape(rows, values.width)


@every_case
@aligned_or_not
@pytest.mark.parametrize("one", [False, True])
def test_lookup_grad(case: Case, aligned: bool, one: bool) -> None:
    rng = np.random.default_rng(4)
    counts = np.array([1, 0, 3, 200, 64, 63, 1, 2, 0, 9])
    offsets = np.concatenate([[0], np.cumsum(counts)])
    picked = rng.integers(5, 45, offsets[-1])
    slots = rng.permutation(13)[:10]
    for width in SIZES[1:]:
        # Rows from number 5 on.
        source = case.source(rng, "one" if one else "self", 7, 45, width, aligned)
        rows = source.values[np.zeros_like(picked)] if one else None
        if rows is None:
            picked = np.maximum(picked, 7)
            rows = source.values[picked - 7]
            picked[::5], rows[::5] = -1, 0  # absent rows
        sums = np.zeros((10, width))
        for s in range(10):
            sums[s] = rows[offsets[s] : offsets[s + 1]].sum(0)
        lists = (case.ints(offsets), case.ints(picked))
        bound = case.eps * 210 * (np.abs(rows).sum(0) + 4)
        got = agree(case, grids(width), lookup_grad, source.rows, (*lists, None), 10)
        assert (np.abs(got - sums) <= bound).all()
        start = case.normal(rng, 13, width)
        where = (*lists, case.ints(slots))
        got = agree(case, grids(width), lookup_grad, source.rows, where, 10, start)
        expected = start.astype("f8")
        expected[slots] += sums
        assert (np.abs(got - expected) <= bound).all()
        untouched = np.setdiff1d(np.arange(13), slots[counts > 0])
        np.testing.assert_array_equal(got[untouched], start[untouched])
