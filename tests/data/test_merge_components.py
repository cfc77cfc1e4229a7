"""Merging of whole components, and of structures of samples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cavs
from cavs import Graph, _engine
from cavs.data import batch
from cavs.data.merge_samples import MergedStructure
from tests.data.dags import child_lists, with_gaps
from tests.draws import examples


def components(children):
    """Return the vertices of each component, by a search in both directions."""
    near = [set() for _ in children]
    for v, kids in enumerate(children):
        for c in kids:
            if c >= 0:
                near[v].add(c)
                near[c].add(v)
    found, seen = [], set()
    for v in range(len(children)):
        if v in seen:
            continue
        stack, own = [v], {v}
        while stack:
            for u in near[stack.pop()] - own:
                own.add(u)
                stack.append(u)
        seen |= own
        found.append(sorted(own))
    return found


def trimmed(kids):
    """Return children without empty positions after the last."""
    return kids[: max((k + 1 for k, c in enumerate(kids) if c >= 0), default=0)]


@st.composite
def forests(draw):
    """Return graphs of several components each, with few values, some of them repeated."""
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    parts = draw(st.lists(child_lists(max_vertices=4, max_arity=3), min_size=1, max_size=3))
    if draw(st.booleans()):
        parts = [with_gaps(part, rng) for part in parts]
        parts = [[trimmed(kids) for kids in part] for part in parts]
    graphs = []
    for _ in range(draw(st.integers(1, 4))):
        children = []
        for i in draw(st.lists(st.integers(0, len(parts) - 1), min_size=1, max_size=4)):
            first = len(children)
            children += [[c if c < 0 else first + c for c in kids] for kids in parts[i]]
        edges = sum(c >= 0 for kids in children for c in kids)
        values = {"x": rng.integers(0, 2, len(children)), "y": rng.integers(0, 2, len(children))}
        graphs.append((children, Graph(children, values, {"e": rng.integers(0, 2, edges)})))
    return graphs


@examples(60)
@given(forests(), st.sampled_from([(), ("x",), ("x", "y"), ("x", "e"), ("e", "x", "y")]))
def test_components_equal_those_of_a_search(graphs, names):
    whole = batch([graph for _, graph in graphs])
    merged = whole.merged(names, components=True)
    known, number, first = {}, 0, 0
    expected = np.full(whole.num_vertices, -1)
    edge = 0
    for children, _ in graphs:
        edges = []
        for kids in children:
            edges.append(range(edge, edge := edge + sum(c >= 0 for c in kids)))
        for own in components(children):
            local = {v: i for i, v in enumerate(own)}
            key = tuple(
                (
                    tuple(int(whole[n][first + v]) for n in names if n != "e"),
                    tuple(local.get(c, -1) for c in children[v]),
                    tuple(int(whole["e"][e]) for e in edges[v]) if "e" in names else (),
                )
                for v in own
            )
            if key not in known:
                known[key] = number
                number += len(own)
            for i, v in enumerate(own):
                expected[first + v] = known[key] + i
        first += len(children)
    np.testing.assert_array_equal(merged.distinct, expected)
    np.testing.assert_array_equal(merged.copies, np.bincount(expected))
    assert merged.num_vertices == number
    for name in names:
        if name != "e":
            np.testing.assert_array_equal(merged[name][merged.distinct], whole[name])
    schedules = merged.schedule(), whole.schedule()
    levels = [np.empty(len(s.order), int) for s in schedules]
    for s, level in zip(schedules, levels, strict=True):
        for _, number, (begin, end), _ in s.tasks:
            level[begin:end] = number
    again = levels[0][schedules[0].row[merged.distinct]]
    np.testing.assert_array_equal(again, levels[1][schedules[1].row])


def test_equal_leaves_of_one_component_are_not_merged():
    tree = Graph([[], [], [0, 1]], {"x": [1, 1, 2]})
    assert batch([tree, tree]).merged(("x",)).num_vertices == 2
    found = batch([tree, tree]).merged(("x",), components=True)
    assert found.num_vertices == 3 and found.copies.tolist() == [2, 2, 2]


def sample(words):
    lengths = [len(word) for word in words]
    last = np.cumsum(lengths) - 1
    return cavs.Sample(
        words=Graph.chain(len(words), {"token": range(len(words))}),
        chars=Graph.chains(lengths, {"char": [ord(c) for c in "".join(words)]}),
        links={
            "last": cavs.Link("words", "chars", [*last[:-1], -1]),
            "all": cavs.Link.all("words", "chars"),
        },
    )


CHARS = (MergedStructure("chars", ("char",)),)


def test_links_lead_to_distinct_vertices():
    whole = batch([sample(["ab", "a", "ab"]), sample(["b", "ab"])])
    merged = whole.merged(CHARS)
    assert whole.merged(CHARS) is merged
    assert merged.graphs["chars"].num_vertices == 3  # a, ab, b
    assert merged.num_vertices == 3 + 5 and merged.structures == ("chars", "words")
    every, last = (_engine.link_of(merged.topology, i) for i in range(2))
    np.testing.assert_array_equal(last[0], [0, 1, 2, 2, 3, 3])
    assert last[1].tolist() == [1, 0, 2]
    assert every[1].tolist() == [0, 1, 0, 0, 1] * 3 + [2, 0, 1] * 2
    assert merged["chars.char"].tolist() == [ord(c) for c in "abb"]
    assert merged["words.token"].tolist() == [0, 1, 2, 0, 1]
    assert merged.copies_in("chars").tolist() == [4, 3, 1]
    assert merged.distinct_of("words") is None


def test_a_target_that_is_merged_has_the_links_of_first_copies():
    whole = batch([sample(["ab", "b"])] * 2)
    merged = whole.merged((*CHARS, MergedStructure("words", ("token",))))
    offsets, vertices = _engine.link_of(merged.topology, 1)
    assert offsets.tolist() == [0, 1, 1] and vertices.tolist() == [1]
    rows = merged.schedule().graph_rows
    assert len(rows) == whole.num_vertices and set(rows.tolist()) == set(range(5))


def test_new_graph_features_are_not_those_of_merged_rows():
    one = cavs.Sample(a=Graph.chain(2, {"x": [0, 1]}, graph_features={"g": [1.0]}))
    whole = batch([one, one])
    copies = (MergedStructure("a", ("x",)),)
    before = whole.merged(copies)
    after = whole.with_graph_features({"a.g": np.full((2, 1), 3.0, np.float32)}).merged(copies)
    assert before["a.g"].tolist() == [[1.0], [1.0]] and after["a.g"].tolist() == [[3.0], [3.0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a, b: [a], "1 structures, the samples have 2"),
        (lambda a, b: [a, (b[0], b[1], None)], "with both arrays or none"),
        (lambda a, b: [a, (b[0], b[1][:1], b[2])], "vertex must be one-dimensional"),
        (lambda a, b: [a, (b[0], b[1], b[2][:1])], "distinct must be one-dimensional"),
        (lambda a, b: [a, (b[0], b[1] + 9, b[2])], "vertex holds 9 of 5 vertices"),
        (lambda a, b: [a, (b[0], b[1], b[2] - 1)], "distinct holds -1 of 3 vertices"),
        (lambda a, b: [b, a], "distinct must be one-dimensional"),
        (lambda a, b: [a, (b[0], None, None)], "a structure of 3 vertices, the samples have 5"),
    ],
)
def test_the_engine_refuses_arrays_that_do_not_fit(change, message):
    whole = batch([cavs.Sample(a=Graph.chain(3), b=Graph.chain(2)), sample_of(0, 3)])
    merged = whole.graphs["b"].merged(())
    own = [(whole.graphs["a"].topology, None, None)]
    own.append((merged.topology, merged.vertex, merged.distinct))
    assert _engine.merge_structures(whole.topology, own)[0].num_vertices == 6
    with pytest.raises(ValueError, match=message):
        _engine.merge_structures(whole.topology, change(*own))


def sample_of(a, b):
    return cavs.Sample(a=Graph.chain(a) if a else Graph([]), b=Graph.chain(b))


@pytest.mark.parametrize("components", [False, True])
def test_structures_without_vertices_or_with_parents_first(components):
    graphs = Graph([[1, 2], [2], []]), Graph([]), Graph([[1], []])
    whole = batch([cavs.Sample(a=graph, b=Graph.chain(1)) for graph in graphs])
    merged = whole.graphs["a"].merged((), components=components)
    assert merged.num_vertices == (5 if components else 3)
    assert merged.distinct.tolist() == ([0, 1, 2, 3, 4] if components else [2, 1, 0, 1, 0])
    empty = batch([cavs.Sample(a=Graph([]), b=Graph.chain(1))])
    found = empty.merged((MergedStructure("a", ("x",), components), MergedStructure("b", ())))
    assert found.num_vertices == 1 and found.graphs["a"].num_edges == 0


def test_components_have_no_leaves_of_numbers():
    one = batch([Graph.chain(2)])
    with pytest.raises(ValueError, match="not distinguished by their use"):
        _engine.merge_copies(one.topology, [], [], 1, True)
