"""The update half of a step: norm, outcome, optimisers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.cuda.kernel_cases import SIZES, Array, Case, agree, every_case
from tests.cuda.kernel_signatures import Address, Optimizer, Outcome, UpdateChunk
from tests.kernels.test_update import reference

Grid = tuple[int, ...]
KINDS = ("SGD", "MOMENTUM", "ADAGRAD", "ADAM", "ADAMW")


def options(kind: str) -> dict[str, float]:
    return {
        "type": KINDS.index("MOMENTUM" if kind == "NESTEROV" else kind),
        "nesterov": kind == "NESTEROV",
        "lr": 0.1,
        "momentum": 0.9,
        "beta1": 0.9,
        "beta2": 0.99,
        "eps": 1e-6,
        "weight_decay": 0.03,
        "grad_scale": 0.5,
        "bias1": 1 - 0.9**3,
        "bias2": 1 - 0.99**3,
    }


def outcome(case: Case, scale: float = 1.0, ok: int = 1) -> Array:
    return case.device.structures([Outcome(0.0, 0.0, scale, ok)])


Problem = list[tuple[list[np.ndarray], np.ndarray, np.ndarray | None, int]]


def problem(case: Case, rng: np.random.Generator) -> Problem:
    """Return chunks: parameter and states, gradient, rows of the parameter or None, its offset."""
    found: Problem = []
    for n in (*SIZES, 5000):  # dense, starting inside the parameter
        offset = n % 5
        values = [np.abs(case.normal(rng, 1, n + 7)) for _ in range(3)]
        found.append((values, case.normal(rng, 1, n), None, offset))
    for width in (1, 3, 4, 64, 300):  # some rows of a table, or the columns of a wider one
        rows = rng.permutation(90)[:33]
        values = [np.abs(case.normal(rng, 90, width)) for _ in range(3)]
        found.append((values, case.normal(rng, 33, width), rows, 0))
        values = [np.abs(case.normal(rng, 40, width + 4)) for _ in range(3)]
        found.append((values, case.normal(rng, 40, width), None, 4 * (width % 2)))
    return found


def update(
    case: Case, grid: Grid, work: Problem, states: int, o: dict[str, float], result: Any
) -> np.ndarray:
    """Return parameters and states after the update."""
    memory, chunks = [], []
    for values, grad, rows, offset in work:
        arrays = [case.array(x) for x in values[: 1 + states]]
        of_grad, where = case.array(grad), case.ints(rows) if rows is not None else None
        addresses = [x.address for x in arrays]
        chunks.append(
            UpdateChunk(
                addresses[0],
                of_grad.address,
                (Address * 8)(*addresses[1:]),
                where.address if where else 0,
                *grad.shape,
                values[0].shape[1] if len(values[0]) > 1 else grad.shape[1],
                offset,
            )
        )
        memory += [*arrays, of_grad, where]
    table = case.device.structures(chunks)
    case.launch("update", grid, table, len(chunks), Optimizer(*o.values()), result)
    changed = [memory[i + j] for i in range(0, len(memory), 3 + states) for j in range(1 + states)]
    return np.concatenate([x.get().reshape(-1) for x in changed])


@every_case
@pytest.mark.parametrize("kind", [*KINDS, "NESTEROV"])
def test_update(case: Case, kind: str) -> None:
    rng = np.random.default_rng(0)
    work, o = problem(case, rng), options(kind)
    name = "MOMENTUM" if kind == "NESTEROV" else kind
    states = {"SGD": 0, "MOMENTUM": 1, "ADAGRAD": 1}.get(name, 2)
    expected = []
    for values, grad, rows, offset in work:
        p, s1, s2 = (x.astype("f8") for x in values)
        width = grad.shape[1]
        at = rows if rows is not None else slice(len(p))
        columns = slice(offset, offset + width)
        views = [x[at, columns] for x in (p, s1, s2)]  # copies if there are rows
        reference(name, views[0], grad.astype("f8"), *views[1:], o | {"grad_scale": 0.5 * 0.25})
        for x, view in zip((p, s1, s2), views, strict=True):
            x[at, columns] = view
        expected += [p, s1, s2][: 1 + states]
    got = agree(case, ((1,), (5,), (40,)), update, work, states, o, outcome(case, scale=0.25))
    flat = np.concatenate([x.reshape(-1) for x in expected])
    np.testing.assert_allclose(got, flat, rtol=50 * case.eps, atol=20 * case.eps)
    before = np.concatenate([x.reshape(-1) for v, *_ in work for x in v[: 1 + states]])
    same = np.concatenate([x.reshape(-1) for x in expected]) == before
    np.testing.assert_array_equal(got[same], before[same])  # outside of the chunks: unchanged


@every_case
def test_a_refused_step_updates_nothing(case: Case) -> None:
    rng = np.random.default_rng(1)
    work = problem(case, rng)
    got = agree(case, ((3,),), update, work, 2, options("ADAM"), outcome(case, ok=0))
    before = np.concatenate([x.reshape(-1) for values, *_ in work for x in values])
    np.testing.assert_array_equal(got, before)


def square(case: Case, grid: Grid, grads: list[np.ndarray]) -> np.ndarray:
    memory = [case.array(g) for g in grads]
    table = case.device.structures(
        [
            UpdateChunk(0, m.address, (Address * 8)(), 0, *g.shape, 0, 0)
            for m, g in zip(memory, grads, strict=True)
        ]
    )
    partial = case.array(np.full(len(grads) + 1, -1.0), "f8")
    case.launch("square", grid, table, len(grads), partial)
    assert partial.get()[-1] == -1
    return partial.get()[:-1]


@every_case
def test_square(case: Case) -> None:
    rng = np.random.default_rng(2)
    grads = [case.normal(rng, 2, n) for n in (*SIZES, 10_001)]
    grads.append(np.full((1, 100), 1e30, case.dtype))
    got = agree(case, ((1,), (4,), (60,)), square, grads)
    np.testing.assert_allclose(got, [(g.astype("f8") ** 2).sum() for g in grads], rtol=1e-13)


def compute_outcome(
    case: Case,
    grid: Grid,
    squares: np.ndarray,
    loss: Any,
    max_norm: float,
    before: Any = None,
) -> np.ndarray:
    result = outcome(case, scale=-7.0, ok=-7)
    value = None if loss is None else case.array([loss])
    partial = case.array(squares, "f8")
    case.launch("compute_outcome", grid, partial, len(squares), value, max_norm, before, result)
    found = Outcome.from_buffer_copy(result.get().tobytes())
    return np.array([found.loss, found.norm, found.scale, found.ok])


@every_case
def test_outcome(case: Case) -> None:
    rng = np.random.default_rng(3)
    for count in (0, 1, 5, 255, 256, 257, 1000):
        squares = rng.random(count)
        norm = np.sqrt(squares.sum())
        for max_norm, scale in ((0.0, 1), (-1.0, 1), (norm * 2 + 1, 1), (norm / 2, 0.5)):
            got = agree(case, ((1,), (3,)), compute_outcome, squares, 2.5, max_norm)
            np.testing.assert_allclose(got, [2.5, norm, scale if norm else 1, 1], rtol=1e-14)
    assert agree(case, ((1,),), compute_outcome, np.ones(4), None, 0.0).tolist() == [0, 2, 1, 1]


@every_case
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_outcome_of_values_that_are_not_finite(case: Case, bad: float) -> None:
    assert agree(case, ((1,),), compute_outcome, np.ones(4), bad, 1.0)[3] == 0
    squares = np.ones(300)
    squares[270] = abs(bad)
    assert agree(case, ((1,),), compute_outcome, squares, 1.0, 1.0)[3] == 0


@every_case
def test_outcome_depends_on_the_step_before(case: Case) -> None:
    for ok in (0, 1):
        before = outcome(case, ok=ok)
        assert agree(case, ((1,),), compute_outcome, np.ones(4), 2.5, 0.0, before).tolist() == [
            2.5,
            2,
            1,
            ok,
        ]
