from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cavs import _engine

from .support import (
    PRODUCTS,
    SIZES,
    SOURCE_KINDS,
    Case,
    Guarded,
    every_dtype,
    every_product,
    make_source,
    packed_weight,
    products_of,
)


class Product:
    """The product start + a @ b in float64, to compare with those of several tables."""

    def __init__(self, a: np.ndarray, b: np.ndarray, start: float = 0.0, slack: float = 0.0):
        self.a, self.b = a.astype("f8"), b.astype("f8")
        self.exact = start + self.a @ self.b
        self.terms = (np.abs(self.a) + slack) @ np.abs(self.b) + abs(start)

    def check(self, case: Case, got: np.ndarray) -> None:
        bound = case.product_error(self.a.shape[1]) * self.terms
        error = np.abs(got - self.exact)
        assert (error <= bound + case.rounding_error(self.a, self.b)).all(), case


def assert_product(
    case: Case,
    got: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    start: float = 0.0,
    slack: float = 0.0,
) -> None:
    """Compare with start + a @ b; the tolerance grows with the terms of each sum.

    `slack`: how much larger than `a` the terms are that its own values were summed from.
    """
    Product(a, b, start, slack).check(case, got)


@every_product
def test_matmul_sizes(case: Case) -> None:
    rng = np.random.default_rng(0)
    all_rows = itertools.cycle((0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 33))
    for k in SIZES:
        for n in SIZES[1:]:
            rows = next(all_rows)
            a, w = case.normal(rng, rows, k), case.normal(rng, k, n)
            c = Guarded(rows, n, case.dtype)
            case.table.matmul([case.source(a)], 0, rows, packed_weight(case, w), n, c.view)
            assert_product(case, c.check(), a, w)


@every_product
@pytest.mark.parametrize("kind", SOURCE_KINDS)
@pytest.mark.parametrize("accumulate", [False, True])
def test_matmul_row_maps(case: Case, kind: str, accumulate: bool) -> None:
    rng = np.random.default_rng(1)
    for r0, r1, k, n in ((0, 1, 5, 3), (3, 20, 17, 65), (5, 131, 33, 150)):
        source, a = make_source(case, rng, kind, r0, r1, k)
        w = case.normal(rng, k, n)
        c = Guarded(r1 - r0 + 1, n, case.dtype, fill=2.0)
        case.table.matmul(
            [source],
            r0,
            r1,
            packed_weight(case, w),
            n,
            c.view,
            c_base=r0 - 1,
            accumulate=accumulate,
        )
        assert_product(case, c.check()[1:], a, w, 2.0 if accumulate else 0.0, slack=4.0)
        assert (c.view[0] == 2.0).all()


@every_product
def test_matmul_sources_side_by_side_and_panel_ranges(case: Case) -> None:
    rng = np.random.default_rng(2)
    widths, n, r0, r1 = (7, 1, 33, 64, 5), 300, 2, 40
    pairs = [
        make_source(case, rng, kind, r0, r1, width)
        for kind, width in zip(SOURCE_KINDS, widths, strict=True)
    ]
    a = np.concatenate([values for _, values in pairs], 1)
    w = case.normal(rng, sum(widths), n)
    packed, panel = packed_weight(case, w), case.table.panel
    p0, p1 = 1, 2
    c = Guarded(r1 - r0, n, case.dtype)
    case.table.matmul([s for s, _ in pairs], r0, r1, packed, n, c.view, c_base=r0, p0=p0, p1=p1)
    inside = slice(p0 * panel, min(p1 * panel, n))
    assert_product(case, c.check()[:, inside], a, w[:, inside], slack=4.0)
    untouched = np.ones(n, bool)
    untouched[inside] = False
    assert (c.view[:, untouched] == -12345.5).all()


@every_product
def test_matmul_deep(case: Case) -> None:
    rng = np.random.default_rng(3)
    a, w = case.normal(rng, 7, 2500), case.normal(rng, 2500, 65)
    c = Guarded(7, 65, case.dtype)
    case.table.matmul([case.source(a)], 0, 7, packed_weight(case, w), 65, c.view)
    assert_product(case, c.check(), a, w)


