import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cavs.data import Vocabulary, batch, parse_tree, read_sst, sst_graphs, write_sst
from cavs.data.readers.parsed_tree import unescape
from cavs.errors import ConfigError, DataError

DATA = os.environ.get("CAVS_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="CAVS_DATA names no folder with treebanks")


def written(tmp_path, content):
    path = tmp_path / "trees.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_a_tree():
    tree = parse_tree("(3 (2 It) (4 (1 really)\t(0 works)))")
    assert tree.labels == [2, 1, 0, 4, 3]
    assert tree.words == ["It", "really", "works", None, None]
    assert tree.tokens == ["It", "really", "works"]
    [graph] = sst_graphs([tree], Vocabulary(["It", "works"]))
    assert [graph.children(v).tolist() for v in range(5)] == [[], [], [], [1, 2], [0, 3]]
    assert graph.features["token"].tolist() == [1, 0, 2, -1, -1]
    assert graph.features["label"].tolist() == [2, 1, 0, 4, 3]


def test_labels_with_names(tmp_path):
    path = written(tmp_path, "(S (NP It) (VP works))\n(NP (DT the) (NN cat))\n")
    trees = read_sst(path, labels=["S", "NP", "VP", "DT", "NN"])
    assert [tree.labels for tree in trees] == [[1, 2, 0], [3, 4, 1]]
    with pytest.raises(DataError, match=r":2: column 6: label 'DT'; expected one of S NP VP after"):
        read_sst(path, labels=["S", "NP", "VP"])
    with pytest.raises(ConfigError, match="not the text 'SNP'"):
        parse_tree("(S a)", labels="SNP")


def test_escapes_and_odd_tokens(tmp_path):
    path = written(tmp_path, "(2 (2 -LRB-) (2 3\\/4))\n\n(1 a\u00a0b\x85)\r\n(0 \u2028)")
    trees = read_sst(path)
    assert [tree.tokens for tree in trees] == [["(", "3/4"], ["a\u00a0b\x85"], ["\u2028"]]
    assert [tree.name for tree in trees] == ["trees.txt:1", "trees.txt:3", "trees.txt:4"]
    assert unescape("-RSB-") == "]" and unescape("\\*") == "*" and unescape("a-LRB-") == "a-LRB-"


def test_written_trees_are_read_back(tmp_path):
    text = "(3 (2 -LRB-) (4 (1 really)\t(0 3\\/4)))\n\n(1 ünï)\n"
    first, last = tmp_path / "first.txt", tmp_path / "last.txt"
    trees = read_sst(written(tmp_path, text))
    write_sst(first, trees)
    write_sst(last, (tree for tree in read_sst(first)))
    assert first.read_bytes() == last.read_bytes()
    assert first.read_text("utf-8").splitlines() == [
        "(3 (2 -LRB-) (4 (1 really) (0 3\\/4)))",
        "(1 ünï)",
    ]
    for one, other in zip(trees, read_sst(last), strict=True):
        assert (one.labels, one.words, one.children) == (other.labels, other.words, other.children)


@pytest.mark.parametrize(
    ("trees", "told"),
    [("(1 a)", "is no list; expected"), (["(1 a)"], "item 0 is"), (3, "3 is no list")],
)
def test_only_trees_are_written(trees, told, tmp_path):
    with pytest.raises(DataError, match=told):
        write_sst(tmp_path / "trees.txt", trees)
    assert not list(tmp_path.iterdir())


nested = st.recursive(
    st.sampled_from(["(0 a)", "(4 b)", "(2 ...)"]),
    lambda inner: st.lists(inner, min_size=1, max_size=4).map(lambda kids: f"(1 {' '.join(kids)})"),
)


@given(nested)
def test_parsing_then_printing_gives_the_text_back(text):
    tree = parse_tree(text)
    printed = []
    for v, word in enumerate(tree.words):
        kids = tree.children[tree.offsets[v] : tree.offsets[v + 1]]
        inside = " ".join(printed[c] for c in kids) if word is None else word
        printed.append(f"({tree.labels[v]} {inside})")
    assert printed[-1] == text


@given(nested, st.data())
def test_a_truncated_tree_is_an_error(text, data):
    cut = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(DataError, match="<text>:1: "):
        parse_tree(text[:cut])


def test_a_deep_tree_needs_no_recursion():
    depth = 20_000
    tree = parse_tree("(1 " * depth + "(0 x)" + ")" * depth)
    assert len(tree.labels) == depth + 1
    assert sst_graphs([tree], Vocabulary(["x"]))[0].depth == depth + 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("(3 (2 It) (4 works)", r"column 20: 1 open brackets at the end; expected '\)'"),
        ("(3 (2 It)) )", r"column 12: '\)'; expected the end of the line"),
        ("(3 (2 It)) (2 x)", "column 12: a second tree"),
        ("(7 a)", r"column 2: label '7'; expected a label of 0\.\.4"),
        ("(x a)", "column 2: label 'x'"),
        ("((2 a))", r"column 2: label '\('"),
        ("(", "column 2: the end of the line"),
        ("(2)", r"column 3: '\)'; expected a word or a tree"),
        ("(2 a b)", "column 6: a second word 'b'"),
        ("(2 a (1 b))", "column 6: a bracket after a word"),
        ("(2 (1 b) a)", "column 10: word 'a' next to a tree"),
        ("word", r"column 1: 'word'; expected '\('"),
        ("(\u0663 a)", "label"),
        ("(" + "9" * 5000 + " a)", r"label '999.*\.\.\."),
    ],
)
def test_malformed_trees_name_file_line_and_column(tmp_path, line, message):
    path = written(tmp_path, f"(2 fine)\n{line}\n")
    with pytest.raises(DataError, match=message) as info:
        read_sst(path)
    assert str(info.value).startswith(f"{path}:2: column ") and "expected" in str(info.value)


