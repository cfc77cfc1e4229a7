"""Preparation of a step on samples of two structures, measured on tiny cases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import preparation_samples
from benchmarks.preparation_samples import Case, bounds, share


@pytest.mark.parametrize(("model", "vertices"), [("tagger", 3 + 6), ("translator", None)])
def test_shares_of_a_step(treebank: str, model: str, vertices: int | None) -> None:
    found = share(Case(model, 4, 1, 2, 1, treebank), rounds=2)
    assert vertices is None or found["vertices"] == vertices
    assert min(found[name]["median"] for name in ("step", "between", "alone", "share")) > 0
    assert "data" not in found["case"]
    assert found["title"] == f"{model} training, h 4, bs 1, 1 thread"


def test_too_few_sentences(treebank: str) -> None:
    with pytest.raises(ValueError, match="the treebank has 2 sentences; --batches takes 3"):
        share(Case("tagger", 4, 1, 3, 1, treebank), rounds=1)


@pytest.mark.parametrize(("most", "status"), [(1e9, 0), (0.0, 1)])
def test_the_program_checks_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, most: float, status: int
) -> None:
    monkeypatch.setattr(preparation_samples, "MOST", most)
    monkeypatch.setattr(preparation_samples, "BOUND_AT", (4, 2))
    monkeypatch.setattr(
        preparation_samples, "in_new_process", lambda work, *given, patience: work(*given)
    )
    few = ["--models", "translator", "--hidden", "4", "6", "--batch-size", "2", "--batches", "1"]
    out = tmp_path / "out.json"
    options = [*few, "--threads", "1", "--rounds", "2", "--out", str(out)]
    assert preparation_samples.main(options) == status
    shown = capsys.readouterr().out
    assert shown.count("share of a step") == 1 and shown.count("NO") == status
    record = json.loads(out.read_text())
    assert record["text"].strip() == shown.strip()
    assert [entry["case"]["hidden"] for entry in record["results"]] == [4, 6]


def test_the_bound_holds_at_one_size() -> None:
    def found(hidden: int, size: int) -> dict[str, Any]:
        case = {"hidden": hidden, "batch_size": size}
        return {"case": case, "title": "x", "share": {"median": 0.051}}

    (row,) = bounds([found(128, 32), found(128, 256), found(64, 32)])
    assert row == ("x: share of a step", "5.1%", "at most 5.0%", "NO")
