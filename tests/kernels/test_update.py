from __future__ import annotations

import numpy as np
import pytest

from .support import KERNELS, SIZES, Case, every_case

Rule = KERNELS.OptimizerRule


def reference(
    kind: str, p: np.ndarray, g: np.ndarray, s1: np.ndarray, s2: np.ndarray, o: dict[str, float]
) -> None:
    """PyTorch's formulas in float64, in place."""
    g = g * o["grad_scale"]
    if kind == "ADAMW":
        p *= 1 - o["lr"] * o["weight_decay"]
    else:
        g = g + o["weight_decay"] * p
    if kind == "SGD":
        p -= o["lr"] * g
    elif kind == "MOMENTUM":
        s1[...] = o["momentum"] * s1 + g
        p -= o["lr"] * (g + o["momentum"] * s1 if o["nesterov"] else s1)
    elif kind == "ADAGRAD":
        s1 += g * g
        p -= o["lr"] * g / (np.sqrt(s1) + o["eps"])
    else:
        s1[...] = o["beta1"] * s1 + (1 - o["beta1"]) * g
        s2[...] = o["beta2"] * s2 + (1 - o["beta2"]) * g * g
        p -= o["lr"] / o["bias1"] * s1 / (np.sqrt(s2) / np.sqrt(o["bias2"]) + o["eps"])


@every_case
@pytest.mark.parametrize("kind", ["SGD", "MOMENTUM", "NESTEROV", "ADAGRAD", "ADAM", "ADAMW"])
def test_updates(case: Case, kind: str) -> None:
    rng = np.random.default_rng(0)
    name = "MOMENTUM" if kind == "NESTEROV" else kind
    for n in SIZES:
        p, s1, s2 = (np.full(n + 4, 7.0, case.dtype) for _ in range(3))
        for x in (p, s1, s2):
            x[:n] = np.abs(case.normal(rng, n))
        p64, s164, s264 = (x[:n].astype("f8") for x in (p, s1, s2))
        for t in range(1, 4):
            options = {
                "lr": 0.1,
                "momentum": 0.9,
                "nesterov": kind == "NESTEROV",
                "beta1": 0.9,
                "beta2": 0.99,
                "eps": 1e-6,
                "weight_decay": 0.03,
                "grad_scale": 0.5,
                "bias1": 1 - 0.9**t,
                "bias2": 1 - 0.99**t,
            }
            g = case.normal(rng, n)
            case.table.update(Rule.__members__[name], g, p[:n], s1[:n], s2[:n], **options)
            reference(name, p64, g.astype("f8"), s164, s264, options)
        for got, expected in ((p, p64), (s1, s164), (s2, s264)):
            np.testing.assert_allclose(got[:n], expected, rtol=50 * case.eps, atol=20 * case.eps)
            assert (got[n:] == 7.0).all()


@every_case
@pytest.mark.parametrize("kind", ["SGD", "MOMENTUM", "ADAGRAD", "ADAM", "ADAMW"])
def test_alignment_changes_no_bit(case: Case, kind: str) -> None:
    """Ranks hold the same values at different addresses and must stay equal."""
    rng = np.random.default_rng(1)
    n, most = 61, 16  # elements; the widest vector has as many
    values = [np.abs(case.normal(rng, n)) for _ in range(4)]
    results = set()
    for begin in range(most + 1):
        held = [np.full(n + 2 * most, 7.0, case.dtype) for _ in values]
        grad, *rest = (x[begin : begin + n] for x in held)
        for x, v in zip((grad, *rest), values, strict=True):
            x[...] = v
        options = {"beta2": 0.99, "weight_decay": 0.03, "grad_scale": 0.5}
        case.table.update(Rule.__members__[kind], grad, *rest, **options)
        for x in held:
            assert (x[:begin] == 7.0).all() and (x[begin + n :] == 7.0).all()
        results.add(b"".join(x.tobytes() for x in rest))
    assert len(results) == 1


@every_case
def test_states_may_be_absent(case: Case) -> None:
    p, g = np.ones(17, case.dtype), np.ones(17, case.dtype)
    case.table.update(Rule.SGD, g, p, lr=0.25)
    assert (p == 0.75).all()
    state = np.zeros(17, case.dtype)
    case.table.update(Rule.ADAGRAD, g, p, state, lr=0.25, eps=0.0)
    assert (p == 0.5).all()


@every_case
def test_sum_of_squares(case: Case) -> None:
    rng = np.random.default_rng(0)
    for n in (*SIZES, 10_001):
        x = case.normal(rng, n)
        expected = (x.astype("f8") ** 2).sum()
        np.testing.assert_allclose(case.table.sum_of_squares(x), expected, rtol=1e-13)
    huge = np.full(100, 1e30, case.dtype)
    assert case.table.sum_of_squares(huge) == pytest.approx(1e62, rel=1e-6)
