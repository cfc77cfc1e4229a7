"""The split step: progress of gradients, views of them, updates from any memory."""

import gc
import threading
import time
import weakref

import numpy as np
import pytest
from hand_programs import TreeRnn, random_dag, schedule
from test_optimizer_step import STATES, options

from cavs import _engine

TABLE, W, U, B, V = range(5)
SIZES = {"d": 40, "h": 120, "scale": 0.08}


pytestmark = pytest.mark.usefixtures("threads")


def case(seed=2, **sizes):
    rng = np.random.default_rng(seed)
    graphs = [random_dag(rng, 30) for _ in range(4)]
    count = sum(len(g) for g in graphs)
    cell = TreeRnn(**(sizes or SIZES))
    tokens = rng.integers(0, 6, count).astype(np.int32)
    return cell, cell.executor(), (schedule(graphs), [], [tokens])


def pieces_of(executor):
    found = []
    for p in executor.gradient_order():
        rows, values = executor.gradient_view(p)
        found.append((p, values, rows, None, 0))
    return found


def test_a_gradient_is_final_before_the_run_ends():
    """So that it is sent during the rest of backward (Poseidon, wait-free backpropagation)."""
    rng = np.random.default_rng(0)
    graphs = [random_dag(rng, 60) for _ in range(20)]
    cell = TreeRnn(d=400, h=800, scale=0.01)
    executor, tokens = cell.executor(), rng.integers(0, 6, sum(map(len, graphs))).astype(np.int32)
    inputs = schedule(graphs), [], [tokens]
    first, *_, last = executor.gradient_order()
    executor.run(*inputs)
    left = []  # per run, when the first gradient is final
    for _ in range(5):  # the waiting thread may be late on a busy machine, but not every time
        executor.arm_gradients()
        final_at = []

        def watch(final_at=final_at):
            assert executor.wait_gradient(first)
            final_at.append(time.perf_counter())
            assert executor.wait_gradient(last)

        watcher = threading.Thread(target=watch)
        watcher.start()
        begun = time.perf_counter()
        executor.run(*inputs)
        ended = time.perf_counter()
        watcher.join(10)
        left.append((ended - final_at[0]) / (ended - begun))
    assert max(left) > 0.1


@pytest.mark.parametrize("kind", STATES)
def test_split_step_gives_the_same_bits_as_a_step(kind):
    whole, executor, inputs = case()
    states = [[np.zeros_like(p) for _ in range(STATES[kind])] for p in whole.parameters]
    for t in (1, 2):
        expected = executor.step(*inputs, 0, t, options(kind, t), states, [True] * 5)
    parts, executor, inputs = case()
    states = [[np.zeros_like(p) for _ in range(STATES[kind])] for p in parts.parameters]
    for t in (1, 2):
        loss = executor.run(*inputs, 0, t)
        pieces = pieces_of(executor)
        norm = np.sqrt(executor.squared_norm(pieces))
        executor.apply(pieces, options(kind, t), states, [True] * 5)
    assert loss == expected[0]
    assert norm == pytest.approx(expected[1], rel=1e-14)
    for a, b in zip(whole.parameters, parts.parameters, strict=True):
        assert a.tobytes() == b.tobytes()


def test_gradients_do_not_change_once_final():
    """A thread copies each gradient as it becomes final; copies equal the values after the run."""
    _, executor, inputs = case()
    order = executor.gradient_order()
    assert sorted(order) == [TABLE, W, U, B, V]
    for _ in range(20):
        executor.arm_gradients()
        seen = {}

        def watch(seen=seen):
            for p in order:
                assert executor.wait_gradient(p)
                seen[p] = executor.gradient_view(p)[1].copy()

        watcher = threading.Thread(target=watch)
        watcher.start()
        executor.run(*inputs)
        watcher.join(10)
        for p in order:
            np.testing.assert_array_equal(seen[p], executor.gradient_view(p)[1])


