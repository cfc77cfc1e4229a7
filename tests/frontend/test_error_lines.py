"""Every error names the line of the user's own code."""

from __future__ import annotations

import copy
import pickle
import re
from concurrent.futures import ThreadPoolExecutor

import networkx as nx
import numpy as np
import pytest

import cavs
from cavs.cli import main
from cavs.data import (
    Vocabulary,
    chains,
    parse_conllu,
    parse_tree,
    read_functions,
    read_sst,
    read_text,
    sst_graphs,
)
from cavs.errors import CavsError, ConfigError, DataError, DeviceWarning, line_of

GRAPH = cavs.Graph([[], [0]], {"x": [1.0, 2.0]})
ROW = "1\tIt\t_\tPRON\t_\t_\t{}\troot\t_\t_"

CALLS = [
    (lambda p: cavs.Graph([[1]]), "counted from 0"),
    (lambda p: cavs.Graph([[0]]), "leave out an edge"),
    (lambda p: cavs.batch([cavs.Graph([])]), r"cavs.Graph\(\[\[\]\]\)"),
    (lambda p: cavs.Graph(3), r"\[\[\], \[\], \[0, 1\]\]"),
    (lambda p: cavs.Graph([[0.5]]), "np.int32"),
    (lambda p: cavs.Graph([[2**40]]), "counted from 0 in each graph"),
    (lambda p: cavs.Graph((np.array([1, 1]), np.array([], np.int32))), "num_vertices . 1 offsets"),
    (lambda p: cavs.Graph.from_parents([7]), "that of a root is -1"),
    (lambda p: cavs.Graph.from_edges(2, [3]), "from_edges"),
    (lambda p: cavs.Graph.chain(0), "leave empty samples out"),
    (lambda p: cavs.Graph([[]], {"x": [1.0, 2.0]}), "a row for every vertex"),
    (lambda p: cavs.Graph([[]], {"x": [2**40]}), "Vocabulary"),
    (lambda p: cavs.Graph([[]], {"x": [[1], [1, 2]]}), "pad all rows"),
    (lambda p: cavs.Graph([[]], [1]), "by name"),
    (lambda p: cavs.Graph([[]], {3: [1]}), '"3"'),
    (lambda p: cavs.Graph([[], [0]], edge_features={"r": [1, 2]}), "a row for every edge"),
    (lambda p: cavs.batch([]), "leave it out"),
    (lambda p: cavs.batch([GRAPH, 3]), "a graph of every sample"),
    (lambda p: cavs.batch([GRAPH], ids=["a"]), "indices in the data set"),
    (lambda p: cavs.batch([GRAPH], ids=[1, 2]), "indices in the data set"),
    (lambda p: cavs.batch([GRAPH])["y"], "correct the name"),
    (lambda p: cavs.Graph.from_networkx(nx.path_graph(2)), "bfs_tree"),
    (lambda p: cavs.Graph.from_networkx(nx.DiGraph([(0, 1)]), features=["y"]), "set the attribute"),
    (lambda p: cavs.Graph.from_networkx(3), "from_edges"),
    (lambda p: cavs.Graph.from_ast("def"), "this version of Python"),
    (lambda p: cavs.Graph.from_ast(3), "ast.parse"),
    (lambda p: cavs.Graph.join([]), "a list of one or more"),
    (lambda p: parse_tree("(3 (2 It)"), "one a line"),
    (lambda p: parse_tree(""), "one a line"),
    (lambda p: sst_graphs([], Vocabulary(["a"])), "read_sst"),
    (lambda p: parse_conllu([]), "universaldependencies"),
    (lambda p: parse_conllu(["1 It"]), "cut off"),
    (lambda p: parse_conllu(["1 It", ""]), "tabs stand between"),
    (lambda p: parse_conllu([ROW.format(0), "# c", ""]), "an empty line ends a sentence"),
    (lambda p: parse_conllu([ROW.format(2), ""]), "a word of the same sentence"),
    (lambda p: parse_conllu([ROW.format(1), ""]), "the head 0"),
    (lambda p: parse_conllu([ROW.format(0)] * 2 + [""]), "count from 1"),
    (lambda p: read_sst(p / "none.txt"), "check the path"),
    (lambda p: read_text(p / "empty.txt"), "fetch it again"),
    (lambda p: read_text(p / "latin.txt"), "iconv"),
    (lambda p: read_functions(p / "none"), "check the path"),
    (lambda p: read_functions("a\0b"), "name of a file"),
    (lambda p: read_sst(None), "name of a file"),
    (lambda p: read_text("a\0b"), "name of a file"),
    (lambda p: Vocabulary(["a"]).save(3), "name of a file"),
    (lambda p: Vocabulary.load(p / "deep.json"), "Vocabulary.save"),
    (lambda p: cavs.Graph.from_networkx(nx.DiGraph([(0, 1)]), features=None), '"token"'),
    (lambda p: Vocabulary(["a", "a"]), "build"),
    (lambda p: Vocabulary(["a"]).decode([7]), "0 to 1, or -1"),
    (lambda p: Vocabulary.load(p / "empty.txt"), "Vocabulary.save"),
    (lambda p: chains(["a b"], Vocabulary(["a"])), "text.split"),
    (lambda p: cavs.DataLoader([GRAPH], batch_size=0), "batch_size"),
    (lambda p: cavs.set_num_threads(0), "threads"),
    (lambda p: cavs.optim.Adagrad(lr=-1.0), "lr"),
    (lambda p: cavs.Parameter((2, 2), init=np.nan), "isfinite"),
]


