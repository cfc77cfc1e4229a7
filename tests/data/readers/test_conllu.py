"""Sentences in CoNLL-U, and their graphs."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cavs import Graph
from cavs.data import (
    UPOS,
    EmptyNode,
    Multiword,
    Sentence,
    Vocabulary,
    batch,
    dependency_graphs,
    parse_conllu,
    read_conllu,
)
from cavs.errors import DataError, GraphError

DATA = os.environ.get("CAVS_DATA")


def row(identity, form, head, upos="NOUN", deprel="dep"):
    return f"{identity}\t{form}\t_\t{upos}\t_\t_\t{head}\t{deprel}\t_\t_"


def sentence(*rows):
    return "\n".join(rows) + "\n\n"


def written(tmp_path, content):
    path = tmp_path / "words.conllu"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


FINE = sentence(
    "# text = I can't see",
    row(1, "I", 4, "PRON", "nsubj"),
    "2-3" + "\tcan't" + "\t_" * 8,
    row(2, "ca", 4, "AUX", "aux"),
    row(3, "n't", 4, "PART", "advmod"),
    row(4, "see", 0, "VERB", "root"),
    "4.1" + "\tghost" + "\t_" * 8,
)


def test_graphs_of_a_file(tmp_path):
    found = read_conllu(written(tmp_path, FINE + sentence(row(1, "Yes", 0, "_"))))
    assert [s.forms for s in found] == [["I", "ca", "n't", "see"], ["Yes"]]
    assert found[0].heads == [3, 3, 3, -1]
    assert found[0].name == "words.conllu:2"
    vocabulary = Vocabulary(["I", "see"])
    relations = Vocabulary(["nsubj", "aux", "advmod"])
    graphs = dependency_graphs(found, vocabulary, relations)
    assert graphs[0].children(3).tolist() == [0, 1, 2]
    assert graphs[0].features["token"].tolist() == [1, 0, 0, 2]
    assert [UPOS[i] for i in graphs[0].features["label"]] == ["PRON", "AUX", "PART", "VERB"]
    assert graphs[0].edge_features["relation"].tolist() == [1, 2, 3]
    assert graphs[1].features["label"].tolist() == [-1]
    assert batch(graphs).num_vertices == 5


@given(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.data())
def test_heads_are_a_forest_or_an_error(tmp_path_factory, heads, data):
    heads = [min(head, len(heads)) for head in heads]
    text = sentence(*(row(i + 1, "w", head) for i, head in enumerate(heads)))
    path = tmp_path_factory.mktemp("heads") / "a.conllu"
    path.write_text(text)

    def ends(word):
        for _ in heads:
            word = heads[word - 1] if word else 0
        return word == 0

    if all(ends(word + 1) for word in range(len(heads))):
        [graph] = dependency_graphs(read_conllu(path), Vocabulary([]))
        assert graph.num_edges == sum(head > 0 for head in heads)
    else:
        with pytest.raises(DataError, match="heads itself") as info:
            read_conllu(path)
        line = int(str(info.value).split(":")[1])
        word = line
        path_of_word = [word := heads[word - 1] for _ in heads]
        assert line in path_of_word  # the error stands at a word of the circle itself


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (sentence(row(1, "a", 0) + "\tmore"), 1, "11 columns between tabs; expected 10"),
        (sentence("1\ta"), 1, "2 columns"),
        (sentence(row(1, "a", 0), row(2, "", 1)), 2, "an empty FORM; expected a word, or _ for"),
        (sentence(row(1, "a", 0), row(3, "b", 1)), 2, "word number '3'; expected 2"),
        (sentence(row("x", "a", 0)), 1, "word number 'x'; expected 1"),
        (sentence(row("1-x", "a", 0)), 1, "word number '1-x'"),
        (sentence(row(1, "a", 2)), 1, r"head '2'; expected 0 \(root\) or a word 1\.\.1"),
        (sentence(row(1, "a", -1)), 1, "head '-1'"),
        (sentence(row(1, "a", "_")), 1, "head '_'"),
        (sentence(row(1, "a", "9" * 5000)), 1, "head '999"),
        (sentence(row(1, "a", 1)), 1, r"word 1 \('a'\) heads itself"),
        (sentence(row(1, "a", 0), row(2, "b", 3), row(3, "c", 2)), 2, "word 2 .* heads itself"),
        (sentence("1-2" + "\tx" + "\t_" * 8), 1, "a sentence without words"),
        (sentence(row(1, "a", 0), "# late"), 2, "a comment inside a sentence"),
        (FINE + row(1, "a", 0) + "\n", 9, "the file ends inside a sentence"),
        (FINE + row(1, "a", 0), 9, "the file ends inside a sentence"),
        ("# only a comment\n\n", 2, "no sentence"),
        ("", 1, "the file is empty"),
    ],
)
def test_malformed_files_name_the_line(tmp_path, text, line, message):
    path = written(tmp_path, text)
    with pytest.raises(DataError, match=message) as info:
        read_conllu(path)
    assert str(info.value).startswith(f"{path}:{line}: ") and "expected" in str(info.value)


def test_bad_bytes_and_tags(tmp_path):
    with pytest.raises(DataError, match=":3: byte 0xc3 is not UTF-8"):
        read_conllu(written(tmp_path, sentence(row(1, "a", 0)).encode() + b"\xc3\n"))
    found = read_conllu(written(tmp_path, sentence(row(1, "a", 0, "NN"))))
    with pytest.raises(DataError, match="word 1 has part of speech 'NN'; expected one of ADJ"):
        dependency_graphs(found, Vocabulary([]))
    assert dependency_graphs(found, Vocabulary([]), tags=("NN",))[0].features["label"] == 0


# As in the English Web Treebank: ranges, an empty node, features and enhanced dependencies.
WHOLE = """\
# newdoc id = weblog
# sent_id = weblog-1
# text = We can't, and you = 1?
1\tWe\twe\tPRON\tPRP\tCase=Nom|Number=Plur\t3\tnsubj\t3:nsubj\t_
2-3\tcan't\t_\t_\t_\tTypo=Yes\t_\t_\t_\tSpaceAfter=No
2\tca\tcan\tAUX\tMD\tVerbForm=Fin\t0\troot\t0:root\t_
3\tn't\tnot\tPART\tRB\tPolarity=Neg\t2\tadvmod\t2:advmod\t_
4\tyou\tyou\tPRON\tPRP\t_\t2\tconj\t2:conj|4.1:nsubj\tSpaceAfter=No
4.1\tcan\tcan\tAUX\tMD\tVerbForm=Fin\t_\t_\t2:conj\tCopyOf=2

