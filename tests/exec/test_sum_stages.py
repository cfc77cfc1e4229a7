"""Sums over all rows of a space, into buffers and into windows of gradients."""

import numpy as np
import pytest
from hand_programs import (
    INNER,
    LEAF,
    ONE,
    VERTEX,
    Hand,
    batch_children,
    index,
    one,
    random_dag,
    schedule,
    segment,
    self_,
)

from cavs import _engine

pytestmark = pytest.mark.usefixtures("threads")


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


def test_sums_into_windows_of_one_gradient():
    """Quarters of a matrix and parts of a bias, each twice; overlaps are added in order."""
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


def products_of_kinds(m, gradient, x, y, w, reach):
    """Products of one stage, each over the rows of a space, into parts of one gradient."""
    made = []
    for space, begin, end, *columns in reach:
        left, right = columns or (0, w)
        a = index(x, end - begin, "order", column=begin)
        half = (right - left) // 2
        b = [index(y, half, "order", column=left)]
        b.append(index(y, right - left - half, "order", column=left + half))
        out = self_(gradient, right - left, begin * w + left)
        made.append(m.op("matmul_tn", space, inputs=[a, *b], split=1, out=out, accumulate=True))
    m.global_(*made)


@pytest.mark.parametrize(
    "reach",
    [
        [(VERTEX, 0, 90), (LEAF, 0, 40), (INNER, 40, 90)],
        [(INNER, 0, 90), (LEAF, 10, 75), (VERTEX, 60, 61)],
        [(LEAF, 0, 30), (INNER, 25, 60)],  # no product reaches the rest
        [(INNER, 3, 5), (LEAF, 80, 90), (LEAF, 3, 88)],
        [(LEAF, 0, 90)],
        [(VERTEX, 0, 90), (LEAF, 0, 90, 0, 40), (INNER, 50, 90, 30, 300)],
        [(VERTEX, 0, 90), (LEAF, 0, 90, 0, 200), (INNER, 0, 90, 260, 300), (INNER, 0, 90, 0, 200)],
        [(LEAF, 5, 60, 7, 100), (INNER, 50, 90, 200, 300)],  # no product reaches the middle
        [(VERTEX, 0, 90), (INNER, 0, 90, 290, 300), (VERTEX, 0, 90, 5, 300)],  # few zeros
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_products_of_one_stage_are_computed_as_one(threads, reach, first):
    """Where several reach a part, their rows are summed together, for any previous values."""
    rng = np.random.default_rng(7)
    k, w = 90, 300
    m = Hand()
    x, y = m.buffer("feature", VERTEX, k), m.buffer("feature", VERTEX, w, index=1)
    gradient = m.buffer("grad", ONE, w)
    if not first:
        a, b = index(x, 1, "order"), index(y, w, "order")
        out = {"split": 1, "out": self_(gradient, w, 2 * w), "accumulate": True}
        m.global_(m.op("matmul_tn", VERTEX, inputs=[a, b], **out))
    products_of_kinds(m, gradient, x, y, w, reach)
    e = _engine.Executor(m.finish(), [np.zeros(k * w)])
    for graphs in ([random_dag(rng, 900)], [[[]], [[]]], [random_dag(rng, 30)]):
        children = batch_children(graphs)
        leaf = np.array([not c for c in children], bool)
        rows = {VERTEX: slice(None), LEAF: leaf, INNER: ~leaf}
        n = len(children)
        xs, ys = rng.standard_normal((n, k)), rng.standard_normal((n, w))
        expected = np.zeros((k, w))
        if not first:
            expected[2] = xs[:, 0] @ ys
        for space, begin, end, *columns in reach:
            part = slice(*columns) if columns else slice(None)
            of = rows[space]
            expected[begin:end, part] += xs[of, begin:end].T @ ys[of, part]
        found = []
        for number in (threads, 3 - threads):
            _engine.set_num_threads(number)
            e.run(schedule(graphs), [xs, ys], [])
            found.append(e.gradient(0).copy())
        np.testing.assert_allclose(found[0].reshape(k, w), expected, rtol=1e-10, atol=1e-10)
        assert found[0].tobytes() == found[1].tobytes()
        _engine.set_num_threads(threads)


def test_factors_of_joined_products(threads):
    """The operands of all kinds, stacked one below the other."""
    rng = np.random.default_rng(9)
    k, w = 6, 7
    m = Hand()
    x, y = m.buffer("feature", VERTEX, k), m.buffer("feature", VERTEX, w, index=1)
    gradient = m.buffer("grad", ONE, w)
    products_of_kinds(m, gradient, x, y, w, [(INNER, 0, k), (LEAF, 0, k)])
    e = _engine.Executor(m.finish(), [np.zeros(k * w)])
    graphs = [random_dag(rng, 60)]
    inputs = [rng.standard_normal((60, c)) for c in (k, w)]
    e.run(schedule(graphs), inputs, [])
    expected = e.gradient(0).reshape(k, w)
    assert e.set_factored(0)
    e.run(schedule(graphs), inputs, [])
    left, right = e.factors(0)
    assert len(left) == 60
    np.testing.assert_allclose(left.T @ right, expected, rtol=1e-10, atol=1e-12)


def test_flat_sum_and_product_into_one_gradient_run_in_order(threads):
    """A sum of matrices is as long as all rows of the gradient, for any width of its buffer."""
    rng = np.random.default_rng(8)
    k, w = 24, 64
    m = Hand()
    x, y = m.buffer("feature", VERTEX, k), m.buffer("feature", VERTEX, w, index=1)
    flat, gradient = m.buffer("feature", VERTEX, k * w, index=2), m.buffer("grad", ONE, w)
    whole = {"out": self_(gradient, k * w), "accumulate": True}
    m.global_(m.op("sum_rows", VERTEX, inputs=[index(flat, k * w, "order")], **whole))
    a, b = index(x, k - 5, "order"), index(y, w, "order")
    below = {"split": 1, "out": self_(gradient, w, 5 * w), "accumulate": True}
    m.global_(m.op("matmul_tn", VERTEX, inputs=[a, b], **below))
    e = _engine.Executor(m.finish(), [np.zeros(k * w)])
    graphs = [random_dag(rng, 300)]
    n = len(graphs[0])
    xs, ys, matrices = (rng.standard_normal((n, c)) for c in (k, w, k * w))
    expected = matrices.sum(0).reshape(k, w)
    expected[5:] += xs[:, : k - 5].T @ ys
    for _ in range(20):
        e.run(schedule(graphs), [xs, ys, matrices], [])
        found = e.gradient(0).reshape(k, w)
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, None),
        ({"type": "sum_rows"}, "follows another sum in a global stage"),
        ({"accumulate": False}, "overwrites the product before it"),
        ({"column": 1}, None),
        ({"column": 7}, "columns 7 to 13 of a gradient that has 10"),
        ({"lead": False}, None),
        ({"out": 3}, "adds to another gradient than the product before it"),
        ({"lead": False, "column": 1}, "adds to what the product before it .* does not write"),
        ({"lead": False, "column": 30}, "adds to what the product before it .* does not write"),
    ],
)
def test_invalid_stages_of_products(changes, message):
    changes = dict(changes)
    lead, column = changes.pop("lead", True), changes.pop("column", 0)
    to = changes.pop("out", 2)
    m = Hand()
    x, y = m.buffer("feature", VERTEX, 8), m.buffer("feature", VERTEX, 6, index=1)
    gradient, _ = m.buffer("grad", ONE, 10), m.buffer("grad", ONE, 10, index=1)
    a, b = index(x, 4, "order"), index(y, 6, "order")
    out = {"split": 1, "out": self_(gradient, 6), "accumulate": lead}
    first = m.op("matmul_tn", VERTEX, inputs=[a, b], **out)
    behind = {"type": "matmul_tn", "inputs": [a, b], "split": 1, "accumulate": True, **changes}
    if behind["type"] == "sum_rows":
        behind |= {"inputs": [b], "split": 0}
    second = m.op(space=LEAF, out=self_(to, 6, column), label="behind", **behind)
    m.global_(first, second)
    if message is None:
        _engine.Executor(m.finish(), [np.zeros(80), np.zeros(80)])
        return
    with pytest.raises(ValueError, match=rf"\[behind\] {message}"):
        m.finish()


