"""``cavs explain --draw``: text without Graphviz, pictures with it."""

import sys
from pathlib import Path

import pytest

from cavs.cli import main
from cavs.train.checkpoint import read_checkpoint

TREE = str(Path(__file__).with_name("tree_toy.py"))


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.mark.parametrize(
    ("what", "shown"),
    [
        ("function", ["gather h", "scatter h", "style=dashed"]),
        ("graph", ['digraph "graph"', "v0 -> v"]),
        ("schedule", ["digraph schedule", "rank=same", "vertices,"]),
    ],
)
def test_a_drawing_is_text_on_the_output_or_in_a_file(what, shown, capsys):
    assert main(["explain", TREE, "--draw", what]) == 0
    dot = capsys.readouterr().out
    for part in shown:
        assert part in dot
    assert main(["explain", TREE, "--draw", what, "--out", "a.dot"]) == 0
    assert capsys.readouterr().out == "written: a.dot\n"
    assert Path("a.dot").read_text() == dot


def test_the_step_is_explained_with_the_threads_of_the_command(capsys, monkeypatch):
    asked = []
    monkeypatch.setattr("cavs.cli.explain.set_num_threads", asked.append)
    assert main(["explain", TREE, "--draw", "graph"]) == 0
    assert asked == []
    assert main(["explain", TREE, "--draw", "graph", "--threads", "3"]) == 0
    assert asked == [3]


def test_errors_of_drawings(capsys, monkeypatch):
    assert main(["explain", TREE, "--out", "a.dot"]) == 1
    assert "hint: add --draw function|graph|schedule" in capsys.readouterr().err
    assert main(["explain", TREE, "--draw", "graph", "--out", "no/such/a.dot"]) == 1
    assert "ConfigError: cannot write the drawing no/such/a.dot" in capsys.readouterr().err
    monkeypatch.setenv("PATH", "")
    pytest.importorskip("graphviz")
    assert main(["explain", TREE, "--draw", "graph", "--out", "a.svg"]) == 1
    err = capsys.readouterr().err
    assert "needs the program dot" in err and "apt install graphviz" in err
    assert not Path("a.svg").exists()


LATTICES = """'Characters and words.'
import cavs.cli
from benchmarks.word_lattices import lattices
from tests.runtime.test_scheduling import Lattice

def build(args, assets=None):
    return cavs.cli.Task(Lattice(), train=lattices(8, 2), test=lattices(2, 5))
"""


def scheduled(path):
    (variant,) = (v for v in read_checkpoint(path).progress["session"]["variants"] if v["training"])
    return variant["scheduling"] and variant["scheduling"]["name"]


def test_commands_take_the_order_of_tasks(capsys):
    Path("words.py").write_text(LATTICES)
    assert main(["explain", "words.py", "--scheduling", "agenda"]) == 0
    assert "the order is 'agenda'" in capsys.readouterr().out
    train = ["train", "words.py", "--quiet", "--out", "run", "--epochs"]
    for strategy in ([], ["--strategy", "AllReduce"]):
        assert main([*train, "1", "--overwrite", "--scheduling", "agenda", *strategy]) == 0
        assert scheduled("run/checkpoint.safetensors") == "agenda"
        assert main([*train, "2", "--resume"]) == 0
        assert scheduled("run/checkpoint.safetensors") == "agenda"
        assert main([*train, "3", "--resume", "--scheduling", "learned"]) == 0
        assert scheduled("run/checkpoint.safetensors") == "learned"
    assert main(["evaluate", "run/checkpoint.safetensors", "--scheduling", "fewest"]) == 0


def test_drawings_of_samples_of_several_structures(tmp_path, capsys):
    Path("spelled.py").write_text(
        """'''Samples.'''
import cavs.cli
from cavs import ops

class Empty(cavs.Model):
    def loss(self, batch):
        return ops.mean_squared_error(batch.graphs["a"]["x"], 0.0)

def build(args, assets=None):
    sample = cavs.Sample(a=cavs.Graph.chain(2, {"x": [[1.0], [2.0]]}), b=cavs.Graph.chain(3))
    return cavs.cli.Task(Empty(), train=[sample, sample])
"""
    )
    assert main(["explain", "spelled.py", "--draw", "schedule"]) == 0
    assert "digraph schedule" in capsys.readouterr().out
    assert main(["explain", "spelled.py", "--draw", "graph"]) == 0
    shown = capsys.readouterr().out
    assert 'digraph "sample"' in shown and shown.count("subgraph cluster") == 2
    assert main(["explain", "spelled.py", "--draw", "function"]) == 1
    assert "this SampleBatch has the structures a, b" in capsys.readouterr().err


def test_an_explanation_is_a_page(capsys):
    assert main(["explain", TREE, "--html", "a.html"]) == 0
    assert capsys.readouterr().out == "written: a.html\n"
    page = Path("a.html").read_text(encoding="utf-8")
    assert "<dd>Classifier</dd>" in page and "<dd>training</dd>" in page
    assert main(["explain", TREE, "--html", "a.html", "--inference"]) == 0
    assert "<dd>inference</dd>" in Path("a.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--html", "a.html", "--draw", "graph"], "--html a.html and --draw graph exclude"),
        (["--html", "a.html", "--out", "a.dot"], "--html a.html and --out a.dot exclude"),
        (["--html", "no/such/a.html"], "cannot write no/such/a.html: No such file"),
        (["--html", "."], "cannot write .: it exists and is not a file"),
    ],
)
def test_errors_of_pages(options, message, capsys):
    assert main(["explain", TREE, *options]) == 1
    err = capsys.readouterr().err
    assert f"ConfigError: {message}" in err and "hint: " in err
    assert not list(Path().iterdir())
