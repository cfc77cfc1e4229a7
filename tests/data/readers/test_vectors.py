"""Word vectors in files of GloVe and word2vec."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cavs import nn
from cavs.data import Vocabulary, read_vectors, write_vectors
from cavs.data.readers.vectors import FORMATS
from cavs.errors import ConfigError, DataError

WORDS = Vocabulary(["the", "Cat", "ünï"])


def written(folder, content):
    path = folder / "vectors"
    path.write_bytes(content)
    return path


floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(max_examples=20)
@given(arrays(np.float32, st.tuples(st.just(4), st.integers(1, 5)), elements=floats), st.booleans())
def test_written_vectors_are_read_back(tmp_path_factory, values, known):
    path = tmp_path_factory.mktemp("vectors") / "v"
    for form in FORMATS:
        write_vectors(path, WORDS, values, format=form)
        found = read_vectors(path, WORDS, format=form if known or values.shape[1] == 1 else None)
        assert found.values.tobytes() == values.tobytes(), form
        assert found.found.all() and found.coverage == 1 and found.missing == []


@pytest.mark.parametrize("form", FORMATS)
def test_coverage_and_fallback(form, tmp_path):
    path = tmp_path / "v"
    write_vectors(path, Vocabulary(["cat", "the", "CAT"]), np.arange(8).reshape(4, 2), format=form)
    words = Vocabulary(["Cat", "CAT", "dog"])
    found = read_vectors(path, words)
    assert found.missing == ["Cat", "dog"] and found.coverage == 1 / 3 and found.width == 2
    assert repr(found) == "WordVectors(1 of 3 tokens, width 2)"
    assert found.values.tolist() == [[0, 1], [0, 0], [6, 7], [0, 0]]  # <unk> is in the file
    found = read_vectors(path, words, fallback=str.lower)
    assert found.missing == ["dog"] and found.values.tolist()[1:3] == [[2, 3], [6, 7]]


def test_an_embedding_starts_from_vectors(tmp_path):
    path = written(tmp_path, b"the 1 2\ncat 3 4\n")
    vectors = read_vectors(path, WORDS)
    table = nn.Embedding(len(WORDS), 2, init=vectors)
    plain = nn.Embedding(len(WORDS), 2)
    for seed in (0, 3):
        table.weight.initialize(seed)
        plain.weight.initialize(seed)
        assert table.weight.value[1].tolist() == [1, 2]
        others = [0, 2, 3]
        assert np.array_equal(table.weight.value[others], plain.weight.value[others])
    again = pickle.loads(pickle.dumps(table))
    again.weight.initialize(3)
    assert np.array_equal(again.weight.value, table.weight.value)
    for shape in ((4, 3), (5, 2)):
        with pytest.raises(ConfigError, match=r"cannot start from vectors of width 2 for 4 tokens"):
            nn.Embedding(*shape, init=vectors)
    with pytest.raises(DataError, match="vectors:1: vectors of width 2; expected width 50"):
        read_vectors(path, WORDS, width=50)


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_that_was_cut_off(form, tmp_path):
    path = tmp_path / "vectors"
    write_vectors(path, WORDS, np.full((4, 3), 1 / 3), format=form)
    content = path.read_bytes()
    end = len(content) - (form == "word2vec-binary")  # the last line end belongs to no vector
    whole = []
    for stop in range(1, end):
        try:
            read_vectors(written(tmp_path, content[:stop]), WORDS, format=form)
        except DataError:
            continue
        whole.append(content[:stop])
    # A file of GloVe does not say how many vectors it has.
    assert whole == ([] if form != "glove" else [c for c in whole if c.endswith(b"\n")])
    assert len(whole) == (3 if form == "glove" else 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "vectors:1: no vector"),
        (b"the 1 2\na 1\n", "vectors:2: vectors of width 1; expected width 2"),
        (b"the 1 2\na 1 2 3\n", "vectors:2: vectors of width 3; expected width 2"),
        (b"the 1 2\na 1", "vectors:2: the file ends after 1 values of a row"),
        (b"the 1 2\na 1 2", "vectors:2: the file ends inside a line"),
        (b"the 1 x\n", "vectors:1: could not convert string to float: b'x'"),
        (b"the 1 nan\n", "vectors:1: a value of 'the' is not a finite number"),
        (b"the 1 1e50\n", "vectors:1: a value of 'the' is not a finite number"),
        (b"the\n", "vectors:1: a row 'the.n'; expected a token and 1 values"),
        (b"the 1 2\n\n", "vectors:2: a row"),
        (b"2 2\nthe 1 2\n", "vectors:2: 1 vectors; expected the 2 of line 1"),
        (b"1 2\nthe 1 2\na 1 2\n", "vectors:3: more than the 1 vectors of line 1"),
        (b"0 3\n", "vectors:1: 0 vectors of width 3"),
        (b"\x1f\x8b 1", "bytes that are no vectors(.|\n)*gunzip it first"),
        (b"1 1\nthe\x00\x00\x00\x00", "vector 1 of 1: no blank after its token"),
        (b"1 1\nthe \x00\x00\x00", "vector 1 of 1: the file ends inside it"),
        (b"1 1\nthe \x00\x00\x00\x00\nmore", "more bytes than those of 1 vectors of width 1"),
        (b"1 1\nthe \x00\x00\xc0\x7f\n", "vector 1 of 1: a value of 'the' is not a finite"),
    ],
)
def test_malformed_files(content, message, tmp_path):
    with pytest.raises(DataError, match=message):
        read_vectors(written(tmp_path, content), WORDS)


def test_rows_of_other_tokens(tmp_path):
    # Some files of GloVe have tokens with blanks; a token that occurs twice counts once.
    path = written(tmp_path, b"the 1 2\n. . . 5 6\nthe 3 4\n\xff\xfe 1 2 \n")
    found = read_vectors(path, WORDS)
    assert found.values[1].tolist() == [1, 2] and found.missing == ["Cat", "ünï"]
    with pytest.raises(DataError, match=r'expected the number of vectors(.|\n)*format="glove"'):
        read_vectors(path, WORDS, format="word2vec")
    with pytest.raises(ConfigError, match="format"):
        read_vectors(path, WORDS, format="fasttext")
    with pytest.raises(DataError, match="cannot be read"):
        read_vectors(tmp_path / "none", WORDS)


@pytest.mark.parametrize("form", ["word2vec", "word2vec-binary"])
def test_another_width_is_found_in_the_first_line(form, tmp_path):
    path = tmp_path / "vectors"
    write_vectors(path, WORDS, np.ones((4, 3)), format=form)
    assert read_vectors(path, WORDS, width=3).width == 3
    with pytest.raises(DataError, match="vectors:1: vectors of width 3; expected width 50"):
        read_vectors(path, WORDS, width=50)


def test_empty_lines_after_the_last_vector(tmp_path):
    path = written(tmp_path, b"1 2\nthe 1 2\n\n  \n")
    assert read_vectors(path, WORDS).values[1].tolist() == [1, 2]
    written(tmp_path, b"1 2\nthe 1 2\n\nCat 1 2\n")
    with pytest.raises(DataError, match="vectors:4: more than the 1 vectors of line 1"):
        read_vectors(path, WORDS)


def test_a_fallback_that_occurs_twice_counts_once(tmp_path):
    path = written(tmp_path, b"cat 1 2\ncat 3 4\nthe 5 6\n")
    found = read_vectors(path, WORDS, fallback=str.lower)
    assert found.values[1:3].tolist() == [[5, 6], [1, 2]] and found.missing == ["ünï"]


def test_vectors_that_cannot_be_written(tmp_path):
    path = tmp_path / "v"
    with pytest.raises(
        ConfigError, match=r"values is .*shape \[2, 3\].*numbers of shape \[4, width"
    ):
        write_vectors(path, WORDS, np.ones((2, 3)))
    with pytest.raises(DataError, match="the vector of row 1 has values that are not finite"):
        write_vectors(path, WORDS, [[1.0], [np.inf], [1.0], [1.0]])
    for token in ("a b", "a\n", "", "\ud800"):
        with pytest.raises(DataError, match="cannot be written to a file of vectors"):
            write_vectors(path, Vocabulary([token]), np.ones((2, 1)))
    assert not path.exists()