1-2\tdel\t_\t_\t_\t_\t_\t_\t_\t_
1\tde\tde\tADP\t_\t_\t0\troot\t_\t_
2\tel\tel\tDET\t_\t_\t1\tdet\t_\t_
3\ta b\ta b\tX\t_\t_\t1\tdep\t_\t_

"""


def test_every_column_and_comment_is_kept():
    first, second = parse_conllu(WHOLE)
    assert first.forms == ["We", "ca", "n't", "you"] and first.heads == [2, -1, 1, 1]
    assert first.lemmas == ["we", "can", "not", "you"]
    assert first.xpos == ["PRP", "MD", "RB", "PRP"]
    assert first.feats == ["Case=Nom|Number=Plur", "VerbForm=Fin", "Polarity=Neg", "_"]
    assert first.deps == ["3:nsubj", "0:root", "2:advmod", "2:conj|4.1:nsubj"]
    assert first.misc == ["_", "_", "_", "SpaceAfter=No"]
    assert first.comments[0] == "# newdoc id = weblog" and len(first.comments) == 3
    assert first.sent_id == "weblog-1" and first.text == "We can't, and you = 1?"
    assert first.metadata["newdoc id"] == "weblog"
    assert first.multiword == [Multiword(1, 3, "can't", "Typo=Yes", "SpaceAfter=No")]
    assert first.tokens == ["We", "can't", "you"]
    node = EmptyNode("4.1", "can", "can", "AUX", "MD", "VerbForm=Fin", "2:conj", "CopyOf=2")
    assert first.empty_nodes == [node]
    assert second.tokens == ["del", "a b"] and second.comments == []
    assert second.sent_id is None and second.text is None


def test_a_sentence_is_written_as_it_was_read():
    assert "".join(sentence.to_conllu() for sentence in parse_conllu(WHOLE)) == WHOLE
    made = Sentence("mine", ["a", "b"], ["X", "_"], ["root", "dep"], [-1, 0])
    assert made.tokens == ["a", "b"] and made.text is None
    assert made.to_conllu() == sentence(row(1, "a", 0, "X", "root"), row(2, "b", 1, "_"))
    assert parse_conllu(made.to_conllu())[0].forms == ["a", "b"]


def test_columns_that_a_graph_does_not_need_leave_it_as_it_is():
    plain = sentence(*(row(i, f, h) for i, f, h in ((1, "We", 2), (2, "ca", 0), (3, "n't", 2))))
    options = {"vocabulary": len, "tags": ["NOUN"], "relations": ["dep"]}
    [bare], [rich] = (
        parse_conllu(plain),
        parse_conllu(
            "# text = x\n2-3\tcan't" + "\t_" * 8 + "\n" + plain.replace("_\t_\n", "x=y\tz\n")
        ),
    )
    a, b = Graph.from_conllu(bare, **options), Graph.from_conllu(rich, **options)
    assert rich.misc == ["z"] * 3 and bare.misc == ["_"] * 3
    assert lists(a) == lists(b) and a.schema == b.schema
    assert all((a.features[name] == b.features[name]).all() for name in a.features)
    assert (a.edge_features["relation"] == b.edge_features["relation"]).all()


@pytest.mark.parametrize(
    ("identity", "needed"),
    [("2-5", "1..4"), ("3-2", "1..4"), ("0-1", "1..4"), ("1-2 2-3", "3..4"), ("1-2 1-2", "3..4")],
)
def test_ranges_of_other_words(identity, needed):
    ranges = [f"{i}\tx" + "\t_" * 8 for i in identity.split()]
    words = [row(i, "a", 0) for i in range(1, 5)]
    with pytest.raises(DataError) as info:
        parse_conllu(sentence(*ranges, *words))
    last = identity.split()[-1]
    assert f"<text>:{len(ranges)}: range '{last}'; expected first and last of words" in str(
        info.value
    )
    assert needed in str(info.value) and info.value.hint


ONE = "1\ta\u2028b\t_\tX\t_\t_\t0\troot\t_\t_\n\n"


@pytest.mark.parametrize(
    "given",
    [
        ONE,
        "\ufeff" + ONE,
        ONE.replace("\n", "\r\n"),
        ONE.split("\n"),
        ("\ufeff" + ONE).split("\n"),
        iter(ONE.split("\n")),
        [line + "\n" for line in ONE.split("\n")],  # as an open file yields them
    ],
)
def test_a_text_or_its_lines_are_parsed(given):
    [found] = parse_conllu(given)
    assert found.forms == ["a\u2028b"] and found.misc == ["_"]


def test_the_mark_of_a_text_of_one_sentence_is_no_part_of_it():
    assert Graph.from_conllu("\ufeff" + ONE).num_vertices == 1


def test_lines_that_were_cut_inside_words():
    with pytest.raises(DataError, match=r"2 columns[\s\S]*hint: .*text\.split\(\"\\n\"\)"):
        parse_conllu(ONE.splitlines())
    with pytest.raises(DataError, match=r"<text>:1: several lines in one; expected one line each"):
        parse_conllu([ONE])
    with pytest.raises(DataError, match="<text>:1: the file ends inside a sentence"):
        parse_conllu(ONE.rstrip("\n"))
    with pytest.raises(DataError, match="mine:1: 2 columns"):
        parse_conllu(["1\ta", ""], "mine")


@pytest.mark.skipif(not DATA, reason="CAVS_DATA names no folder with treebanks")
def test_a_treebank_is_written_as_it_was_read():
    path = Path(DATA, "ud_english_ewt", "en_ewt-ud-dev.conllu")
    found = read_conllu(path)
    assert "".join(sentence.to_conllu() for sentence in found) == path.read_text(encoding="utf-8")
    assert all(sentence.sent_id and sentence.text for sentence in found)
    written = ["".join(sentence.tokens) for sentence in found]
    assert written == ["".join(sentence.text.split()) for sentence in found]


@pytest.mark.skipif(not DATA, reason="CAVS_DATA names no folder with treebanks")
def test_the_treebank():
    found = read_conllu(Path(DATA, "ud_english_ewt", "en_ewt-ud-dev.conllu"))
    assert len(found) == 2001
    relations = Vocabulary.build(r for s in found for r in s.deprel)
    graphs = dependency_graphs(
        found, Vocabulary.build(f for s in found for f in s.forms), relations
    )
    assert all(len(graph.roots) == 1 for graph in graphs)
    assert batch(graphs).num_edges == sum(len(s.forms) - 1 for s in found)


# ---- graphs of single sentences ----


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


def lists(graph):
    return [graph.children(v).tolist() for v in range(graph.num_vertices)]


@pytest.mark.parametrize("end", ["", "\n", "\n\n", "\r\n\r\n"])
def test_one_sentence_as_a_text(end):
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
