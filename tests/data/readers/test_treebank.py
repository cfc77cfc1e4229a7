"""The parts of a treebank in a folder."""

import re

import pytest

from cavs.data import read_treebank
from cavs.errors import DataError

SENTENCE = "1\tGo\tgo\tVERB\t_\t_\t0\troot\t_\t_\n\n"


def numbered(count):
    return "".join(SENTENCE.replace("Go", f"Go{i}") for i in range(count))


def test_parts_are_found_by_the_ends_of_their_names(tmp_path):
    (tmp_path / "en-train.conllu").write_text(numbered(3))
    (tmp_path / "en-test.conllu").write_text(numbered(2))
    found = read_treebank(tmp_path)
    assert {name: len(sentences) for name, sentences in found.items()} == {"train": 3, "test": 2}


def test_without_a_training_file_most_of_dev_is_training_data(tmp_path):
    (tmp_path / "en-dev.conllu").write_text(numbered(21))
    found = read_treebank(str(tmp_path))
    assert [s.forms for s in found["dev"]] == [["Go0"], ["Go10"], ["Go20"]]
    assert len(found["train"]) == 18


@pytest.mark.parametrize(
    ("part", "count", "need", "told"),
    [
        ("test", 2, "train", "neither *train.conllu nor *dev.conllu"),
        ("dev", 1, "train", "a single sentence in *dev.conllu, and no *train.conllu"),
        ("train", 2, "dev", "no *dev.conllu"),
    ],
)
def test_a_part_that_is_needed(tmp_path, part, count, need, told):
    (tmp_path / f"en-{part}.conllu").write_text(numbered(count))
    assert read_treebank(tmp_path, need=part)[part]
    with pytest.raises(DataError, match=re.escape(f"{tmp_path} has {told}")):
        read_treebank(tmp_path, need=need)


def test_other_folders_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"has none of \*train.conllu"):
        read_treebank(tmp_path)
    for name in ("a-dev.conllu", "b-dev.conllu"):
        (tmp_path / name).write_text(SENTENCE)
    with pytest.raises(DataError, match=r"has 2 files \*dev.conllu"):
        read_treebank(tmp_path)
    with pytest.raises(DataError, match="none of"):
        read_treebank(tmp_path / "missing")
