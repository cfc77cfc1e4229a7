"""The commands with ``--device cuda`` print and write the same as on the CPU."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cavs.cli import main
from cavs.runtime import session
from cavs.train import read_checkpoint
from tests.inspect.pages import Page
from tests.models.test_models import OPTIONS, write_data

NAME = "tree-lstm"


@pytest.fixture
def opened(device, monkeypatch):
    """Names of devices that were opened; each is the device of the test."""
    names = []

    def open_device(name):
        names.append(name)
        return device

    monkeypatch.setattr(session, "open_device", open_device)
    return names


@pytest.fixture
def words(tmp_path):
    """Options of the model and of its data."""
    data = write_data(NAME, tmp_path)
    own = [f"--{k.replace('_', '-')}={v}" for k, v in OPTIONS[NAME].items()]
    return [*own, "--data", str(data)]


def run(capsys, *arguments):
    assert main([str(word) for word in arguments]) == 0
    return capsys.readouterr().out


def test_train_evaluate_and_predict(opened, words, tmp_path, capsys):
    checkpoints, values, predicted = [], [], []
    for where in ("cpu", "cuda"):
        out = tmp_path / where
        options = ("--quiet", "--epochs", 3, "--batch-size", 2, "--out", out, "--device", where)
        assert "best epoch" in run(capsys, "train", NAME, *words, *options)
        kept = out / "checkpoint.best.safetensors"
        checkpoints.append(read_checkpoint(kept).parameters)
        values.append(json.loads(run(capsys, "evaluate", kept, "--json", "--device", where)))
        lines = run(capsys, "predict", kept, "--split", "test", "--device", where)
        predicted.append(lines.splitlines())
    assert opened == ["cuda"] * 3
    expected, found = checkpoints
    for name, value in expected.items():
        error = np.linalg.norm(found[name] - value)
        assert error <= 1e-4 * np.linalg.norm(value), name
    assert values[1].keys() == values[0].keys()
    for name, value in values[0].items():
        if name == "checkpoint":
            continue
        wanted = pytest.approx(value, rel=1e-4) if isinstance(value, float) else value
        assert values[1][name] == wanted, name
    assert predicted[1] == predicted[0]
    assert predicted[0]


def test_training_resumes_on_another_device(opened, words, tmp_path, capsys):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    same = ("train", NAME, *words, "--quiet", "--batch-size", 2, "--schedule", "constant")
    run(capsys, *same, "--epochs", 3, "--out", whole)
    run(capsys, *same, "--epochs", 1, "--out", parts)
    run(capsys, *same, "--epochs", 3, "--out", parts, "--resume", "--device", "cuda:0")
    assert opened == ["cuda:0"]
    expected, found = (read_checkpoint(p / "checkpoint.safetensors") for p in (whole, parts))
    for name, value in expected.parameters.items():
        error = np.linalg.norm(found.parameters[name] - value)
        assert error <= 1e-4 * np.linalg.norm(value), name


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_bench_and_explain(opened, words, capsys, precision):
    on = ("--device", "cuda", "--precision", precision)
    text = run(capsys, "bench", NAME, *words, *on, "--seconds", 0.01, "--batches", 1, "--json")
    record = json.loads(text)
    assert record["train"]["graphs_per_second"] > 0
    assert record["infer"]["graphs_per_second"] > 0
    assert "loop" in run(capsys, "explain", NAME, *words, *on)
    assert opened == ["cuda", "cuda"]


def test_an_explanation_of_a_device_is_a_page(opened, words, tmp_path, capsys):
    page = tmp_path / "a.html"
    found = run(capsys, "explain", NAME, *words, "--device", "cuda", "--html", page)
    assert found == f"written: {page}\n"
    text = page.read_text(encoding="utf-8")
    Page(text)  # well-formed
    for part in ("A device times stages, not instructions.", "Persistent kernels", "gather reads"):
        assert part in text
