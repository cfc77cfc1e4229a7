import threading
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cavs import _engine
from cavs.data import Graph, batch
from cavs.errors import GraphError
from tests.data.dags import child_lists, kind_order, naive_numbers, naive_schedule, random_children


def schedule_of(graphs, presence=None):
    return _engine.make_schedule(_engine.collate([g.topology for g in graphs]), presence)


def check_invariants(s):
    """Check the properties that passes and kernels rely on; vectorised, for large batches."""
    n, m = s.batch.num_vertices, s.batch.num_edges
    assert np.array_equal(np.sort(s.order), np.arange(n))
    assert np.array_equal(s.row[s.order], np.arange(n))
    assert np.array_equal(np.sort(s.edge_order), np.arange(m))
    counts = np.diff(s.edge_offsets)
    assert s.edge_offsets[0] == 0 and s.edge_offsets[-1] == m and (counts >= 0).all()
    assert np.array_equal(s.parent, np.repeat(np.arange(n), counts))
    assert s.max_arity == counts.max()

    level = np.concatenate([g.level for g in s.batch.graphs])[s.order]
    assert (level[s.child] < level[s.parent]).all()

    kind = np.full(n, -1)
    for i, (key, (begin, end), edges) in enumerate(s.kinds):
        assert begin < end and edges == (s.edge_offsets[begin], s.edge_offsets[end])
        assert ((counts[begin:end] > 0) == (key & 1)).all()
        kind[begin:end] = i
    assert (np.diff(kind) >= 0).all() and kind.min() == 0
    keys = [key for key, *_ in s.kinds]
    assert keys == sorted(set(keys), key=kind_order)

    covered = np.zeros(n, np.int64)
    for k, lv, (begin, end), edges in s.tasks:
        assert begin < end and edges == (s.edge_offsets[begin], s.edge_offsets[end])
        assert (kind[begin:end] == k).all() and (level[begin:end] == lv).all()
        covered[begin:end] += 1
    assert (covered == 1).all()
    check_order(s)
    places = [(lv, k) for k, lv, *_ in s.tasks]
    assert places == sorted(set(places))

    by_child = np.argsort(s.child, kind="stable")
    assert np.array_equal(s.out_edges, by_child)
    assert np.array_equal(np.diff(s.out_offsets), np.bincount(s.child, minlength=n))
    sizes = np.diff(s.batch.vertex_offsets)
    assert np.array_equal(s.graph_of[s.row], np.repeat(np.arange(len(sizes)), sizes))
    assert np.array_equal(s.graph_offsets, s.batch.vertex_offsets)
    assert np.array_equal(s.graph_rows, s.row)


def check_order(s):
    """Rows of a task are sorted by number as a child, then by vertex."""
    graphs = ([g.children[a:b] for a, b in pairwise(g.offsets)] for g in s.batch.graphs)
    numbers = np.concatenate([naive_numbers(children) for children in graphs])
    place = numbers[s.order] * len(s.order) + s.order
    for _, _, (begin, end), _ in s.tasks:
        assert (np.diff(place[begin:end]) > 0).all()


def check_graphs(s, graphs, row):
    """row: the row of every vertex of "graphs"; a row may represent several."""
    first = 0
    rows, roots, leaves = ([[] for _ in s.order] for _ in range(3))  # the graphs of each row
    for g, graph in enumerate(graphs):
        vertices = range(graph.num_vertices)
        children = {int(c) for v in vertices for c in graph.children(v)}
        ends = [v for v in vertices if v not in children]
        starts = [v for v in vertices if len(graph.children(v)) == 0]
        for (offsets, found), expected in ((s.graph_roots, ends), (s.graph_leaves, starts)):
            of_graph = found[offsets[g] : offsets[g + 1]].tolist()
            assert of_graph == [row[first + v] for v in expected]
        for some, of_row in ((vertices, rows), (ends, roots), (starts, leaves)):
            for v in some:
                of_row[row[first + v]].append(g)
        first += graph.num_vertices
    for found, expected in (
        (s.row_graphs, rows),
        (s.root_graphs, roots),
        (s.leaf_graphs, leaves),
    ):
        offsets, numbers = found
        assert offsets.tolist() == np.cumsum([0, *map(len, expected)]).tolist()
        assert numbers.tolist() == [g for some in expected for g in some]


