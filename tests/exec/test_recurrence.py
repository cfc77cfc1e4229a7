"""Programs with a loop against a recursion over the vertices."""

import numpy as np
import pytest
from hand_programs import TreeRnn, batch_children, random_dag, schedule

from cavs import _engine


def graphs_for(case, rng):
    return {
        "one": [[[]]],
        "isolated": [[[], [], []]],
        "chain": [[[]] + [[i] for i in range(60)]],
        "dags": [random_dag(rng, int(n)) for n in rng.integers(1, 40, 30)],
        "wide": [random_dag(rng, 80, 4, wide=50), random_dag(rng, 300, 2, wide=500)],
        "flat": [[[] for _ in range(700)] + [list(range(i, i + 3)) for i in range(0, 690, 3)]],
    }[case]


def check(cell, executor, graphs, rng, tolerance):
    children = batch_children(graphs)
    tokens = rng.integers(0, cell.vocabulary, len(children)).astype(np.int32)
    x = cell.parameters[0].astype(np.float64)[tokens]
    plan = schedule(graphs)
    features = [np.ascontiguousarray(x, cell.dtype)] if cell.dense else []
    loss = executor.run(plan, features, [tokens])
    expected, state, grads = cell.reference(children, x)
    close = dict(rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(loss, expected, **close)
    np.testing.assert_allclose(executor.output(cell.h_out), state, **close)
    for i in range(1, 5):
        np.testing.assert_allclose(executor.gradient(i), grads[i], **close)
    if cell.dense:
        assert not executor.gradient(0).any()
        return
    table = np.zeros_like(cell.parameters[0], np.float64)
    np.add.at(table, tokens, grads[0])
    np.testing.assert_allclose(executor.gradient(0), table, **close)
    rows, values = executor.gradient_rows(0)
    np.testing.assert_array_equal(rows, np.unique(tokens))
    np.testing.assert_array_equal(values, executor.gradient(0)[rows])
    assert executor.gradient_rows(1) is None


@pytest.mark.parametrize("case", ["one", "isolated", "chain", "dags", "wide", "flat"])
@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("looped", [False, True])
@pytest.mark.parametrize("serial", [False, True])
def test_loop_matches_recursion(case, dense, looped, serial, threads):
    rng = np.random.default_rng(3)
    cell = TreeRnn(dense=dense, looped=looped)
    executor = cell.executor()
    executor.set_serial(serial)
    check(cell, executor, graphs_for(case, rng), rng, 1e-10)


@pytest.mark.parametrize("case", ["dags", "chain", "wide"])
@pytest.mark.parametrize("joined", [False, True])
def test_large_cells(case, joined, threads):
    """Widths of several panels: products are split over threads by panel in narrow tasks."""
    rng = np.random.default_rng(4)
    cell = TreeRnn(d=130, h=201, scale=0.04, joined=joined)
    check(cell, cell.executor(), graphs_for(case, rng), rng, 1e-9)


def test_float32(threads):
    rng = np.random.default_rng(5)
    cell = TreeRnn(d=20, h=33, dtype=np.float32, scale=0.2)
    check(cell, cell.executor(), graphs_for("dags", rng), rng, 2e-4)


def test_batches_of_many_shapes_in_one_executor(threads):
    rng = np.random.default_rng(6)
    cell = TreeRnn()
    executor = cell.executor()
    for case in ["dags", "one", "wide", "chain", "isolated", "flat", "dags"]:
        check(cell, executor, graphs_for(case, rng), rng, 1e-10)


def run_all(cell, executor, plan, tokens):
    loss = executor.run(plan, [], [tokens])
    return [np.float64(loss), executor.output(cell.h_out), *map(executor.gradient, range(5))]


@pytest.mark.parametrize(("d", "h"), [(7, 5), (150, 160)])
def test_threads_give_bit_identical_results(d, h):
    rng = np.random.default_rng(7)
    graphs = graphs_for("dags", rng) + graphs_for("wide", rng)
    plan = schedule(graphs)
    cell = TreeRnn(d=d, h=h, dtype=np.float32)
    tokens = rng.integers(-1, cell.vocabulary, sum(map(len, graphs))).astype(np.int32)
    results = []
    for n in [1, 2, 3]:
        _engine.set_num_threads(n)
        results.append(run_all(cell, cell.executor(), plan, tokens))
        executor = cell.executor()
        run_all(cell, executor, plan, tokens)
        results.append(run_all(cell, executor, plan, tokens))
    _engine.set_num_threads(1)
    executor = cell.executor()
    executor.set_serial(True)
    results.append(run_all(cell, executor, plan, tokens))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_negative_tokens_read_zeros_and_get_no_gradient():
    cell = TreeRnn()
    executor = cell.executor()
    tokens = np.array([-1, 2, -1], np.int32)
    graphs = [[[], [0], [0, 1]]]
    executor.run(schedule(graphs), [], [tokens])
    x = np.where(tokens[:, None] < 0, 0, cell.parameters[0][tokens])
    _, state, grads = cell.reference(graphs[0], x)
    np.testing.assert_allclose(executor.output(cell.h_out), state, rtol=1e-12)
    rows, values = executor.gradient_rows(0)
    assert rows.tolist() == [2]
    np.testing.assert_allclose(values[0], grads[0][1], rtol=1e-12)


def test_a_kind_missing_from_the_batch_is_empty():
    """Only leaves: dU is a product over no rows and must be zeros, not the previous values."""
    rng = np.random.default_rng(8)
    cell = TreeRnn()
    executor = cell.executor()
    check(cell, executor, graphs_for("dags", rng), rng, 1e-10)
    check(cell, executor, graphs_for("isolated", rng), rng, 1e-10)
    assert not executor.gradient(2).any()


def test_long_chain_is_linear(threads):
    cell = TreeRnn()
    n = 20_000
    tokens = np.zeros(n, np.int32)
    executor = cell.executor()
    plan = schedule([[[]] + [[i] for i in range(n - 1)]])
    assert np.isfinite(executor.run(plan, [], [tokens]))
    assert executor.report()["arena_bytes"] < 8 * n * 60
