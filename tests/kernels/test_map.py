from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .map_reference import CODE, FUNCTIONS, MODE, TERNARY, UNARY, Load, Program, uniform
from .support import DTYPES, KERNELS, SIZES, SOURCE_KINDS, Case, Guarded, every_case, make_source

SAFE = [
    CODE.ADD,
    CODE.SUB,
    CODE.MUL,
    CODE.MAX,
    CODE.MIN,
    CODE.NEG,
    CODE.ABS,
    CODE.TANH,
    CODE.SIGMOID,
    CODE.COPY,
    CODE.FMA,
]


def plain(case: Case, x: np.ndarray, **options: Any) -> Load:
    return Load(case.source(x, **options), x.astype("f8"))


@every_case
@pytest.mark.parametrize("code", list(FUNCTIONS), ids=lambda c: c.name)
def test_every_operation_at_every_width(case: Case, code: Any) -> None:
    rng = np.random.default_rng(0)
    for inner in (*SIZES[1:], 256, 257, 600):
        x = [rng.uniform(0.2, 2.0, (3, inner)).astype(case.dtype) for _ in range(3)]
        x[0][:, ::3] = 0.5
        x[1][:, ::2] = 0.5
        p = Program([plain(case, v) for v in x], [(code, 3, 0, 1, 2, 0.0)], 1, inner, 0, 3, 4)
        out = Guarded(3, inner, case.dtype)
        p.run(case, [case.store(out.view, 3)])
        np.testing.assert_allclose(
            out.check(), p.reference()[3, :, 0], rtol=8 * case.eps, atol=2 * case.eps
        )


@every_case
def test_nan_goes_through_comparisons_and_extrema(case: Case) -> None:
    x = np.array([[np.nan, 1.0, np.nan, 2.0, -np.inf]], case.dtype)
    y = np.array([[1.0, np.nan, np.nan, 3.0, 0.0]], case.dtype)
    for code, expected in (
        (CODE.MAX, [np.nan, np.nan, np.nan, 3, 0]),
        (CODE.MIN, [np.nan, np.nan, np.nan, 2, -np.inf]),
        (CODE.GREATER, [0, 0, 0, 0, 0]),
        (CODE.EQUAL, [0, 0, 0, 0, 0]),
    ):
        out = np.zeros((1, 5), case.dtype)
        Program([plain(case, x), plain(case, y)], [(code, 2, 0, 1, 0, 0.0)], 1, 5, 0, 1, 3).run(
            case, [case.store(out, 2)]
        )
        np.testing.assert_array_equal(out[0], expected)


@every_case
@pytest.mark.parametrize("kind", SOURCE_KINDS)
@pytest.mark.parametrize("scalar", [False, True])
def test_row_maps(case: Case, kind: str, scalar: bool) -> None:
    rng = np.random.default_rng(1)
    for outer, inner in ((1, 1), (1, 5), (3, 7), (1, 33), (2, 64), (4, 150), (1, 300), (2, 600)):
        r0, r1 = 3, 29
        source, values = make_source(case, rng, kind, r0, r1, outer if scalar else outer * inner)
        load = Load(source, values, 1 if scalar else inner, scalar)
        other = case.normal(rng, r1, outer * inner)
        p = Program(
            [load, Load(case.source(other), other[r0:].astype("f8"), inner)],
            [(CODE.FMA, 2, 0, 1, 1, 0.0)],
            outer,
            inner,
            r0,
            r1,
            3,
        )
        out = Guarded(r1 - r0, outer * inner, case.dtype)
        sums, tops = Guarded(r1 - r0, outer, case.dtype), Guarded(r1 - r0, outer, case.dtype)
        p.run(
            case,
            [
                case.store(out.view, 2, base=r0, outer_stride=inner),
                case.store(sums.view, 2, base=r0, outer_stride=1, mode=MODE.SUM),
                case.store(tops.view, 0, base=r0, outer_stride=1, mode=MODE.MAX),
            ],
        )
        reg = p.reference()
        scale = np.abs(reg[2]).max() + 1
        np.testing.assert_allclose(
            out.check(), reg[2].reshape(r1 - r0, -1), rtol=0, atol=20 * scale * case.eps
        )
        np.testing.assert_allclose(
            sums.check(), reg[2].sum(-1), rtol=0, atol=20 * scale * inner * case.eps
        )
        np.testing.assert_allclose(tops.check(), reg[0].max(-1), rtol=0, atol=20 * case.eps)


