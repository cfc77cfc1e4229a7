"""``cavs train --overwrite`` keeps the old run until the new one has saved a checkpoint."""

import errno
import json
import os
from pathlib import Path

import pytest

import cavs as package
from cavs.cli import main
from tests.cli.test_cli import BEST, LAST, RUN, numpy_engine, own_folder, real_engine, train
from tests.train.fake import FakeSession

__all__ = ["numpy_engine", "own_folder", "real_engine"]  # fixtures of every test here
TREE = str(Path(__file__).with_name("tree_toy.py"))


def files():
    return {path.name: path.read_bytes() for path in RUN.iterdir()}


def failing(at):
    def step(self, *args, step, **kwargs):
        if step == at:
            raise package.errors.GraphError("a bad graph")
        return FORWARD(self, *args, step=step, **kwargs)

    return step


FORWARD = FakeSession.step


def test_a_run_that_fails_before_it_saves_leaves_the_old_one(monkeypatch, capsys):
    assert train("--epochs", "1") == 0
    before = files()
    assert {LAST.name, BEST.name, "log.jsonl"} <= set(before)
    monkeypatch.setattr(package.Trainer, "save", None)
    monkeypatch.setattr(FakeSession, "step", lambda self, *words, **options: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train("--epochs", "1", "--overwrite")
    assert files() == before


def test_a_run_that_fails_later_has_replaced_it(monkeypatch, capsys):
    assert train("--epochs", "2") == 0
    before = files()
    monkeypatch.setattr(FakeSession, "step", failing(11))
    assert train("--epochs", "3", "--overwrite") == 1
    after = files()
    assert set(after) == set(before) and after[LAST.name] != before[LAST.name]
    lines = [json.loads(line) for line in (RUN / "log.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines].count("options") == 1


def test_files_that_cannot_be_moved_stay(monkeypatch, capsys):
    assert train("--epochs", "1") == 0
    before, replace = files(), os.replace

    def stubborn(old, new):
        if str(new).endswith("log.jsonl.overwritten"):
            raise PermissionError(errno.EACCES, "Permission denied")
        replace(old, new)

    monkeypatch.setattr(os, "replace", stubborn)
    assert train("--epochs", "1", "--overwrite") == 1
    assert "cannot replace runs/toy/log.jsonl: Permission denied" in capsys.readouterr().err
    assert files() == before


@pytest.mark.usefixtures("real_engine")
def test_overwriting_keeps_the_old_run_until_the_new_one_starts():
    run = ["train", TREE, "--quiet", "--epochs", "1", "--out", "run"]
    assert main(run) == 0
    kept = {path: path.read_bytes() for path in Path("run").iterdir()}
    assert main([*run, "--overwrite", "--data", "nowhere", "--lr", "nan"]) == 1
    assert main([*run, "--overwrite", "--max-norm", "-1"]) == 1
    assert {path: path.read_bytes() for path in Path("run").iterdir()} == kept
    assert main([*run, "--overwrite", "--seed", "5"]) == 0
    assert (
        Path("run/checkpoint.safetensors").read_bytes() != kept[Path("run/checkpoint.safetensors")]
    )


@pytest.mark.usefixtures("real_engine")
def test_overwriting_a_run_that_cannot_be_removed(capsys):
    os.makedirs("run/checkpoint.best.safetensors")
    assert main(["train", TREE, "--quiet", "--out", "run", "--overwrite"]) == 1
    assert "ConfigError: cannot replace run/checkpoint.best.safetensors" in capsys.readouterr().err
    os.makedirs("run/checkpoint.safetensors")
    assert main(["train", TREE, "--quiet", "--out", "run", "--overwrite"]) == 1
    assert "cannot write the checkpoint run/checkpoint.safetensors" in capsys.readouterr().err
