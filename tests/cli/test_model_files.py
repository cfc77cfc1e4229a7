"""Mistakes in files of the user's own, in checkpoints, and in options."""

import json
import os
from pathlib import Path

import pytest

from cavs.errors import GraphError
from cavs.train import read_checkpoint
from cavs.train.checkpoint_lock import CheckpointLock
from tests.cli.test_cli import BEST, LAST, TOY, cavs, numpy_engine, own_folder, train
from tests.train.fake import SIZE

__all__ = ["numpy_engine", "own_folder"]  # fixtures of every test here


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 1\ndef build(:\n", ["ConfigError: mine.py is no Python: ", "from {}/mine.py:2"]),
        (
            "import os\nimport nosuch.thing\n",
            ["No module named 'nosuch'", "from {}/mine.py:2", "install nosuch in this environment"],
        ),
        ("from os import nosuch\n", ["cannot import name 'nosuch'", "from {}/mine.py:1"]),
        ("import sibling_broken\n", ["mine.py is no Python", "from {}/sibling_broken.py:1"]),
        ("import sibling_lacking\n", ["named 'nosuch'", "from {}/sibling_lacking.py:2"]),
    ],
)
def test_a_model_file_that_cannot_be_imported(text, told, capsys):
    Path("sibling_broken.py").write_text("1 +\n")
    Path("sibling_lacking.py").write_text("\nimport nosuch\n")
    Path("mine.py").write_text(text)
    assert cavs("train", "mine.py") == 1
    err = capsys.readouterr().err
    for part in told:
        assert part.format(os.getcwd()) in err


