"""Maps summed over the edges to the parents of a row: results and validation."""

import numpy as np
import pytest
from hand_programs import (
    EDGE,
    INNER,
    LEAF,
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


@pytest.mark.parametrize("columns", [6, 300])
def test_outward_map(threads, columns):
    """Reads the row, each parent and the edge to it; three blocks, one of them a single row."""
    rng = np.random.default_rng(1)
    graphs = [random_dag(rng, n, 4) for n in (1, 7, 90, 30)] + [random_dag(rng, 60, 3, wide=50)]
    children = batch_children(graphs)
    edges, n = [(v, c) for v, cs in enumerate(children) for c in cs], len(children)
    width = 3 * columns
    m = Hand()
    x, weight = m.buffer("feature", VERTEX, width), m.buffer("feature", EDGE, 1, index=1)
    scale = m.buffer("param", width=columns)
    h, parents = (m.buffer("arena", VERTEX, width, last=2, held=held) for held in ("all", "inner"))
    ew, out = m.buffer("arena", EDGE, 1, last=2), m.buffer("arena", VERTEX, width, first=2, last=2)
    first = [m.op("copy", VERTEX, inputs=[index(x, width, "order")], out=self_(h, width))]
    first.append(m.op("copy", EDGE, inputs=[index(weight, 1, "edge_order")], out=self_(ew, 1)))
    m.rows(VERTEX, first)
    kept = m.op("copy", INNER, inputs=[index(x, width, "order")], out=self_(parents, width))
    m.p.add_stage({"type": "rows", "space": INNER, "body": [kept]})
    loads = [
        (self_(h, width), columns, False),
        (index(parents, width, "parents"), columns, False),
        (index(ew, 1, "out"), 0, True),
        (one(scale, columns), 0, False),
    ]
    ops = [("mul", 4, 0, 1, 0, 0.0), ("fma", 4, 4, 2, 3, 0.0)]
    total = m.op(
        "map",
        VERTEX,
        loads=loads,
        ops=ops,
        stores=[(out, 0, columns, "write", 4)],
        registers=5,
        outer=3,
        inner=columns,
        outward=True,
    )
    m.rows(VERTEX, [total])
    xs, ws = rng.standard_normal((n, width)), rng.standard_normal((len(edges), 1))
    s = rng.standard_normal(columns)
    expected = np.zeros((n, width))
    for (parent, child), w in zip(edges, ws, strict=True):
        expected[child] += xs[child] * xs[parent] * w + np.tile(s, 3)
    e = _engine.Executor(m.finish(outputs=[out]), [s])
    e.run(schedule(graphs), [xs, ws], [])
    np.testing.assert_allclose(e.output(out), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("space", "read", "ops", "store", "outward", "message"),
    [
        (EDGE, self_, [], "write", True, "sums over parents of rows of edge"),
        (VERTEX, self_, [], "sum", True, "sums over parents and over columns"),
        (VERTEX, self_, [("uniform", 1, 0, 0, 0)], "write", True, "draws numbers for each parent"),
        (VERTEX, index, [], "write", False, "by index with array parents"),
        (VERTEX, index, [], "write", True, "through parents"),
    ],
)
def test_invalid_outward_maps(space, read, ops, store, outward, message):
    """The last case reads rows of leaves, which are no parents."""
    m = Hand()
    held, last = ("leaves", 1) if read is index else ("all", 0)
    x, out = m.buffer("feature", VERTEX, 4), m.buffer("arena", space, 4, last=last)
    h = m.buffer("arena", VERTEX if read is index else space, 4, last=last, held=held)
    if held == "leaves":
        m.rows(LEAF, [m.op("copy", LEAF, inputs=[index(x, 4, "order")], out=self_(h, 4))])
    load = index(h, 4, "parents") if read is index else self_(h, 4)
    number = m.map(space, [load], ops, [(out, 0, store)], 4, outward=outward)
    m.rows(VERTEX, [number])
    with pytest.raises(ValueError, match=message):
        m.finish(outputs=[out])
