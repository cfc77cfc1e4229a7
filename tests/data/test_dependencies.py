import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cavs.data import UPOS, Vocabulary, batch, dependency_graphs, read_conllu
from cavs.errors import DataError

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


def test_a_sentence(tmp_path):
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