@pytest.mark.parametrize("joined", [False, True])
def test_large_gradients_become_final_slab_by_slab(threads, joined):
    """In the order of their rows, with the same bits as in a run that no thread follows."""
    sizes = {"d": 600, "h": 1000, "joined": joined}
    _, alone, inputs = case(**sizes)
    alone.run(*inputs)
    _, executor, inputs = case(**sizes)
    sizes = {p: executor.gradient_view(p)[1].size for p in (W, U, B)}
    slabs = {p: executor.gradient_slab(p) for p in sizes}
    assert slabs == {W: 300_000, U: 500_000, B: 1000}
    for _ in range(3):
        executor.arm_gradients()
        seen = {p: [] for p in sizes}

        def watch(seen=seen):
            for p in executor.gradient_order():
                if p in sizes:
                    for at in range(0, sizes[p], slabs[p]):
                        assert executor.wait_gradient(p, at, at + slabs[p])
                        seen[p].append(executor.gradient_view(p)[1][at : at + slabs[p]].copy())

        watcher = threading.Thread(target=watch)
        watcher.start()
        executor.run(*inputs)
        watcher.join(10)
        for p in sizes:
            np.testing.assert_array_equal(np.concatenate(seen[p]), alone.gradient_view(p)[1])


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize(("d", "h"), [(300, 450), (450, 75), (40, 120)])
def test_gradients_have_the_same_bits_for_any_number_of_threads(d, h, joined):
    found = []
    for count in (1, 2, 3, 5):
        _engine.set_num_threads(count)
        _, executor, inputs = case(d=d, h=h, joined=joined)
        executor.run(*inputs)
        found.append([executor.gradient(p) for p in (W, U, B, V)])
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize(("begin", "end"), [(-1, 5), (3, 2), (0, 41)])
def test_invalid_elements_of_a_gradient(begin, end):
    _, executor, inputs = case(d=8, h=5)
    executor.run(*inputs)
    with pytest.raises(IndexError, match=f"elements {begin} to {end} of a gradient that has 40"):
        executor.wait_gradient(W, begin, end)


def test_waiting_threads_are_released_by_failed_and_cancelled_runs():
    _, executor, (batch, floats, ints) = case()
    results = []
    for end in ("fails", "given up"):
        executor.arm_gradients()
        watcher = threading.Thread(target=lambda: results.append(executor.wait_gradient(W)))
        watcher.start()
        if end == "fails":
            with pytest.raises(IndexError):
                executor.run(batch, floats, [np.full_like(ints[0], 99)])
        else:
            executor.give_up_gradients()
        watcher.join(10)
    assert results == [False, False]


def test_dense_gradients_are_stored_in_the_order_of_completion():
    _, executor, inputs = case()
    executor.run(*inputs)
    block = executor.gradient_block()
    at = [
        executor.gradient_view(p)[1].__array_interface__["data"][0]
        for p in executor.gradient_order()
        if p != TABLE
    ]
    assert at == sorted(at)
    total = sum(executor.gradient_view(p)[1].size for p in (W, U, B, V))
    assert np.count_nonzero(block) <= total
    executor.gradient_view(W)[1][...] = 7  # memory of the engine
    assert np.count_nonzero(block == 7) == executor.gradient_view(W)[1].size


def test_set_gradient_block():
    """The same bits as in the engine's own memory, also after a second change."""
    _, own, inputs = case()
    _, moved, _ = case()
    own.run(*inputs)
    size = moved.gradient_block().size
    for memory in (np.full(size, 7.0), np.full(2 * size, 7.0)[size:]):
        moved.set_gradient_block(memory)
        assert not memory.any()
        moved.run(*inputs)
        assert np.shares_memory(moved.gradient_block(), memory)
        for p in (W, U, B, V):
            view = moved.gradient_view(p)[1]
            assert np.shares_memory(view, memory)
            np.testing.assert_array_equal(view, own.gradient_view(p)[1])
        np.testing.assert_array_equal(moved.gradient(TABLE), own.gradient(TABLE))


