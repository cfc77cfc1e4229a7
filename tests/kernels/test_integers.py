"""Products of 16-bit integers: no sum overflows, and non-finite numbers are propagated."""

from __future__ import annotations

import numpy as np
import pytest

from .support import INTEGERS, TABLES, Case, every_product, packed_weight
from .test_matmul import assert_product


def both_products(case: Case, a: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """a @ w, with a packed weight and as a gradient of transposed rows."""
    (rows, k), n = a.shape, w.shape[1]
    by_weight = np.zeros((rows, n), "f4")
    case.table.matmul([case.source(a)], 0, rows, packed_weight(case, w), n, by_weight)
    of_rows = np.zeros((rows, n), "f4")
    turned = np.ascontiguousarray(a.T)
    case.table.matmul_tn([case.source(turned)], [case.source(w)], 0, k, of_rows)
    return by_weight, of_rows


here = pytest.mark.skipif(INTEGERS[0] not in TABLES, reason="needs instructions of AVX-512 VNNI")
integers = pytest.mark.parametrize(
    "case", [pytest.param(Case(isa, "float32"), marks=here) for isa in INTEGERS], ids=INTEGERS
)


def patterns(k: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(k)
    one = np.zeros(k, "f4")
    one[k // 2] = 1
    return {
        "equal": np.ones(k, "f4"),
        "one": one,
        "two": np.where(np.arange(k) % 64 < 2, 1, 1e-3).astype("f4"),
        "nearly one": np.where(np.arange(k) % 64 == 3, 1, 0.17).astype("f4"),
        "largest everywhere": np.where(np.arange(k) % 64 < 8, 1, 0).astype("f4"),
        "growing": np.exp2(np.arange(k) % 40).astype("f4"),
        "heavy tails": (rng.standard_normal(k) / (1e-3 + rng.random(k))).astype("f4"),
        "zero": np.zeros(k, "f4"),
    }


@integers
@pytest.mark.parametrize("k", [1, 2, 31, 32, 33, 64, 65, 97, 150, 1000])
def test_parallel_rows_do_not_overflow(case: Case, k: int) -> None:
    """The largest sums that norms allow, of both signs, for any distribution over the numbers."""
    rows = np.array(list(patterns(k).values()))
    a = np.concatenate([rows, -rows, rows * np.float32(1e-12), rows * np.float32(1e4)])
    for got in both_products(case, a, np.ascontiguousarray(a.T)):
        assert_product(case, got, a, a.T)


@integers
def test_equal_numbers_use_all_bits(case: Case) -> None:
    a = np.full((1, 320), 3.0, "f4")
    half_a_step = 0.5 * 8 / 46325  # eight times a number is the norm of a unit of 64
    for got in both_products(case, a, np.ascontiguousarray(a.T)):
        assert abs(got[0, 0] / 2880 - 1) < 2 * half_a_step + half_a_step**2


@here
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 6, 7, 16, 31, 32, 33, 70])
def test_winograd_products_have_the_same_bits(rows: int) -> None:
    """The identity holds for integers modulo 2^32, even if its terms overflow."""
    plain, winograd = (Case(isa, "float32") for isa in INTEGERS)
    rng = np.random.default_rng(rows)
    for k in (1, 2, 3, 31, 33, 63, 64, 65, 96, 130, 700):
        a = (rng.standard_normal((rows, k)) / (1e-2 + rng.random((rows, k)))).astype("f4")
        w = (rng.standard_normal((k, 75)) / (1e-2 + rng.random((k, 75)))).astype("f4")
        for got, expected in zip(
            both_products(winograd, a, w), both_products(plain, a, w), strict=True
        ):
            assert np.array_equal(got, expected)


@integers
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e25])
def test_non_finite_numbers_are_propagated(case: Case, value: float) -> None:
    """Also numbers too large to be squared; other rows and columns do not change."""
    rng = np.random.default_rng(0)
    a, w = case.normal(rng, 20, 70), case.normal(rng, 70, 40)
    clean = both_products(case, a, w)
    a[7, 33] = value
    for got, before in zip(both_products(case, a, w), clean, strict=True):
        assert not np.isfinite(got[7]).any()
        others = np.arange(20) != 7
        assert (got[others] == before[others]).all()
    a[7, 33], w[2, 5] = 1, value
    for got in both_products(case, a, w):
        assert not np.isfinite(got[:, 5]).any()
        assert np.isfinite(np.delete(got, 5, 1)).all()


@integers
def test_numbers_too_small_to_be_squared_are_zero(case: Case) -> None:
    a, w = np.full((3, 40), 1e-25, "f4"), np.ones((40, 5), "f4")
    for got in both_products(case, a, w):
        assert (got == 0).all()
    a[:] = 1e-15
    for got in both_products(case, a, w):
        assert np.allclose(got, 4e-14, rtol=2.0**-12, atol=0)


@every_product
def test_products_without_terms(case: Case) -> None:
    """Without steps of the sum a product is zero and adds nothing."""
    a, w = np.zeros((5, 0), case.dtype), np.zeros((0, 7), case.dtype)
    c = np.ones((5, 7), case.dtype)
    case.table.matmul([case.source(a)], 0, 5, packed_weight(case, w), 7, c, accumulate=True)
    assert (c == 1).all()
    rows = np.ones((4, 5), case.dtype), np.ones((4, 7), case.dtype)
    sources = [[case.source(x)] for x in rows]
    case.table.matmul_tn(*sources, 2, 2, c, accumulate=True)
    assert (c == 1).all()
    case.table.matmul_tn(*sources, 2, 2, c)
    assert (c == 0).all()