@every_case
def test_in_place_and_overlapping_reads(case: Case) -> None:
    rng = np.random.default_rng(2)
    for inner in (1, 5, 16, 150, 300):
        x = case.normal(rng, 40, inner)
        before = x.astype("f8")
        p = Program(
            [plain(case, x)],
            [(CODE.NEG, 1, 0, 0, 0, 0.0), (CODE.ADD, 2, 0, 0, 0, 0.0)],
            1,
            inner,
            0,
            40,
            3,
        )
        twice = np.zeros_like(x)
        p.run(case, [case.store(x, 1), case.store(twice, 2)])
        np.testing.assert_allclose(
            x, -before
        )  # register 0 was still needed when register 1 was computed
        np.testing.assert_allclose(twice, 2 * before)


@every_case
@pytest.mark.parametrize("places", list(permutations(range(4), 2)))
def test_results_overwrite_operands(case: Case, places: tuple[int, int]) -> None:
    """Each of two results over each of four operands, read before, with, or after it."""
    rng = np.random.default_rng(5)
    for inner in (1, 7, 16, 150, 300):
        x = [case.normal(rng, 20, inner) for _ in range(4)]
        a, b, c, d = (v.astype("f8") for v in x)
        ops = [
            (CODE.MUL, 4, 0, 1, 0, 0.0),
            (CODE.ADD, 5, 4, 2, 0, 0.0),  # first result: a * b + c
            (CODE.FMA, 4, 2, 3, 4, 0.0),
            (CODE.SUB, 6, 4, 1, 0, 0.0),  # second result: c * d + a * b - b
        ]
        p = Program([plain(case, v) for v in x], ops, 1, inner, 0, 20, 7)
        p.run(case, [case.store(x[places[0]], 5), case.store(x[places[1]], 6)])
        tolerance = {"rtol": 0, "atol": 200 * case.eps}
        np.testing.assert_allclose(x[places[0]], a * b + c, **tolerance)
        np.testing.assert_allclose(x[places[1]], c * d + a * b - b, **tolerance)


@every_case
def test_registers_may_be_reused_even_those_of_loads(case: Case) -> None:
    rng = np.random.default_rng(3)
    for inner in (1, 8, 150, 300):
        x, one = case.normal(rng, 30, inner), case.normal(rng, 1, inner)
        loads = [
            plain(case, x),
            Load(case.source(one, map=KERNELS.RowMap.ONE), np.repeat(one.astype("f8"), 30, 0)),
        ]
        ops = [
            (CODE.CONSTANT, 2, 0, 0, 0, 2.0),
            (CODE.MUL, 1, 1, 2, 0, 0.0),
            (CODE.ADD, 0, 0, 1, 0, 0.0),
            (CODE.CONSTANT, 2, 0, 0, 0, -1.0),
            (CODE.MUL, 2, 2, 0, 0, 0.0),
        ]
        p = Program(loads, ops, 1, inner, 0, 30, 3)
        kept = x.copy()
        out = Guarded(30, inner, case.dtype)
        p.run(case, [case.store(out.view, 2)])
        np.testing.assert_allclose(out.check(), p.reference()[2, :, 0], rtol=0, atol=20 * case.eps)
        assert (x == kept).all()


@every_case
def test_stores_of_loads_constants_and_the_same_register_twice(case: Case) -> None:
    rng = np.random.default_rng(4)
    for inner in (1, 7, 33, 300):
        x = case.normal(rng, 21, inner)
        ops = [(CODE.CONSTANT, 1, 0, 0, 0, 0.5), (CODE.MUL, 2, 0, 1, 0, 0.0)]
        outs = [Guarded(21, inner, case.dtype) for _ in range(4)]
        Program([plain(case, x)], ops, 1, inner, 0, 21, 3).run(
            case, [case.store(o.view, r) for o, r in zip(outs, (0, 1, 2, 2), strict=True)]
        )
        for out, expected in zip(outs, (x, np.full_like(x, 0.5), x / 2, x / 2), strict=True):
            np.testing.assert_array_equal(out.check(), expected)


@every_case
def test_uniform(case: Case) -> None:
    ids = np.array([5, -3, 2**31 - 1, 0, 9], "i4")
    seed, step, stream = 2**63 + 12345, 7 * 2**32 + 3, 2
    for outer, inner in ((1, 1), (1, 17), (3, 5), (2, 300)):
        out = Guarded(5, outer * inner, case.dtype)
        for row_ids in (None, ids):
            p = Program(
                [],
                [(CODE.UNIFORM, 0, 0, 0, 0, float(stream))],
                outer,
                inner,
                0,
                5,
                1,
                seed,
                step,
                row_ids,
            )
            p.run(case, [case.store(out.view, 0, outer_stride=inner)])
            for r in range(5):
                row = (r if row_ids is None else int(row_ids[r])) % 2**32
                expected = uniform(seed, step, stream, row, np.arange(outer * inner))
                np.testing.assert_array_equal(out.check()[r], expected.astype(case.dtype))


