from __future__ import annotations

import numpy as np
import pytest

from .support import KERNELS, Case, every_case

CODE = KERNELS.MapOpcode


def apply(case: Case, code: object, x: np.ndarray) -> np.ndarray:
    x = np.ascontiguousarray(x, case.dtype)[None]
    y = np.zeros_like(x)
    case.table.map(
        [(case.source(x), 0, False)],
        [(code, 1, 0, 0, 0, 0.0)],
        [case.store(y, 1)],
        2,
        1,
        x.shape[1],
        0,
        1,
    )
    return y[0]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def samples(case: Case, low: float, high: float) -> np.ndarray:
    """Values of the dtype between the bounds: even steps, and both signs of every magnitude."""
    small = np.exp(np.linspace(np.log(1e-30), np.log(max(-low, high)), 20_000))
    x = np.concatenate([np.linspace(low, high, 60_001), small, -small]).astype(case.dtype)
    return x[(x >= low) & (x <= high)]


@every_case
@pytest.mark.parametrize(
    ("name", "reference", "low", "high"),
    [
        ("TANH", np.tanh, -12, 12),
        ("SIGMOID", sigmoid, -87, 87),
        ("EXP", np.exp, -87, 88),
        ("LOG", np.log, 1e-30, 1e30),
    ],
)
def test_accuracy(case: Case, name: str, reference: object, low: float, high: float) -> None:
    x = samples(case, low, high)
    got = apply(case, CODE.__members__[name], x).astype("longdouble")
    expected = reference(x.astype("longdouble"))  # type: ignore[operator]
    if case.dtype == "float32":
        assert np.abs(got - expected)[np.abs(expected) <= 1].max() <= 2e-7
    relative = np.abs(got - expected) / np.maximum(np.abs(expected), 1e-300)
    bound = 1e-14
    if case.dtype == "float32":  # sigmoid's far tail has the rounding of its whole argument
        bound = 5e-6 if name == "SIGMOID" else 5e-7
    assert relative[expected != 0].max() <= bound


@every_case
@pytest.mark.parametrize(("name", "reference"), [("SIN", np.sin), ("COS", np.cos)])
@pytest.mark.parametrize("limit", [4, 8192, 1e6, 1e30])
def test_accuracy_of_sinusoids(case: Case, name: str, reference: object, limit: float) -> None:
    """Angles beyond the reduction in three parts are those of the C library."""
    x = samples(case, -limit, limit)
    got = apply(case, CODE.__members__[name], x).astype("longdouble")
    expected = reference(x.astype("longdouble"))  # type: ignore[operator]
    assert np.abs(got - expected).max() <= (2e-7 if case.dtype == "float32" else 4e-16)


@every_case
def test_sinusoids_of_special_values(case: Case) -> None:
    x = np.array([-np.inf, 0.0, np.inf, 1e30, np.nan, 1.0])
    for code, of_zero in ((CODE.SIN, 0.0), (CODE.COS, 1.0)):
        got = apply(case, code, x)
        assert np.isnan(got[[0, 2, 4]]).all() and got[1] == of_zero
        np.testing.assert_array_equal(got[[3, 5]], [apply(case, code, x[[i]])[0] for i in (3, 5)])


@every_case
def test_special_values(case: Case) -> None:
    inf, nan = np.inf, np.nan
    x = np.array([-inf, inf, nan, -1e30, 1e30, 0.0, -0.0])
    one = np.array([-1, 1, nan, -1, 1, 0, -0.0])
    np.testing.assert_array_equal(apply(case, CODE.TANH, x), one)
    np.testing.assert_array_equal(apply(case, CODE.SIGMOID, x), [0, 1, nan, 0, 1, 0.5, 0.5])
    np.testing.assert_array_equal(apply(case, CODE.EXP, x), [0, inf, nan, 0, inf, 1, 1])
    x = np.array([-inf, inf, nan, -1.0, 0.0, -0.0, 1.0])
    np.testing.assert_array_equal(apply(case, CODE.LOG, x), [nan, inf, nan, nan, -inf, -inf, 0])
    np.testing.assert_array_equal(apply(case, CODE.SQRT, x), [nan, inf, nan, nan, 0, -0.0, 1])
    np.testing.assert_array_equal(apply(case, CODE.ABS, x), [inf, inf, nan, 1, 0, 0, 1])


@every_case
def test_denormals_and_the_ends_of_the_range(case: Case) -> None:
    info = np.finfo(case.dtype)
    x = np.linspace(np.log(info.smallest_subnormal) + 1, np.log(info.tiny), 2000).astype(case.dtype)
    got, expected = apply(case, CODE.EXP, x), np.exp(x.astype("longdouble"))
    assert np.abs(got - expected).max() <= 2 * info.smallest_subnormal
    tiny = np.array([info.smallest_subnormal, info.tiny / 3, info.tiny, info.max], case.dtype)
    np.testing.assert_allclose(
        apply(case, CODE.LOG, tiny), np.log(tiny.astype("longdouble")), rtol=4 * case.eps
    )
    limit = np.log(info.max)
    got = apply(case, CODE.EXP, np.array([limit - 0.01, limit + 0.01]))
    assert np.isfinite(got[0])
    assert got[1] == np.inf
    assert (np.abs(apply(case, CODE.TANH, np.linspace(-20, 20, 100_001))) <= 1).all()
