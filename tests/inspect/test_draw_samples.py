"""Drawings of samples: frames of structures, edges of links, types, empty positions."""

import re

import numpy as np
import pytest

import cavs
from cavs.data import Graph, Vocabulary, batch
from cavs.errors import ConfigError
from cavs.inspect import dot_graph


def spelled(name=""):
    """A sample whose words read one character, or none, and lists of them."""
    return cavs.Sample(
        words=Graph.chain(3, {"token": [0, 1, -1]}),
        chars=Graph.chains([2, 1], {"token": [5, 6, 7]}),
        links={
            "last": cavs.Link("words", "chars", [1, 2, -1], {"weight": [0.5, 2.0, 9.0]}),
            "own": cavs.Link("words", "chars", [[0, 1], [2], []], {"rank": [3, -1, 4]}),
        },
        name=name,
    )


def translated(targets, sources, features=None):
    return cavs.Sample(
        source=Graph.chain(sources) if sources else Graph([]),
        target=Graph.chain(targets),
        links={"to": cavs.Link.all("target", "source", features or {})},
    )


def edges(dot, style):
    """The ends and the label of the edges of a style, in order."""
    found = [line.strip() for line in dot.splitlines() if "->" in line and f"style={style}" in line]
    parts = [re.fullmatch(r'(\w+ -> \w+) \[label="(.*?)", .*\];', line) for line in found]
    return [part.groups() for part in parts]


def test_structures_have_frames_and_links_dashed_edges():
    dot = dot_graph(spelled("a b"))
    assert dot.startswith('digraph "a b" {\n  rankdir=BT; node [shape=box]; compound=true;\n')
    assert dot.count("{") == dot.count("}") == 3
    chars, words = (dot.index(f'subgraph clusters{i} {{ label="{n}";') for i, n in NUMBERED)
    assert chars < dot.index('s0v2 [label="2\\ntoken 7"]') < words < dot.index('s1v2 [label="2"]')
    assert 's0v0 -> s0v1 [label="0"];' in dot and "s0v1 -> s0v2" not in dot
    assert edges(dot, "dashed") == [
        ("s0v1 -> s1v0", "last"),
        ("s0v2 -> s1v1", "last"),
        ("s0v0 -> s1v0", "own"),
        ("s0v1 -> s1v0", "own"),
        ("s0v2 -> s1v1", "own"),
    ]
    assert set(re.findall(r' color="(\S+)"', dot)) == {"/dark28/1", "/dark28/2"}


NUMBERED = ((0, "chars"), (1, "words"))


def test_features_of_pairs_are_shown_if_asked():
    assert edges(dot_graph(spelled(), pairs=True), "dashed") == [
        ("s0v1 -> s1v0", "last\\nweight 0.5"),
        ("s0v2 -> s1v1", "last\\nweight 2"),
        ("s0v0 -> s1v0", "own\\nrank 3"),
        ("s0v1 -> s1v0", "own"),
        ("s0v2 -> s1v1", "own\\nrank 4"),
    ]
    ranks = Vocabulary(["a", "b", "c", "d", "e"])
    named = dot_graph(spelled(), {"words.link own.rank": ranks}, pairs=True)
    assert ("s0v2 -> s1v1", f"own\\n{ranks.decode([4])[0]}") in edges(named, "dashed")


def test_vocabularies_belong_to_a_structure_or_to_all():
    words, chars = Vocabulary(["the", "cat"]), Vocabulary(list("abcdefghij"))
    dot = dot_graph(spelled(), {"token": chars, "words.token": words})
    assert f's1v1 [label="1\\n{words.decode([1])[0]}"];' in dot
    assert f's0v0 [label="0\\n{chars.decode([5])[0]}"];' in dot


def test_a_link_of_all_is_one_edge_between_frames():
    features = {"near": np.arange(6).reshape(2, 3)}
    dot = dot_graph(translated(2, 3, features))
    assert edges(dot, "dashed") == [("s0v2 -> s1v0", "to\\nall with all")]
    assert "ltail=clusters0, lhead=clusters1" in dot and "near" not in dot
    shown = edges(dot_graph(translated(2, 3, features), pairs=True), "dashed")
    assert shown == [
        (f"s0v{s} -> s1v{t}", f"to\\nnear {3 * t + s}") for t in range(2) for s in range(3)
    ]
    own = cavs.Sample(a=Graph.chain(2), links={"self": cavs.Link.all("a", "a")})
    assert 'label="a\\nself: all with all"' in dot_graph(own) and "dashed" not in dot_graph(own)
    assert len(edges(dot_graph(own, pairs=True), "dashed")) == 4


