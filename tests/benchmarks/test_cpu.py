"""The CPU program: its cases, its bounds on given values, and all of it in tiny sizes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cavs
from benchmarks import batching, cpu, cpu_cases, machine
from benchmarks.bounds import times_over
from benchmarks.cpu_table import checked_rows, missed, summary_table
from benchmarks.result_paths import LATEST, RESULTS
from benchmarks.runner import RUNNERS
from benchmarks.workloads import Case
from cavs import config


@pytest.fixture
def threads() -> Iterator[None]:
    """Restore the number of threads after programs that run in this process."""
    before = config.num_threads()
    yield
    cavs.set_num_threads(before)


def step(seconds: float) -> dict[str, float]:
    return {"median": seconds, "q25": seconds, "q75": seconds}


def entry(part: str, needs: Any, times: dict[str, float], **case: Any) -> dict[str, Any]:
    return {
        "part": part,
        "what": part,
        "needs": needs,
        "title": Case("tree-lstm", 150, 64, **case).title,
        "busy_before": 0.0,
        "runners": {n: {"step": step(t), "prepare": step(0.1 * t)} for n, t in times.items()},
        "ratios": {
            n: {"wall": {"median": t / times["cavs"]}} for n, t in times.items() if n != "cavs"
        },
    }


def record(**parts: Any) -> dict[str, Any]:
    empty = ("cases", "failed", "batching", "preparation", "growth", "memory")
    return {
        "machine": {"cpu": "a CPU", "load": 0.5},
        "data": "drawn",
        "seconds": 1.0,
        "command": "x",
        **{name: [] for name in empty},
        **parts,
    }


def found(of: dict[str, Any]) -> dict[tuple[str, str], tuple[str, str, str]]:
    return {(measure, case): tuple(rest) for measure, case, *rest in checked_rows(of)}  # type: ignore[misc]


def test_every_line_has_its_cases() -> None:
    made = cpu_cases.against("random", quick=False)
    parts = {a.part for a in made} | {"batching", "preparation", "growth", "memory"}
    assert parts == set(cpu.PARTS)
    bounds = {
        (a.part, a.case.workload, a.case.hidden, names): least
        for a in made
        for names, least in a.needs
        if least is not None
    }
    assert bounds == {
        ("training", "tree-lstm", 150, ("hand",)): 3.0,
        ("training", "tree-lstm", 150, cpu_cases.MANUAL): 2.5,
        ("training", "tree-lstm", 512, ("hand",)): 3.5,
        ("training", "tree-lstm", 512, cpu_cases.MANUAL): 3.0,
        ("inference", "tree-lstm", 150, ("hand",)): 2.0,
        ("inference", "tree-lstm", 512, ("hand",)): 1.8,
        ("one-tree", "tree-lstm", 150, ("hand",)): 3.0,
        ("naive", "tree-lstm", 150, ("naive",)): 40.0,
        ("floor", "tree-lstm", 150, ("floor",)): 0.6,
        ("floor", "tree-lstm", 512, ("floor",)): 0.85,
        ("floor", "tree-fc", 512, ("floor",)): 0.85,
        ("lstm", "var-lstm", 256, ("padded", "packed")): 2.0,
        ("lstm", "var-lstm", 256, ("hand",)): 1.3,
        ("lstm", "var-lstm", 512, ("padded", "packed")): 2.0,
        ("lstm", "var-lstm", 512, ("hand",)): 1.3,
    }
    for a in made:
        assert set(a.runners) <= RUNNERS[a.case.workload].keys() and a.case.data == "random"
        assert a.case.threads == (1 if a.part == "floor" else 2) or a.part in ("one-tree", "naive")
        assert a.case.training == (a.part not in ("inference", "one-tree"))
        assert a.case.embedding == (300 if a.case.workload == "tree-lstm" else a.case.hidden)
        assert a.case.batch_size == (1 if a.part == "one-tree" else 64)
    paired = cpu_cases.batching("random", quick=False)
    assert {(b.case.workload, b.case.training, b.case.hidden) for b in paired} == {
        (w, t, h) for w in ("tree-lstm", "var-lstm") for t in (True, False) for h in (150, 256, 512)
    }
    assert {b.case.hidden for b in paired if b.second_core is not None} == {512}
    assert [b.case.hidden for b in paired if b.batches is not None] == [150]
    assert {c.workload for c in cpu_cases.memory("random", quick=False)} == set(
        ("tree-lstm", "tree-fc", "var-lstm", "fixed-lstm")
    )


def test_the_fastest_of_several_rivals_counts() -> None:
    needs = [[["hand"], 3.0], [["manual", "manual-compile"], 2.5]]
    times = {"cavs": 1.0, "hand": 3.0, "manual": 2.6, "manual-compile": 2.4}
    of = record(cases=[entry("training", needs, times, threads=2)])
    title = of["cases"][0]["title"]
    better = "training: time of the better of manual and manual-compile over ours"
    assert found(of) == {
        ("training: time of hand over ours", title): ("3.00", "at least 3.00", "yes"),
        (better, title): ("2.40", "at least 2.50", "NO"),
    }
    assert missed(of) == [f"{better}: {title}"]
    del times["manual-compile"]  # the other alone would be an easier bound
    of = record(cases=[entry("training", needs, times, threads=2)])
    assert found(of)[better, title] == ("not measured", "at least 2.50", "NO")
    assert times_over(of["cases"][0], "manual-compile") is None
    shown = record(cases=[entry("naive", [[["hand"], None]], times)])
    assert list(found(shown).values()) == [("3.00", "", "")] and missed(shown) == []


def test_one_tree_at_a_time_takes_the_better_number_of_threads() -> None:
    cases = [
        entry("one-tree", [[["hand"], 3.0]], {"cavs": t, "hand": 1e-3}, threads=n)
        for n, t in ((1, 140e-6), (2, 130e-6))
    ]
    of = found(record(cases=cases))
    measure = "microseconds a tree, preparation included"
    assert of[measure, cases[1]["title"]] == ("143", "at most 150", "yes")
    assert (measure, cases[0]["title"]) not in of
    assert found(record(cases=cases[:1]))[measure, cases[0]["title"]][2] == "NO"


def pairs(ratios: dict[tuple[int, int], tuple[float, float]], hidden: int) -> list[Any]:
    """Return results of `batching.measured`: speed-ups by size and number of threads."""
    return [
        {
            "case": Case("var-lstm", hidden, size, threads=threads).record(),
            "batching": {"median": batches},
            "threads": {"median": core},
        }
        for (size, threads), (batches, core) in ratios.items()
    ]


def test_a_bound_without_a_gain_of_two_threads_allows_noise() -> None:
    ratios = {(1, 1): (1.0, 1.0), (1, 2): (1.0, 0.975), (64, 1): (2.9, 1.0), (64, 2): (5.1, 1.69)}
    one = {"found": pairs(ratios, 512), "batches": 5.0, "second_core": 1.7, "busy_before": 0.5}
    of = found(record(batching=[one]))
    title = "var-lstm training, h 512, bs {} *"  # starred: other work ran
    noise = "two threads over one, 3% allowed for noise"
    assert of[noise, title.format(1)] == ("0.97", "at least 0.97", "yes")
    assert of["second core", title.format(64)] == ("1.69", "at least 1.70", "NO")
    many = "batching: vertices a second to those at bs 1, {}"
    assert of[many.format("2 threads"), title.format(64)] == ("5.10", "at least 5.00", "yes")
    assert of[many.format("1 thread"), title.format(64)] == ("2.90", "", "")
    assert len(of) == 4
    ratios[1, 2] = (1.0, 0.96)
    other = {"found": pairs(ratios, 256), "batches": None, "second_core": None, "busy_before": 0.0}
    of = found(record(batching=[other]))
    title = title.removesuffix(" *").replace("512", "256")
    assert of[noise, title.format(1)][2] == "NO"
    assert of["second core", title.format(64)] == ("1.69", "", "") and len(of) == 2


def test_preparation_and_memory() -> None:
    def between(share: float) -> dict[str, Any]:
        return {"vertices": 1000, "share": step(share), "alone": step(5e-5)}

    case = Case("tree-fc", 128, 32)
    prepared = {"case": case.record(), "title": case.title, "busy_before": 0.0}
    prepared |= {"merged": between(0.07), "unmerged": between(0.04)}
    growth = [
        {"shape": "chain", "vertices": n, "bytes": size, "step": 0.01}
        for n, size in ((5, 900.0), (250, 600.0), (1000, 530.0))
    ]
    held = {"title": "t", "cavs": {"peak": 16, "kept": 10}}
    held["cavs-without-merge_vertices"] = {"peak": 30, "kept": 20}
    of = record(preparation=[prepared], growth=growth, memory=[held])
    assert [line[2:] for line in checked_rows(of)] == [
        ("4.0%", "at most 5.0%", "yes"),
        ("7.0%", "", ""),
        ("20,000,000", "at least 10,000,000", "yes"),
        *[("10.0", "runs", "yes")] * 3,
        ("11.7%", "at most 10.0%", "NO"),
        ("1.60", "at most 1.50", "NO"),
        ("1.50", "at most 1.50", "yes"),
    ]
    assert "memory grows 3.53 times where vertices do 4 times: off by" in summary_table(of)


def test_failures_are_in_the_table() -> None:
    of = record(failed=[{"part": "growth: chain", "error": "first\nsecond"}])
    assert checked_rows(of) == [("growth: chain", "", "failed: first", "", "NO")]
    assert "load 0.5 at the start; drawn data" in summary_table(of)


def test_a_missed_bound_sets_the_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "busy", lambda: 0.0)
    monkeypatch.setattr(cpu, "find_spec", lambda name: name)  # these parts have no rival
    peaks = {"peak": 16, "kept": 10}
    title = {"title": "t", "cavs": peaks, "cavs-without-merge_vertices": peaks}
    monkeypatch.setattr(cpu, "held", lambda case: title)
    options = ["--only", "memory", "--in-process", "--data", "random"]
    out = ["--out", str(tmp_path / "cpu.json")]
    assert cpu.main([*options, *out]) == 1
    assert cpu.main([*options, *out, "--quick"]) == 0
    peaks["peak"] = 15
    assert cpu.main([*options, *out]) == 0
    written = json.loads((tmp_path / "cpu.json").read_text())
    assert written["text"] == capsys.readouterr().out[-len(written["text"]) - 1 :].rstrip("\n")
    assert [line[-1] for line in written["bounds"]] == ["yes"] * 8

    def broken(case: Case) -> None:
        raise RuntimeError("no such engine")

    monkeypatch.setattr(cpu, "held", broken)
    assert cpu.main([*options, *out, "--quick"]) == 1
    assert "failed: no such engine" in capsys.readouterr().out


def test_a_narrowed_run_does_not_replace_a_whole_result(monkeypatch: pytest.MonkeyPatch) -> None:
    places = []
    monkeypatch.setattr(cpu, "find_spec", lambda name: name)
    monkeypatch.setattr(cpu.Run, "all", lambda run: places.append(run.given.out))
    monkeypatch.setattr(cpu.Run, "record", {"text": "", "failed": []}, raising=False)
    monkeypatch.setattr(cpu, "missed", lambda record: [])
    monkeypatch.setattr(cpu.Run, "__init__", lambda run, given, _: setattr(run, "given", given))
    for options in ([], ["--quick"], ["--only", "lstm"], ["--rounds", "2"]):
        assert cpu.main([*options, "--data", "random"]) == 0
    assert places == [RESULTS / "cpu.json", *[LATEST / "cpu.json"] * 3]


def test_missing_rivals_are_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cpu, "find_spec", lambda name: None)
    assert cpu.main(["--quick"]) == 2
    assert "need PyTorch" in capsys.readouterr().err


def test_missing_data_are_reported_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cpu, "find_spec", lambda name: name)
    assert cpu.main(["--data", str(tmp_path)]) == 2
    assert "--data random" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("threads")
def test_every_part_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(batching, "LEAST", 1e-3)
    monkeypatch.setattr(machine, "busy", lambda: 0.0)
    out = tmp_path / "cpu.json"
    options = ["--quick", "--in-process", "--data", "random", "--out", str(out)]
    assert cpu.main(options) == 0
    record = json.loads(out.read_text())
    assert record["failed"] == [] and {"commit", "machine", "command"} <= record.keys()
    assert [e["part"] for e in record["cases"]] == [
        a.part for a in cpu_cases.against("random", quick=True)
    ]
    assert len(record["batching"]) == 12 and len(record["preparation"]) == 4
    assert [e["vertices"] for e in record["growth"]] == [5000, 2000, 8000, 2000, 8000]
    assert len(record["memory"]) == 4
    shown = capsys.readouterr()
    assert shown.out.rstrip().splitlines()[-1].startswith("| peak memory over what backward reads")
    assert "38/38 memory: fixed-lstm" in shown.err