def test_a_model_file_that_fails_keeps_its_traceback():
    Path("mine.py").write_text("def build(args, assets=None):\n    import nosuch\n")
    with pytest.raises(ModuleNotFoundError):
        cavs("train", "mine.py")
    Path("mine.py").write_text("1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        cavs("train", "mine.py")


@pytest.mark.parametrize("options", ["", "import add_arguments"])
def test_a_checkpoint_of_a_file_that_has_the_name_of_another_model(options, capsys):
    text = Path(TOY).read_text()
    if options:  # the same options, other assets
        text = text.replace("def add_arguments(", "def unused(")
        text += "\nfrom models.tree_lstm import add_arguments\n"
        text = text.replace("args.offset", "0.0")
    Path("tree_lstm.py").write_text(text)
    assert cavs("train", "tree_lstm.py", "--quiet", "--epochs", "1", "--out", "run") == 0
    capsys.readouterr()
    last = Path("run") / LAST.name
    assert cavs("evaluate", last, "--model", "tree-lstm") == 1
    told = f"ConfigError: --model tree-lstm, but {last} holds the model {Path.cwd()}/tree_lstm.py"
    assert told in capsys.readouterr().err


def test_patience_needs_a_dev_split(capsys):
    toy = Path(TOY).read_text().replace("dev=make_graphs(20, seed=1)", "dev=None")
    Path("nodev.py").write_text(toy)
    assert cavs("train", "nodev.py", "--quiet", "--patience", "0", "--out", "run") == 1
    assert "--patience 0, but there are no dev graphs" in capsys.readouterr().err
    assert not Path("run").exists()
    assert cavs("train", "nodev.py", "--quiet", "--out", "run") == 0


def test_a_resumed_run_takes_the_settings_that_are_given():
    assert train("--epochs", "1", "--schedule", "cosine") == 0
    assert train("--epochs", "2", "--resume", "--lr", "0.1", "--max-norm", "2") == 0
    stored = read_checkpoint(LAST)
    assert stored.progress["optimizer"]["settings"]["lr"]["lr"] == 0.1
    assert (stored.progress["max_norm"], stored.config["training"]["lr"]) == (2.0, 0.1)


@pytest.mark.parametrize(
    "words", [("demo", "--out", "runs/toy"), ("train", TOY, "--quiet", "--overwrite")]
)
def test_a_folder_locked_by_a_training_is_left_alone(words, capsys):
    assert train("--epochs", "1") == 0
    lock = CheckpointLock(LAST)
    lock.acquire()
    kept = {path: path.read_bytes() for path in LAST.parent.iterdir()}
    capsys.readouterr()
    assert cavs(*words) == 1
    told = "ConfigError: another training that is still running writes to runs/toy\n  hint: wait"
    assert told in capsys.readouterr().err
    assert {path: path.read_bytes() for path in LAST.parent.iterdir()} == kept
    lock.close()


def test_errors_of_graphs_name_the_input_file(capsys, monkeypatch):
    Path("bad.py").write_text(
        Path(TOY).read_text().replace("rows = [[", "raise_if_asked(text)\n        rows = [[")
        + "\nfrom cavs.errors import FeatureError, GraphError\n"
        "def raise_if_asked(text):\n"
        "    if text.startswith('feature'):\n        raise FeatureError('too short', hint='fix')\n"
        "    if text.startswith('graph'):\n        raise GraphError('graph \"<text>:1\": cycle')\n"
    )
    assert cavs("train", "bad.py", "--quiet", "--epochs", "1", "--out", "run") == 0
    best = Path("run") / BEST.name
    for text, told in (
        ("feature", "FeatureError: in.txt: too short\n  from bad.py:55\n  hint: fix"),
        ("graph", 'GraphError: graph "in.txt:1": cycle'),
    ):
        Path("in.txt").write_text(text)
        capsys.readouterr()
        assert cavs("predict", best, "in.txt") == 1
        assert told in capsys.readouterr().err

    def late(self, batch):  # like a cell that reads fewer children
        raise GraphError('vertex 3 of graph 0 "<text>:1" has 3 children')

    monkeypatch.setattr("tests.train.fake.FakeSession.predict", late)
    Path("in.txt").write_text(" ".join("1" * SIZE))
    assert cavs("predict", best, "in.txt") == 1
    assert 'graph 0 "in.txt:1" has 3 children' in capsys.readouterr().err


def test_data_in_a_subfolder_are_found(capsys):
    folder = Path("all/trees")
    folder.mkdir(parents=True)
    (folder / "train.txt").write_text("(3 (2 It) (4 works))\n")
    assert cavs("train", "tree-lstm", "--data", "all", "--quiet") == 1
    err = capsys.readouterr().err
    assert "DataError: cannot read all/train.txt: there is no such file" in err
    assert "holds train.txt, dev.txt and test.txt: pass --data all/trees" in err
    assert cavs("train", "lstm-lm", "--data", "all/trees/train.txt", "--quiet") == 1
    assert "holds train.txt (optional), valid.txt and test.txt\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "text"),
    [("info", "its model, options, epochs"), ("launch", "processes to start, each a rank")],
)
def test_help_says_what_arguments_are(command, text, capsys):
    with pytest.raises(SystemExit):
        cavs(command, "--help")
    assert text in " ".join(capsys.readouterr().out.split())


def test_metrics_of_whole_data_sets(capsys):
    text = Path(TOY).read_text()
    used = "metrics=[metrics.f1(), metrics.DataSetMetric('rows', rows, len)], monitor='f1',"
    text = text.replace("metrics=[metrics.accuracy(), metrics.root_accuracy()],", used)
    text += "\n\ndef rows(outputs, batch):\n    return batch['label'][batch['label'] >= 0]\n"
    Path("mine.py").write_text(text)
    assert cavs("train", "mine.py", "--quiet", "--epochs", "2", "--out", "run") == 0
    said = capsys.readouterr().out
    assert "dev f1 0." in said and "  f1 0." in said and "  rows " in said
    assert cavs("evaluate", Path("run") / BEST.name, "--json") == 0
    values = json.loads(capsys.readouterr().out)
    assert 0 < values["f1"] <= 1 and values["rows"] == int(values["rows"]) > 0
