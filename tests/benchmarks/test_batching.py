"""Speed-up by batches and threads, measured on tiny trees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cavs
from benchmarks import batching
from benchmarks.workloads import Case
from cavs import config


def is_one(ratio: dict[str, float]) -> bool:
    """Check all rounds: a single one of two values may be 1 by chance."""
    return ratio["least"] == ratio["q75"] == 1


@pytest.mark.parametrize(("workload", "training"), [("tree-lstm", True), ("var-lstm", False)])
def test_every_size_on_every_number_of_threads(
    workload: str, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "LEAST", 1e-4)
    before = config.num_threads()
    try:
        base = batching.base_case(workload, 8, training, "random")
        found = batching.measured(base, [1, 4], [1, 2], trees=4, rounds=3)
    finally:
        cavs.set_num_threads(before)
    cases = [(e["case"]["batch_size"], e["case"]["threads"]) for e in found]
    assert cases == [(1, 1), (1, 2), (4, 1), (4, 2)]
    for entry, (size, threads) in zip(found, cases, strict=True):
        assert entry["vertices"]["least"] > 0 and entry["vertices"]["rounds"] == 3
        assert is_one(entry["batching"]) == (size == 1)
        assert is_one(entry["threads"]) == (threads == 1)
    lines = batching.table(found).splitlines()
    assert f"| {workload} {batching.MODES[training]}" in lines[2]
    assert "to batch size 1" in lines[0] and "to 1 thread" in lines[0] and len(lines) == 6


def test_the_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[Any, ...]] = []

    def measure(work: object, base: Case, *rest: object, patience: float) -> list[object]:
        asked.append((base, *rest))
        return []

    monkeypatch.setattr(batching, "in_new_process", measure)
    monkeypatch.setattr(batching, "table", lambda found: "table")
    out = tmp_path / "batching.json"
    assert batching.main(["--data", "random", "--hidden", "8", "16", "--out", str(out)]) == 0
    assert [rest for _, *rest in asked] == [[[1, 64], [1, 2], 256, 25]] * 8
    assert [(b.workload, b.training, b.hidden, b.embedding, b.classes) for b, *_ in asked] == [
        (workload, training, h, *((300, 5) if workload == "tree-lstm" else (h, 8)))
        for workload in ("tree-lstm", "var-lstm")
        for training in (True, False)
        for h in (8, 16)
    ]
    assert json.loads(out.read_text())["text"] == "table"