@every_case
def test_column(case: Case) -> None:
    for outer, inner in ((1, 1), (1, 17), (3, 5), (2, 300)):
        out = Guarded(5, outer * inner, case.dtype)
        p = Program([], [(CODE.COLUMN, 0, 0, 0, 0, 0.0)], outer, inner, 0, 5, 1)
        p.run(case, [case.store(out.view, 0, outer_stride=inner)])
        np.testing.assert_array_equal(out.check(), np.tile(np.arange(inner), (5, outer)))


def test_uniform_is_uniform() -> None:
    u = np.stack([uniform(1, 2, 3, row, np.arange(500)) for row in range(400)])
    counts = np.histogram(u, 64, (0, 1))[0]
    chi2 = ((counts - u.size / 64) ** 2 / (u.size / 64)).sum()
    assert chi2 < 120  # 63 degrees of freedom; beyond with probability 2e-5
    assert abs(np.corrcoef(u[:, :-1].ravel(), u[:, 1:].ravel())[0, 1]) < 0.01
    assert abs(np.corrcoef(u[:-1].ravel(), u[1:].ravel())[0, 1]) < 0.01
    other = np.stack([uniform(1, 2, 4, row, np.arange(500)) for row in range(400)])
    assert abs(np.corrcoef(u.ravel(), other.ravel())[0, 1]) < 0.01
    assert len(np.unique(u)) > 0.99 * u.size


@settings(max_examples=100)
@given(data=st.data())
def test_any_program(data: st.DataObject) -> None:
    draw = data.draw
    case = Case(draw(st.sampled_from(KERNELS.supported_isas())), draw(st.sampled_from(DTYPES)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    outer, inner = draw(st.integers(1, 4)), draw(st.sampled_from((1, 2, 5, 16, 31, 64, 130, 280)))
    r0 = draw(st.integers(0, 5))
    r1 = r0 + draw(st.integers(0, 40))
    loads = []
    for kind in draw(st.lists(st.sampled_from(SOURCE_KINDS), min_size=1, max_size=4)):
        scalar = draw(st.booleans())
        source, values = make_source(case, rng, kind, r0, r1, outer if scalar else outer * inner)
        loads.append(Load(source, values, 1 if scalar else inner, scalar))
    registers = len(loads) + draw(st.integers(1, 4))
    ready = list(range(len(loads)))
    ops: list[tuple[Any, ...]] = []
    for _ in range(draw(st.integers(1, 8))):
        code = draw(st.sampled_from([*SAFE, CODE.CONSTANT]))
        a, b, c = (draw(st.sampled_from(ready)) for _ in range(3))
        dst = draw(st.integers(0, registers - 1))
        ops.append((code, dst, a, -1 if code in UNARY else b, c if code in TERNARY else -1, 0.75))
        ready = sorted({*ready, dst})
    p = Program(loads, ops, outer, inner, r0, r1, registers)
    reg = p.reference()
    stores, checks = [], []
    for _ in range(draw(st.integers(1, 3))):
        r = draw(st.sampled_from(ready))
        mode = draw(st.sampled_from((MODE.WRITE, MODE.SUM, MODE.MAX)))
        narrow = mode != MODE.WRITE
        out = Guarded(r1 - r0, outer * (1 if narrow else inner), case.dtype)
        stores.append(
            case.store(out.view, r, base=r0, mode=mode, outer_stride=1 if narrow else inner)
        )
        value = {
            MODE.SUM: lambda v: v.sum(-1),
            MODE.MAX: lambda v: v.max(-1),
            MODE.WRITE: lambda v: v,
        }[mode](reg[r])
        # A sum of n numbers in any order is off by (n - 1) u sum |x| at most (Higham 2002, 4.2),
        # which a row of equal numbers, all rounded the same way, almost reaches.
        added = case.eps / 2 * (inner - 1) * np.abs(reg[r]).sum(-1) if mode == MODE.SUM else 0.0
        checks.append((out, value, added))
    p.run(case, stores)
    scale = np.abs(reg).max(initial=1.0) ** 2
    for out, value, added in checks:
        expected = value.reshape(out.view.shape)
        limit = 300 * scale * case.eps + added
        assert (np.abs(out.check() - expected) <= limit).all(), (out.view, expected, limit)