@pytest.mark.parametrize("pairs", [False, True])
def test_structures_without_vertices(pairs):
    dot = dot_graph(translated(2, 0), pairs=pairs)
    assert 's0none [label="no vertices", shape=plaintext];' in dot and "dashed" not in dot
    assert 'none [label="no vertices"' in dot_graph(Graph([]))


def test_types_of_structures_have_colours_of_their_own():
    plan = Graph([[], [0]], {"join": {"rows": [7]}}, types=["scan", "join"])
    sample = cavs.Sample(plan=plan, query=Graph([[]], types=["scan"]), text=Graph.chain(1))
    dot = dot_graph(sample)
    assert '[label="1 join\\nrows 7", style=filled, fillcolor="/set312/1"]' in dot
    assert 's0v0 [label="0 scan", style=filled, fillcolor="/set312/2"]' in dot
    assert 's1v0 [label="0 scan", style=filled, fillcolor="/set312/3"]' in dot
    assert 's2v0 [label="0"];' in dot


def test_empty_positions_are_points():
    dot = dot_graph(cavs.Sample(tree=Graph([[-1, 1, -1, 1], []])))
    assert "s0v0empty0 [shape=point];" in dot
    assert edges(dot, "dotted") == [("s0v0empty0 -> s0v0", "0"), ("s0v0empty2 -> s0v0", "2")]
    assert 's0v1 -> s0v0 [label="1"];' in dot


def test_a_batch_of_samples_has_a_frame_for_each():
    dot = dot_graph(batch([spelled("one"), spelled()]))
    assert dot.startswith('digraph "batch" {') and dot.count("subgraph cluster") == 6
    assert 'subgraph cluster1 { label="sample 1";' in dot
    assert 'subgraph cluster0 { label="sample 0 \\"one\\"";' in dot
    assert "subgraph clusterg1s0" in dot and dot.count("{") == dot.count("}") == 7
    names = re.findall(r"^ *(\w+) \[label", dot, re.MULTILINE)
    assert len(set(names)) == len(names) == 12
    ends = {end for pair, _ in edges(dot, "dashed") for end in pair.split(" -> ")}
    assert ends < set(names) and len(edges(dot, "dashed")) == 10
    one = dot_graph(batch([translated(1, 2), translated(1, 1)]))
    assert "ltail=clusterg0s0, lhead=clusterg0s1" in one and "ltail=clusterg1s0" in one


def test_samples_that_are_too_large():
    with pytest.raises(ConfigError, match="501 vertices are too many"):
        dot_graph(translated(1, 500))
    assert dot_graph(translated(20, 30))
    with pytest.raises(ConfigError, match="600 pairs of links are too") as info:
        dot_graph(translated(20, 30), pairs=True)
    assert "raise max_vertices above 500; without pairs=True" in str(info.value)
    lists = cavs.Link("a", "a", [[0, 1, 0], [1, 1]])
    with pytest.raises(ConfigError, match="5 pairs of links are too") as info:
        dot_graph(cavs.Sample(a=Graph.chain(2), links={"x": lists}), max_vertices=4)
    assert "pairs=True" not in str(info.value)


def test_text_that_graphviz_reads(tmp_path):
    graphviz = pytest.importorskip("graphviz")
    samples = [spelled('a "name"\\'), spelled()]
    for drawn in (samples[0], batch(samples), translated(3, 2), translated(1, 0)):
        for pairs in (False, True):
            dot = dot_graph(drawn, pairs=pairs)
            try:
                svg = graphviz.Source(dot).pipe(format="svg", quiet=False).decode()
            except graphviz.ExecutableNotFound:
                pytest.skip("needs the program dot")
            assert svg.count('class="edge"') == dot.count(" -> ")
