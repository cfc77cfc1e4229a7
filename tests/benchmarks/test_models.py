"""The table of models against their rivals, with passes whose times are given."""

from __future__ import annotations

import io
import json
import sys
import time
from contextlib import contextmanager
from importlib.util import find_spec

import numpy as np
import pytest

import cavs
from benchmarks import model_case, models
from benchmarks.model_case import ModelCase
from benchmarks.rival_process import rival_passes
from benchmarks.rivals.program import serve
from cavs import nn, ops
from cavs.cli import registry
from cavs.errors import DataError


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


@pytest.mark.parametrize("least, status", [(None, 1), (1.4, 0), (1.6, 1)])
def test_a_slow_row_fails_below_the_ratio_of_its_reason(
    toy, monkeypatch, tmp_path, capsys, least, status
):
    reason = "products alone take as long"
    toy.case = lambda sizes: small({"training": (reason, least)} if least else None)
    monkeypatch.setattr(models, "passes", runners_at(cavs=1.0, torch=1.5))
    given = ["--mode", "training", "--out", str(tmp_path / "models.json")]
    assert models.main(given) == status
    text = capsys.readouterr().out
    assert (reason in text) == (least is not None)
    assert f"at least {least or models.LEAST:.2f}" in text


def failing(*modes):
    """Return a stand-in of `passes` whose rival dies in the given modes."""

    @contextmanager
    def given(case, training, threads):
        def die():
            raise SystemExit("toy_torch has ended with status 1")

        dies = ("training" if training else "inference") in modes
        yield {"cavs": lambda: (1.0, 1.0), "torch": die if dies else lambda: (3.0, 1.0)}

    return given


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_a_row_that_fails_loses_no_other(toy, monkeypatch, tmp_path, capsys, mode):
    monkeypatch.setattr(models, "passes", failing(mode))
    path = tmp_path / "models.json"
    assert models.main(["--out", str(path)]) == 1
    (result,) = json.loads(path.read_text())["results"]
    assert [row["mode"] for row in result["rows"]] == list({"training", "inference"} - {mode})
    assert f"toy, {mode}, has failed: toy_torch has ended" in capsys.readouterr().err


def test_a_row_whose_losses_differ_is_left_out(toy, monkeypatch, tmp_path, capsys):
    @contextmanager
    def passes(case, training, threads):
        yield {"cavs": lambda: (1.0, 1.0), "torch": lambda: (3.0, 1.5 if training else 1.0)}

    monkeypatch.setattr(models, "passes", passes)
    path = tmp_path / "models.json"
    assert models.main(["--out", str(path)]) == 1
    (result,) = json.loads(path.read_text())["results"]
    assert [row["mode"] for row in result["rows"]] == ["inference"]
    assert "losses after the first pass differ" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [FileNotFoundError, DataError])
def test_missing_data_are_named_before_a_row_is_measured(toy, monkeypatch, tmp_path, capsys, kind):
    def case(sizes):
        raise kind("there is no sst")

    other = type(sys)("benchmarks.model_cases.other")
    other.case = case
    monkeypatch.setitem(sys.modules, other.__name__, other)
    monkeypatch.setattr(models, "NAMES", ["toy", "other"])
    path = tmp_path / "models.json"
    assert models.main(["--models", "toy", "other", "--out", str(path)]) == 2
    assert "other: there is no sst" in capsys.readouterr().err
    assert not path.exists()


def test_each_model_is_compared_or_measured_elsewhere():
    compared = {name.replace("_", "-") for name in models.NAMES} - {
        "tree-gru"
    }  # a cell of typed-trees
    assert not compared & {*models.MEASURED_ELSEWHERE}
    assert compared | {*models.MEASURED_ELSEWHERE} == {*registry.names()}
    assert all(find_spec(program) for program in models.MEASURED_ELSEWHERE.values() if program)


def test_without_pytorch_the_cure_is_named(toy, monkeypatch, capsys):
    monkeypatch.setattr(models, "find_spec", lambda name: None)
    assert models.main([]) == 2
    assert "pip install" in capsys.readouterr().err


def test_a_rival_that_has_died_is_named(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    model = Sum()
    model.initialize(0)
    died = "toy_torch has ended with status 3"
    rivals = rival_passes({"torch": (str(python), "toy_torch")}, model, [])
    with pytest.raises(SystemExit, match=died), rivals as found:
        time.sleep(0.2)  # so that its input is closed
        found["torch"]()


@pytest.mark.parametrize("training", [True, False])
def test_a_pass_of_cavs_trains_or_evaluates(training):
    model = Sum()
    model.initialize(0)
    run = model_case.own_pass(small(), cavs.Session(model), training)
    first, second = run(), run()
    assert second < first if training else second == first


@pytest.mark.parametrize("training", [True, False])
def test_the_share_of_products_is_part_of_the_engines_time(training):
    assert 0 < model_case.share_of_products(small(), training, 1) < 1


def test_a_program_of_a_rival_answers_each_line(tmp_path, monkeypatch, capsys):
    np.savez(tmp_path / "parameters.npz", w=np.ones(2, "f4"))
    (tmp_path / "batches.json").write_text('{"lr": 0.5}')
    monkeypatch.setattr(sys, "argv", ["program", str(tmp_path)])
    monkeypatch.setattr(sys, "stdin", io.StringIO("run\nrun\n"))
    serve(lambda values, given: lambda: float(values["w"].sum()) * given["lr"])
    lines = capsys.readouterr().out.split("\n")[:2]
    assert [line.split()[::2] for line in lines] == [["DONE", "1.0"]] * 2
