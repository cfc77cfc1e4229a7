"""The table of models against their rivals, with passes whose times are given."""

from __future__ import annotations

import io
import json
import sys
from contextlib import contextmanager

import numpy as np
import pytest

import cavs
from benchmarks import model_case, models
from benchmarks.model_case import ModelCase
from benchmarks.rivals.program import serve
from cavs import nn, ops


class Sum(cavs.Model):
    def __init__(self):
        self.output = nn.Linear(1, 2)

    def loss(self, batch):
        return ops.cross_entropy(self.output(batch["x"]), batch["y"])


def small(reasons=None):
    features = {"x": np.ones((2, 1), "f4"), "y": np.array([0, 1], "i4")}
    graph = cavs.Graph.chain(2, features)
    return ModelCase(Sum, [[graph]], 2, "words", 4, {"torch": "toy_torch"}, [], 0.5, reasons)


def runners_at(**seconds):
    """Return a stand-in of `passes` whose runners take the given seconds."""

    @contextmanager
    def given(case, training, threads):
        yield {name: lambda t=t: (t, 1.0) for name, t in seconds.items()}

    return given


@pytest.fixture
def toy(monkeypatch):
    module = type(sys)("benchmarks.model_cases.toy")
    module.case = lambda sizes: small()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(models, "NAMES", ["toy"])
    monkeypatch.setattr(models, "find_spec", lambda name: True)
    return module


def test_a_row_names_the_fastest_rival(toy, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(models, "passes", runners_at(cavs=1.0, torch=6.0, dynet=3.0))
    path = tmp_path / "models.json"
    assert models.main(["--out", str(path)]) == 0
    text = capsys.readouterr().out
    assert "2 words" in text and "| dynet " in text and "3.00 (3.00-3.00)" in text
    assert "torch 6.00 (6.00-6.00)" in text
    (result,) = json.loads(path.read_text())["results"]
    assert [row["mode"] for row in result["rows"]] == ["training", "inference"]


@pytest.mark.parametrize("reason, status", [("", 1), ("products alone take as long", 0)])
def test_a_slow_row_fails_without_a_reason(toy, monkeypatch, tmp_path, capsys, reason, status):
    toy.case = lambda sizes: small({"training": reason} if reason else None)
    monkeypatch.setattr(models, "passes", runners_at(cavs=1.0, torch=1.5))
    given = ["--mode", "training", "--out", str(tmp_path / "models.json")]
    assert models.main(given) == status
    assert reason in capsys.readouterr().out


def test_without_pytorch_the_cure_is_named(toy, monkeypatch, capsys):
    monkeypatch.setattr(models, "find_spec", lambda name: None)
    assert models.main([]) == 2
    assert "pip install" in capsys.readouterr().err


@pytest.mark.parametrize("training", [True, False])
def test_a_pass_of_cavs_trains_or_evaluates(training):
    model = Sum()
    model.initialize(0)
    run = model_case.own_pass(small(), model, training, 1)
    (_, first), (_, second) = run(), run()
    assert second < first if training else second == first


def test_a_program_of_a_rival_answers_each_line(tmp_path, monkeypatch, capsys):
    np.savez(tmp_path / "parameters.npz", w=np.ones(2, "f4"))
    (tmp_path / "batches.json").write_text('{"lr": 0.5}')
    monkeypatch.setattr(sys, "argv", ["program", str(tmp_path)])
    monkeypatch.setattr(sys, "stdin", io.StringIO("run\nrun\n"))
    serve(lambda values, given: lambda: float(values["w"].sum()) * given["lr"])
    lines = capsys.readouterr().out.split("\n")[:2]
    assert [line.split()[::2] for line in lines] == [["DONE", "1.0"]] * 2