def chain_and_bush(chain, bush, copies):
    """A chain, and levels of `bush` vertices, each with two children in the level below."""
    long = [[], *([v] for v in range(chain - 1))]
    levels = [[[] for _ in range(bush)]]
    for level in range(3):
        first = level * bush
        levels.append([[first + i, first + (i + 1) % bush] for i in range(bush)])
    return [long] * copies + [[c for level in levels for c in level]]


@pytest.mark.parametrize(
    ("graphs", "widths"),
    [
        (
            chain_and_bush(400, 200, 1),
            (1, 201),
        ),  # most tasks are one row: 64 at a time; three are wide
        (chain_and_bush(40, 3, 2), (2, 5)),  # 12 rows at a time
        (chain_and_bush(5, 1, 1), (1, 2)),  # too few rows: each task separately
    ],
)
def test_rows_of_narrow_tasks_are_multiplied_together(graphs, widths):
    """With their values at the end of their task: children are overwritten later."""
    rng = np.random.default_rng(3)
    k, n = 24, 40
    m = Hand()
    x, y = m.buffer("feature", VERTEX, k), m.buffer("feature", VERTEX, n, index=1)
    a, b = (m.buffer("arena", VERTEX, w, last=1) for w in (k, n))
    gradient = m.buffer("grad", ONE, n)
    filled = [
        m.op("copy", VERTEX, inputs=[index(old, w, "order")], out=self_(new, w))
        for old, new, w in ((x, a, k), (y, b, n))
    ]
    m.rows(VERTEX, filled)
    more = [
        m.map(INNER, [self_(of, w)], [("add", 1, 0, 0, 0)], [(of, 1)], w)
        for of, w in ((a, k), (b, n))
    ]
    inputs = [segment(a, k - 4, "children", column=4), segment(b, 4, "children"), self_(b, n)]
    out = self_(gradient, n)
    product = m.op("matmul_tn", INNER, inputs=inputs, split=2, out=out, accumulate=True)
    m.loop([[], [*more, product]], reversed=True)
    children = batch_children(graphs)
    xs, ys = rng.standard_normal((len(children), k)), rng.standard_normal((len(children), n))
    inner = [v for v, c in enumerate(children) if c]
    left = np.array([np.r_[xs[children[v], 4:].sum(0), ys[children[v], :4].sum(0)] for v in inner])
    e = _engine.Executor(m.finish(), [np.zeros((k, n))])
    e.run(schedule(graphs), [xs, ys], [])
    assert set(widths) <= set(e.report()["widths"])
    first = e.gradient(0).reshape(k, n).copy()
    np.testing.assert_allclose(first, left.T @ (2 * ys[inner]), rtol=1e-10, atol=1e-10)
    e.set_serial(True)
    e.run(schedule(graphs), [xs, ys], [])
    np.testing.assert_allclose(e.gradient(0).reshape(k, n), first, rtol=1e-10, atol=1e-10)
