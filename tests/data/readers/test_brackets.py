"""Bracketed trees of any format, and their graphs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cavs
from cavs import Graph
from cavs.data import Vocabulary, parse_brackets, parse_ptb, read_ptb
from cavs.errors import ConfigError, DataError, GraphError


def lists(graph):
    return [graph.children(v).tolist() for v in range(graph.num_vertices)]


def test_each_of_several_words_is_a_leaf():
    text = "(S (NP the cat) (VP sat))"
    graph = Graph.from_brackets(text)
    assert lists(graph) == [[], [], [0, 1], [], [2, 3]]
    assert dict(graph.features) == {} and graph.name == ""
    tree = parse_brackets(text)
    assert tree.words == ["the", "cat", None, "sat", None]
    assert tree.labels == [None, None, "NP", "VP", "S"]
    assert tree.tokens == ["the", "cat", "sat"]
    words, labels = Vocabulary(tree.tokens), ["S", "NP", "VP"]
    found = Graph.from_brackets(
        tree, vocabulary=words, labels=labels, graph_features={"score": 0.5}, name="one"
    )
    assert found.features["token"].tolist() == [1, 2, -1, 3, -1]
    assert found.features["label"].tolist() == [-1, -1, 1, 2, 0]
    assert found.graph_features["score"] == 0.5 and found.name == "one"
    assert lists(found) == lists(graph)
    assert Graph.from_brackets(parse_brackets(text, name="two")).name == "two"


@pytest.mark.parametrize(
    ("text", "children"),
    [
        ("((a b) c)", [[], [], [0, 1], [], [2, 3]]),
        ("( ( The cat ) ( sat . ) )", [[], [], [0, 1], [], [], [3, 4], [2, 5]]),
        ("(a b)", [[], [], [0, 1]]),
        ("((a) b)", [[], [], [0, 1]]),
        ("((a))", [[], [0]]),
        ("a", [[]]),
        (" (a\n  (b\tc)\n)\n", [[], [], [], [1, 2], [0, 3]]),
    ],
)
def test_brackets_without_labels(text, children):
    graph = Graph.from_brackets(text, labelled=False, labels=str.__len__)
    assert lists(graph) == children
    assert (graph.features["label"] == -1).all()


def test_labels_and_words_by_any_numbering():
    text = "(3 (2 It) (4 works))"
    graph = Graph.from_brackets(text, vocabulary={"It": 7, "works": 5}, labels=int)
    assert lists(graph) == [[], [], [0, 1]]
    assert graph.features["label"].tolist() == [2, 4, 3]
    assert graph.features["token"].tolist() == [7, 5, -1]
    assert cavs.batch([graph] * 2).feature_schema()["token"].has_absent


def test_a_treebank_has_brackets_around_its_trees():
    """They may span lines; what is in a word stays, but for the escapes."""
    text = "( (S\n    (NP (PRP It))\n    (VP (VBZ is) (-LRB- -LRB-) (CD 1\\/2))\n    (. .)) )\n"
    tree = parse_brackets(text)
    assert tree.tokens == ["It", "is", "(", "1/2", "."]
    assert tree.labels == ["PRP", "NP", "VBZ", "-LRB-", "CD", "VP", ".", "S"]
    assert lists(Graph.from_brackets(text)) == [[], [0], [], [], [], [2, 3, 4], [], [1, 5, 6]]


LABELLED_HINT = r"(.|\n)*hint: labelled=False reads brackets without labels, such as \(\(a b\) c\)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "1: an empty text; expected a tree"),
        (" \n ", "1: an empty text; expected a tree"),
        ("word", r"1: column 1: 'word'; expected '\('"),
        (
            "(S (NP the cat)\n   (VP sat)",
            r"2: column 12: 1 open brackets at the end; expected '\)'",
        ),
        ("(S a)\n (S b)", "2: column 2: a second tree; expected the end of the text"),
        ("(S a) )", r"1: column 7: '\)'; expected the end of the text"),
        ("(S\n  ())", r"2: column 4: label '\)'; expected a label after the bracket"),
        ("(S (NP))", r"1: column 7: '\)'; expected a word or a tree after the label"),
        ("(S", r"1: column 3: 1 open brackets at the end"),
        ("(", r"1: column 2: the end of the text; expected a label after the bracket"),
        ("(S ((a b) c))", r"1: column 5: label '\('; expected a label after" + LABELLED_HINT),
        ("((a b) c)", r"1: column 8: word 'c' in a bracket without a label" + LABELLED_HINT),
        ("((a b) (c d))", r"1: column 8: a second tree in a bracket without" + LABELLED_HINT),
    ],
)
def test_malformed_brackets(text, message):
    with pytest.raises(DataError, match=f"^<text>:{message}"):
        Graph.from_brackets(text)
    with pytest.raises(DataError, match=f"^mine:{message}"):
        Graph.from_brackets(text, name="mine")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("()", r"column 2: '\)'; expected a word or a tree\n"),
        ("a b", r"column 1: 'a'; expected '\('"),
        (")", r"column 1: '\)'; expected '\('"),
        ("(a b) c", "column 7: 'c'; expected the end of the text"),
        ("(a b", "column 5: 1 open brackets at the end"),
    ],
)
def test_malformed_brackets_without_labels(text, message):
    with pytest.raises(DataError, match=f"^<text>:1: {message}"):
        Graph.from_brackets(text, labelled=False)


def test_what_has_no_number():
    def fails(kind, message, **options):
        with pytest.raises(kind, match=message):
            Graph.from_brackets("(S (NP the cat) (VP sat))", **options)

    where = "^<text>: vertex 2 has label 'NP'"
    fails(DataError, f"{where}; expected one of S VP\n", labels=["S", "VP"])
    fails(DataError, f"{where}; expected one of S\n", labels={"S": 1})
    fails(DataError, f"{where}, which has no number: invalid literal", labels=int)
    fails(DataError, "^x: vertex 0 has word 'the'; expected one of a", vocabulary=["a"], name="x")
    fails(ConfigError, f"{where}, whose number is None", labels=lambda label: None)
    fails(ConfigError, f"{where}, whose number is -2(.|\n)*hint: -1 says", labels=lambda label: -2)
    fails(ConfigError, r"by a list of texts, not the text 'S'(.|\n)*text.split\(\)", labels="S")
    fails(ConfigError, "a Vocabulary, a list of names, a mapping or a function, not by 3", labels=3)
    with pytest.raises(GraphError, match="takes a text or a tree of parse_brackets, not 3"):
        Graph.from_brackets(3)


@pytest.mark.parametrize("labelled", [True, False])
def test_five_thousand_levels(labelled):
    opening = "(X a " if labelled else "(a "
    text = opening * 5000 + "(Y b)" + ")" * 5000
    graph = Graph.from_brackets(text, labelled=labelled, vocabulary=lambda word: 0)
    leaves = 1 if labelled else 2
    assert graph.num_vertices == 10_000 + leaves + (not labelled)
    assert graph.depth == 5001 + (not labelled)
    with pytest.raises(DataError, match="1 open brackets at the end"):
        Graph.from_brackets(text[:-1], labelled=labelled)


SEVERAL = "( (S (NP it) (VP works)) (. .) )"


def test_several_trees_in_a_bracket_without_a_label():
    """The hint must not be `labelled=False`, which would make words of the labels."""
    with pytest.raises(
        DataError, match="column 26: a second tree in a bracket without a label"
    ) as e:
        parse_brackets(SEVERAL)
    assert "labelled" not in e.value.hint and "(ROOT (S ...) (. .))" in e.value.hint
    named = parse_brackets("(ROOT" + SEVERAL[1:])
    [tree] = parse_ptb(SEVERAL)
    assert named.labels == ["NP", "VP", "S", ".", "ROOT"]
    assert tree.labels == ["NP", "VP", "S", ".", None]
    assert named.words == tree.words == ["it", "works", None, ".", None]
    assert lists(Graph.from_brackets(tree)) == [[], [], [0, 1], [], [2, 3]]
    graph = Graph.from_brackets(tree, labels=["NP", "VP", "S", "."])
    assert graph.features["label"].tolist() == [0, 1, 2, 3, -1]


@pytest.mark.parametrize("text", ["( (S (NP a)) b )", "(S ((NP a) b))", "((S a) (-LRB- (X c)))"])
def test_the_hint_for_a_missing_label_where_others_are_there(text):
    with pytest.raises(DataError) as caught:
        parse_brackets(text)
    assert caught.value.hint.startswith("give the bracket a label, such as (ROOT (S ...) (. .))")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("( (S (NP a)) )\n( (S (NP b)) )", "2: column 1"),
        ("(S a)\n\n  (S b)", "3: column 3"),
        ("((a b) c) (d e)", "1: column 11"),
    ],
)
def test_a_second_tree_says_how_to_read_several(text, where):
    for labelled in (True, False)[text.startswith("((") :]:
        with pytest.raises(DataError, match=f"^<text>:{where}: a second tree; expected") as caught:
            parse_brackets(text, labelled=labelled)
        assert "read_ptb(path)" in caught.value.hint and "parse_ptb(text)" in caught.value.hint


def test_a_byte_order_mark_is_no_part_of_a_text():
    assert parse_brackets("\ufeff(S (A a) (B b))").labels == ["A", "B", "S"]
    assert parse_brackets("\ufeffa", labelled=False).tokens == ["a"]
    assert Graph.from_brackets("\ufeff(S a)").num_vertices == 1
    assert [tree.tokens for tree in parse_ptb("\ufeff(S a) (S b)")] == [["a"], ["b"]]
    with pytest.raises(DataError, match=r"^<text>:1: column 2: the end of the text"):
        parse_brackets("\ufeff(")


MRG = """
( (S
    (NP-SBJ (NNP Mr.) (NNP Vinken))
    (VP (VBZ is) (-LRB- -LRB-) (NP-PRD (NN chairman)))
    (. .)) )
