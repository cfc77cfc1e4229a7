"""The program that compares the lattice LSTM with its rivals checks its bounds."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import lattice_lstm
from benchmarks.lattice_lstm import drawn, read
from benchmarks.rival_process import DYNET

SIZE = 4


def test_drawn_lattices_have_the_shape_of_the_benchmark():
    lattices = drawn(1000)
    lengths = [len(lattice.chars) for lattice in lattices]
    assert 41 < np.mean(lengths) < 45 and 35 < np.median(lengths) < 40
    words = sum(len(lattice.words) for lattice in lattices)
    assert 0.51 < words / sum(lengths) < 0.56
    assert all(-1 <= b <= last - 2 < len(x.chars) - 2 for x in lattices for b, last, _ in x.words)


def test_a_file_of_the_benchmark(tmp_path):
    path = tmp_path / "lattices.txt"
    path.write_text("2\n3\n0 7 9\n0\n1 0 62\n2 1 300 0 3395\n\n1\n0\n0\n")
    (lattice,) = read(path)
    assert lattice.chars.tolist() == [62, 300 % 256] and lattice.tags.tolist() == [7, 9]
    assert lattice.words == [(-1, 1, 3395 % 256)]
    path.write_text("1\n3\n0 7 9\n0\n1 0 62\n2 1 300")
    with pytest.raises(ValueError, match=r"lattices\.txt ends within lattice 0"):
        read(path)
    path.write_text("1\n3\n0 7 9\n0\n1 0 62\n1 0 300")
    with pytest.raises(ValueError, match="1 characters between 3 states"):
        read(path)


def options(tmp_path, *more):
    few = ["--rounds", "1", "--batches", "2", "--batch-size", "3", "--threads", "1"]
    return [*few, "--hidden", str(SIZE), "--out", str(tmp_path / "out.json"), *more]


@pytest.mark.parametrize(("least", "status"), [(0.0, 0), (1e9, 1)])
def test_the_program_compares_losses_and_checks_bounds(
    tmp_path, monkeypatch, capsys, least, status
):
    pytest.importorskip("torch")
    monkeypatch.delenv(DYNET, raising=False)
    monkeypatch.setattr(lattice_lstm, "LEAST", {"dynet": least, "grouped": least})
    assert lattice_lstm.main(options(tmp_path)) == status
    shown = capsys.readouterr().out
    record = json.loads((tmp_path / "out.json").read_text())
    assert record["text"].strip() == shown.strip()
    ((case,),) = (result["cases"] for result in record["results"])
    assert list(case["seconds"]) == ["cavs", "grouped"] and case["lattices"] == 6
    assert case["bound"] <= case["tasks"][case["policy"]] <= case["tasks"]["level"]
    assert f"policy {case['policy']!r}" in shown and "tasks over the fewest" in shown


def test_the_process_of_dynet_takes_part_on_one_thread(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nwhile read line; do echo words; echo DONE 0.5 1.0; done\n")
    python.chmod(0o755)
    monkeypatch.setenv(DYNET, str(python))
    monkeypatch.setattr(lattice_lstm, "TOLERANCE", np.inf)
    lattice_lstm.main([*options(tmp_path), "--threads", "1", "2"])
    one, two = json.loads((tmp_path / "out.json").read_text())["results"][0]["cases"]
    assert list(one["seconds"]) == ["cavs", "grouped", "dynet"]
    assert list(two["seconds"]) == ["cavs", "grouped"]


def test_the_speed_is_bound_at_the_size_of_the_benchmark():
    case = {"hidden": 128, "threads": 2, "lattices": 256, "over": 1.0, "ratios": {}}
    case["seconds"] = {"cavs": {"median": 0.04}}
    found = lattice_lstm.bounds([case], 32)
    assert [row[1:] for row in found] == [
        ("1.000", "at most 1.050", "yes"),
        ("6,400", "at least 8,000", "NO"),
    ]
    assert len(lattice_lstm.bounds([case], 64)) == 1


def test_the_program_needs_torch(monkeypatch, capsys):
    monkeypatch.setattr(lattice_lstm, "find_spec", lambda name: None)
    assert lattice_lstm.main([]) == 2
    assert "needs PyTorch" in capsys.readouterr().err
