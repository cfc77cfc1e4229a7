"""Children at positions of which some are empty: structure, schedules, values and gradients."""

from __future__ import annotations

import pickle
from itertools import pairwise
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cavs
from cavs import _engine, nn, ops
from cavs.compiler.pipeline import Passes
from cavs.data import Graph, batch
from cavs.errors import FeatureError, GraphError
from cavs.runtime import program_cache
from cavs.train.data_set import digest_of
from tests.data.dags import (
    child_lists,
    naive_levels,
    naive_schedule,
    random_children,
    with_gaps,
)
from tests.draws import examples
from tests.oracle import assert_close, reference

WIDTH = 3


def trimmed(children):
    """Child lists without the empty positions behind the last child, which say nothing."""
    kept = [max((k + 1 for k, c in enumerate(kids) if c >= 0), default=0) for kids in children]
    return [kids[:n] for kids, n in zip(children, kept, strict=True)]


def lists_of(graph):
    return [graph.children(v).tolist() for v in range(graph.num_vertices)]


@st.composite
def spaced_lists(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    return with_gaps(draw(child_lists(max_vertices=10)), rng)


@given(spaced_lists())
def test_the_structure_is_that_of_the_lists(children):
    graph = Graph(children)
    assert lists_of(graph) == trimmed(children)
    assert graph.num_edges == sum(c >= 0 for kids in children for c in kids)
    assert graph.arity == max(map(len, trimmed(children)))
    assert graph.topology.level.tolist() == naive_levels(children)
    assert graph.topology.positions.tolist() == [
        k for kids in children for k, c in enumerate(kids) if c >= 0
    ]
    offsets = np.cumsum([0, *map(len, children)])
    flat = np.array([c for kids in children for c in kids], np.int32)
    for other in (Graph((offsets, flat)), pickle.loads(pickle.dumps(graph))):
        assert lists_of(other) == lists_of(graph)
    parents = [
        [v for v, kids in enumerate(children) for c in kids if c == u] for u in range(len(children))
    ]
    assert lists_of(graph.reversed()) == parents


@given(st.lists(spaced_lists(), min_size=1, max_size=4), st.data())
def test_schedules_of_batches(lists, data):
    dense = data.draw(st.lists(child_lists(max_vertices=6), max_size=2))
    whole = batch([Graph(children) for children in [*lists, *dense]])
    for graph, alone in zip(whole.topology.graphs, whole.graphs, strict=True):
        assert all(
            np.array_equal(a, b)
            for a, b in zip(graph.child_lists, alone.topology.child_lists, strict=True)
        )
    presence = np.zeros(whole.num_vertices, "u4")
    s = _engine.make_schedule(whole.topology, presence)
    _, _, order, edges, edge_order = naive_schedule(whole.graphs, presence)
    assert s.order.tolist() == order and s.edge_order.tolist() == edge_order
    assert list(zip(s.parent.tolist(), s.child.tolist(), strict=True)) == edges
    children, first = [], 0
    for graph in whole.graphs:
        children += [[c + first if c >= 0 else -1 for c in kids] for kids in lists_of(graph)]
        first += graph.num_vertices
    assert s.max_arity == max(map(len, children))
    of_row = [children[v] for v in order]
    for k in range(s.max_arity + 1):
        at = [kids[k] if k < len(kids) else -1 for kids in of_row]
        child = [int(s.row[c]) if c >= 0 else -1 for c in at]
        assert s.nth_child(k).tolist() == child
        edge = s.nth_edge(k)
        assert (edge >= 0).tolist() == [c >= 0 for c in child]
        assert s.child[edge[edge >= 0]].tolist() == [c for c in child if c >= 0]
        assert (s.positions[edge[edge >= 0]] == k).all()
        found = np.full(len(s.child), -1)
        found[edge[edge >= 0]] = np.flatnonzero(edge >= 0)
        assert s.parent_if_nth(k).tolist() == found.tolist()
        ends, rows = s.nth_parents(k)
        for r, (a, b) in enumerate(pairwise(ends.tolist())):
            assert sorted(rows[a:b].tolist()) == [p for p, c in enumerate(child) if c == r]


def test_large_graphs_are_linear():
    rng = np.random.default_rng(0)
    children = with_gaps(random_children(rng, 20_000, 6), rng)
    graph = Graph(children)
    assert lists_of(graph)[:500] == trimmed(children)[:500]
    assert batch([graph]).schedule().max_arity == graph.arity
    chain = Graph([[], *([-1, v] for v in range(4999))])
    assert chain.depth == 5000 and chain.arity == 2


class Cell(cavs.VertexFunction):
    """Reads children by position and all of them, features of edges, and their number."""

    def __init__(self):
        self.state = cavs.State(h=WIDTH)
        self.left, self.right = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.own, self.of_edge = nn.Linear(WIDTH, WIDTH), nn.Linear(2, WIDTH)

    def vertex(self, v):
        gate = ops.sigmoid(self.of_edge(v.edge("r")) + self.own(v.gather().h))
        below = (gate * v.gather().h).sum() + 0.1 * v.num_children
        left, right = v.gather(0).h, v.gather(1).h
        h = ops.tanh(v.pull("x") + self.left(left) - self.right(right) + below)
        v.scatter(h=h)
        v.push(h=h, left=left, right=right)


class Model(cavs.Model):
    def __init__(self):
        self.cell = Cell()

    def forward(self, b):
        out = self.cell(b.graph, x=b["x"], r=b["r"])
        return {"h": out.h, "left": out.left, "right": out.right}

    def loss(self, b):
        return ops.mean_squared_error(self.forward(b)["h"], 0.3)


def graph_of(children, seed):
    rng = np.random.default_rng(seed)
    edges = sum(c >= 0 for kids in children for c in kids)
    few = rng.choice([-0.5, 1.0], (len(children), WIDTH))
    return Graph(children, {"x": few}, {"r": rng.choice([0.0, 1.0], (edges, 2))})


def test_a_right_child_without_a_left_one():
    graph = graph_of([[-1, 1], []], 0)
    found = cavs.Session(Model()).predict(batch([graph]))
    np.testing.assert_array_equal(found["left"], np.zeros((2, WIDTH)))
    np.testing.assert_array_equal(found["right"], [found["h"][1], np.zeros(WIDTH)])


OFF = Passes(**dict.fromkeys(vars(Passes()), False))


@examples(14)
@given(
    st.lists(spaced_lists(), min_size=1, max_size=3), st.sampled_from([None, OFF]), st.booleans()
)
def test_values_and_gradients_equal_the_oracle(lists, passes, shared):
    graphs = [graph_of(children, i % 2) for i, children in enumerate(lists)]
    whole = batch([*graphs, graphs[0]])
    model = Model()
    model.initialize(1, np.float64)
    _, expected = reference(model, whole)
    with mock.patch.multiple(program_cache, MIN_MERGED=1, MIN_READERS=0.0 if shared else np.inf):
        session = cavs.Session(model, dtype=np.float64, passes=passes)
        loss, gradients = session.gradients(whole)
    assert_close(loss, expected["loss"], 1e-11, "loss")
    for name, g in gradients.items():
        assert_close(g, expected.get(f"grad:{name}", np.zeros(g.shape)), 1e-11, name)


def test_children_at_other_positions_are_not_merged():
    x = {"x": np.ones((3, WIDTH))}
    graphs = [Graph(c, x) for c in ([[], [0], [1]], [[], [-1, 0], [1]], [[], [-1, 0], [-1, 1]])]
    merged = batch(graphs).merged(("x",))
    # One leaf, a parent at each position, and above them three more.
    assert merged.num_vertices == 1 + 2 + 3
    (run,) = merged.topology.graphs
    found = [run.children_of(v).tolist() for v in range(6)]
    assert sorted(map(len, found)) == [0, 1, 1, 1, 2, 2]
    np.testing.assert_array_equal(merged.copies, np.bincount(merged.distinct))


def test_readers_of_the_first_children_refuse_later_positions():
    class First(cavs.VertexFunction):
        def __init__(self):
            self.state = cavs.State(h=WIDTH)

        def vertex(self, v):
            h = v.pull("x") + v.gather(0).h
            v.scatter(h=h)
            v.push(h)

    class Reader(cavs.Model):
        def __init__(self):
            self.cell = First()

        def forward(self, b):
            return self.cell(b.graph, x=b["x"])

    session = cavs.Session(Reader())
    session.predict(batch([graph_of([[1, -1], []], 0)]))
    with pytest.raises(GraphError, match=r"vertex 0 of graph 0 has a child in position 1; First"):
        session.predict(batch([graph_of([[-1, 1], []], 0)]))
    with pytest.raises(GraphError, match="vertex 0 of graph 0 has 2 children; First reads 1"):
        session.predict(batch([graph_of([[1, 1], []], 0)]))


def test_digests_drawings_and_joined_graphs():
    dense, spaced = Graph([[1], []]), Graph([[-1, 1], []])
    assert digest_of([dense]) != digest_of([spaced])
    assert digest_of([batch([dense])]) != digest_of([batch([spaced])])
    drawn = cavs.inspect.dot_graph(spaced)
    assert drawn.count("->") == 2 and 'v1 -> v0 [label="1"]' in drawn
    assert 'v0empty0 -> v0 [label="0", style=dotted]' in drawn
    joined = Graph.join([spaced, dense])
    assert lists_of(joined) == [[-1, 1], [], [3], [], [0, 2]]


def test_a_chain_of_right_children_is_no_chain():
    """Operators over whole chains take the only child for the first one."""
    assert batch([Graph.chain(3)]).topology.chains
    assert not batch([Graph([[], [-1, 0], [-1, 1]])]).topology.chains


def test_wrong_rows_of_edges_are_counted_by_children():
    with pytest.raises(FeatureError, match="2 rows, but the graph has 1 edges"):
        Graph([[-1, 1], []], {}, {"r": [1.0, 2.0]})
