"""``cavs train``: data, defaults and checkpoints that it cannot use."""

import errno
import json
import os
from pathlib import Path

import pytest

import cavs as package
from cavs.train import optim, read_checkpoint, safetensors
from tests.cli.test_cli import LAST, RUN, TOY, cavs, numpy_engine, own_folder, train
from tests.train.fake import FakeModel, FakeSession

__all__ = ["numpy_engine", "own_folder"]  # fixtures of every test here


def test_an_unreadable_folder_of_data_is_refused(monkeypatch, capsys):
    """The folder is one that a user other than root cannot read."""
    stat = os.stat

    def closed(path, *arguments, **options):
        if str(path).startswith("closed/"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, *arguments, **options)

    Path("closed").mkdir()
    monkeypatch.setattr(os, "stat", closed)
    monkeypatch.setattr(Path, "stat", closed)
    assert train("--data", "closed/data") == 1
    assert "closed/data is neither a folder nor a file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [("schedule", "linear", "constant, "), ("optimizer", "lamb", "sgd"), ("balance", "x", "equal")],
)
def test_defaults_of_a_model_file_must_be_valid_choices(name, value, shown, capsys):
    Path("mine.py").write_text(
        f"from tests.cli.toy import add_arguments, build\nDEFAULTS = {{{name!r}: {value!r}}}\n"
    )
    assert cavs("train", "mine.py", "--quiet") == 1
    told = capsys.readouterr().err
    assert f"DEFAULTS of mine.py has {name} {value!r}" in told and shown in told


def test_a_model_may_have_an_option_event(capsys):
    toy = Path(TOY).read_text()
    old = "def add_arguments(parser):\n"
    assert old in toy
    Path("mine.py").write_text(toy.replace(old, f'{old}    parser.add_argument("--event")\n'))
    assert cavs("train", "mine.py", "--quiet", "--epochs", "1", "--event", "x") == 0
    log = Path("runs/mine/log.jsonl").read_text().splitlines()
    assert json.loads(log[0])["event"] == "options"


def test_a_checkpoint_of_a_program_is_not_resumed(capsys):
    model = FakeModel()
    trainer = package.Trainer(
        model, optim.SGD(0.1), session=FakeSession(model), config={"options": ["a", "b"]}
    )
    RUN.mkdir(parents=True)
    trainer.save(LAST)
    assert cavs("info", LAST) == 0
    assert "['a', 'b']" in capsys.readouterr().out
    assert train("--resume") == 1
    assert "has no options of cavs train" in capsys.readouterr().err


RULE = """
from dataclasses import dataclass
import cavs

@dataclass(frozen=True)
class Mine(cavs.optim.Optimizer):
    beta: float = 0.9
    states = ("mean",)

    def rule(self, value, gradient, state, rate, step):
        mean = self.beta * state.mean + gradient
        return value - rate * mean, {"mean": mean}
"""


def test_an_optimizer_of_a_file_trains_and_resumes(capsys):
    Path("rules.py").write_text(RULE)
    words = ("--optimizer", "rules.py:Mine(beta=0.5)", "--schedule", "cosine", "--epochs")
    assert train(*words, "2") == 0
    log = [json.loads(line) for line in (RUN / "log.jsonl").read_text().splitlines()]
    (start,) = (record for record in log if record["event"] == "start")
    assert start["optimizer"].startswith("Mine(lr=Cosine(") and "beta=0.5" in start["optimizer"]
    assert read_checkpoint(LAST).progress["optimizer"]["states"] == ["mean"]
    assert train("--resume", "--epochs", "3") == 0
    assert train("--resume", "--epochs", "3", "--optimizer", "adam") == 1
    assert "was trained with 'Mine', not 'adam'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("rules.py:Other", "rules.py has no class Other that is a Optimizer"),
        ("none.py:Mine", "there is no file none.py"),
        ("rules.py:Mine(gamma=1)", "unexpected keyword argument 'gamma'"),
        ("lamb(beta1=0.9)", "no optimiser is called 'lamb'"),
        ("lion(beta1=2.0)", r"beta1 is 2.0, but must be a number in [0, 1)"),
    ],
)
def test_an_optimizer_that_cannot_be_made_is_refused(text, found, capsys):
    Path("rules.py").write_text(RULE)
    assert train("--optimizer", text, "--epochs", "1") == 1
    assert found in capsys.readouterr().err


def test_momentum_of_sgd_is_that_of_the_command(capsys):
    assert train("--optimizer", "sgd", "--momentum", "0.75", "--epochs", "1") == 0
    log = [json.loads(line) for line in (RUN / "log.jsonl").read_text().splitlines()]
    (start,) = (record for record in log if record["event"] == "start")
    assert start["optimizer"].startswith("SGD(") and "momentum=0.75" in start["optimizer"]
    assert read_checkpoint(LAST).progress["optimizer"]["states"] == ["momentum"]


def test_a_checkpoint_whose_data_are_gone_is_evaluated_on_data_of_the_model(capsys):
    Path("data").mkdir()
    assert train("--epochs", "1", "--data", "data") == 0
    capsys.readouterr()
    assert cavs("evaluate", LAST) == 0
    with_data = capsys.readouterr().out
    Path("data").rmdir()
    assert cavs("evaluate", LAST) == 0
    assert capsys.readouterr().out == with_data
    assert cavs("evaluate", LAST, "--data", "data") == 1
    assert "DataError: data is not a folder" in capsys.readouterr().err


def test_a_patience_that_an_earlier_version_accepted_without_dev_graphs(capsys):
    """That version stored it, although nothing used it; another patience is refused."""
    text = Path(TOY).read_text().replace("dev=make_graphs(20, seed=1)", "dev=None")
    Path("mine.py").write_text(text)
    words = ("train", "mine.py", "--quiet", "--out", "run", "--epochs")
    path = "run/checkpoint.safetensors"
    assert cavs(*words, "1") == 0
    tensors, metadata = safetensors.read(path)
    config = json.loads(metadata["config"])
    config["training"]["patience"] = 2
    safetensors.write(path, tensors, metadata | {"config": json.dumps(config)})
    assert cavs(*words, "2", "--resume") == 0
    assert read_checkpoint(path).progress["fit"]["epoch"] == 2
    assert cavs(*words, "3", "--resume", "--patience", "4") == 1
    told = capsys.readouterr().err
    assert "--patience 4, but there are no dev graphs" in told and "leave --patience out" in told
