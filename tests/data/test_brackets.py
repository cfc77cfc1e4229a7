"""Graphs of bracketed trees of any kind, and of single sentences in CoNLL-U."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cavs
from cavs import Graph
from cavs.data import UPOS, Vocabulary, parse_brackets, parse_conllu
from cavs.errors import ConfigError, DataError, GraphError


def lists(graph):
    return [graph.children(v).tolist() for v in range(graph.num_vertices)]


# ---- brackets ----


def test_words_beside_words_are_leaves():
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


@given(trees)
def test_parsing_then_printing_gives_the_text_without_labels_back(tree):
    found = parse_brackets(printed(tree, False), labelled=False)
    assert found.labels == [None] * len(found.words)
    assert of_graph(found) == printed(unwrapped(tree), False)


# ---- CoNLL-U ----


def rows(heads, forms=None, deprel=None, upos=None):
    lines = []
    for i, head in enumerate(heads):
        form = forms[i] if forms else f"w{i}"
        tag, relation = upos[i] if upos else "_", deprel[i] if deprel else "dep"
        lines.append(f"{i + 1}\t{form}\t_\t{tag}\t_\t_\t{head}\t{relation}\t_\t_")
    return "\n".join(lines)


SENTENCE = "# text = I see it\n" + rows(
    [2, 0, 2], ["I", "see", "it"], ["nsubj", "root", "obj"], ["PRON", "VERB", "_"]
)


@pytest.mark.parametrize("end", ["", "\n", "\n\n", "\r\n\r\n"])
def test_a_sentence(end):
    graph = Graph.from_conllu(SENTENCE.replace("\n", end[:2] if "\r" in end else "\n") + end)
    assert lists(graph) == [[], [0, 2], []]
    assert not graph.features and not graph.edge_features and graph.name == ""


def test_words_tags_and_relations():
    [sentence] = parse_conllu([*SENTENCE.split("\n"), ""])
    for source in (SENTENCE, sentence):
        graph = Graph.from_conllu(
            source,
            vocabulary=Vocabulary(sentence.forms),
            tags=UPOS,
            relations=["nsubj", "obj"],  # a root's is on no edge
            graph_features={"score": 1.5},
            name="mine",
        )
        assert graph.features["token"].tolist() == [1, 2, 3]
        assert graph.features["label"].tolist() == [UPOS.index("PRON"), UPOS.index("VERB"), -1]
        assert graph.edge_features["relation"].tolist() == [0, 1]
        assert graph.graph_features["score"] == 1.5 and graph.name == "mine"
    assert Graph.from_conllu(sentence).name == "<text>:2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "^<text>:1: an empty text; expected a sentence in CoNLL-U"),
        ("# only\n", "^<text>:3: no sentence"),
        (
            "1 I see",
            "^<text>:1: 1 columns between tabs; expected 10: ID FORM(.|\n)*hint: tabs stand",
        ),
        (rows([2]), r"^<text>:1: head '2'; expected 0 \(root\) or a word 1\.\.1"),
        (rows([0, 3, 2]), "^<text>:2: word 2 .* heads itself"),
        (f"{rows([0])}\n\n{rows([0])}", r"^<text>:3: a second sentence; (.|\n)*hint: parse_conllu"),
    ],
)
def test_malformed_sentences(text, message):
    with pytest.raises(DataError, match=message):
        Graph.from_conllu(text)
    with pytest.raises(DataError, match=message.replace("<text>", "mine")):
        Graph.from_conllu(text, name="mine")


def test_what_of_a_sentence_has_no_number():
    def fails(message, **options):
        with pytest.raises(DataError, match=message):
            Graph.from_conllu(SENTENCE, **options)

    fails("^<text>: word 1 has form 'I'; expected one of see it\n", vocabulary=["see", "it"])
    fails("^<text>: word 2 has part of speech 'VERB'; expected one of PRON\n", tags=["PRON"])
    fails("^a: word 3 has relation 'obj'; expected", relations={"nsubj": 0}, name="a")
    with pytest.raises(GraphError, match="takes a text or a Sentence of parse_conllu, not 3"):
        Graph.from_conllu(3)


@given(st.data(), st.integers(1, 12))
def test_a_sentence_written_out_gives_its_graph_back(data, n):
    order = data.draw(st.permutations(range(n)))
    heads = [0] * n
    for place, word in enumerate(order):  # a head comes before its word in `order`
        heads[word] = 1 + order[data.draw(st.integers(0, place - 1))] if place else 0
    labels = [f"r{i}" for i in range(n)]
    graph = Graph.from_conllu(
        rows(heads, deprel=labels), vocabulary=lambda form: int(form[1:]), relations=labels
    )
    assert graph.features["token"].tolist() == list(range(n))
    relation = graph.edge_features["relation"].tolist() if n > 1 else []
    children = [c for kids in lists(graph) for c in kids]
    assert relation == children  # each edge has the relation of its dependent
    assert lists(graph) == [[w for w in range(n) if heads[w] == v + 1] for v in range(n)]


def test_a_chain_of_five_thousand_words():
    assert Graph.from_conllu(rows(range(5000))).depth == 5000