def check_derived(s, arities):
    counts = np.diff(s.edge_offsets)
    assert np.array_equal(s.out_parents, s.parent[s.out_edges])
    for k in arities:
        has = counts > k
        edge = np.where(has, s.edge_offsets[:-1] + k, -1)
        assert np.array_equal(s.nth_edge(k), edge)
        nth_child = s.nth_child(k)
        assert (nth_child[~has] == -1).all()
        assert np.array_equal(nth_child[has], s.child[edge[has]])
        leaf = np.array([c if c >= 0 and counts[c] == 0 else -1 for c in nth_child.tolist()])
        assert np.array_equal(s.nth_leaf(k), leaf)
        parent = np.full(len(s.child), -1)
        parent[edge[has]] = np.flatnonzero(has)
        assert np.array_equal(s.parent_if_nth(k), parent)
        offsets, rows = s.nth_parents(k)
        of_child = np.argsort(nth_child[has], kind="stable")
        assert np.array_equal(rows, np.flatnonzero(has)[of_child])
        assert np.array_equal(np.diff(offsets), np.bincount(nth_child[has], minlength=len(has)))


@given(st.lists(child_lists(max_vertices=8), min_size=1, max_size=4), st.data())
def test_graphs_of_merged_vertices(lists, data):
    graphs = [Graph(children) for children in lists]
    graphs += data.draw(st.lists(st.sampled_from(graphs), max_size=3))
    whole = batch(graphs)
    merged = whole.merged(())
    s = merged.schedule()
    assert s.batch is merged.topology and len(s.order) == merged.num_vertices
    row = s.row[merged.distinct]
    check_graphs(s, graphs, row.tolist())
    assert np.array_equal(s.graph_rows, row)
    check_order(s)
    assert np.array_equal(s.graph_offsets, whole.topology.vertex_offsets)
    assert len(s.graph_of) == 0


def test_the_map_of_merged_vertices_is_checked():
    two = _engine.collate([Graph([[], [0]]).topology])
    three = _engine.collate([Graph([[], [0], [0]]).topology])
    with pytest.raises(ValueError, match="distinct must be one-dimensional of 3 values, found 2"):
        _engine.make_schedule(two, None, (three, np.zeros(2, np.int32)))
    for wrong in (2, -1):
        with pytest.raises(ValueError, match=f"vertex {wrong} stands for vertex 1, there are 2"):
            _engine.make_schedule(two, None, (three, np.array([0, wrong, 1], np.int32)))
    with pytest.raises(TypeError, match="merged from no batch"):
        _engine.make_schedule(two, None, (None, np.zeros(3, np.int32)))


@settings(max_examples=150)
@given(st.lists(child_lists(max_vertices=12), min_size=1, max_size=4), st.data())
def test_schedule_equals_the_naive_one(batches, data):
    graphs = [Graph(children) for children in batches]
    n = sum(g.num_vertices for g in graphs)
    masks = st.lists(st.sampled_from([0, 1, 2, 2**32 - 1]), min_size=n, max_size=n)
    presence = np.array(data.draw(masks), np.uint32)
    s = schedule_of(graphs, presence)
    check_graphs(s, graphs, s.row.tolist())
    keys, levels, order, edges, edge_order = naive_schedule(graphs, presence)
    assert s.order.tolist() == order
    assert list(zip(s.parent.tolist(), s.child.tolist(), strict=True)) == edges
    assert s.edge_order.tolist() == edge_order
    assert [key for key, *_ in s.kinds] == sorted(set(keys), key=kind_order)
    assert len(s.tasks) == len(set(zip(keys, levels, strict=True)))
    assert s.num_levels == max(levels) + 1
    check_invariants(s)
    check_derived(s, range(s.max_arity + 2))


