"""Trees with at most two children a vertex, without chains of one child, and back; writers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cavs import Graph
from cavs.data import (
    BracketTree,
    binarise,
    collapse_unary,
    expand_unary,
    parse_brackets,
    parse_ptb,
    read_ptb,
    unbinarise,
    write_ptb,
)
from cavs.errors import ConfigError, DataError

WORDS = st.sampled_from(["a", "(", ")", "[", "}", "1/2", "*", "x*y", "\\", "-", "ü\xa0", "/"])
NAMES = st.sampled_from(["S", "NP", "VP", "X-1", "ADVP|PRT"])
TEXTS = st.recursive(
    st.tuples(NAMES, WORDS),
    lambda inner: st.tuples(NAMES, st.lists(inner | WORDS, min_size=1, max_size=4)),
    max_leaves=12,
)


def tree_of(text):
    """Return the tree of nested tuples (label, word) and (label, [parts])."""
    labels, words, offsets, children = [], [], [0], []

    def add(part):
        below = []
        label, inner = (None, part) if isinstance(part, str) else part
        if isinstance(inner, list) and len(inner) == 1 and isinstance(inner[0], str):
            inner = inner[0]  # a bracket around one word is a leaf
        if isinstance(inner, list):
            below = [add(each) for each in inner]
        labels.append(label)
        words.append(None if isinstance(inner, list) else inner)
        children.extend(below)
        offsets.append(len(children))
        return len(labels) - 1

    add(text)
    return BracketTree("", labels, words, offsets, children)


trees = TEXTS.map(tree_of)


def arities(tree):
    return [len(tree.children_of(v)) for v in range(len(tree.labels))]


@given(trees)
def test_a_written_tree_is_read_back(tree):
    assert parse_brackets(tree.to_brackets()) == tree


@given(trees, st.sampled_from(["left", "right"]), st.integers(0, 3))
def test_a_binarised_tree_gives_the_tree_back(tree, factor, siblings):
    binary = binarise(tree, factor=factor, siblings=siblings)
    assert max(arities(binary)) <= 2
    assert binary.tokens == tree.tokens
    assert parse_brackets(binary.to_brackets()) == binary
    assert unbinarise(binary) == tree


@given(trees)
def test_a_collapsed_tree_gives_the_tree_back(tree):
    whole = collapse_unary(tree)
    assert 1 not in arities(whole) and whole.tokens == tree.tokens
    assert expand_unary(whole) == tree
    below = collapse_unary(tree, leaves=False, root=False)
    assert expand_unary(below) == tree
    for v, count in enumerate(arities(below)[:-1]):
        assert count != 1 or below.words[below.children_of(v)[0]] is not None


def test_labels_of_added_vertices():
    tree = parse_brackets("(A b (C c) (D d) e)")
    shapes = {
        ("right", 0): "(A b (@A (C c) (@A (D d) e)))",
        ("left", 0): "(A (@A (@A b (C c)) (D d)) e)",
        ("right", 2): "(A b (@A<C-D> (C c) (@A<D-e> (D d) e)))",
        ("left", 1): "(A (@A<b> (@A<b> b (C c)) (D d)) e)",
    }
    for (factor, siblings), text in shapes.items():
        assert binarise(tree, factor=factor, siblings=siblings).to_brackets() == text
    unlabelled = parse_brackets("((a b c) d)", labelled=False)
    assert unbinarise(binarise(unlabelled)) == unlabelled
    assert Graph.from_brackets(binarise(unlabelled)).arity == 2


def test_joined_labels():
    tree = parse_brackets("(S (VP (V go)))")
    assert collapse_unary(tree).to_brackets() == "(S+VP+V go)"
    assert collapse_unary(tree, join=None).to_brackets() == "(S go)"
    assert collapse_unary(tree, join="_").to_brackets() == "(S_VP_V go)"
    assert collapse_unary(tree, leaves=False).to_brackets() == "(S+VP (V go))"
    assert collapse_unary(tree, root=False).to_brackets() == "(S (VP+V go))"


def test_labels_that_would_be_read_back_otherwise_are_refused():
    marked, joined = parse_brackets("(S (@S a b) c)"), parse_brackets("(S+VP a b)")
    with pytest.raises(DataError, match="vertex 2: label '@S' begins with '@'"):
        binarise(marked)
    assert unbinarise(binarise(marked, mark="~"), mark="~") == marked
    with pytest.raises(DataError, match=r"vertex 2: label 'S\+VP' contains '\+'"):
        collapse_unary(joined)
    assert collapse_unary(joined, join=None) == joined
    with pytest.raises(ConfigError, match="factor"):
        binarise(joined, factor="middle")
    with pytest.raises(ConfigError, match="mark"):
        binarise(joined, mark="")
    for shape in (binarise, unbinarise, collapse_unary, expand_unary):
        with pytest.raises(DataError, match="'S' is no tree of parse_brackets"):
            shape("S")


def test_traces_and_trees_without_a_root_are_written_as_in_the_treebank(tmp_path):
    text = "( (S (NP (-NONE- *T*-1)) (VP a\\/b \\* -LRB-)) )\n((NP it) (. .))\n"
    (tmp_path / "a.mrg").write_text(text)
    trees = read_ptb(tmp_path / "a.mrg")
    assert trees[0].tokens == ["*T*-1", "a/b", "*", "("] and trees[1].labels[-1] is None
    write_ptb(tmp_path / "b.mrg", trees)
    assert (tmp_path / "b.mrg").read_text() == text


def test_trees_that_brackets_cannot_hold(tmp_path):
    for label, word, found in [("S", "a b", "'a b'"), ("S", "a(", "'a\\('"), ("N P", "a", "'N P'")]:
        with pytest.raises(DataError, match=f"x: vertex 0: {found} cannot be written"):
            BracketTree("x", [label], [word], [0, 0], []).to_brackets()
    alone = BracketTree("x", [None, "S"], ["a", None], [0, 0, 1], [0])
    with pytest.raises(DataError, match="word 'a' without a label, alone below its parent"):
        alone.to_brackets()
    path = tmp_path / "a.mrg"
    with pytest.raises(DataError, match="vertex 2 has no label"):
        write_ptb(path, [parse_brackets("((a b) c)", labelled=False)])
    with pytest.raises(DataError, match="half of a surrogate pair"):
        write_ptb(path, [parse_brackets("(S \ud800)")])
    with pytest.raises(DataError, match=r"item 0 is '\(S a\)'"):
        write_ptb(path, ["(S a)"])
    assert not path.exists()
    with pytest.raises(DataError, match="cannot be written"):
        write_ptb(tmp_path / "none" / "a.mrg", parse_ptb("(S a)"))


def test_deep_and_wide_trees():
    deep = parse_brackets("(A " * 5000 + "b" + ")" * 5000)
    assert parse_brackets(deep.to_brackets()) == deep
    assert collapse_unary(deep, join=None).to_brackets() == "(A b)"
    wide = parse_brackets(f"(A {'b ' * 3000})")
    assert Graph.from_brackets(binarise(wide)).depth == 3000
    assert unbinarise(binarise(wide)) == wide