( (NP (NN a))
  (. .) )

(TOP (FRAG (CD 1\\/2)))
"""


def test_a_file_of_the_treebank(tmp_path):
    path = tmp_path / "wsj.mrg"
    for content in (MRG, "\ufeff" + MRG, MRG.replace("\n", "\r\n"), MRG.replace("\n", " ")):
        path.write_bytes(content.encode())
        trees = read_ptb(path)
        assert [tree.tokens for tree in trees] == [
            ["Mr.", "Vinken", "is", "(", "chairman", "."], ["a", "."], ["1/2"],
        ]  # fmt: skip
        assert [tree.labels[-1] for tree in trees] == ["S", None, "TOP"]
    path.write_text(MRG)
    assert [tree.name for tree in read_ptb(path)] == ["wsj.mrg:2", "wsj.mrg:6", "wsj.mrg:9"]
    assert [tree.name for tree in parse_ptb(MRG)] == ["<text>:2", "<text>:6", "<text>:9"]
    assert read_ptb(path)[0].labels == parse_brackets(MRG[: MRG.index("( (NP")]).labels
    words = Vocabulary.build(word for tree in read_ptb(path) for word in tree.tokens)
    graphs = [Graph.from_brackets(tree, vocabulary=words) for tree in read_ptb(path)]
    assert cavs.batch(graphs).names == ("wsj.mrg:2", "wsj.mrg:6", "wsj.mrg:9")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "(S a)\n(S (NP b)",
            "2: column 10: 1 open brackets at the end of the tree that begins in line 2",
        ),
        ("(S a)\n ) (S b)", r"2: column 2: '\)'; expected '\('"),
        ("(S a)\nb (S b)", r"2: column 1: 'b'; expected '\('"),
        ("( (S a)\n b )", "2: column 2: word 'b' in a bracket without a label"),
        ("(S a)\n((NP (b)))", "2: column 8: '\\)'; expected a word or a tree after the label"),
        ("(S a)\n( )", "2: column 3: label '\\)'; expected a label after the bracket"),
        (" \ufeff", "1: column 2"),
    ],
)
def test_malformed_treebanks(tmp_path, text, message):
    path = tmp_path / "bad.mrg"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=rf"bad\.mrg:{message}") as caught:
        read_ptb(path)
    assert caught.value.hint
    with pytest.raises(DataError, match=f"^<text>:{message}"):
        parse_ptb(text)


def test_no_treebank(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_ptb(tmp_path / "none.mrg")
    (tmp_path / "empty.mrg").write_text("\n")
    with pytest.raises(DataError, match=r"empty\.mrg:1: the file is empty"):
        read_ptb(tmp_path / "empty.mrg")
    with pytest.raises(DataError, match=r"<text>:1: no tree in the text; expected at least one"):
        parse_ptb("\n")


texts = st.sampled_from(["a", "bc", "-LRB-", "\u00a0", "1/2"])
# A word, or a label (or None) with what its bracket holds.
trees = st.recursive(
    texts | st.tuples(st.sampled_from("XYZ"), st.lists(texts, min_size=1, max_size=1)),
    lambda inner: st.tuples(st.sampled_from("XYZ"), st.lists(inner, min_size=1, max_size=4)),
).filter(lambda tree: isinstance(tree, tuple))


def printed(tree, labelled):
    if isinstance(tree, str):
        return tree
    inside = " ".join(printed(part, labelled) for part in tree[1])
    return f"({tree[0]} {inside})" if labelled else f"({inside})"


def of_graph(tree):
    """The text of a parsed tree: a leaf with a label, or alone in its bracket, has one."""
    shown = []
    for v, (label, word) in enumerate(zip(tree.labels, tree.words, strict=True)):
        if word is not None:
            escaped = {"(": "-LRB-"}.get(word, word)
            shown.append(escaped if label is None else f"({label} {escaped})")
        else:
            kids = tree.children[tree.offsets[v] : tree.offsets[v + 1]]
            head = "" if label is None else f"{label} "
            shown.append(f"({head}{' '.join(shown[c] for c in kids)})")
    assert sorted(tree.children) == list(range(len(shown) - 1))  # one root, the last
    return shown[-1]


@given(trees)
def test_parsing_then_printing_gives_the_labelled_text_back(tree):
    text = printed(tree, True)
    found = parse_brackets(text)
    assert of_graph(found) == text
    assert lists(Graph.from_brackets(found)) == lists(Graph.from_brackets(text))
    assert of_graph(parse_brackets(f"(\n{text} )")) == text


def unwrapped(tree):
    """Without labels a bracket around one word is that word."""
    if isinstance(tree, str):
        return tree
    parts = [unwrapped(part) for part in tree[1]]
    return parts[0] if len(parts) == 1 and isinstance(tree[1][0], str) else ("", parts)


@given(st.lists(trees, min_size=1, max_size=4), st.sampled_from([" ", "\n", "\n\n"]))
def test_several_trees_are_those_one_by_one(several, blank):
    texts = [printed(tree, True) for tree in several]
    found = parse_ptb(blank.join(texts))
    assert [of_graph(tree) for tree in found] == texts
    joined = parse_ptb(f"({blank}{blank.join(texts)})")[0]
    assert joined.words[:-1] == [w for tree in found for w in tree.words] or len(texts) == 1
    assert of_graph(joined) == (texts[0] if len(texts) == 1 else f"({' '.join(texts)})")


@given(trees)
def test_parsing_then_printing_gives_the_text_without_labels_back(tree):
    found = parse_brackets(printed(tree, False), labelled=False)
    assert found.labels == [None] * len(found.words)
    assert of_graph(found) == printed(unwrapped(tree), False)
