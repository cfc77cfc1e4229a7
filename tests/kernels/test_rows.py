from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .support import SIZES, SOURCE_KINDS, Case, Guarded, RowMap, every_case, make_source


@every_case
@pytest.mark.parametrize("kind", SOURCE_KINDS)
def test_copy_and_sum_rows(case: Case, kind: str) -> None:
    rng = np.random.default_rng(0)
    for width in SIZES[1:]:
        for r0, r1 in ((0, 1), (3, 3), (2, 9), (1, 20)):
            source, values = make_source(case, rng, kind, r0, r1, width)
            out = Guarded(r1 - r0, width, case.dtype)
            case.table.copy_rows(source, r0, r1, out.view, base=r0)
            np.testing.assert_allclose(out.check(), values, rtol=0, atol=20 * case.eps)
            for start in (0.0, 3.0):
                total = Guarded(1, width, case.dtype, fill=3.0)
                case.table.sum_rows(source, r0, r1, total.view, accumulate=start != 0)
                np.testing.assert_allclose(
                    total.check()[0], start + values.sum(0), rtol=0, atol=200 * case.eps
                )


@every_case
@pytest.mark.parametrize(("name", "fold", "empty"), [("max", np.max, 0), ("product", np.prod, 1)])
def test_segment_folds(case: Case, name: str, fold: Any, empty: float) -> None:
    rng = np.random.default_rng(1)
    for width in SIZES[1:]:
        data = (
            case.normal(rng, 30, width) - 5
        )  # a negative maximum differs from that of an empty segment
        offsets = np.array([0, 0, 2, 2, 3, 9, 12], "i4")
        index = rng.integers(4, 34, 12).astype("i4")
        index[[0, 2]] = -1  # a segment with an absent row, and one with nothing else
        out = Guarded(6, width, case.dtype)
        source = case.source(data, map=RowMap.SEGMENT_SUM, base=4, index=index, offsets=offsets)
        getattr(case.table, f"segment_{name}")(source, 0, 6, out.view)
        for r in range(6):
            rows = [i - 4 for i in index[offsets[r] : offsets[r + 1]] if i >= 0]
            expected = fold(data[rows], 0) if rows else np.full(width, empty)
            np.testing.assert_array_equal(out.check()[r], expected)


@every_case
@pytest.mark.parametrize(("name", "last"), [("max", 3), ("product", 3)])
def test_segment_folds_propagate_nan(case: Case, name: str, last: float) -> None:
    data = np.array([[1, np.nan, 3], [np.nan, 2, 1]], case.dtype)
    out = np.zeros((1, 3), case.dtype)
    source = case.source(data, map=RowMap.SEGMENT_SUM, offsets=np.array([0, 2], "i4"))
    getattr(case.table, f"segment_{name}")(source, 0, 1, out)
    np.testing.assert_array_equal(out, [[np.nan, np.nan, last]])


def cross_entropy(x: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x = x.astype("f8")
    e = np.exp(x - x.max(1, keepdims=True))
    p = e / e.sum(1, keepdims=True)
    rows, safe = np.arange(len(x)), np.maximum(label, 0)
    loss = np.log(e.sum(1)) + x.max(1) - x[rows, safe]
    p[rows, safe] -= 1
    return np.where(label < 0, 0, loss), np.where(label[:, None] < 0, 0, p)


@every_case
@pytest.mark.parametrize("classes", [1, 2, 5, 15, 16, 17, 33, 300, 50_000])
def test_cross_entropy(case: Case, classes: int) -> None:
    rng = np.random.default_rng(classes)
    r0, r1 = 2, 11
    source, x = make_source(case, rng, "self", r0, r1, classes)
    label = rng.integers(0, classes, r1).astype("i4")
    label[4] = -1
    loss, grad = Guarded(r1 - r0, 1, case.dtype), Guarded(r1 - r0, classes, case.dtype)
    case.table.cross_entropy(
        source, label, r0, r1, loss.view, grad.view, loss_base=r0, grad_base=r0
    )
    expected_loss, expected_grad = cross_entropy(x, label[r0:])
    np.testing.assert_allclose(
        loss.check()[:, 0], expected_loss, rtol=20 * case.eps, atol=20 * case.eps
    )
    np.testing.assert_allclose(grad.check(), expected_grad, rtol=0, atol=20 * case.eps)
    alone = Guarded(r1 - r0, 1, case.dtype)
    case.table.cross_entropy(source, label, r0, r1, loss=alone.view, loss_base=r0)
    np.testing.assert_array_equal(alone.check(), loss.view)
    only = Guarded(r1 - r0, classes, case.dtype)
    case.table.cross_entropy(source, label, r0, r1, grad=only.view, grad_base=r0)
    np.testing.assert_array_equal(only.check(), grad.view)


@every_case
@pytest.mark.parametrize("kind", ["self", "one", "index"])
@pytest.mark.parametrize("classes", [5, 16, 17, 300])
def test_slopes_of_cross_entropy(case: Case, kind: str, classes: int) -> None:
    """Also in place of the logits."""
    rng, (r0, r1) = np.random.default_rng(classes), (2, 21)
    x = case.normal(rng, r1 - r0, classes)
    slope, by = make_source(case, rng, kind, r0, r1, 1)
    label = rng.integers(0, classes, r1).astype("i4")
    label[4] = -1
    grad = Guarded(r1 - r0, classes, case.dtype)
    logits = case.source(x, base=r0)
    case.table.cross_entropy(logits, label, r0, r1, grad=grad.view, grad_base=r0, slope=slope)
    expected = cross_entropy(x, label[r0:])[1] * by
    close = 20 * case.eps * max(1.0, np.abs(by).max())
    np.testing.assert_allclose(grad.check(), expected, rtol=0, atol=close)
    case.table.cross_entropy(logits, label, r0, r1, grad=x, grad_base=r0, slope=slope)
    np.testing.assert_array_equal(x, grad.view)


@every_case
@pytest.mark.parametrize("classes", [3, 40])
def test_non_finite_slopes_of_cross_entropy(case: Case, classes: int) -> None:
    x, grad = (np.zeros((4, classes), case.dtype) for _ in range(2))
    slope = case.source(np.array([[np.inf], [np.nan], [-np.inf], [-2]], case.dtype))
    label = np.array([-1, -1, 0, -1], "i4")
    case.table.cross_entropy(case.source(x), label, 0, 4, grad=grad, slope=slope)
    assert np.isnan(grad[:2]).all()
    np.testing.assert_array_equal(grad[2], [np.inf, *[-np.inf] * (classes - 1)])
    np.testing.assert_array_equal(np.copysign(1, grad[3]), -1)


@every_case
def test_cross_entropy_of_large_logits_and_invalid_labels(case: Case) -> None:
    x = np.array([[1e4, -1e4, 0], [3e4, 3e4, 3e4], [np.nan, 0, 0], [0, 1, 2]], case.dtype)
    label = np.array([1, 0, 0, 3], "i4")
    loss, grad = np.zeros((4, 1), case.dtype), np.zeros((4, 3), case.dtype)
    case.table.cross_entropy(case.source(x), label, 0, 4, loss, grad)
    np.testing.assert_allclose(loss[:2, 0], [2e4, np.log(3)], rtol=1e-3)
    np.testing.assert_allclose(grad[0], [1, -1, 0])
    assert np.isnan(loss[2, 0])
    assert np.isnan(loss[3, 0]), "a label beyond the classes"
