"""What the command line must not lose: old runs, and a clear word on what it cannot look at."""

import errno
import json
import os
from pathlib import Path

import pytest

import cavs as package
from cavs.train import optim
from tests.cli.test_cli import BEST, LAST, RUN, TOY, cavs, numpy_engine, own_folder, train
from tests.train.fake import FakeModel, FakeSession

__all__ = ["numpy_engine", "own_folder"]  # fixtures of every test here


def files():
    return {path.name: path.read_bytes() for path in RUN.iterdir()}


def failing(at):
    def step(self, *args, step, **kwargs):
        if step == at:
            raise package.errors.GraphError("a bad graph")
        return FORWARD(self, *args, step=step, **kwargs)

    return step


FORWARD = FakeSession.step


def test_a_run_that_fails_before_it_saves_leaves_the_one_it_was_to_replace(monkeypatch, capsys):
    assert train("--epochs", "1") == 0
    before = files()
    assert {LAST.name, BEST.name, "log.jsonl"} <= set(before)
    monkeypatch.setattr(package.Trainer, "save", None)  # nor what there is
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


def test_what_cannot_be_moved_stays(monkeypatch, capsys):
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


def test_a_folder_that_may_not_be_looked_into_is_a_clear_error(monkeypatch, capsys):
    """As a user who is not root finds it."""
    stat = os.stat

    def closed(path, *arguments, **options):
        if str(path).startswith("closed/"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, *arguments, **options)

    Path("closed").mkdir()
    monkeypatch.setattr(os, "stat", closed)
    monkeypatch.setattr(Path, "stat", closed)
    assert train("--data", "closed/data") == 1
    assert "closed/data is no folder and no file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [("schedule", "linear", "constant, "), ("optimizer", "lion", "sgd"), ("balance", "x", "equal")],
)
def test_defaults_of_a_model_file_are_choices_that_there_are(name, value, shown, capsys):
    Path("mine.py").write_text(
        f"from tests.cli.toy import add_arguments, build\nDEFAULTS = {{{name!r}: {value!r}}}\n"
    )
    assert cavs("train", "mine.py", "--quiet") == 1
    told = capsys.readouterr().err
    assert f"DEFAULTS of mine.py says {name} {value!r}" in told and shown in told


def test_a_model_may_call_an_option_event(capsys):
    toy = Path(TOY).read_text()
    old = "def add_arguments(parser):\n"
    assert old in toy
    Path("mine.py").write_text(toy.replace(old, f'{old}    parser.add_argument("--event")\n'))
    assert cavs("train", "mine.py", "--quiet", "--epochs", "1", "--event", "x") == 0
    log = Path("runs/mine/log.jsonl").read_text().splitlines()
    assert json.loads(log[0])["event"] == "options"


def test_a_checkpoint_of_a_program_is_described_and_not_resumed(capsys):
    model = FakeModel()
    trainer = package.Trainer(
        model, optim.SGD(0.1), session=FakeSession(model), config={"options": ["a", "b"]}
    )
    RUN.mkdir(parents=True)
    trainer.save(LAST)
    assert cavs("info", LAST) == 0
    assert "['a', 'b']" in capsys.readouterr().out
    assert train("--resume") == 1
    assert "does not say with which options it was trained" in capsys.readouterr().err