@pytest.mark.parametrize(("call", "hint"), CALLS)
def test_an_error_of_data_and_options_has_a_line_and_a_cure(call, hint, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "deep.json").write_text("[" * 200_000)
    with pytest.raises(CavsError) as caught:
        call(tmp_path)
    error = caught.value
    assert error.where == line_of(call)
    assert re.search(hint, error.hint)
    assert str(error) == f"{error.what}\n  from {error.where}\n  hint: {error.hint}"


def test_an_error_without_a_line_of_the_user(tmp_path):
    with ThreadPoolExecutor(1) as pool:  # its own frames are in the standard library
        error = pool.submit(read_text, tmp_path / "none").exception()
    assert isinstance(error, DataError)
    assert error.where == "" and "\n  from" not in str(error)


def test_a_line_of_the_user_in_a_background_thread(tmp_path):
    def read():
        return read_text(tmp_path / "none")  # here

    with ThreadPoolExecutor(1) as pool:
        error = pool.submit(read).exception()
    first = int(line_of(read).partition(":")[2])
    assert error.where == f"test_error_lines.py:{first + 1}"


@pytest.mark.parametrize(
    "words",
    [
        ["train", "nothing"],
        ["train", "nothing.py"],
        ["train", "tree-fc", "--trees", "0", "--quiet"],
        ["train", "tree-lstm", "--data", "nowhere", "--quiet"],
        ["train", "tree-fc", "--lr", "nan", "--quiet"],
        ["info", "nothing.safetensors"],
        ["launch", "-n", "0", "train", "tree-fc"],
    ],
)
def test_the_command_line_shows_no_line_of_its_own(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    try:
        assert main(words) == 1
    except SystemExit as stopped:  # from argparse
        assert stopped.code == 2
    told = capsys.readouterr().err
    assert told and "\n  from" not in told and "Traceback" not in told


def test_the_command_line_shows_the_line_of_a_model_of_the_user(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import cavs\n\n\ndef build(args, assets=None):\n    cavs.Graph([[7]])\n"
    )
    assert main(["train", "mine.py"]) == 1
    assert "GraphError: graph: vertex 0 has child 7" in (told := capsys.readouterr().err)
    assert "\n  from mine.py:5\n" in told


def test_constructors_of_dataclasses_are_not_code_of_the_user():
    with pytest.raises(ConfigError) as caught:
        cavs.optim.Adam(lr=0.1, beta1=2.0)  # here
    assert caught.value.where.startswith("test_error_lines.py:")


def test_an_error_with_another_text_keeps_its_line(tmp_path):
    class Data:
        def __len__(self):
            return 3

        def __getitem__(self, i):
            return cavs.Graph([[i]])

    with pytest.raises(CavsError, match="of the data set") as caught:
        next(iter(cavs.DataLoader(Data(), batch_size=3)))
    first = int(line_of(Data.__getitem__).partition(":")[2])
    assert caught.value.where == f"test_error_lines.py:{first + 1}"
    assert str(caught.value).count("\n  from ") == 1


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))]
)
def test_a_copy_of_an_error_is_as_the_first(again):
    with pytest.raises(CavsError) as caught:
        cavs.Graph([[], [5]])
    error = caught.value
    error.add_note("noted")
    other = again(error)
    assert type(other) is type(error) and other.args == error.args
    assert str(other) == str(error) and other.where == error.where
    assert (other.vertex, other.__notes__) == (1, ["noted"])


def test_a_warning_leaves_the_line_to_python():
    assert str(DeviceWarning("it is slow", hint="wait")) == "it is slow\n  hint: wait"
