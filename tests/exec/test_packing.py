"""Packed weights that are windows of others."""

import numpy as np
import pytest
from hand_programs import INNER, LEAF, VERTEX, Hand, index, random_dag, schedule, self_

from cavs import _engine


@pytest.fixture(autouse=True)
def one_thread_afterwards():
    yield
    _engine.set_num_threads(1)


@pytest.mark.parametrize("threads", [1, 2])
def test_windows_are_read_from_the_packed_whole(threads):
    """Rows and columns of a packed matrix that start at a panel are not packed again."""
    rng = np.random.default_rng(1)
    k, n = 70, 200
    graphs = [random_dag(rng, size, 4) for size in (1, 7, 90, 30)]
    rows = sum(map(len, graphs))
    parts = {  # first row, first column, rows, columns; of the matrix or its transpose
        "whole": (False, 0, 0, k, n),
        "rows": (False, 20, 0, 30, n),
        "both": (False, 7, 64, 60, 100),
        "between panels": (False, 0, 3, k, 90),
        "transposed": (True, 0, 0, n, k),
        "columns": (True, 0, 64, n, 5),
        "corner": (True, 100, 64, 100, 6),
    }

    def packed_bytes(names):
        m = Hand()
        x = m.buffer("feature", VERTEX, n)
        outs, body = {}, []
        for name in names:
            flipped, row, column, height, width = parts[name]
            steps = (1, n) if flipped else (n, 1)
            offset = row * steps[0] + column * steps[1]
            w = m.weight(height, width, [(0, offset, *steps, height, width, 0, 0)])
            outs[name] = m.buffer("arena", VERTEX, width)
            body.append(m.matmul(VERTEX, [index(x, height, "order")], w, self_(outs[name], width)))
        m.rows(VERTEX, body)
        value, xs = rng.standard_normal((k, n)), rng.standard_normal((rows, n))
        e = _engine.Executor(m.finish(outputs=list(outs.values())), [value])
        _engine.set_num_threads(threads)
        for _ in range(2):
            e.run(schedule(graphs), [xs], [])
            for name, out in outs.items():
                flipped, row, column, height, width = parts[name]
                matrix = value.T if flipped else value
                expected = xs[:, :height] @ matrix[row : row + height, column : column + width]
                np.testing.assert_allclose(e.output(out), expected, rtol=1e-12, atol=1e-12)
            value += 1.0
            e.invalidate_parameters()
        return e.report()["packed_bytes"]

    alone = {name: packed_bytes([name]) for name in parts}
    whole = [name for name in parts if name in ("whole", "between panels", "transposed")]
    assert packed_bytes(list(parts)) == sum(alone[name] for name in whole)
    assert packed_bytes(list(parts)[::-1]) == sum(alone[name] for name in whole)


def loop_of_two_kinds(value, threads):
    """Return an executor whose kinds of vertices read a weight each, and its output.

    Vertices with children multiply by the second half of `value`, others by the first.
    """
    k, n = 24, 16
    m = Hand()
    x, out = m.buffer("feature", VERTEX, k), m.buffer("arena", VERTEX, n)
    weights = [m.weight(k, n, [(0, i * k * n, n, 1, k, n, 0, 0)]) for i in (0, 1)]
    m.loop(
        [
            [m.matmul(kind, [index(x, k, "order")], weight, self_(out, n))]
            for kind, weight in zip((LEAF, INNER), weights, strict=True)
        ]
    )
    _engine.set_num_threads(threads)
    return _engine.Executor(m.finish(outputs=[out]), [value]), out


@pytest.mark.parametrize("threads", [1, 2])
def test_weights_are_packed_when_a_batch_reads_them(threads):
    """A weight that no task has read since parameters were written stays to be packed."""
    rng = np.random.default_rng(2)
    value = rng.standard_normal((2, 24, 16))
    e, out = loop_of_two_kinds(value, threads)
    leaves, both = [[[]] * 5], [[[], [], [0, 1], [2]]]

    def check(graphs):
        inner = [bool(children) for graph in graphs for children in graph]
        xs = rng.standard_normal((len(inner), 24))
        e.run(schedule(graphs), [xs], [])
        expected = [x @ value[int(i)] for x, i in zip(xs, inner, strict=True)]
        np.testing.assert_allclose(e.output(out), expected, rtol=1e-12, atol=1e-12)

    for graphs in (leaves, both, leaves, leaves, both, both):
        check(graphs)
        value += 1.0
        e.invalidate_parameters()
        check(graphs)
        check(both if graphs is leaves else leaves)
