"""Matrix products against NumPy: every row map, every precision, ragged sizes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cuda.kernel_cases import SOURCE_KINDS, Array, Case, agree, case_of, side_by_side
from tests.cuda.kernel_signatures import Sources

Grid = tuple[int, ...]
GRIDS = ((1, 1, 1), (2, 3, 2), (3, 2, 5))
BITS = {"": 23, "_tf32": 10, "_bf16": 7}  # bits of the significand
CASES = [
    (case_of(name, dtype), precision)
    for name in ("twin", "gpu")
    for dtype, precision in (
        ("float32", ""), ("float32", "_tf32"), ("half", "_bf16"), ("float64", "")
    )
]  # fmt: skip
every_precision = pytest.mark.parametrize(
    ("case", "precision"),
    [
        pytest.param(
            *pair,
            id=f"{pair[0].name}-{pair[0].dtype}{pair[1]}",
            marks=pytest.mark.cuda if pair[0].name == "gpu" else (),
        )
        for pair in CASES
    ],
)


def rounded(x: np.ndarray, precision: str) -> np.ndarray:
    """Round operands like a tensor core: tf32 ties away from zero, bfloat16 to even."""
    if precision == "":
        return x
    drop = 23 - BITS[precision]
    bits = x.astype("f4").view("u4")
    half = np.uint32(1 << (drop - 1))
    if precision == "_bf16":
        half = half - 1 + ((bits >> np.uint32(drop)) & 1)
    kept: np.ndarray = ((bits + half) >> np.uint32(drop) << np.uint32(drop)).view("f4")
    return kept.astype("f8")


def assert_product(
    case: Case,
    precision: str,
    got: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    start: float = 0.0,
    slack: float = 0.0,
    stored: bool = False,
) -> None:
    """Compare with start + a @ b; the bound grows with the number of terms of each sum.

    slack: the ratio of the values that `a` and `b` were summed from to `a` and `b`; such sums may
    also be rounded the other way as operands. stored: in bfloat16 if the case is.
    """
    terms = (np.abs(a) + slack) @ (np.abs(b) + slack)
    unit = case.eps * (2 + a.shape[1])
    if slack and precision:
        unit += 2.0 ** -BITS[precision]
    expected = start + rounded(a, precision) @ rounded(b, precision)
    last = case.rounding * np.abs(expected) if stored else 0.0
    assert (np.abs(got - expected) <= unit * (terms + abs(start)) + last).all()


def matmul(
    case: Case,
    grid: Grid,
    name: str,
    a: Sources,
    r0: int,
    r1: int,
    w: Array,
    start: float,
    aligned: bool,
    parts: int = 1,
) -> np.ndarray:
    """parts: of the depth, in kernels for few rows."""
    (k, n), add = w.shape, start != 0
    out = case.guarded(r1 - r0, n, fill=start, aligned=aligned, half=aligned)
    arguments = (a, r0, r1, w, k, n, out, out.stride, r0, out.half, add)
    if not name.endswith("_16"):
        case.launch(name, grid[:2], *arguments)
        return out.get()
    count = (r1 - r0) * n
    partial = case.guarded(1, parts * count, fill=np.nan)
    tiles = -(-(r1 - r0) // 16) * -(-n // 64)
    arrived = case.array(np.zeros(tiles + 1), "u4")
    case.launch(name, grid, *arguments, partial, parts, arrived)
    assert not arrived.get().any()  # reset by the kernel
    partial.get()
    return out.get()


def names(precision: str) -> tuple[str, str]:
    return f"matmul{precision}", f"matmul{precision}_16"


def sources_of_widths(
    case: Case, rng: np.random.Generator, kinds: list[str], widths: list[int], r0: int, r1: int
) -> tuple[Sources, np.ndarray, list[object]]:
    """Return several sources; every other one is aligned."""
    parts = [
        case.source(rng, kind, r0, r1, width, i % 2 == 0)
        for i, (kind, width) in enumerate(zip(kinds, widths, strict=True))
    ]
    values = np.concatenate([p.values for p in parts], 1)
    return side_by_side(parts), values, [p.memory for p in parts]


SHAPES = [  # rows, k, n
    *itertools.product((0, 1, 31, 33), (0, 1, 33), (1, 31, 65)),
    *((64, 64, 64), (65, 63, 64), (17, 130, 132), (3, 300, 1), (130, 16, 33), (16, 128, 0)),
]


@every_precision
def test_matmul_sizes(case: Case, precision: str) -> None:
    rng = np.random.default_rng(0)
    for rows, k, n in SHAPES:
        a, w = case.normal(rng, rows, k), case.normal(rng, k, n)
        source, memory = case.plain(a, base=2), case.stored(w)
        for name in names(precision):
            arguments = (name, side_by_side([source]), 2, rows + 2, memory, 0.0, n % 2 == 0)
            got = agree(case, GRIDS if rows > 60 else GRIDS[:1], matmul, *arguments)
            assert_product(case, precision, got, source.values, w.astype("f8"), stored=n % 2 == 0)


@every_precision
@pytest.mark.parametrize("kind", SOURCE_KINDS)
@pytest.mark.parametrize("start", [0.0, 2.0])
def test_matmul_row_maps(case: Case, precision: str, kind: str, start: float) -> None:
    rng = np.random.default_rng(1)
    for (r0, r1, k, n), aligned in itertools.product(
        ((0, 1, 5, 3), (3, 3, 4, 4), (3, 20, 17, 65), (5, 75, 36, 68)), (False, True)
    ):
        source = case.source(rng, kind, r0, r1, k, aligned)
        w = case.normal(rng, k, n)
        memory = case.stored(w)
        for name in names(precision):
            arguments = (name, side_by_side([source]), r0, r1, memory, start, aligned)
            got = agree(case, GRIDS[:2], matmul, *arguments)
            values = (source.values, w.astype("f8"))
            assert_product(case, precision, got, *values, start, slack=4.0, stored=aligned)


@every_precision
def test_several_sources(case: Case, precision: str) -> None:
    rng = np.random.default_rng(2)
    kinds = [*SOURCE_KINDS, "self"]
    widths, n, r0, r1 = [7, 0, 33, 64, 5, 20, 1, 0], 70, 2, 40
    a, values, memory = sources_of_widths(case, rng, kinds, widths, r0, r1)
    w = case.normal(rng, sum(widths), n)
    of_w = case.stored(w)
    for name in names(precision):
        got = agree(case, GRIDS[:2], matmul, name, a, r0, r1, of_w, 0.0, False)
        assert_product(case, precision, got, values, w.astype("f8"), slack=4.0)
    b, right, more = sources_of_widths(case, rng, kinds[::-1], [*widths[1:], 9], r0, r1)
    for parts in (1, 3):
        got = agree(case, GRIDS[:2], matmul_tn, precision, a, b, r0, r1, *shape(a, b), 0.0, parts)
        assert_product(case, precision, got, values.T, right, slack=4.0)
    assert len(memory) == len(more) == 8


@every_precision
@pytest.mark.parametrize("rows", [0, 1, 31, 33, 127, 128])
def test_parts_of_the_depth(case: Case, precision: str, rows: int) -> None:
    """Parts are whole slabs; there may be more parts than slabs."""
    rng = np.random.default_rng(rows)
    name = names(precision)[1]
    for widths, n, start in (([300], 68, 0.0), ([7, 0, 130, 64, 5], 33, 1.5), ([512], 64, 1.5)):
        kinds = ["self", "index", "segment_index", "one", "self"][: len(widths)]
        a, values, memory = sources_of_widths(case, rng, kinds, widths, 2, rows + 2)
        w = case.normal(rng, sum(widths), n)
        of_w = case.stored(w)
        for parts in (1, 2, 3, 11):
            arguments = (name, a, 2, rows + 2, of_w, start, n % 2 == 0, parts)
            got = agree(case, GRIDS[:2] if rows == 33 else GRIDS[1:2], matmul, *arguments)
            ends = {"slack": 4.0, "stored": n % 2 == 0}
            assert_product(case, precision, got, values, w.astype("f8"), start, **ends)
        assert len(memory) == len(widths)


@every_precision
def test_a_row_does_not_depend_on_its_neighbours(case: Case, precision: str) -> None:
    rng = np.random.default_rng(4)
    source, w = case.plain(case.normal(rng, 100, 50)), case.stored(case.normal(rng, 50, 70))
    for name in names(precision):
        a = side_by_side([source])
        whole = agree(case, GRIDS, matmul, name, a, 0, 100, w, 0.0, False)
        for r0, r1 in ((0, 1), (13, 17), (50, 100)):
            part = agree(case, GRIDS[:1], matmul, name, a, r0, r1, w, 0.0, False)
            np.testing.assert_array_equal(part, whole[r0:r1])


def shape(a: Sources, b: Sources) -> tuple[int, int]:
    k, n = (sum(s.of[i].width for i in range(s.count)) for s in (a, b))
    return k, n


def matmul_tn(
    case: Case,
    grid: Grid,
    precision: str,
    a: Sources,
    b: Sources,
    r0: int,
    r1: int,
    k: int,
    n: int,
    start: float,
    parts: int,
) -> np.ndarray:
    out = case.guarded(k, n, fill=start)
    partial = case.guarded(1, parts * k * n)
    name, add = f"matmul_tn{precision}", start != 0
    case.launch(name, grid, a, b, r0, r1, k, n, out, out.stride, add, partial, parts)
    if parts > 1:
        count = k * n
        place = (out, max(n, 1), out.stride, add)
        case.launch("sum_parts", grid[:1], partial, parts, count, *place)
    partial.get()
    return out.get()


@every_precision
@pytest.mark.parametrize("rows", [0, 1, 31, 33, 200])
def test_matmul_tn_sizes(case: Case, precision: str, rows: int) -> None:
    rng = np.random.default_rng(rows)
    for (k, n), start, parts in itertools.product(
        ((1, 1), (0, 3), (3, 0), (31, 64), (65, 33), (68, 72)), (0.0, 1.5), (1, 4)
    ):
        a, b = case.plain(case.normal(rng, rows, k)), case.plain(case.normal(rng, rows, n), base=0)
        arguments = (precision, side_by_side([a]), side_by_side([b]), 0, rows, k, n, start, parts)
        got = agree(case, GRIDS if rows == 33 else GRIDS[1:2], matmul_tn, *arguments)
        assert_product(case, precision, got, a.values.T, b.values, start)


@every_precision
@pytest.mark.parametrize("kind_a", SOURCE_KINDS)
@pytest.mark.parametrize("kind_b", SOURCE_KINDS)
def test_matmul_tn_row_maps(case: Case, precision: str, kind_a: str, kind_b: str) -> None:
    rng = np.random.default_rng(7)
    for aligned, (r0, r1) in ((False, (4, 43)), (True, (1, 6))):
        a = case.source(rng, kind_a, r0, r1, 20, aligned)
        b = case.source(rng, kind_b, r0, r1, 33, aligned)
        arguments = (precision, side_by_side([a]), side_by_side([b]), r0, r1, 20, 33, 0.0, 2)
        got = agree(case, GRIDS[1:2], matmul_tn, *arguments)
        assert_product(case, precision, got, a.values.T, b.values, slack=4.0)


@given(data=st.data())
@settings(max_examples=60)
def test_products_of_any_shape(data: st.DataObject) -> None:
    case, precision = data.draw(st.sampled_from([c for c in CASES if c[0].name == "twin"]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    r0 = data.draw(st.integers(0, 9))
    r1 = r0 + data.draw(st.integers(0, 80))
    kinds = data.draw(st.lists(st.sampled_from(SOURCE_KINDS), min_size=1, max_size=4))
    widths = [data.draw(st.integers(0, 70)) for _ in kinds]
    n = data.draw(st.integers(1, 140))
    a, values, memory = sources_of_widths(case, rng, kinds, widths, r0, r1)
    w = case.normal(rng, sum(widths), n)
    of_w = case.stored(w)
    grids = [GRIDS[0], (data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4)), 2)]
    for name in names(precision):
        parts = data.draw(st.integers(1, 4)) if name.endswith("_16") else 1
        got = agree(case, grids, matmul, name, a, r0, r1, of_w, 0.0, n % 2 == 0, parts)
        stored = n % 2 == 0
        assert_product(case, precision, got, values, w.astype("f8"), slack=4.0, stored=stored)
    right = case.source(rng, "self", r0, r1, n, True)
    arguments = (precision, a, side_by_side([right]), r0, r1, sum(widths), n, 0.0, 2)
    got = agree(case, grids, matmul_tn, *arguments)
    assert_product(case, precision, got, values.T, right.values, slack=4.0)
    assert len(memory) == len(kinds)


@every_precision
def test_values_that_are_not_finite_propagate(case: Case, precision: str) -> None:
    a = np.array([[np.inf], [-np.inf], [np.nan], [1.5], [-0.0]], case.dtype)
    source, w = case.plain(a), case.stored(np.ones((1, 33)))
    for name in names(precision):
        got = agree(case, GRIDS[:1], matmul, name, side_by_side([source]), 0, 5, w, 0.0, True)
        np.testing.assert_array_equal(got, np.repeat(a, 33, 1))
    ones = case.plain(np.ones((5, 33), case.dtype))
    sides = (side_by_side([source]), side_by_side([ones]))
    got = agree(case, GRIDS[:1], matmul_tn, precision, *sides, 3, 5, 1, 33, 0.0, 1)
    np.testing.assert_array_equal(got, np.full((1, 33), 1.5))
    got = agree(case, GRIDS[:1], matmul_tn, precision, *sides, 0, 2, 1, 33, 0.0, 1)
    assert np.isnan(got).all()