def test_views_of_gradients_outlive_their_memory():
    """When gradients are moved, when a batch needs more rows, and without the executor."""
    _, executor, (batch, floats, ints) = case(d=6, h=5)
    executor.set_factored(U)
    executor.run(batch, floats, [np.full_like(ints[0], 3)])

    def views(of):
        dense = of.gradient_block(), of.gradient_view(W)[1]
        return *dense, *of.gradient_view(TABLE), *of.factors(U)

    first = views(executor)
    before = [view.copy() for view in first]
    memory = np.zeros_like(before[0])
    known = weakref.ref(memory)
    executor.set_gradient_block(memory)
    larger = [random_dag(np.random.default_rng(7), 4000)]
    executor.run(schedule(larger), floats, [(np.arange(4000) % 11).astype(np.int32)])
    second = views(executor)
    block = second[0].copy()
    executor.set_gradient_block(np.zeros_like(before[0]))
    del memory, executor
    gc.collect()
    others = [np.full_like(view, 7) for view in (*first, *second) for _ in range(20)]
    for view, values in zip(first, before, strict=True):
        np.testing.assert_array_equal(view, values)
    np.testing.assert_array_equal(second[0], block)
    assert len(others) == 240
    del first, second
    gc.collect()
    assert known() is None


def test_gradients_may_be_stored_in_their_own_memory():
    """The memory then has no other owner and is freed with the executor."""
    _, executor, inputs = case(d=6, h=5)
    executor.run(*inputs)
    expected = executor.gradient(W)
    executor.set_gradient_block(executor.gradient_block())
    executor.run(*inputs)
    np.testing.assert_array_equal(executor.gradient(W), expected)
    known = weakref.ref(executor)
    del executor
    gc.collect()
    assert known() is None


def test_invalid_gradient_blocks():
    _, executor, inputs = case()
    size = executor.gradient_block().size
    with pytest.raises(ValueError, match=f"memory of {size - 1} elements for {size} of gradients"):
        executor.set_gradient_block(np.zeros(size - 1))
    with pytest.raises(TypeError, match="memory of gradients is float32, needs float64"):
        executor.set_gradient_block(np.zeros(size, np.float32))
    closed = np.zeros(size)
    closed.flags.writeable = False
    with pytest.raises(ValueError, match="memory of gradients is read-only"):
        executor.set_gradient_block(closed)
    executor.run(*inputs)
    assert executor.gradient_view(W)[1].any()


def test_pieces_update_columns_and_rows_of_a_parameter():
    cell, executor, inputs = case(d=6, h=5)
    executor.run(*inputs)
    before = [p.copy() for p in cell.parameters]
    states = [[] for _ in range(5)]
    columns, rows = np.full((6, 2), 2.0), np.array([4, 1], np.int32)
    values = np.arange(12.0).reshape(2, 6)
    sgd = options("sgd", lr=1.0, weight_decay=0.0)
    pieces = [(W, columns, None, 5, 3), (TABLE, values, rows, None, 0)]
    executor.apply(pieces, sgd, states, [True] * 5, 0.5)
    before[W][:, 3:] -= 1.0
    before[TABLE][rows] -= 0.5 * values
    for a, b in zip(cell.parameters, before, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-15)
    assert executor.squared_norm(pieces) == pytest.approx((columns**2).sum() + (values**2).sum())


@pytest.mark.parametrize("kind", STATES)
def test_pieces_of_a_frozen_parameter_are_ignored(kind):
    """They need no states; other parameters are updated, and the next run sees the values."""
    cell, executor, inputs = case(d=6, h=5)
    executor.run(*inputs)
    before = [p.copy() for p in cell.parameters]
    trainable = [i != W for i in range(5)]
    states = [[np.zeros_like(p) for _ in range(STATES[kind])] for p in before]
    states[W] = []
    pieces = [(p, np.ones(before[p].size), None, None, 0) for p in (W, U)]
    executor.apply(pieces, options(kind), states, trainable)
    np.testing.assert_array_equal(cell.parameters[W], before[W])
    assert (cell.parameters[U] != before[U]).all()
    assert executor.run(*inputs) == cell.executor().run(*inputs)


