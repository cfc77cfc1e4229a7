"""Spaces of the vertices that have an integer feature."""

import numpy as np
import pytest
from hand_programs import (
    EDGE,
    GRAPH,
    INNER,
    ONE,
    VERTEX,
    Hand,
    assert_read_refused,
    index,
    random_dag,
    schedule,
    segment,
    self_,
)

import cavs
from cavs import _engine

W = 5
PRESENT = -2  # minus the number of the feature


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def labels_of(rng, n):
    """Labels at all vertices, at none, at one, and at fewer or more of them."""
    one = np.full(n, -1)
    one[n // 2] = 3
    some = rng.integers(-1, W, n)
    return [a.astype(np.int32) for a in (some, one, np.full(n, -1), rng.integers(0, W, n), some)]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("serial", [False, True])
def test_copies_to_present_rows_and_back(rng, threads, serial):
    """One schedule with changing labels: rows are counted for each batch."""
    graphs = [random_dag(rng, n) for n in (40, 1, 300)]
    n = sum(map(len, graphs))
    m = Hand()
    x = m.buffer("feature", VERTEX, W)
    h = m.buffer("arena", VERTEX, W, last=2)
    taken = m.buffer("arena", PRESENT, W, first=1, last=2)
    given = m.buffer("scratch", PRESENT, W, first=1, last=1)
    back = m.buffer("arena", VERTEX, W, first=2, last=2)
    m.rows(VERTEX, [m.op("copy", VERTEX, inputs=[index(x, W, "order")], out=self_(h, W))])
    m.rows(
        PRESENT,
        [
            m.op("copy", PRESENT, inputs=[index(x, W, "present_order", 0)], out=self_(given, W)),
            m.map(
                PRESENT,
                [index(h, W, "present", 0), self_(given, W)],
                [("tanh", 2, 0, 0, 0), ("sub", 2, 2, 1, 0)],
                [(taken, 2)],
                W,
            ),
        ],
    )
    m.rows(VERTEX, [m.op("copy", VERTEX, inputs=[index(taken, W, "place", 0)], out=self_(back, W))])
    before = cavs.num_threads()
    cavs.set_num_threads(threads)
    try:
        e = _engine.Executor(m.finish(outputs=[back]), [np.zeros(1)])
        e.set_serial(serial)
        plan, xs = schedule(graphs), rng.standard_normal((n, W))
        for label in labels_of(rng, n):
            e.run(plan, [xs], [label])
            expected = (np.tanh(xs) - xs) * (label >= 0)[:, None]
            np.testing.assert_allclose(e.output(back), expected, atol=1e-14)
    finally:
        cavs.set_num_threads(before)


def test_losses_and_sums_over_present_rows(rng):
    """Products, cross entropy and gradients over labelled rows; there may be none."""
    graphs = [random_dag(rng, n) for n in (20, 150)]
    n = sum(map(len, graphs))
    m = Hand()
    x = m.buffer("feature", VERTEX, W)
    weight, table = m.buffer("grad", width=W, index=0), m.buffer("param", width=W, index=1)
    h = m.buffer("arena", VERTEX, W, last=3)
    logits = m.buffer("arena", PRESENT, W, first=1, last=3)
    loss = m.buffer("arena", PRESENT, 1, first=1, last=2)
    slope = m.buffer("arena", PRESENT, W, first=1, last=4)
    total = m.buffer("arena", ONE, 1, first=2, last=4)
    packed = m.weight(W, W, [(0, 0, W, 1, W, W, 0, 0)])
    m.rows(VERTEX, [m.op("copy", VERTEX, inputs=[index(x, W, "order")], out=self_(h, W))])
    product = m.buffer("scratch", PRESENT, W)
    taken = index(h, W, "present", 0)
    ops = {"inputs": [self_(logits, W)], "argument": 0}
    word = index(table, W, "index_feature", 1)
    m.rows(
        PRESENT,
        [
            m.matmul(PRESENT, [taken], packed, self_(product, W)),
            m.map(PRESENT, [self_(product, W), word], [("add", 2, 0, 1, 0)], [(logits, 2)], W),
            m.op("cross_entropy", PRESENT, out=self_(loss, 1), **ops),
            m.op("cross_entropy_grad", PRESENT, out=self_(slope, W), **ops),
        ],
    )
    m.global_(m.op("sum_rows", PRESENT, inputs=[self_(loss, 1)], out=self_(total, 1)))
    m.global_(
        m.op("matmul_tn", PRESENT, inputs=[taken, self_(slope, W)], out=self_(weight, W), split=1)
    )
    m.global_(m.op("lookup_grad", PRESENT, inputs=[self_(slope, W)], argument=1, argument2=1))
    w, rows = rng.standard_normal((W, W)), rng.standard_normal((4, W))
    e = _engine.Executor(m.finish(total), [w, rows])
    plan, xs = schedule(graphs), rng.standard_normal((n, W))
    for label in labels_of(rng, n):
        words = rng.integers(0, 4, n).astype(np.int32)
        got = e.run(plan, [xs], [label, words])
        known = label >= 0
        z = (xs @ w + rows[words])[known]
        p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
        expected = -np.log(p[np.arange(known.sum()), label[known]]).sum()
        np.testing.assert_allclose(got, expected, rtol=1e-9)
        p[np.arange(known.sum()), label[known]] -= 1
        np.testing.assert_allclose(e.gradient(0), xs[known].T @ p, rtol=1e-7, atol=1e-12)
        of_words = np.zeros((4, W))
        np.add.at(of_words, words[known], p)
        np.testing.assert_allclose(e.gradient(1), of_words, rtol=1e-7, atol=1e-12)


def test_random_numbers_depend_on_the_vertex(rng):
    graphs = [random_dag(rng, 30), random_dag(rng, 9)]
    m = Hand()
    everywhere, some = (m.buffer("arena", s, W, last=2) for s in (VERTEX, PRESENT))
    placed = m.buffer("arena", VERTEX, W, first=2, last=2)
    draw = [("uniform", 0, 0, 0, 0, 3.0)]
    m.rows(VERTEX, [m.map(VERTEX, [], draw, [(everywhere, 0)], W)])
    m.rows(PRESENT, [m.map(PRESENT, [], draw, [(some, 0)], W)])
    read = index(some, W, "place", 0)
    m.rows(VERTEX, [m.op("copy", VERTEX, inputs=[read], out=self_(placed, W))])
    e = _engine.Executor(m.finish(outputs=[everywhere, placed]), [np.zeros(1)])
    label = rng.integers(-1, 2, 39).astype(np.int32)
    e.run(schedule(graphs), [], [label], 4, 2)
    expected = e.output(everywhere) * (label >= 0)[:, None]
    np.testing.assert_array_equal(e.output(placed), expected)


WRONG = [
    (VERTEX, lambda m: index(m.h, W, "present", 0), "from vertex through present"),
    (PRESENT - 1, lambda m: index(m.h, W, "present", 0), "from present 1 through present"),
    (PRESENT, lambda m: index(m.inner, W, "present", 0), "of vertex kind 1 from present 0"),
    (PRESENT, lambda m: index(m.x, W, "present", 0), "feature buffer 0 of vertex from present 0"),
    (PRESENT, lambda m: index(m.h, W, "present_order", 0), "through present_order"),
    (PRESENT, lambda m: index(m.x, W, "order"), "through order"),
    (PRESENT, lambda m: index(m.x, W, "present_order", 1), "through present_order"),
    (PRESENT, lambda m: self_(m.h, W), "of vertex from present 0 row by row"),
    (PRESENT, lambda m: self_(m.other, W), "of present 1 from present 0 row by row"),
    (PRESENT, lambda m: segment(m.h, W, "children"), "from present 0 through children"),
    (VERTEX, lambda m: index(m.other, W, "place", 0), "of present 1 from vertex through place"),
    (VERTEX, lambda m: index(m.h, W, "place", 0), "of vertex from vertex through place"),
    (GRAPH, lambda m: index(m.other, W, "place", 1), "from graph through place"),
    (EDGE, lambda m: index(m.other, W, "place", 1), "from edge through place"),
    (PRESENT, lambda m: index(m.h, W, "present", -1), "from present 0 through present"),
]


@pytest.mark.parametrize(("space", "read", "message"), WRONG)
def test_invalid_reads_of_present_rows(space, read, message):
    m = Hand()
    m.x = m.buffer("feature", VERTEX, W)
    m.h, m.inner = m.buffer("arena", VERTEX, W), m.buffer("arena", INNER, W)
    m.other = m.buffer("arena", PRESENT - 1, W)
    assert_read_refused(m, space, read, W, message)


def test_invalid_present_spaces():
    m = Hand()
    m.buffer("arena", PRESENT - 2**20, W)
    with pytest.raises(ValueError, match=r"rows where int feature \d+ is present"):
        m.finish()
    m = Hand()
    m.buffer("arena", -1, W)
    with pytest.raises(ValueError, match=r"space -1 outside \[0, 8\)"):
        m.finish()
    m = Hand()
    x, out = m.buffer("feature", VERTEX, W), m.buffer("arena", PRESENT, W)
    read = index(x, W, "present_order", 0)
    m.rows(PRESENT, [m.op("copy", PRESENT, inputs=[read], out=self_(out, W))])
    with pytest.raises(ValueError, match="output 1 has present 0"):
        m.finish(outputs=[out])


def test_invalid_present_features():
    m = Hand()
    x, out = m.buffer("feature", VERTEX, W), m.buffer("arena", PRESENT - 1, W)
    read = index(x, W, "present_order", 1)
    op = m.op("cross_entropy_grad", PRESENT - 1, inputs=[read], out=self_(out, W), argument=1)
    m.rows(PRESENT - 1, [op])
    e = _engine.Executor(m.finish(), [np.zeros(1)])
    plan, xs = schedule([[[], [], [0, 1]]]), np.zeros((3, W))
    none = np.zeros(3, np.int32)
    with pytest.raises(ValueError, match="reads 2 int features, found 1"):
        e.run(plan, [xs], [none])
    with pytest.raises(ValueError, match="int feature 1 has 2 values, the batch has 3 vertices"):
        e.run(plan, [xs], [none, none[:2]])
    with pytest.raises(ValueError, match="float feature 0 has 2 rows, the batch needs 3"):
        e.run(plan, [xs[:2]], [none, none])
    with pytest.raises(IndexError, match="int feature 1 is 5 at vertex 2, needs less than 5"):
        e.run(plan, [xs], [none, np.array([-1, 0, 5], np.int32)])
    e.run(plan, [xs], [none, np.array([-1, 0, 4], np.int32)])
