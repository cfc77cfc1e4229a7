"""Models of the command line whose training graphs are a stream."""

import json
from pathlib import Path

import numpy as np
import pytest

from cavs.train import read_checkpoint
from tests.cli.test_cli import cavs, own_folder

__all__ = ["own_folder"]  # a fixture of every test here
MODEL = """
'''Trees that are read one after the other.'''
import itertools
from cavs.cli import Task
from cavs.train import StreamLoader, metrics
from tests.train.test_engine import Classifier, trees

def add_arguments(parser):
    parser.add_argument("--count", type=int, default=20, help="0 for no end")
    parser.add_argument("--buffer", type=int, default=0)
    parser.add_argument("--length", type=int)

def build(args, assets=None):
    model = Classifier()
    model.initialize(args.seed)

    def read(epoch):
        numbers = range(args.count) if args.count else itertools.count()
        return (trees(1, seed=i % 50)[0] for i in numbers)

    stream = StreamLoader(read, 3, shuffle=args.buffer, length=args.length, seed=7)
    return Task(model, train=stream, dev=trees(5, seed=100), metrics=[metrics.accuracy()])
"""
RUN = Path("runs/streamed")
LAST = RUN / "checkpoint.safetensors"


@pytest.fixture(autouse=True)
def model(own_folder):
    Path("streamed.py").write_text(MODEL)


def train(*words):
    return cavs("train", "streamed.py", "--quiet", "--batch-size", "8", *words)


def test_a_stream_trains_with_batch_size_and_seed_of_the_command_and_resumes():
    words = ("--buffer", "6", "--seed", "3", "--save-every", "2")
    assert train(*words, "--epochs", "3", "--out", "whole") == 0
    assert train(*words, "--epochs", "2") == 0
    assert train("--resume", "--epochs", "3") == 0
    whole, resumed = read_checkpoint(Path("whole") / LAST.name), read_checkpoint(LAST)
    for name, array in whole.parameters.items():
        assert np.array_equal(array, resumed.parameters[name])
    assert whole.progress["step"] == 9  # 20 graphs are 3 batches of up to 8
    assert train(*words, "--overwrite", "--epochs", "3", "--seed", "4") == 0
    other = read_checkpoint(LAST).parameters
    assert any(not np.array_equal(a, other[n]) for n, a in whole.parameters.items())
    assert train("--overwrite", "--count", "0", "--limit", "9", "--epochs", "2") == 0
    assert read_checkpoint(LAST).progress["step"] == 4


def test_options_that_need_more_than_a_stream_says(capsys):
    assert train("--bucket", "size") == 1
    assert (
        "ConfigError: --bucket size, but the training graphs are a stre" in capsys.readouterr().err
    )
    for schedule in ("cosine", "step", "exponential"):
        assert train("--schedule", schedule) == 1
        found = capsys.readouterr().err
        assert f"--schedule {schedule} counts epochs in steps" in found
        assert "hint: give it: StreamLoader(source, length=N)" in found
    assert train("--schedule", "cosine", "--length", "2", "--count", "0", "--epochs", "2") == 0
    assert read_checkpoint(LAST).progress["step"] == 4


def test_commands_read_the_first_graphs_of_a_stream_without_end(capsys):
    assert cavs("explain", "streamed.py", "--count", "0", "--batch-size", "4") == 0
    assert "4 graphs" in capsys.readouterr().out
    words = ("--batches", "2", "--batch-size", "4", "--seconds", "0.02", "--json")
    assert cavs("bench", "streamed.py", "--count", "0", *words) == 0
    assert json.loads(capsys.readouterr().out)["batches"] == 2
    assert cavs("strategy", "show", "streamed.py", "--count", "0") == 0
    assert train("--epochs", "1", "--count", "0", "--length", "1") == 0
    assert cavs("evaluate", LAST, "--split", "train") == 1
    found = capsys.readouterr().err
    assert "DataError: the train graphs of the task are a stream" in found
    assert "hint: pass --limit N" in found
    assert cavs("evaluate", LAST, "--split", "train", "--limit", "5") == 0
    assert "train: 5 graphs" in capsys.readouterr().out