@given(st.lists(child_lists(max_vertices=12), min_size=1, max_size=4), st.data())
def test_siblings_stay_neighbours(batches, data):
    """Without the sort by number, rows of a task have the order of the batch."""
    graphs = [Graph(children) for children in batches]
    n = sum(g.num_vertices for g in graphs)
    masks = st.lists(st.sampled_from([0, 1, 2]), min_size=n, max_size=n)
    presence = np.array(data.draw(masks), np.uint32)
    topology = _engine.collate([g.topology for g in graphs])
    s = _engine.make_schedule(topology, presence, by_number=False)
    keys, levels, *_ = naive_schedule(graphs, presence)
    expected = sorted(range(n), key=lambda v: (kind_order(keys[v]), levels[v], v))
    assert s.order.tolist() == expected
    assert len(s.tasks) == len(set(zip(keys, levels, strict=True)))
    check_graphs(s, graphs, s.row.tolist())
    check_derived(s, range(s.max_arity + 2))
    whole = batch(graphs)
    assert whole.schedule((), False) is whole.schedule((), False) is not whole.schedule()


@pytest.mark.parametrize(("n", "max_arity"), [(1, 0), (50, 0), (300, 1), (500, 50), (3000, 3)])
def test_random_shapes(n, max_arity):
    rng = np.random.default_rng(n)
    graphs = [Graph(random_children(rng, size, max_arity)) for size in (n, 1, max(1, n // 3))]
    total = sum(g.num_vertices for g in graphs)
    for presence in (None, rng.integers(0, 4, total).astype(np.uint32)):
        s = schedule_of(graphs, presence)
        check_invariants(s)
        check_derived(s, (0, 1, max_arity, 70))


def test_more_kinds_times_levels_than_vertices():
    n = 3000
    s = schedule_of([Graph.chain(n)], np.arange(n, dtype=np.uint32)[::-1].copy())
    check_invariants(s)
    assert len(s.kinds) == n and len(s.tasks) == n


def test_more_kinds_times_levels_than_vertices_in_deep_trees():
    """Vertices with two children: rows are sorted by the number of a child in a pass of its own."""
    children = [[], [], *([v - 2, v - 1] if v % 2 == 0 else [] for v in range(2, 2000))]
    kinds = np.arange(2 * len(children), dtype=np.uint32) % 40
    s = schedule_of([Graph(children), Graph(children)], kinds)
    check_invariants(s)
    assert len(s.kinds) * s.num_levels * 2 > 2 * len(s.order)


def test_no_mask_is_a_mask_of_zeros():
    graphs = [Graph([[], [0], [0, 1]]), Graph([[]])]
    s, t = schedule_of(graphs), schedule_of(graphs, np.zeros(4, np.uint32))
    assert s.tasks == t.tasks and s.kinds == t.kinds and s.order.tolist() == t.order.tolist()


def test_a_chain_of_5000_is_one_task_per_vertex():
    s = schedule_of([Graph.chain(5000), Graph.chain(5000).reversed()])
    check_invariants(s)
    assert len(s.tasks) == 5000
    assert all(end - begin == 2 for _, _, (begin, end), _ in s.tasks)


@pytest.mark.parametrize("shape", ["chain", "star", "binary"])
def test_a_million_vertices(shape):
    n = 1_000_000
    if shape == "chain":
        graph = Graph.chain(n)
    elif shape == "star":
        graph = Graph.from_parents(np.where(np.arange(n) == n // 2, -1, n // 2))
    else:
        graph = Graph.from_parents((np.arange(n) - 1) // 2)
    s = schedule_of([graph])
    assert s.num_levels == {"chain": n, "star": 2, "binary": 20}[shape]
    assert len(s.tasks) == s.num_levels  # leaves at level 0, inner vertices above
    assert np.array_equal(s.row[s.order], np.arange(n, dtype=np.int32))
    level = graph.topology.level[s.order]
    assert (level[s.child] < level[s.parent]).all()
    assert np.array_equal(s.child[s.out_edges], np.sort(s.child))


def test_permutations_of_features():
    graph = Graph([[1, 2], [], [3], []])
    s = schedule_of([graph])
    values = np.array([10, 11, 12, 13], np.int32)
    assert s.permute_vertices(values).tolist() == values[s.order].tolist()
    edges = np.array([5, 6, 7], np.int32)
    assert s.permute_edges(edges).tolist() == edges[s.edge_order].tolist()
    with pytest.raises(ValueError, match="of 4 values, found 3"):
        s.permute_vertices(edges)
    with pytest.raises(ValueError, match="of 3 values, found 4"):
        s.permute_edges(values)


def test_views_keep_the_schedule_and_cannot_be_written():
    order = schedule_of([Graph.chain(4)]).order
    child = schedule_of([Graph.chain(4)]).nth_child(0)
    assert order.tolist() == [1, 2, 3, 0] and child.tolist() == [3, 0, 1, -1]
    with pytest.raises(ValueError, match="read-only"):
        order[0] = 1


def test_bad_arguments():
    with pytest.raises(GraphError, match="at least one graph"):
        _engine.collate([])
    with pytest.raises(GraphError, match="found none in its list"):
        _engine.collate([None])
    batch = _engine.collate([Graph.chain(3).topology])
    with pytest.raises(ValueError, match="of 3 values, found 2"):
        _engine.make_schedule(batch, np.zeros(2, np.uint32))
    with pytest.raises(TypeError):
        _engine.make_schedule(None)
    with pytest.raises(TypeError):
        _engine.make_schedule(batch, np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="at least 0, found -1"):
        _engine.make_schedule(batch).nth_child(-1)
    with pytest.raises(ValueError, match="one dimension"):
        _engine.Graph(np.zeros((1, 2), np.int32), np.zeros(0, np.int32))
    with pytest.raises(ValueError, match="int32 or float32"):
        _engine.Sample(Graph.chain(3).topology, [np.array([None, None])], None)
    one = Graph.chain(3, features={"a": [1, 2, 3]})
    with pytest.raises(ValueError, match="0 features, the sample has 1"):
        one.views([])
    like = [one.features["a"]], [], [], []
    wrong = _engine.Sample(one.topology, [], one.schema)  # has the same kind, and no feature
    with pytest.raises(ValueError, match="a sample has 0 features, needs 1"):
        _engine.collate_samples([wrong], like)
    with pytest.raises(ValueError, match="no column 0 in a sample of 0 features"):
        _engine.collate_samples([one, Graph.chain(3)], like, np.zeros((2, 1), np.int32))
    with pytest.raises(ValueError, match="1 numbers of columns, 2 samples of 1 features need 2"):
        _engine.collate_samples([one, Graph.chain(3)], like, np.zeros((1, 1), np.int32))
    with pytest.raises(
        ValueError, match="feature 0 has 12 bytes in the samples, rows of its shape need 24"
    ):
        _engine.collate_samples([one], ([np.zeros((3, 2), np.int32)], [], [], []))


def test_threads_share_derived_arrays():
    rng = np.random.default_rng(0)
    s = schedule_of([Graph(random_children(rng, 2000, 4))])
    found = []

    def ask():
        found.append([int(s.nth_child(k).sum()) + int(s.parent_if_nth(k).sum()) for k in range(5)])

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and all(sums == found[0] for sums in found)


def test_masks_of_optional_features():
    a, b = np.array([3, -1, -1, 0], np.int32), np.array([-1, 0, 0, 5], np.int32)
    assert _engine.presence_masks([a, b]).tolist() == [1, 2, 2, 3]
    rows, leaf = np.array([3, 0], np.int32), np.array([0b10, 0b11], np.uint32)
    assert _engine.presence_masks([a, b], rows, leaf, [1]).tolist() == [0b111, 0b011]
    assert _engine.presence_masks([], None, leaf, [0, 1]).tolist() == [0b10, 0b11]
    for wrong, message in (
        (([],), "masks of no rows"),
        (([a, b[:2]],), "a feature must be one-dimensional of 4 values, found 2"),
        (([a], np.array([4], np.int32)), "row 0 is of vertex 4, there are 4"),
        (([a], rows, leaf[:1]), "leaf must be one-dimensional of 2 values"),
        (([a], rows, None, [0]), "child_numbers need leaf"),
        (([a], rows, leaf, [32]), "no bit 32 in leaf"),
        (([a] * 31, rows, leaf, [0, 1]), "at most 32 features may be absent, found 33"),
    ):
        with pytest.raises(ValueError, match=message):
            _engine.presence_masks(*wrong)
