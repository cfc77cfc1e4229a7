"""Arguments of a wrong type: every reader and builder answers with an error of cavs."""

import ast

import numpy as np
import pytest

from cavs import data
from cavs.data import Graph, Vocabulary
from cavs.errors import CavsError, DataError

WORDS = Vocabulary(["a"])
TREE = data.parse_tree("(3 (2 a) (4 b))")
[SENTENCE] = data.parse_conllu("1\ta\t_\tX\t_\t_\t0\troot\t_\t_\n\n")
FUNCTION = data.Function("m", "get_a", 1, ["Name", "Return"], ["a", None], [[], [0]])

# Every entry point with right arguments; those of a file read one that is there.
CALLS = {
    "parse_brackets": (data.parse_brackets, {"text": "(S a)"}),
    "from_brackets": (
        data.from_brackets,
        {"source": "(S a)", "vocabulary": WORDS, "labels": ["S"]},
    ),
    "parse_ptb": (data.parse_ptb, {"text": "(S a)", "path": "x"}),
    "read_ptb": (data.read_ptb, {"path": "brackets"}),
    "parse_tree": (
        data.parse_tree,
        {"line": "(2 a)", "num_classes": 5, "path": None, "labels": None},
    ),
    "named_labels": (data.parse_tree, {"line": "(S a)", "labels": ["S"]}),
    "read_sst": (data.read_sst, {"path": "brackets", "num_classes": 5, "labels": ["S"]}),
    "sst_graphs": (data.sst_graphs, {"trees": [TREE], "vocabulary": WORDS}),
    "parse_conllu": (data.parse_conllu, {"lines": SENTENCE.to_conllu(), "path": "x"}),
    "read_conllu": (data.read_conllu, {"path": "conllu"}),
    "from_conllu": (
        data.from_conllu,
        {"source": SENTENCE, "vocabulary": WORDS, "tags": ["X"], "relations": ["root"]},
    ),
    "dependency_graphs": (
        data.dependency_graphs,
        {"sentences": [SENTENCE], "vocabulary": WORDS, "relations": WORDS, "tags": ("X",)},
    ),
    "read_text": (data.read_text, {"path": "brackets", "max_length": 3}),
    "chains": (data.chains, {"sentences": [["a", "b"]], "vocabulary": WORDS}),
    "from_ast": (data.from_ast, {"source": "x = 1"}),
    "read_functions": (data.read_functions, {"root": ".", "limit": 1, "sizes": (1, 9)}),
    "function_classes": (data.function_classes, {"functions": [FUNCTION], "num_classes": 2}),
    "function_graphs": (
        data.function_graphs,
        {"functions": [FUNCTION], "types": WORDS, "names": WORDS, "classes": ("get",)},
    ),
    "batch": (data.batch, {"graphs": [Graph([[]])], "ids": [3]}),
    "Graph": (Graph, {"children": [[]], "features": {"a": [1]}, "name": "x"}),
    "from_parents": (Graph.from_parents, {"parents": [1, -1]}),
    "chain": (Graph.chain, {"length": 2}),
    "from_edges": (Graph.from_edges, {"num_vertices": 2, "edges": [(0, 1)]}),
    "from_edge_index": (Graph.from_edge_index, {"num_vertices": 2, "edge_index": [[0], [1]]}),
    "join": (Graph.join, {"graphs": [Graph([[]])]}),
}
WRONG = [None, 3, 2.5, b"x", "", object(), [None], [b"x"], [3], {"a": 1}, ast.Name, np.zeros(2)]
CASES = [(name, argument) for name, (_, options) in CALLS.items() for argument in options]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "brackets").write_text("(S a)\n")
    (tmp_path / "conllu").write_text(SENTENCE.to_conllu())
    (tmp_path / "code.py").write_text("def get_a(x): return x\n")


@pytest.mark.parametrize("name", CALLS)
def test_right_arguments(folder, name):
    call, options = CALLS[name]
    call(**options)


@pytest.mark.parametrize(("name", "argument"), CASES)
def test_wrong_arguments(folder, name, argument):
    """Some of them may be right somewhere: an error, if there is one, is of cavs, with a cure."""
    call, options = CALLS[name]
    for wrong in WRONG:
        try:
            call(**{**options, argument: wrong})
        except CavsError as error:
            assert error.hint or "expected" in error.what, (wrong, error)


@pytest.mark.parametrize("wrong", [b"x", bytearray(b"x"), None, 3])
def test_texts_of_a_wrong_type(wrong):
    for call in (data.parse_conllu, data.parse_brackets, data.parse_ptb, data.parse_tree):
        with pytest.raises(DataError, match=r"<text>:1: .* is no text; expected") as caught:
            call(wrong)
        assert caught.value.hint
        assert ("decode bytes first" in caught.value.hint) == isinstance(wrong, bytes | bytearray)


def test_lines_of_a_wrong_type():
    for wrong in ([None], ["# a", 3], [b"x"]):
        number = len(wrong)
        with pytest.raises(DataError, match=f"<text>:{number}: .* is no text; expected a line of"):
            data.parse_conllu(wrong)
