import os
from pathlib import Path

import numpy as np
import pytest

from cavs.data import Vocabulary, batch, chains, parallel_chains, read_text
from cavs.errors import ConfigError, DataError

DATA = os.environ.get("CAVS_DATA")


def test_lines_become_token_lists(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(" = Title = \n\n a b c d \n e <unk>\n")
    assert read_text(path) == [
        ["=", "Title", "=", "<eos>"],
        ["a", "b", "c", "d", "<eos>"],
        ["e", "<unk>", "<eos>"],
    ]
    assert read_text(path, max_length=2, headings=False) == [
        ["a", "b"], ["c", "d"], ["<eos>"], ["e", "<unk>"], ["<eos>"],
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=r"max_length is 1, but must be .* at least 2"):
        read_text(path, max_length=1)
    with pytest.raises(DataError, match="cannot be read"):
        read_text(tmp_path)
    path.write_text("\u2028\n", encoding="utf-8")
    with pytest.raises(DataError, match=":1: no token in the file"):
        read_text(path)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/urandom", "/dev/null"])
def test_devices_may_be_endless_and_are_refused(path):
    with pytest.raises(DataError, match=f"{path}: cannot be read: it is a device, not a file"):
        read_text(path)


def test_a_pipe_is_read():
    read, write = os.pipe()
    os.write(write, b"a b\n")
    os.close(write)
    assert read_text(f"/dev/fd/{read}") == [["a", "b", "<eos>"]]
    os.close(read)


def test_a_text_may_be_read_twice(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("a b a\nb\n")
    sentences = read_text(path)
    vocabulary = Vocabulary.build(token for tokens in sentences for token in tokens)
    assert len(chains(sentences, vocabulary)) == 2
    assert sentences[0][0] is sentences[0][2] and sentences[0][1] is sentences[1][0]


def test_chains_predict_every_token_once():
    vocabulary = Vocabulary(["<eos>", "a", "b"])
    graph, other = chains([["a", "b", "<eos>"], ["c"]], vocabulary)
    assert graph.features["token"].tolist() == [1, 2, 3]
    assert graph.features["label"].tolist() == [2, 3, 1]
    assert graph.depth == 3
    assert other.features["token"].tolist() == [1] and other.features["label"].tolist() == [0]


@pytest.mark.skipif(not DATA, reason="CAVS_DATA names no folder with texts")
def test_wikitext():
    sentences = read_text(Path(DATA, "wikitext2", "valid.txt"), max_length=70)
    assert 210_000 < sum(map(len, sentences)) < 225_000
    vocabulary = Vocabulary.build(token for tokens in sentences for token in tokens)
    graphs = chains(sentences[:200], vocabulary)
    assert batch(graphs).schedule().num_levels == 70


@pytest.mark.parametrize(("count", "length"), [(1, 4), (2, 3), (3, 2), (4, 9)])
def test_parallel_chains_continue_each_other(count, length):
    words = [*"abcabcaab", "<eos>", *"cb"]
    vocabulary = Vocabulary(["<eos>", "a", "b", "c"])
    graphs = parallel_chains([words[:9], words[9:]], vocabulary, count, length, {"h": [0.0, 1.0]})
    each = len(words) // count
    assert len(graphs) == count * -(-each // length)
    for part in range(count):
        own = graphs[part::count]
        label = np.concatenate([g.features["label"] for g in own])
        token = np.concatenate([g.features["token"] for g in own])
        first = part * each
        assert vocabulary.decode(label) == words[first : first + each]
        assert vocabulary.decode(token) == ["<eos>", *words][first : first + each]
        assert own[0].graph_features["h"].tolist() == [0.0, 1.0]
        assert [g.num_vertices for g in own[:-1]] == [length] * (len(own) - 1)
        assert own[-1].name == f"part {part}, token {length * (len(own) - 1)}"


def test_texts_that_are_too_short_are_refused():
    vocabulary = Vocabulary(["<eos>", "a"])
    with pytest.raises(ConfigError, match=r"text of 3 tokens .* into 4 parts\n(.|\n)*at most 3"):
        parallel_chains([["a", "a"], ["a"]], vocabulary, 4, 2)
    with pytest.raises(ConfigError, match="length is 0"):
        parallel_chains([["a"]], vocabulary, 1, 0)
    with pytest.raises(ConfigError, match="sentence 0 is a list of tokens, not the text"):
        parallel_chains(["a b"], vocabulary, 1, 1)
