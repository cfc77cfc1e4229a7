"""Sums over all rows of a space, into buffers and into places of gradients."""

import numpy as np
import pytest
from hand_programs import (
    LEAF,
    ONE,
    VERTEX,
    Hand,
    batch_children,
    index,
    one,
    random_dag,
    schedule,
    self_,
)

from cavs import _engine


@pytest.fixture(autouse=True, params=[1, 2])
def threads(request):
    _engine.set_num_threads(request.param)
    yield request.param
    _engine.set_num_threads(1)


def test_sums_over_all_rows():
    rng = np.random.default_rng(0)
    graphs = [random_dag(rng, n, 4) for n in (500, 80)] + [random_dag(rng, 60, 3, wide=50)]
    children = batch_children(graphs)
    n = len(children)
    leaf = np.array([not c for c in children])
    m = Hand()
    k, w = 70, 90
    x, y = m.buffer("feature", VERTEX, k), m.buffer("feature", VERTEX, w, index=1)
    ones = m.buffer("ones", ONE, 1)
    outs = {
        name: m.buffer("arena", ONE, width, first=0, last=6)
        for name, width in {
            "xy": k * w,
            "leaf": (10 + k) * 7,
            "twice": w,
            "n": 1,
            "mean": 1,
        }.items()
    }
    count = m.buffer("count", ONE, 1)
    xs_, ys_ = index(x, k, "order"), index(y, w, "order")
    m.global_(m.op("matmul_tn", VERTEX, inputs=[xs_, ys_], split=1, out=self_(outs["xy"], w)))
    m.global_(
        m.op(
            "matmul_tn",
            LEAF,
            inputs=[
                index(x, 10, "order", column=5),
                xs_,
                index(y, 3, "order", column=2),
                index(y, 4, "order", column=60),
            ],
            split=2,
            out=self_(outs["leaf"], 7),
        )
    )
    m.global_(m.op("sum_rows", VERTEX, inputs=[ys_], out=self_(outs["twice"], w)))
    m.global_(m.op("sum_rows", LEAF, inputs=[ys_], out=self_(outs["twice"], w), accumulate=True))
    m.global_(m.op("sum_rows", VERTEX, inputs=[one(ones, 1)], out=self_(outs["n"], 1)))
    m.rows(ONE, [])
    m.rows(
        ONE,
        [
            m.map(
                ONE,
                [self_(outs["n"], 1), one(count, 1)],
                [("div", 2, 0, 1, 0)],
                [(outs["mean"], 2)],
                1,
            )
        ],
    )
    xs, ys = rng.standard_normal((n, k)), rng.standard_normal((n, w))
    labels = rng.integers(-3, 4, n).astype(np.int32)
    e = _engine.Executor(m.finish(outputs=outs.values()), [np.zeros(1)])
    e.run(schedule(graphs), [xs, ys], [labels])
    got = {name: e.output(b)[0] for name, b in outs.items()}
    close = dict(rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(got["xy"].reshape(k, w), xs.T @ ys, **close)
    a = np.hstack([xs[leaf][:, 5:15], xs[leaf]])
    b = np.hstack([ys[leaf][:, 2:5], ys[leaf][:, 60:64]])
    np.testing.assert_allclose(got["leaf"].reshape(-1, 7), a.T @ b, **close)
    np.testing.assert_allclose(got["twice"], ys.sum(0) + ys[leaf].sum(0), **close)
    assert got["n"] == n
    np.testing.assert_allclose(got["mean"], n / (labels >= 0).sum())


def test_sums_into_places_of_one_gradient():
    """Quarters of a matrix and parts of a bias, each twice: what meets is added in its turn."""
    rng = np.random.default_rng(5)
    graphs = [random_dag(rng, 2000)]
    k, w = 48, 160
    m = Hand()
    x, y = m.buffer("feature", VERTEX, k), m.buffer("feature", VERTEX, w, index=1)
    matrix, bias = m.buffer("grad", ONE, w), m.buffer("grad", ONE, w, index=1)
    places = [(r, c) for r in (0, k // 2) for c in (0, w // 2)]
    for rows in (k // 2, k):  # the second time all rows of the matrix at once
        for row, column in places if rows < k else [(0, 0), (0, w // 2)]:
            a = index(x, rows, "order", column=row)
            b = index(y, w // 2, "order", column=column)
            out = self_(matrix, w // 2, row * w + column)
            sum_ = {"split": 1, "out": out, "accumulate": True}
            m.global_(m.op("matmul_tn", VERTEX, inputs=[a, b], **sum_))
        for column in (0, w // 2):
            b, out = index(y, w // 2, "order", column=column), self_(bias, w // 2, column)
            m.global_(m.op("sum_rows", VERTEX, inputs=[b], out=out, accumulate=True))
    n = len(graphs[0])
    xs, ys = rng.standard_normal((n, k)), rng.standard_normal((n, w))
    e = _engine.Executor(m.finish(), [np.zeros(k * w), np.zeros(w)])
    found = []
    for _ in range(20):
        e.run(schedule(graphs), [xs, ys], [])
        found.append((e.gradient(0).copy(), e.gradient(1).copy()))
    np.testing.assert_allclose(found[0][0].reshape(k, w), 2 * xs.T @ ys, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found[0][1], 2 * ys.sum(0), rtol=1e-10, atol=1e-10)
    for again in found:
        assert all((a == b).all() for a, b in zip(again, found[0], strict=True))
