"""Spaces of the distinct values of an integer feature."""

import numpy as np
import pytest
from hand_programs import (
    EDGE,
    GRAPH,
    ONE,
    VERTEX,
    Hand,
    assert_read_refused,
    index,
    random_dag,
    schedule,
    self_,
)

import cavs
from cavs import _engine

W, ROWS = 5, 9
DISTINCT = -(2**24)  # minus the number of the feature


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def product_program():
    """Return rows of a table times a weight, over distinct values, and at each vertex."""
    m = Hand()
    table = m.buffer("param", width=W, index=0)
    packed = m.weight(W, W, [(1, 0, W, 1, W, W, 0, 0)])
    product = m.buffer("arena", DISTINCT, W, last=2)
    number = m.buffer("arena", ONE, 1, first=1, last=2)
    back = m.buffer("arena", VERTEX, W, first=2, last=2)
    read = index(table, W, "index_feature", 0)
    m.rows(DISTINCT, [m.matmul(DISTINCT, [read], packed, self_(product, W))])
    ones = m.buffer("ones", ONE, 1)
    m.global_(m.op("sum_rows", DISTINCT, inputs=[self_(ones, 1)], out=self_(number, 1)))
    read = index(product, W, "distinct", 0)
    m.rows(VERTEX, [m.op("copy", VERTEX, inputs=[read], out=self_(back, W))])
    return m.finish(number, [back]), back


def indices_of(rng, n):
    """Indices with -1 among them, none, one, all different as far as there are rows, and again."""
    one = np.full(n, -1)
    one[n // 2] = 3
    some = rng.integers(-1, ROWS, n)
    return [a.astype(np.int32) for a in (some, one, np.full(n, -1), np.arange(n) % ROWS, some)]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("serial", [False, True])
def test_products_of_distinct_values(rng, threads, serial):
    """One schedule with changing indices: rows are counted for each batch."""
    graphs = [random_dag(rng, n) for n in (40, 1, 300)]
    n = sum(map(len, graphs))
    table, w = rng.standard_normal((ROWS, W)), rng.standard_normal((W, W))
    before = cavs.num_threads()
    cavs.set_num_threads(threads)
    try:
        program, back = product_program()
        e = _engine.Executor(program, [table, w])
        e.set_serial(serial)
        plan = schedule(graphs)
        for values in indices_of(rng, n):
            number = e.run(plan, [], [values])
            assert number == len(set(values[values >= 0].tolist()))
            expected = (table[values] @ w) * (values >= 0)[:, None]
            np.testing.assert_allclose(e.output(back), expected, atol=1e-14)
    finally:
        cavs.set_num_threads(before)


def test_a_value_beyond_the_table_is_refused_and_forgotten(rng):
    table, w = rng.standard_normal((ROWS, W)), np.eye(W)
    program, back = product_program()
    e = _engine.Executor(program, [table, w])
    plan = schedule([[[], [], [0, 1], []]])
    for bad in ROWS, 2**31 - 1:
        with pytest.raises(IndexError, match=f"int feature 0 is {bad} at vertex 2, needs less"):
            e.run(plan, [], [np.array([4, 4, bad, bad], np.int32)])
    with pytest.raises(ValueError, match="int feature 0 has 3 values, the batch has 4 vertices"):
        e.run(plan, [], [np.zeros(3, np.int32)])
    values = np.array([4, -1, 4, 0], np.int32)
    assert e.run(plan, [], [values]) == 2
    np.testing.assert_array_equal(e.output(back), table[values] * (values >= 0)[:, None])


WRONG = [
    (VERTEX, lambda m: index(m.other, W, "distinct", 0), "of distinct 1 from vertex through"),
    (VERTEX, lambda m: index(m.present, W, "distinct", 1), "of present 1 from vertex through"),
    (VERTEX, lambda m: index(m.other, W, "place", 1), "of distinct 1 from vertex through place"),
    (VERTEX, lambda m: index(m.h, W, "distinct", 1), "of vertex from vertex through distinct"),
    (GRAPH, lambda m: index(m.other, W, "distinct", 1), "from graph through distinct"),
    (EDGE, lambda m: index(m.other, W, "distinct", 1), "from edge through distinct"),
    (DISTINCT, lambda m: index(m.h, W, "present", 0), "from distinct 0 through present"),
    (DISTINCT, lambda m: index(m.x, W, "present_order", 0), "through present_order"),
    (DISTINCT, lambda m: self_(m.h, W), "of vertex from distinct 0 row by row"),
    (DISTINCT, lambda m: self_(m.other, W), "of distinct 1 from distinct 0 row by row"),
]


@pytest.mark.parametrize(("space", "read", "message"), WRONG)
def test_invalid_reads_of_distinct_values(space, read, message):
    m = Hand()
    m.x, m.h = m.buffer("feature", VERTEX, W), m.buffer("arena", VERTEX, W)
    m.other, m.present = m.buffer("arena", DISTINCT - 1, W), m.buffer("arena", -3, W)
    assert_read_refused(m, space, read, W, message)


def test_invalid_distinct_spaces():
    m = Hand()
    m.buffer("arena", DISTINCT - 2**20, W)
    with pytest.raises(ValueError, match=r"distinct values of int feature \d+"):
        m.finish()
    m = Hand()
    table, out = m.buffer("param", width=W), m.buffer("arena", DISTINCT, W)
    read = index(table, W, "index_feature", 0)
    m.rows(DISTINCT, [m.op("copy", DISTINCT, inputs=[read], out=self_(out, W))])
    with pytest.raises(ValueError, match="output 1 has distinct 0"):
        m.finish(outputs=[out])
