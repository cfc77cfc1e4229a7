"""Mistakes in a model file of the user's own, and data that its model cannot read."""

import argparse
import gzip
from pathlib import Path

import pytest

from cavs.cli import require_data, require_least
from cavs.errors import ConfigError, DataError
from tests.cli.test_cli import LAST, TOY, cavs, numpy_engine, own_folder

__all__ = ["numpy_engine", "own_folder"]  # fixtures of every test here


def changed(old, new):
    """Write the toy with `new` for `old` as a file of the user's own."""
    text = Path(TOY).read_text()
    assert old in text
    Path("mine.py").write_text(text.replace(old, new))


OPTIONS = "def add_arguments(parser):\n"
DEFAULTS = 'DEFAULTS = {"epochs": 3, "lr": 0.5, "batch_size": 8, "bucket": "size"}'
TRAIN = "train=lambda: make_graphs(60)"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "def build(args, assets=None):",
            "def build(args):\n    assets = None",
            ["ConfigError: build() of mine.py takes (args): too many", "from mine.py:", "assets="],
        ),
        (
            OPTIONS,
            OPTIONS + '    parser.add_argument("--words", required=True)\n',
            ["mine.py adds --words, which is required", "from mine.py:", "default=..."],
        ),
        (
            OPTIONS,
            OPTIONS + '    parser.add_argument("words")\n',
            ["mine.py adds words, which is required", "from mine.py:", "'--words', default"],
        ),
        (DEFAULTS, "DEFAULTS = [3, 4]", ["DEFAULTS of mine.py is [3, 4]", "it is a dict"]),
        (DEFAULTS, "DEFAULTS = {1: 4}", ["DEFAULTS of mine.py is {1: 4}", "it is a dict"]),
        (TRAIN, "train=7", ["train of the task is 7", "it is a sequence of graphs"]),
        (TRAIN, "train='file'", ["train of the task is 'file'", "it is a sequence of graphs"]),
        (TRAIN, "train=make_graphs(1)[0]", ["train of the task is ", "it is a sequence of graphs"]),
        ('assets={"classes": classes}', "assets=[1, 2]", ["assets of the task are [1, 2]", "dict"]),
    ],
)
def test_a_model_that_cannot_be_trained(old, new, told, capsys):
    changed(old, new)
    assert cavs("train", "mine.py") == 1
    err = capsys.readouterr().err
    for part in told:
        assert part in err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "predict=predict",
            "predict=lambda outputs, batch: None",
            "the result of predict of the task is None",
        ),
        (
            "predict=predict",
            "predict=lambda outputs, batch: 'low'",
            "the result of predict of the task is 'low'",
        ),
        ("read=read", "read=lambda text: None", "the result of read of the task is None"),
    ],
)
def test_predictions_must_be_lines(old, new, told, capsys):
    changed(old, new)
    assert cavs("train", "mine.py", "--quiet", "--epochs", "1", "--out", "run") == 0
    Path("input").write_text("1 2 3 4 5 6\n" * 2)
    capsys.readouterr()
    assert cavs("predict", Path("run") / LAST.name, "input") == 1
    captured = capsys.readouterr()
    assert "ConfigError: " in captured.err and told in captured.err
    assert captured.out == ""


def test_read_may_be_a_generator(capsys):
    changed("read=read", "read=lambda text: (graph for graph in read(text))")
    assert cavs("train", "mine.py", "--quiet", "--epochs", "1", "--out", "run") == 0
    Path("input").write_text("1 2 3 4 5 6\n" * 2)
    capsys.readouterr()
    assert cavs("predict", Path("run") / LAST.name, "input") == 0
    assert len(capsys.readouterr().out.split()) == 2


def test_a_relative_import_has_a_hint(capsys):
    Path("mine.py").write_text("from . import sibling\n")
    assert cavs("train", "mine.py") == 1
    assert "hint: write import x for from . import x" in capsys.readouterr().err


def test_a_function_of_c_is_called_as_build(capsys):
    Path("mine.py").write_text("build = slice\n")
    assert cavs("train", "mine.py") == 1
    assert "build() of mine.py returned slice, not cavs.cli.Task" in capsys.readouterr().err