@every_product
@pytest.mark.parametrize("kind", SOURCE_KINDS)
def test_matmul_of_few_rows(case: Case, kind: str) -> None:
    """One or two rows take several panels at once, with the same bits as among other rows."""
    rng = np.random.default_rng(5)
    panel, lanes = case.table.panel, case.table.panel // 4
    widths = [k * panel + d for k in (1, 2, 4, 9) for d in (-1, 0, 1, 1 - lanes, panel - lanes)]
    sources = {k: make_source(case, rng, kind, 0, 9, k) for k in (0, 1, 40, 1100)}
    for n, k in itertools.product(widths, sources):
        source, a = sources[k]
        w = case.normal(rng, k, n)
        packed, panels = packed_weight(case, w), -(-n // panel)
        whole = Guarded(9, n, case.dtype, fill=0.5)
        case.table.matmul([source], 0, 9, packed, n, whole.view, accumulate=True)
        for rows, p0 in ((1, 0), (2, 0), (3, 0), (1, 1), (2, min(2, panels))):
            c = Guarded(rows, n, case.dtype, fill=0.5)
            case.table.matmul(
                [source],
                4,
                4 + rows,
                packed,
                n,
                c.view,
                c_base=4,
                p0=p0,
                p1=panels,
                accumulate=True,
            )
            got = c.check()
            assert (got[:, p0 * panel :] == whole.view[4 : 4 + rows, p0 * panel :]).all()
            assert (got[:, : p0 * panel] == 0.5).all()
        assert_product(case, whole.check(), a, w, 0.5, slack=4.0)


# More than half of any L2, where slices of the weight are prefetched.
LARGE = {"float32": (601, 900), "float64": (301, 900)}


@every_dtype
@pytest.mark.parametrize("kind", SOURCE_KINDS)
def test_matmul_with_a_large_weight(dtype: str, kind: str) -> None:
    rng = np.random.default_rng(5)
    cases, (k, n) = products_of(dtype), LARGE[dtype]
    w = cases[0].normal(rng, k, n)
    packed = [packed_weight(case, w) for case in cases]
    for rows in (0, 1, 6, 7, 40):
        source, a = make_source(cases[0], rng, kind, 0, rows, k)
        expected = Product(a, w, slack=4.0)
        for case, weight in zip(cases, packed, strict=True):
            c = Guarded(rows, n, dtype)
            case.table.matmul([source], 0, rows, weight, n, c.view)
            expected.check(case, c.check())


@every_product
@pytest.mark.parametrize("large", [False, True])
def test_a_row_does_not_depend_on_other_rows(case: Case, large: bool) -> None:
    rng = np.random.default_rng(4)
    k, n = LARGE[case.dtype] if large else (150, 70)
    a, packed = case.normal(rng, 100, k), packed_weight(case, case.normal(rng, k, n))
    whole = np.zeros((100, n), case.dtype)
    case.table.matmul([case.source(a)], 0, 100, packed, n, whole)
    for r0, r1 in ((0, 1), (13, 17), (50, 100)):
        part = np.zeros((r1 - r0, n), case.dtype)
        case.table.matmul([case.source(a)], r0, r1, packed, n, part, c_base=r0)
        assert (part == whole[r0:r1]).all()


@every_product
def test_threads_share_a_product(case: Case) -> None:
    """By rows or by panels; every element is the same sum."""
    before = _engine.num_threads()
    _engine.set_num_threads(3)
    try:
        rng = np.random.default_rng(7)
        for rows in (0, 1, 5, 47, 48, 131):
            a, b, w = (case.normal(rng, *size) for size in ((rows, 33), (rows, 150), (33, 150)))
            sources, packed = [case.source(a)], packed_weight(case, w)
            c, g = np.zeros((4, rows, 150), case.dtype), np.zeros((4, 33, 150), case.dtype)
            for threads in (1, 2, 3):
                case.table.matmul(sources, 0, rows, packed, 150, c[threads], threads=threads)
                case.table.matmul_tn(
                    sources, [case.source(b)], 0, rows, g[threads], threads=threads
                )
                assert (c[threads] == c[1]).all() and (g[threads] == g[1]).all()
            assert_product(case, c[1], a, w)
            assert_product(case, g[1], a.T, b)
        with pytest.raises(ValueError, match="threads"):
            case.table.matmul(sources, 0, rows, packed, 150, c[1], threads=0)
        with pytest.raises(ValueError, match="4 tasks for 3 threads"):
            case.table.matmul(sources, 0, rows, packed, 150, c[1], threads=4)
    finally:
        _engine.set_num_threads(before)


@every_product
def test_pack_pieces_and_transposes(case: Case) -> None:
    rng = np.random.default_rng(5)
    w = case.normal(rng, 40, 150)
    expected = packed_weight(case, w).view("u1")
    panels = -(-150 // case.table.panel)
    for turned in (), (1,), (0, 1, 70):  # columns of parts that are stored transposed
        parts = []
        for k0, k1 in ((0, 13), (13, 40)):
            for n0, n1 in ((0, 1), (1, 70), (70, 150)):
                piece = np.array(w[k0:k1, n0:n1], order="F" if n0 in turned else "C")
                parts.append((piece, k0, n0))
        packed = case.table.packed(40, 150)
        case.table.pack(parts, 40, 150, packed)
        assert (packed.view("u1") == expected).all()
        some = case.table.packed(40, 150)  # single panels, in any order
        for panel in reversed(range(panels)):
            case.table.pack(parts, 40, 150, some, p0=panel, p1=panel + 1)
        assert (some.view("u1") == expected).all()


@every_dtype
@pytest.mark.parametrize("rows", [0, 1, 7, 255, 256, 257, 600])
def test_matmul_tn_rows(dtype: str, rows: int) -> None:
    rng = np.random.default_rng(rows)
    first = products_of(dtype)[0]
    for k, n in ((1, 1), (6, 64), (13, 33), (150, 65), (7, 1100)):
        a, b = first.normal(rng, rows, k), first.normal(rng, rows, n)
        expected = Product(a.T, b)
        for case in products_of(dtype):
            out = Guarded(k, n, dtype)
            case.table.matmul_tn([case.source(a)], [case.source(b)], 0, rows, out.view)
            expected.check(case, out.check())


@every_dtype
@pytest.mark.parametrize("rows", [0, 5, 448, 449, 900])
def test_matmul_tn_with_a_large_result(dtype: str, rows: int) -> None:
    """The rows are cut into equal blocks."""
    rng = np.random.default_rng(rows)
    first, k, n = products_of(dtype)[0], 300, 1800
    a, b = first.normal(rng, rows, k), first.normal(rng, rows, n)
    left, right, expected = [first.source(a)], [first.source(b)], Product(a.T, b, 1.0)
    for case in products_of(dtype):
        out = Guarded(k, n, dtype, fill=1.0)
        case.table.matmul_tn(left, right, 0, rows, out.view, accumulate=True)
        expected.check(case, out.check())


@every_product
def test_matmul_tn_sizes(case: Case) -> None:
    rng = np.random.default_rng(6)
    for k in SIZES[1:]:
        for n in SIZES[1:]:
            a, b = case.normal(rng, 9, k), case.normal(rng, 9, n)
            out = Guarded(k, n, case.dtype, fill=1.0)
            case.table.matmul_tn(
                [case.source(a)], [case.source(b)], 0, 9, out.view, accumulate=True
            )
            assert_product(case, out.check(), a.T, b, 1.0)


@every_dtype
@pytest.mark.parametrize("kind_a", SOURCE_KINDS)
@pytest.mark.parametrize("kind_b", SOURCE_KINDS)
def test_matmul_tn_row_maps_and_column_ranges(dtype: str, kind_a: str, kind_b: str) -> None:
    rng = np.random.default_rng(7)
    first, r0, r1 = products_of(dtype)[0], 4, 280
    sa, a = make_source(first, rng, kind_a, r0, r1, 17)
    sa2, a2 = make_source(first, rng, "index", r0, r1, 5)
    sb, b = make_source(first, rng, kind_b, r0, r1, 100)
    sb2, b2 = make_source(first, rng, "self", r0, r1, 71)
    left, right = np.concatenate([a, a2], 1), np.concatenate([b, b2], 1)
    for case in products_of(dtype):
        n0 = case.table.panel
        out = Guarded(22, 171, dtype)
        case.table.matmul_tn([sa, sa2], [sb, sb2], r0, r1, out.view, n0=n0, n1=170)
        got = out.check()
        assert_product(case, got[:, n0:170], left.T, right[:, n0:170], slack=4.0)
        assert (got[:, :n0] == -12345.5).all(), case
        assert (got[:, 170:] == -12345.5).all(), case


@every_dtype
@pytest.mark.parametrize("kind_a", SOURCE_KINDS)
@pytest.mark.parametrize("kind_b", SOURCE_KINDS)
def test_matmul_tn_of_few_columns(dtype: str, kind_a: str, kind_b: str) -> None:
    """One source per operand: A is read in place, or the result is computed as its transpose."""
    rng = np.random.default_rng(8)
    first, r0, r1 = products_of(dtype)[0], 3, 700
    for k, n in ((70, 1), (150, 5), (13, 12), (600, 7), (12, 13), (70, 60), (33, 150)):
        sa, a = make_source(first, rng, kind_a, r0, r1, k)
        sb, b = make_source(first, rng, kind_b, r0, r1, n)
        expected = Product(a.T, b, 1.0, slack=4.0)
        for case in products_of(dtype):
            out = Guarded(k, n, dtype, fill=1.0)
            case.table.matmul_tn([sa], [sb], r0, r1, out.view, accumulate=True)
            expected.check(case, out.check())
            parts = Guarded(k, n, dtype, fill=1.0)
            for n0 in range(0, n, case.table.panel):  # as threads divide it
                n1 = min(n, n0 + case.table.panel)
                case.table.matmul_tn([sa], [sb], r0, r1, parts.view, n0=n0, n1=n1, accumulate=True)
            assert (parts.check() == out.check()).all(), case


@every_product
@pytest.mark.parametrize(("k", "n"), [(150, 150), (13, 65), (33, 5), (600, 1), (7, 700)])
def test_matmul_tn_of_stacked_rows(case: Case, k: int, n: int) -> None:
    """Blocks of rows begin and end anywhere in the parts; some parts have no rows."""
    rng = np.random.default_rng(k)
    parts, left, right = [], [], []
    ranges = [(0, 0), (3, 300), (5, 5), (0, 1), (2, 259), (1, 64), (9, 9)]
    for i, (r0, r1) in enumerate(ranges):
        sides = []
        for width, shift, values in ((k, 0, left), (n, 2, right)):
            kinds = [SOURCE_KINDS[(i + shift) % len(SOURCE_KINDS)], "self"][
                : 1 + i % 2 * (width > 5)
            ]
            cuts = [width] if len(kinds) == 1 else [width // 3, width - width // 3]
            made = [make_source(case, rng, a, r0, r1, w) for a, w in zip(kinds, cuts, strict=True)]
            sides.append([source for source, _ in made])
            values.append(np.concatenate([value for _, value in made], 1))
        parts.append((*sides, r0, r1))
    a, b = np.concatenate(left), np.concatenate(right)
    out = Guarded(k, n, case.dtype, fill=1.0)
    case.table.matmul_tn(*parts[0], out.view, accumulate=True, below=parts[1:])
    assert_product(case, out.check(), a.T, b, 1.0, slack=4.0)
    some = Guarded(k, n, case.dtype)  # added to previous values
    case.table.matmul_tn(*parts[0], some.view, below=parts[1:])
    assert_product(case, some.check(), a.T, b, slack=4.0)
    pieces = Guarded(k, n, case.dtype)
    for n0 in range(0, n, case.table.panel):  # as threads divide it
        n1 = min(n, n0 + case.table.panel)
        case.table.matmul_tn(*parts[0], pieces.view, n0=n0, n1=n1, below=parts[1:])
    assert (pieces.check() == some.check()).all()


@every_product
def test_stacked_rows_must_have_one_width(case: Case) -> None:
    a, b = np.zeros((2, 6), case.dtype), np.zeros((2, 9), case.dtype)
    rows = ([case.source(a)], [case.source(b)], 0, 2)
    others = ([case.source(b)], [case.source(b)], 0, 2)
    with pytest.raises(ValueError, match="below are 9 and 9 wide, those above 6 and 9"):
        case.table.matmul_tn(*rows, np.zeros((6, 9), case.dtype), below=[others])


@given(data=st.data())
def test_products_of_any_shape(data: st.DataObject) -> None:
    case = Case(*data.draw(st.sampled_from(PRODUCTS)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    r0 = data.draw(st.integers(0, 9))
    r1 = r0 + data.draw(st.integers(0, 40))
    kinds = data.draw(st.lists(st.sampled_from(SOURCE_KINDS), min_size=1, max_size=3))
    widths = [data.draw(st.integers(1, 70)) for _ in kinds]
    n = data.draw(st.integers(1, 200))
    pairs = [make_source(case, rng, kind, r0, r1, w) for kind, w in zip(kinds, widths, strict=True)]
    a = np.concatenate([values for _, values in pairs], 1)
    w = case.normal(rng, sum(widths), n)
    c = Guarded(r1 - r0, n, case.dtype)
    case.table.matmul([s for s, _ in pairs], r0, r1, packed_weight(case, w), n, c.view, c_base=r0)
    assert_product(case, c.check(), a, w, slack=4.0)
    b = case.normal(rng, r1 - r0, n)
    out = Guarded(sum(widths), n, case.dtype)
    case.table.matmul_tn([s for s, _ in pairs], [case.source(b, base=r0)], r0, r1, out.view)
    assert_product(case, out.check(), a.T, b, slack=4.0)
