"""Trees in Newick."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cavs import Graph
from cavs.data import NewickTree, Vocabulary, parse_newick, read_newick, write_newick
from cavs.errors import DataError, GraphError


def test_names_lengths_and_comments():
    text = "[&R] ((a:1,'it''s b':2e-3[&p=1])ab:0.5,c_d)100;\n(x,\n(,));"
    first, second = parse_newick(text)
    assert first.names == ["a", "it's b", "ab", "c_d", "100"]
    assert first.lengths == [1, 0.002, 0.5, None, None]
    assert first.comments == [[], ["[&p=1]"], [], [], []] and first.before == ["[&R]"]
    assert first.offsets == [0, 0, 0, 2, 2, 4] and first.children == [0, 1, 2, 3]
    assert first.to_newick() == "[&R]((a:1.0,'it''s b':0.002[&p=1])ab:0.5,c_d)100;"
    assert second.names == ["x", None, None, None, None] and second.name == "<text>:2"
    assert second.to_newick() == "(x,(,));"


def test_features_of_a_graph():
    text = "((a:1,b:2)ab:0.5,c:4);"
    graph = Graph.from_newick(text, vocabulary=["a", "b", "c", "ab"], graph_features={"y": 1.0})
    assert [graph.children(v).tolist() for v in range(5)] == [[], [], [0, 1], [], [2, 3]]
    assert graph.features["name"].tolist() == [0, 1, 3, 2, -1]
    assert graph.edge_features["length"].tolist() == [1, 2, 0.5, 4]
    (tree,) = parse_newick("(a:1,b);")
    with pytest.raises(DataError, match=r"<text>:1: vertex 1 \('b'\) has no length, others have"):
        Graph.from_newick(tree)
    graph = Graph.from_newick(tree, default_length=0.25)
    assert graph.edge_features["length"].tolist() == [1, 0.25]
    assert not Graph.from_newick("(a,b):3;").edge_features  # no edge above the root
    assert Graph.from_newick("a;").num_vertices == 1
    with pytest.raises(DataError, match="has name 'ab'; expected one of a b"):
        Graph.from_newick(text, vocabulary=["a", "b"])
    with pytest.raises(DataError, match="a second tree; expected the end of the text"):
        Graph.from_newick("a;b;")
    with pytest.raises(GraphError, match="from_newick takes a text or a tree of parse_newick, not"):
        Graph.from_newick(b"a;")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(a,b", "<text>:1: column 5: the text ends inside a tree; expected ';'"),
        ("(a,\nb));", "<text>:2: column 3: '\\)' without its '\\('"),
        ("((a);", "<text>:1: column 5: 1 open brackets at the end"),
        ("a,b;", "column 2: ',' outside of brackets"),
        ("a b;", "column 3: a second name: 'b'"),
        (":1 b;", "column 4: a name after the length: 'b'"),
        ("a:1:2;", "column 4: a second length"),
        ("(a:);", "column 4: '\\)'; expected a length after the colon"),
        ("a:'1';", "column 3: \"'1'\"; expected a length"),
        ("a:x;", "column 3: length 'x'; expected a finite number"),
        ("a:1e999;", "column 3: length '1e999'; expected a finite"),
        ("a:nan;", "column 3: length 'nan'"),
        ("(a(b));", "column 3: '\\('; expected ',' before another subtree"),
        ("(a)(b);", "column 4: '\\('"),
        ("(a,'b);", "column 4: a quote without its end"),
        ("(a[b);", "column 3: a comment without its '\\]'"),
        ("a];", "column 2: '\\]' without its '\\['"),
        (";", "column 1: an empty tree"),
        ("", "no tree in the text"),
        ("[only a comment]", "no tree in the text"),
    ],
)
def test_malformed_trees(text, message):
    with pytest.raises(DataError, match=message):
        parse_newick(text)


def test_wrong_arguments(tmp_path):
    for wrong in (b"a;", None):
        with pytest.raises(DataError, match="is no text; expected trees in Newick"):
            parse_newick(wrong)
    (tmp_path / "a.nwk").write_text("(a,b)\n")
    with pytest.raises(DataError, match=r"a\.nwk:2: column 1: the text ends inside a tree"):
        read_newick(tmp_path / "a.nwk")
    (tree,) = parse_newick("(a,b);")
    for change in ({"lengths": [np.nan, None, None]}, {"comments": [["x"], [], []]}):
        fields = {name: getattr(tree, name) for name in tree.__slots__}
        with pytest.raises(DataError, match="<text>:1: "):
            NewickTree(**fields | change).to_newick()


names = st.none() | st.text(st.sampled_from("ab_'( )[]:,;.\n1é"), max_size=4)
lengths = st.none() | st.floats(-1e30, 1e30)


@st.composite
def newick_trees(draw):
    count = draw(st.integers(1, 12))
    kids = [[] for _ in range(count)]
    waiting = []
    for v in range(count):  # children come first: each vertex takes some that have no parent yet
        take = len(waiting) if v == count - 1 else draw(st.integers(0, len(waiting)))
        kids[v], waiting = waiting[len(waiting) - take :], [*waiting[: len(waiting) - take], v]
    found = draw(st.lists(st.tuples(names, lengths), min_size=count, max_size=count))
    offsets = np.cumsum([0, *map(len, kids)]).tolist()
    notes = [["[&a]", "[]"] if draw(st.booleans()) else [] for _ in range(count)]
    flat = [child for below in kids for child in below]
    return NewickTree("", [n for n, _ in found], [x for _, x in found], notes, offsets, flat)


def same(tree, found):
    fields = ("names", "lengths", "comments", "offsets", "children")
    return all(getattr(found, name) == getattr(tree, name) for name in fields)


@given(newick_trees())
def test_a_written_tree_is_read_back(tree):
    text = tree.to_newick()
    if text in (";", "[&a][];"):  # no name, no brackets
        with pytest.raises(DataError, match="an empty tree"):
            parse_newick(text)
        return
    (found,) = parse_newick(text)
    assert same(tree, found)


def test_a_written_file_is_read_back(tmp_path):
    trees = parse_newick("[&R](a,'b c':1)d;\n((x));")
    write_newick(tmp_path / "a", trees)
    assert (tmp_path / "a").read_text() == "[&R](a,'b c':1.0)d;\n((x));\n"
    for tree, found in zip(trees, read_newick(tmp_path / "a"), strict=True):
        assert same(tree, found) and found.before == tree.before


def test_a_chain_of_five_thousand_vertices():
    text = "(" * 4999 + "a" + ")" * 4999 + ";"
    (tree,) = parse_newick(text)
    assert tree.to_newick() == text
    assert Graph.from_newick(tree, vocabulary=Vocabulary(["a"])).depth == 5000
