"""What batches and threads are worth, measured on tiny trees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import cavs
from benchmarks import batching
from benchmarks.workloads import Case
from cavs import config


def test_every_size_on_every_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "LEAST", 1e-4)
    before = config.num_threads()
    try:
        base = Case("tree-lstm", 8, 1, data="random")
        found = batching.measured(base, [1, 4], [1, 2], trees=4, rounds=3)
    finally:
        cavs.set_num_threads(before)
    cases = [(e["case"]["batch_size"], e["case"]["threads"]) for e in found]
    assert cases == [(1, 1), (1, 2), (4, 1), (4, 2)]
    for entry, (size, threads) in zip(found, cases, strict=True):
        assert entry["vertices"]["least"] > 0 and entry["vertices"]["rounds"] == 3
        assert (entry["batching"]["median"] == 1) == (size == 1)
        assert (entry["threads"]["median"] == 1) == (threads == 1)
    lines = batching.table(found).splitlines()
    assert "to batch size 1" in lines[0] and "to 1 thread" in lines[0] and len(lines) == 6


def test_the_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def measure(work: object, base: Case, *rest: object, patience: float) -> list[object]:
        asked.append((base.hidden, *rest))
        return []

    monkeypatch.setattr(batching, "apart", measure)
    monkeypatch.setattr(batching, "table", lambda found: "table")
    out = tmp_path / "batching.json"
    assert batching.main(["--data", "random", "--hidden", "8", "16", "--out", str(out)]) == 0
    assert asked == [(h, [1, 64], [1, 2], 256, 25) for h in (8, 16)]
    assert json.loads(out.read_text())["text"] == "table"
