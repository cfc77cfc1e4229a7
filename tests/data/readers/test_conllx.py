"""Sentences of CoNLL-X, and writers of sentences."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from cavs import Graph
from cavs.data import (
    Sentence,
    parse_conllu,
    parse_conllx,
    read_conllu,
    read_conllx,
    write_conllu,
    write_conllx,
)
from cavs.errors import DataError

DATA = os.environ.get("CAVS_DATA")
TEXT = (
    "1\tIt\tit\tPRON\tPRP\tnum=sg\t2\tsubj\t2\tsubj\n"
    "2\tworks\twork\tVERB\tVBZ\t_\t0\troot\t0\troot\n\n"
    "1\tYes\t_\tX\tUH\t_\t0\troot\t_\t_"
)


def test_all_columns_are_there(tmp_path):
    (tmp_path / "a.conll").write_text(TEXT)
    first, last = read_conllx(tmp_path / "a.conll")
    assert first.forms == ["It", "works"] and first.lemmas == ["it", "work"]
    assert first.upos == ["PRON", "VERB"] and first.xpos == ["PRP", "VBZ"]
    assert first.feats == ["num=sg", "_"] and first.heads == [1, -1]
    assert first.deprel == ["subj", "root"] and first.projective_heads == ["2", "0"]
    assert first.projective_deprel == ["subj", "root"] and first.misc == []
    assert last.forms == ["Yes"] and last.name == "a.conll:4"
    write_conllx(tmp_path / "b.conll", [first, last])
    assert (tmp_path / "b.conll").read_text() == f"{TEXT}\n\n"
    graph = Graph.from_conllu(first, tags=["PRON", "VERB"], relations=["subj", "root"])
    assert graph.children(1).tolist() == [0] and graph.features["label"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# a comment\n1\ta\t_\tX\t_\t_\t0\tr\t_\t_\n", "<text>:1: 1 columns between tabs"),
        ("1-2\ta\t_\tX\t_\t_\t0\tr\t_\t_\n", "<text>:1: word number '1-2'; expected 1"),
        ("1\ta\t_\tX\t_\t_\t0\tr\n", "8 columns .*CPOSTAG POSTAG FEATS HEAD DEPREL PHEAD PDEPREL"),
        ("1\ta\t_\tX\t_\t_\t1\tr\t_\t_\n", r"word 1 \('a'\) heads itself"),
        ("\n", "no sentence in the file"),
    ],
)
def test_malformed_sentences(text, message):
    with pytest.raises(DataError, match=message):
        parse_conllx(text)


def test_a_sentence_of_a_treebank_in_both_formats(tmp_path):
    text = (
        "# sent_id = a\n1-2\tcan't\t_\t_\t_\t_\t_\t_\t_\t_\n"
        "1\tca\tcan\tAUX\tMD\t_\t0\troot\t0:root\t_\n"
        "2\tn't\tnot\tPART\tRB\t_\t1\tadvmod\t1:advmod\tA=b\n"
        "2.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t1:x\t_\n\n"
    )
    (sentence,) = parse_conllu(text)
    write_conllu(tmp_path / "a", [sentence])
    assert (tmp_path / "a").read_text() == text and read_conllu(tmp_path / "a")[0].sent_id == "a"
    (words,) = parse_conllx(sentence.to_conllx())
    assert words.forms == ["ca", "n't"] and words.comments == words.deps == words.multiword == []
    kept = ("forms", "lemmas", "upos", "xpos", "feats", "heads", "deprel")
    assert all(getattr(words, name) == getattr(sentence, name) for name in kept)


@pytest.mark.skipif(not DATA, reason="CAVS_DATA names no folder with treebanks")
def test_the_files_of_universal_dependencies_are_written_byte_by_byte(tmp_path):
    for path in sorted(Path(DATA, "ud_english_ewt").glob("*.conllu")):
        write_conllu(tmp_path / "a", read_conllu(path))
        assert (tmp_path / "a").read_bytes() == path.read_bytes()


def test_sentences_that_cannot_be_written(tmp_path):
    bare = Sentence("x", ["a", "b"], ["X", "X"], ["r", "r"], [-1, 0])
    assert bare.to_conllx() == "1\ta\t_\tX\t_\t_\t0\tr\t_\t_\n2\tb\t_\tX\t_\t_\t1\tr\t_\t_\n\n"
    for change, message in [
        ({"lemmas": ["a"]}, "x: 1 lemmas for 2 words"),
        ({"upos": []}, "x: 0 upos for 2 words"),
        ({"forms": ["a", "b\tc"]}, r"x: word 2 has the columns \('2', 'b\\tc'"),
        ({"forms": ["", "b"]}, "x: word 1 has the columns"),
        ({"comments": ["no mark"]}, "x: comment 'no mark'"),
    ]:
        with pytest.raises(DataError, match=message):
            write_conllu(tmp_path / "a", [replace(bare, **change)])
    assert not (tmp_path / "a").exists()