def test_bad_files(tmp_path):
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_sst(tmp_path / "missing.txt")
    with pytest.raises(DataError, match=":1: the file is empty"):
        read_sst(written(tmp_path, "\n \n"))
    with pytest.raises(DataError, match=":1: no tree in the file; expected at least one"):
        read_sst(written(tmp_path, "\u2028\n"))
    with pytest.raises(DataError, match=":2: byte 0xff is not UTF-8"):
        read_sst(written(tmp_path, b"(2 a)\n(2 \xff)\n"))
    with pytest.raises(DataError, match="no trees"):
        sst_graphs([], Vocabulary([]))
    assert read_sst(written(tmp_path, b"\xef\xbb\xbf(2 a)"))[0].tokens == ["a"]


@needs_data
def test_the_treebank():
    sizes = {"train": 8527, "dev": 1095, "test": 2203}
    begin = time.process_time()
    trees = {name: read_sst(Path(DATA, "sst", f"{name}.txt")) for name in sizes}
    assert time.process_time() - begin < 5
    assert {name: len(found) for name, found in trees.items()} == sizes
    vocabulary = Vocabulary.build(w for tree in trees["train"] for w in tree.tokens)
    graphs = sst_graphs(trees["dev"], vocabulary)
    b = batch(graphs)
    assert b.num_edges == b.num_vertices - b.num_graphs
    assert all(graph.arity in (0, 2) for graph in graphs)
    assert b.feature_schema()["token"].has_absent and not b.feature_schema()["label"].has_absent
    assert {key for key, *_ in b.schedule(("token",)).kinds} == {0b10, 0b01}


@needs_data
def test_the_treebank_is_written_line_by_line(tmp_path):
    path = Path(DATA, "sst", "dev.txt")
    trees = read_sst(path)
    write_sst(tmp_path / "a", trees)
    texts = [file.read_text(encoding="utf-8").split() for file in (path, tmp_path / "a")]
    assert "".join(texts[0]) == "".join(texts[1])
    again = read_sst(tmp_path / "a")
    assert [(t.labels, t.words, t.children) for t in again] == [
        (t.labels, t.words, t.children) for t in trees
    ]
