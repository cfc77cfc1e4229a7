import json
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cavs.data import Vocabulary
from cavs.errors import ConfigError, DataError


def test_vocabulary_orders_by_count_then_token():
    vocabulary = Vocabulary.build(["b", "a", "c", "c", "b", "d", "<unk>"])
    assert list(vocabulary) == ["<unk>", "b", "c", "a", "d"]
    assert list(Vocabulary.build([*"baccbd"], min_count=2)) == [
        "<unk>",
        "b",
        "c",
    ]
    assert len(Vocabulary.build([*"baccbd"], max_size=2)) == 2
    assert vocabulary.encode(["c", "zzz", None, "<unk>"]).tolist() == [2, 0, -1, 0]
    assert vocabulary.decode([2, -1, 0]) == ["c", None, "<unk>"]
    assert "a" in vocabulary and "z" not in vocabulary and vocabulary["z"] == 0
    with pytest.raises(ConfigError, match="index 5 is outside a vocabulary of 5"):
        vocabulary.decode([5])
    with pytest.raises(ConfigError, match="'a' twice"):
        Vocabulary(["a", "a"])
    with pytest.raises(ConfigError, match=r"max_size is 0, but must be .* at least 1"):
        Vocabulary.build([], max_size=0)


@given(st.lists(st.text(max_size=5)))
def test_vocabulary_survives_json(tokens):
    vocabulary = Vocabulary.build(tokens)
    assert Vocabulary(json.loads(json.dumps(vocabulary.to_json()))) == vocabulary
    assert vocabulary.decode(vocabulary.encode(tokens)) == tokens


def test_vocabulary_files(tmp_path):
    vocabulary = Vocabulary(["ä", "b"])
    path = tmp_path / "words.json"
    vocabulary.save(path)
    assert Vocabulary.load(path) == vocabulary and hash(Vocabulary.load(path)) == hash(vocabulary)
    assert [p.name for p in tmp_path.iterdir()] == ["words.json"]
    with pytest.raises(DataError, match="cannot be written"):
        vocabulary.save(tmp_path / "no" / "folder.json")
    with pytest.raises(DataError, match="cannot be read"):
        Vocabulary.load(tmp_path / "other.json")
    for text in ('["a"', '{"a": 1}', '["a", "a"]', "[1]", '"abc"'):
        path.write_text(text)
        with pytest.raises(DataError, match="no vocabulary"):
            Vocabulary.load(path)
    path.write_bytes(b'\xef\xbb\xbf["a"]')
    assert Vocabulary.load(path) == Vocabulary(["a"])  # without the byte-order mark
    path.write_bytes(b'["\xff"]')
    with pytest.raises(DataError, match="no vocabulary"):
        Vocabulary.load(path)


def test_half_of_a_surrogate_pair_is_saved_and_loaded(tmp_path):
    words = Vocabulary(["\ud800", "é"])  # a file name that is no UTF-8 holds such halves
    words.save(tmp_path / "words.json")
    assert Vocabulary.load(tmp_path / "words.json") == words


def test_saving_replaces_no_link_no_special_file_and_nothing_read_only(tmp_path, monkeypatch):
    words = Vocabulary(["a"])
    (tmp_path / "link").symlink_to(tmp_path / "real.json")
    words.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert Vocabulary.load(tmp_path / "real.json") == words
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match=r"pipe: cannot be written: .* not a file that may be"):
        words.save(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()
    with monkeypatch.context() as patch:  # whoever runs the tests may be allowed everything
        patch.setattr(os, "access", lambda path, mode: False)
        with pytest.raises(DataError, match="may be written"):
            Vocabulary(["b"]).save(tmp_path / "real.json")
    assert Vocabulary.load(tmp_path / "real.json") == words
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe", "real.json"]


WORDS = Vocabulary(["a", "b"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: WORDS.decode([0.5]), "index is a whole number, not 0.5"),
        (lambda: WORDS.decode(["a"]), r"whole number, not 'a'.*encode\(tokens\)"),
        (lambda: WORDS.decode("a"), "whole number, not 'a'"),
        (lambda: WORDS.decode([None]), "whole number, not None.*-1 for no token"),
        (lambda: WORDS.decode([True]), "whole number, not True"),
        (lambda: WORDS.decode(None), "list of numbers, not None"),
        (lambda: WORDS.decode(1), r"not 1\n.*decode\(\[index\]\)"),
        (lambda: WORDS.decode([3]), "index 3 is outside"),
        (lambda: WORDS.encode(None), "list of texts, not None"),
        (lambda: WORDS.encode("ab"), "not the text 'ab'"),
        (lambda: WORDS.encode(b"ab"), "not the text b'ab'"),
        (lambda: WORDS.encode([["a"]]), "a token is a text: unhashable type: 'list'"),
        (lambda: Vocabulary(None), "list of texts, not None"),
        (lambda: Vocabulary([["a"]]), r"holds texts, found \['a'\]"),
        (lambda: Vocabulary.build(None), "list of texts, not None"),
        (lambda: Vocabulary.build([["a"]]), "a token is a text: unhashable"),
        (lambda: Vocabulary.build(["a", 1]), "holds texts, found 1"),
    ],
)
def test_what_is_no_token_and_no_index(call, message):
    with pytest.raises(ConfigError, match=re.compile(message, re.DOTALL)) as caught:
        call()
    assert caught.value.hint and caught.value.where.startswith("test_vocabulary.py:")


def test_an_error_of_the_generator_of_tokens_is_raised_as_it_is():
    def tokens():
        yield "a"
        raise TypeError("of mine")

    with pytest.raises(TypeError, match=r"^of mine$"):
        Vocabulary.build(tokens())
    with pytest.raises(ConfigError, match="a token is a text: unhashable type: 'list'"):
        Vocabulary.build(["a", ["b"]])


def test_a_vocabulary_shows_its_size():
    assert repr(Vocabulary(["a", "b"])) == "Vocabulary(3 tokens)"