def test_a_syntax_error_in_a_text_that_the_file_parses_is_not_one_of_the_file():
    Path("mine.py").write_text("import ast\nast.parse('x =')\n")
    with pytest.raises(SyntaxError) as caught:
        cavs("train", "mine.py")
    assert caught.value.filename == "<unknown>" and caught.value.lineno == 1


@pytest.mark.parametrize(
    ("old", "words", "told"),
    [
        (
            "predict=predict",
            ["--split", "test"],
            "no predictions\n  hint: use cavs evaluate",
        ),
        ("read=read", ["input"], "this model reads no files\n  hint: pass --split test"),
    ],
)
def test_predictions_and_files_need_functions_of_the_task(old, words, told, capsys):
    changed(old, old.partition("=")[0] + "=None")
    assert cavs("train", "mine.py", "--quiet", "--epochs", "1", "--out", "run") == 0
    capsys.readouterr()
    assert cavs("predict", Path("run") / LAST.name, *words) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and told in captured.err


def test_an_error_of_predict_that_names_no_text_stays_as_it_is(capsys):
    changed("yield classes[best[root]]", "raise DataError(f'class {best[root] // 9} has no name')")
    assert cavs("train", "mine.py", "--quiet", "--epochs", "1", "--out", "run") == 0
    Path("input").write_text("1 2 3 4 5 6\n")
    capsys.readouterr()
    assert cavs("predict", Path("run") / LAST.name, "input") == 1
    assert "DataError: class 0 has no name\n" in capsys.readouterr().err


def test_a_key_that_the_model_lacks_is_not_taken_for_another_model():
    changed('assets["classes"]', 'assets["names"]')
    assert cavs("train", "mine.py", "--quiet", "--epochs", "1", "--out", "run") == 0
    with pytest.raises(KeyError, match="names"):
        cavs("evaluate", Path("run") / LAST.name)


def test_the_saved_file_is_named_if_the_test_split_cannot_be_read(capsys):
    changed("test=lambda: make_graphs(20, seed=2)", "test=lambda: 1 // 0")
    with pytest.raises(ZeroDivisionError):
        cavs("train", "mine.py", "--quiet", "--epochs", "1", "--out", "run")
    assert "saved run/" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("model", "files", "missing"),
    [("tree-lstm", ["train.txt", "dev.txt"], "test.txt"), ("lstm-lm", ["valid.txt"], "test.txt")],
)
def test_missing_splits_are_named_before_the_training(model, files, missing, capsys):
    Path("data").mkdir()
    for file in files:
        Path("data", file).write_text("(3 (2 It) (4 works))\n" * 20)
    assert cavs("train", model, "--data", "data") == 1
    assert f"cannot read data/{missing}" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_data_without_graphs_are_named(capsys):
    changed(TRAIN, "train=[]")
    Path("data").mkdir()
    assert cavs("train", "mine.py", "--data", "data") == 1
    assert "pass another --data: the model found none in data" in capsys.readouterr().err
    assert cavs("train", "mine.py") == 1
    assert "there are no train graphs\n  hint: pass --data DIR" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("raw", "cure"),
    [
        (gzip.compress(b"(2 word)\n", mtime=0), "gunzip it first"),
        ("(2 wörd)\n".encode("utf-16"), "iconv -f utf-16 -t utf-8"),
        ("(2 wörd)\n".encode("latin1"), "iconv -f latin1"),
    ],
)
def test_files_that_are_not_text_have_a_cure(raw, cure, capsys):
    Path("data").mkdir()
    for name in ("train", "dev", "test"):
        Path("data", f"{name}.txt").write_bytes(raw)
    assert cavs("train", "tree-lstm", "--data", "data") == 1
    err = capsys.readouterr().err
    assert "data/train.txt:1: byte 0x" in err and cure in err


def test_an_option_below_its_least_value_is_named():
    args = argparse.Namespace(rounds=1, max_length=3, length=None)
    require_least(args, rounds=1, max_length=3, length=5)
    with pytest.raises(ConfigError, match=r"--max-length 3(.|\n)*hint: choose at least 4"):
        require_least(args, rounds=1, max_length=4)


def test_data_are_required_in_training_alone():
    args = argparse.Namespace(data=None)
    require_data(args, {"words": []}, "mine")
    with pytest.raises(DataError, match="mine has no data of its own"):
        require_data(args, None, "mine")
