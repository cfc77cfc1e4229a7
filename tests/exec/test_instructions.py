"""Single stages against NumPy: row maps, index arrays, scratch in chunks."""

import numpy as np
import pytest
from hand_programs import (
    EDGE,
    GRAPH,
    INNER,
    INNER_EDGE,
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

W = 6


pytestmark = pytest.mark.usefixtures("threads")


@pytest.fixture
def rng():
    return np.random.default_rng(1)


def edges_of(children):
    """(parent, child, position) of each edge, in the caller's order."""
    return [(v, c, k) for v, cs in enumerate(children) for k, c in enumerate(cs)]


def graphs_of(rng, sizes=(1, 7, 90, 30)):
    return [random_dag(rng, n, 4) for n in sizes] + [random_dag(rng, 60, 3, wide=50)]


def features(m, space, width=W, indices=(0,)):
    return [m.buffer("feature", space, width, index=i) for i in indices]


def test_product_and_map_over_all_vertices(rng):
    graphs = graphs_of(rng)
    n = sum(map(len, graphs))
    m = Hand()
    (x,) = features(m, VERTEX)
    bias = m.buffer("param", width=8, index=1)
    y = m.buffer("arena", VERTEX, 8, first=0, last=0)
    z = m.buffer("arena", VERTEX, 8, first=0, last=0)
    # Two pieces side by side, the second transposed, and rows 4.. of the second left zero.
    w = m.weight(W, 8, [(0, 0, 5, 1, W, 5, 0, 0), (2, 1, 1, 5, 4, 3, 0, 5)])
    m.rows(
        VERTEX,
        [
            m.matmul(
                VERTEX,
                [index(x, 2, "order", column=0), index(x, W - 2, "order", column=2)],
                w,
                self_(y, 8),
            ),
            m.matmul(VERTEX, [index(x, W, "order")], w, self_(z, 8)),
            m.map(
                VERTEX,
                [self_(y, 8), one(bias, 8), self_(z, 8)],
                [("add", 3, 0, 1, 0), ("tanh", 4, 3, 0, 0), ("fma", 5, 4, 2, 0)],
                [(y, 5)],
                8,
            ),
        ],
    )
    p = m.finish(outputs=[y, z])
    params = [rng.standard_normal((W, 5)), rng.standard_normal(8), rng.standard_normal((3, 5))]
    xs = rng.standard_normal((n, W))
    packed = np.zeros((W, 8))
    packed[:, :5] = params[0]
    packed[:4, 5:] = params[2].T[1:]
    e = _engine.Executor(p, params)
    assert e.run(schedule(graphs), [xs], []) == 0
    xw = xs @ packed
    np.testing.assert_allclose(e.output(z), xw, rtol=1e-12)
    np.testing.assert_allclose(
        e.output(y), np.tanh(xw + params[1]) * xw + xw, rtol=1e-10, atol=1e-13
    )
    params[0] *= 2
    e.run(schedule(graphs), [xs], [])
    np.testing.assert_allclose(e.output(z), xw, rtol=1e-12)  # packed before the change
    e.invalidate_parameters()
    e.run(schedule(graphs), [xs], [])
    packed[:, :5] *= 2
    np.testing.assert_allclose(e.output(z), xs @ packed, rtol=1e-12)


def test_chunks_with_edges_in_scratch(rng):
    """Attention over the children: scores, maximum, sum and weights stay in scratch."""
    graphs = graphs_of(rng, (400, 300, 1))
    children = batch_children(graphs)
    n = len(children)
    edges = edges_of(children)
    m = Hand()
    (x, ex) = m.buffer("feature", VERTEX, W), m.buffer("feature", EDGE, 1, index=1)
    h = m.buffer("arena", VERTEX, W, first=0, last=1)
    score = m.buffer("scratch", EDGE, 1)
    top = m.buffer("scratch", VERTEX, 1)
    total = m.buffer("scratch", VERTEX, 1)
    weighted = m.buffer("scratch", EDGE, W)
    out = m.buffer("arena", VERTEX, W, first=1, last=1)
    m.rows(VERTEX, [m.op("copy", VERTEX, inputs=[index(x, W, "order")], out=self_(h, W))])
    m.rows(
        VERTEX,
        [
            m.map(
                EDGE,
                [
                    index(h, W, "child"),
                    index(h, W, "parent"),
                    (index(ex, 1, "edge_order"), 0, True),
                ],
                [("mul", 3, 0, 1, 0), ("mul", 4, 3, 2, 0)],
                [(score, 4, "sum")],
                W,
            ),
            m.op("segment_max", VERTEX, inputs=[segment(score, 1, "edges")], out=self_(top, 1)),
            m.map(
                EDGE,
                [self_(score, 1), index(top, 1, "parent")],
                [("sub", 2, 0, 1, 0), ("exp", 3, 2, 0, 0)],
                [(score, 3)],
                1,
            ),
            m.op("copy", VERTEX, inputs=[segment(score, 1, "edges")], out=self_(total, 1)),
            m.map(
                EDGE,
                [
                    (self_(score, 1), 0, True),
                    (index(total, 1, "parent"), 0, True),
                    index(h, W, "child"),
                ],
                [("div", 3, 0, 1, 0), ("mul", 4, 3, 2, 0)],
                [(weighted, 4)],
                W,
            ),
            m.op("copy", VERTEX, inputs=[segment(weighted, W, "edges")], out=self_(out, W)),
        ],
    )
    m.finish(outputs=[out])
    xs, es = rng.standard_normal((n, W)), rng.standard_normal((len(edges), 1))
    e = _engine.Executor(m.p, [np.zeros(1)])
    expected, at = np.zeros((n, W)), 0
    for v, cs in enumerate(children):
        if cs:
            s = (xs[cs] @ xs[v]) * es[at : at + len(cs), 0]
            s = np.exp(s - s.max())
            expected[v] = (s / s.sum()) @ xs[cs]
        at += len(cs)
    for serial in [False, True]:
        e.set_serial(serial)
        e.run(schedule(graphs), [xs, es], [])
        np.testing.assert_allclose(e.output(out), expected, rtol=1e-9, atol=1e-12)


def test_scratch_in_a_stage_over_edges(rng):
    graphs = graphs_of(rng, (300, 200))
    edges = edges_of(batch_children(graphs))
    m = Hand()
    x = m.buffer("feature", EDGE, W)
    s = m.buffer("scratch", EDGE, W)
    y = m.buffer("arena", EDGE, W)
    m.rows(
        EDGE,
        [
            m.map(EDGE, [index(x, W, "edge_order")], [("exp", 1, 0, 0, 0)], [(s, 1)], W),
            m.map(EDGE, [self_(s, W)], [("add", 1, 0, 0, 0)], [(y, 1)], W),
        ],
    )
    e = _engine.Executor(m.finish(outputs=[y]), [np.zeros(1)])
    xs = rng.standard_normal((len(edges), W))
    e.run(schedule(graphs), [xs], [])
    np.testing.assert_allclose(e.output(y), 2 * np.exp(xs), rtol=1e-12)


def test_index_arrays(rng):
    graphs = graphs_of(rng)
    children = batch_children(graphs)
    edges = edges_of(children)
    n, g = len(children), len(graphs)
    graph_of = np.repeat(np.arange(g), [len(c) for c in graphs])
    m = Hand()
    x, ex = m.buffer("feature", VERTEX, W), m.buffer("feature", EDGE, W, index=1)
    gx = m.buffer("feature", GRAPH, W, index=2)
    h, eh = m.buffer("arena", VERTEX, W, last=35), m.buffer("arena", EDGE, W, last=35)
    gh, hi = m.buffer("arena", GRAPH, W, last=35), m.buffer("arena", INNER, W, last=35)
    m.rows(
        VERTEX,
        [
            m.op("copy", VERTEX, inputs=[index(x, W, "order")], out=self_(h, W)),
            m.op("copy", EDGE, inputs=[index(ex, W, "edge_order")], out=self_(eh, W)),
        ],
    )
    m.rows(GRAPH, [m.op("copy", GRAPH, inputs=[self_(gx, W)], out=self_(gh, W))])
    parents = m.buffer("arena", VERTEX, W, last=35, held="inner")
    leaves = m.buffer("arena", VERTEX, W, last=35, held="leaves")
    m.rows(
        INNER,
        [
            m.op("copy", INNER, inputs=[index(x, W, "order")], out=self_(o, W))
            for o in (hi, parents)
        ],
    )
    m.rows(LEAF, [m.op("copy", LEAF, inputs=[index(x, W, "order")], out=self_(leaves, W))])
    ones = m.buffer("ones", width=W)
    reads = {
        "child1": (VERTEX, index(h, W, "nth_child", 1)),
        "edge2": (VERTEX, index(eh, W, "nth_edge", 2)),
        "parent_if_0": (EDGE, index(h, W, "parent_if_nth", 0)),
        "parent": (EDGE, index(h, W, "parent")),
        "child": (EDGE, index(h, W, "child")),
        "graph": (VERTEX, index(gh, W, "graph_of")),
        "graph feature": (VERTEX, index(gx, W, "graph_of")),
        "int": (VERTEX, index(x, W, "index_feature", 0)),
        "edge int": (EDGE, index(x, W, "index_feature", 1)),
        "children": (VERTEX, segment(h, W, "children")),
        "edges": (VERTEX, segment(eh, W, "edges")),
        "out": (VERTEX, segment(eh, W, "out")),
        "graph rows": (GRAPH, segment(h, W, "graph_rows")),
        "graph roots": (GRAPH, segment(h, W, "graph_roots")),
        "graph leaves": (GRAPH, segment(h, 3, "graph_leaves", column=1)),
        "graphs of a leaf": (VERTEX, segment(gh, W, "leaf_graphs")),
        "graphs of a row": (VERTEX, segment(gh, W, "row_graphs")),
        "graphs of a root": (VERTEX, segment(gh, 2, "root_graphs", column=3)),
        "feature of a root's graphs": (LEAF, segment(gx, W, "root_graphs")),
        "inner children": (INNER, segment(h, 2, "children", column=3)),
        "inner parent": (INNER_EDGE, index(h, W, "parent")),
        "parents": (VERTEX, segment(h, W, "nth_parents", 1)),
        "all parents": (VERTEX, segment(h, W, "parents")),
        "inner parents": (VERTEX, segment(hi, 2, "nth_parents", 0, column=3)),
        "arity": (VERTEX, segment(ones, W, "edges")),
        "held parent": (EDGE, index(parents, W, "parent")),
        "held parents": (VERTEX, segment(parents, W, "nth_parents", 1)),
        "all held parents": (LEAF, segment(parents, 2, "parents", column=1)),
        "held inner": (INNER, self_(parents, W)),
        "held leaves": (LEAF, self_(leaves, 3, column=2)),
        "leaf child": (VERTEX, index(leaves, W, "nth_leaf", 0)),
        "leaf child of all": (VERTEX, index(h, W, "nth_leaf", 1)),
    }
    outs = {}
    for i, (name, (space, read)) in enumerate(reads.items()):
        width = read[2]
        outs[name] = m.buffer("arena", space, width, first=4 + i, last=4 + i)
        m.p.add_stage(
            {
                "type": "rows",
                "space": space - space % 2 if space in (3, 7) else space,
                "body": [
                    m.op("copy", space, inputs=[read], out=self_(outs[name], width), label=name)
                ],
            }
        )
    xs, es = rng.standard_normal((n, W)), rng.standard_normal((len(edges), W))
    gs = rng.standard_normal((g, W))
    ints = rng.integers(-1, n, n).astype(np.int32)
    edge_ints = rng.integers(-1, n, len(edges)).astype(np.int32)
    first_edge = np.cumsum([0, *map(len, children)])
    zero = np.zeros(W)
    inner = [len(c) > 0 for c in children]
    root = ~np.isin(np.arange(n), [c for _, c, _ in edges])
    expected = {
        "child1": [xs[c[1]] if len(c) > 1 else zero for c in children],
        "edge2": [es[first_edge[v] + 2] if len(c) > 2 else zero for v, c in enumerate(children)],
        "parent_if_0": [xs[v] if k == 0 else zero for v, _, k in edges],
        "parent": [xs[v] for v, _, _ in edges],
        "child": [xs[c] for _, c, _ in edges],
        "graph": gs[graph_of],
        "graph feature": gs[graph_of],
        "int": [xs[i] if i >= 0 else zero for i in ints],
        "edge int": [xs[i] if i >= 0 else zero for i in edge_ints],
        "children": [xs[c].sum(0) if c else zero for c in children],
        "edges": [es[first_edge[v] : first_edge[v + 1]].sum(0) for v in range(n)],
        "out": [sum((es[i] for i, e in enumerate(edges) if e[1] == v), zero) for v in range(n)],
        "graph rows": [xs[graph_of == i].sum(0) for i in range(g)],
        "graph roots": [xs[(graph_of == i) & root].sum(0) for i in range(g)],
        "graph leaves": [xs[(graph_of == i) & ~np.array(inner)].sum(0)[1:4] for i in range(g)],
        "graphs of a leaf": np.where(np.array(inner)[:, None], 0.0, gs[graph_of]),
        "graphs of a row": gs[graph_of],
        "graphs of a root": np.where(root[:, None], gs[graph_of], 0.0)[:, 3:5],
        "feature of a root's graphs": [
            gs[graph_of[v]] if root[v] and not inner[v] else zero for v in range(n)
        ],
        "inner children": [
            xs[c].sum(0)[3:5] if i else zero[:2] for i, c in zip(inner, children, strict=True)
        ],
        "inner parent": [xs[v] for v, _, _ in edges],
        "parents": [sum((xs[u] for u, c, k in edges if c == v and k == 1), zero) for v in range(n)],
        "all parents": [sum((xs[u] for u, c, _ in edges if c == v), zero) for v in range(n)],
        "all held parents": [
            zero[:2] if i else sum((xs[u] for u, c, _ in edges if c == v), zero)[1:3]
            for v, i in enumerate(inner)
        ],
        "held parents": [
            sum((xs[u] for u, c, k in edges if c == v and k == 1), zero) for v in range(n)
        ],
        "inner parents": [
            sum((xs[u] for u, c, k in edges if c == v and k == 0), zero)[3:5] for v in range(n)
        ],
        "arity": [[len(c)] * W for c in children],
        "held parent": [xs[v] for v, _, _ in edges],
        "held inner": [x if i else zero for i, x in zip(inner, xs, strict=True)],
        "held leaves": [zero[:3] if i else x[2:5] for i, x in zip(inner, xs, strict=True)],
        "leaf child": [xs[c[0]] if c and not inner[c[0]] else zero for c in children],
        "leaf child of all": [
            xs[c[1]] if len(c) > 1 and not inner[c[1]] else zero for c in children
        ],
    }
    e = _engine.Executor(m.finish(outputs=outs.values()), [np.zeros(1)])
    e.run(schedule(graphs), [xs, es, gs], [ints, edge_ints])
    for name, buffer in outs.items():
        np.testing.assert_allclose(
            e.output(buffer), np.array(expected[name]), rtol=1e-12, atol=1e-13, err_msg=name
        )


def test_cross_entropy(rng):
    graphs = graphs_of(rng)
    n = sum(map(len, graphs))
    m = Hand()
    (x,) = features(m, VERTEX, 9)
    loss = m.buffer("arena", VERTEX, 1, first=0, last=1)
    grad = m.buffer("arena", VERTEX, 9, first=0, last=1)
    total = m.buffer("arena", ONE, 1, first=1, last=1)
    logits = index(x, 9, "order")
    m.rows(
        VERTEX,
        [
            m.op("cross_entropy", VERTEX, inputs=[logits], out=self_(loss, 1)),
            m.op("cross_entropy_grad", VERTEX, inputs=[logits], out=self_(grad, 9)),
        ],
    )
    m.global_(m.op("sum_rows", VERTEX, inputs=[self_(loss, 1)], out=self_(total, 1)))
    e = _engine.Executor(m.finish(total, [loss, grad]), [np.zeros(1)])
    xs, labels = rng.standard_normal((n, 9)), rng.integers(-1, 9, n).astype(np.int32)
    got = e.run(schedule(graphs), [xs], [labels])
    logp = xs - np.log(np.exp(xs).sum(1, keepdims=True))
    rows = labels >= 0
    expected = np.where(rows, -logp[np.arange(n), labels], 0)
    np.testing.assert_allclose(got, expected.sum(), rtol=1e-10)
    np.testing.assert_allclose(e.output(loss)[:, 0], expected, rtol=1e-8, atol=1e-12)
    p = np.exp(logp)
    p[np.arange(n)[rows], labels[rows]] -= 1
    np.testing.assert_allclose(e.output(grad), p * rows[:, None], rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("dense", [False, True])
def test_two_lookups_of_one_table(rng, dense):
    """One table read at vertices and at edges: the gradients add up."""
    graphs = graphs_of(rng)
    children = batch_children(graphs)
    n, edges = len(children), sum(map(len, children))
    m = Hand()
    (x,) = features(m, VERTEX)
    table, grad = m.buffer("param", width=W), m.buffer("grad", width=W) if dense else -1
    y = m.buffer("arena", VERTEX, W, first=1, last=3)
    if dense:
        m.rows(ONE, [m.map(ONE, [one(table, 40 * W)], [("add", 1, 0, 0, 0)], [(grad, 1)], 40 * W)])
    else:
        m.rows(ONE, [])
    m.rows(
        VERTEX,
        [
            m.map(
                VERTEX,
                [index(x, W, "order"), index(table, W, "index_feature", 0)],
                [("add", 2, 0, 1, 0)],
                [(y, 2)],
                W,
            )
        ],
    )
    m.global_(m.op("lookup_grad", VERTEX, inputs=[self_(y, W)], argument=0, argument2=0))
    m.global_(m.op("lookup_grad", EDGE, inputs=[index(y, W, "child")], argument=1, argument2=0))
    values = rng.standard_normal((40, W))
    e = _engine.Executor(m.finish(outputs=[y]), [values])
    xs = rng.standard_normal((n, W))
    at_vertex = rng.integers(-1, 30, n).astype(np.int32)
    at_edge = rng.integers(20, 40, edges).astype(np.int32)
    e.run(schedule(graphs), [xs], [at_vertex, at_edge])
    ys = e.output(y)
    expected = np.zeros((40, W))
    np.add.at(expected, at_vertex[at_vertex >= 0], ys[at_vertex >= 0])
    np.add.at(expected, at_edge, ys[[c for _, c, _ in edges_of(children)]])
    expected += 2 * values * dense
    np.testing.assert_allclose(e.gradient(0), expected, rtol=1e-10, atol=1e-12)
    if dense:
        assert e.gradient_rows(0) is None
        return
    rows, _ = e.gradient_rows(0)
    touched = np.union1d(at_vertex[at_vertex >= 0], at_edge)
    np.testing.assert_array_equal(rows, touched)


def test_uniform_depends_on_seed_step_and_vertex_only(rng):
    graphs = graphs_of(rng)
    m = Hand()
    u = m.buffer("arena", VERTEX, W)
    m.rows(VERTEX, [m.map(VERTEX, [], [("uniform", 0, 0, 0, 0, 3.0)], [(u, 0)], W)])
    e = _engine.Executor(m.finish(outputs=[u]), [np.zeros(1)])

    def draw(seed, step):
        e.run(schedule(graphs), [], [], seed, step)
        return e.output(u)

    first = draw(1, 1)
    assert 0 <= first.min() < 0.05 and 0.95 < first.max() < 1
    assert len(np.unique(first)) == first.size
    np.testing.assert_array_equal(first, draw(1, 1))
    assert (first != draw(2, 1)).mean() > 0.99
    assert (first != draw(1, 2)).mean() > 0.99
    e.set_serial(True)
    np.testing.assert_array_equal(first, draw(1, 1))


@pytest.mark.parametrize(("count", "k", "n"), [(200, W, 8), (3, 256, 600)])  # by rows, by columns
def test_rows_without_parents_are_not_multiplied(rng, count, k, n):
    """Rows of a kind and level are sorted by which child they are: first all first children."""
    m = Hand()
    (x,) = features(m, VERTEX, k)
    y = m.buffer("arena", VERTEX, k, first=0, last=1)
    out = [m.buffer("arena", VERTEX, n, first=1, last=1) for _ in range(3)]
    weights = [m.weight(k, n, [(i, 0, n, 1, k, n, 0, 0)]) for i in range(2)]
    m.rows(VERTEX, [m.op("copy", VERTEX, inputs=[index(x, k, "order")], out=self_(y, k))])
    terms = [([0], [0]), ([0, 1], [1, 0]), ([0], [1])]  # children and weights per result
    m.rows(
        VERTEX,
        [
            m.matmul(
                VERTEX,
                [segment(y, k, "nth_parents", child)],
                weights[w],
                self_(o, n),
                accumulate=i > 0,
            )
            for o, (children, of) in zip(out, terms, strict=True)
            for i, (child, w) in enumerate(zip(children, of, strict=True))
        ],
    )
    p = m.finish(outputs=out)
    params = [rng.standard_normal((k, n)), rng.standard_normal((k, n))]
    xs = rng.uniform(1, 2, (3 * count, k))
    e = _engine.Executor(p, params)
    batch = schedule([[[], [], [0, 1]]] * count)
    e.run(batch, [xs], [])
    first, second, roots = (np.arange(i, 3 * count, 3) for i in range(3))
    of_parents = xs[roots]
    found = [e.output(o) for o in out]
    for rows, w in ((first, 1), (second, 0)):
        np.testing.assert_allclose(found[1][rows], of_parents @ params[w], rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(found[0][first], of_parents @ params[0], rtol=1e-11, atol=1e-11)
    assert not any(found[o][rows].any() for o in (0, 2) for rows in (second, roots))
    assert not found[1][roots].any()
    params[0][:, n - 1] = np.inf  # multiplying it would show
    e.invalidate_parameters()
    e.run(batch, [xs], [])
    wide = e.output(out[0])
    assert np.isinf(wide[first, n - 1]).all()
    assert not wide[second].any() and not wide[roots].any()