@pytest.mark.parametrize(
    ("piece", "text"),
    [
        ((W, np.zeros(31), None, None, 0), "parameter 1, which has 30"),
        ((W, np.zeros((6, 3)), None, 5, 3), "parameter 1, which has 30"),
        ((W, np.zeros((1, 5)), np.array([6], np.int32), None, 0), "parameter 1, which has 30"),
        ((W, np.zeros((1, 5)), np.array([-1], np.int32), None, 0), "rows -1 to -1"),
        ((7, np.zeros(3), None, None, 0), "parameter 7"),
        ((W, np.zeros((2, 5)), np.array([0], np.int32), None, 0), "1 rows for 2 rows of values"),
    ],
)
def test_pieces_outside_a_parameter_are_rejected(piece, text):
    cell, executor, inputs = case(d=6, h=5)
    executor.run(*inputs)
    before = [p.copy() for p in cell.parameters]
    with pytest.raises((IndexError, ValueError), match=text):
        executor.apply([piece], options("sgd"), [[]] * 5, [True] * 5)
    for a, b in zip(cell.parameters, before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_factors_of_a_product_of_several_kinds():
    """None if its terms compute parts of a gradient."""
    _, executor, inputs = case(**SIZES, joined=True)
    executor.run(*inputs)
    expected = executor.gradient(W), executor.gradient(U)
    assert [executor.set_factored(p) for p in (W, U)] == [False, False]
    executor.run(*inputs)
    np.testing.assert_array_equal(executor.gradient(W), expected[0])
    np.testing.assert_array_equal(executor.gradient(U), expected[1])


def test_factors_multiply_to_the_gradient():
    _, executor, inputs = case()
    executor.run(*inputs)
    expected = {p: executor.gradient(p) for p in (W, U, B)}
    assert [executor.set_factored(p) for p in (W, U, B, TABLE)] == [True, True, False, False]
    assert executor.set_factored(W)  # a second call changes nothing: its operands are still filled
    executor.run(*inputs)
    for p in (W, U):
        left, right = executor.factors(p)
        np.testing.assert_allclose(left.T @ right, expected[p], rtol=1e-10, atol=1e-12)
        total = np.ones(expected[p].size)
        executor.add_product(left, right, total)
        np.testing.assert_allclose(
            total.reshape(expected[p].shape), expected[p] + 1, rtol=1e-10, atol=1e-12
        )
    np.testing.assert_array_equal(executor.gradient(B), expected[B])
    with pytest.raises(IndexError, match="parameter 3 is not factored"):
        executor.factors(B)


def test_step_updates_factored_parameters_with_the_current_gradient():
    """Not with that of the previous run, whose operands it does not hold."""
    whole, plain, inputs = case()
    cell, executor, _ = case()
    other = (*inputs[:2], [(inputs[2][0] + 1).astype(np.int32)])
    for e in (plain, executor):
        e.run(*other)
    expected = [executor.gradient(p) for p in (W, U)]
    assert executor.set_factored(W) and executor.set_factored(U)
    for p, gradient in zip((W, U), expected, strict=True):  # until a run keeps operands
        np.testing.assert_array_equal(executor.gradient(p), gradient)
    executor.run(*inputs)
    plain.run(*inputs)
    for p in (W, U):
        np.testing.assert_allclose(executor.gradient(p), plain.gradient(p), rtol=1e-10, atol=1e-12)
    update = options("sgd"), [[]] * 5, [True] * 5
    for batch in (other, inputs):
        found = [e.step(*batch, 0, 0, *update) for e in (plain, executor)]
        assert found[0] == pytest.approx(found[1], rel=1e-10)
    for a, b in zip(whole.parameters, cell.parameters, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
