"""Time of a level and latency of one tree: fits, bounds, second attempts."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import gpu, latency, level_points, levels
from benchmarks.gpu_cases import Group, groups
from benchmarks.gpu_parts import PIECES, Piece
from benchmarks.gpu_table import missed, summary_table
from benchmarks.levels import fitted
from benchmarks.new_process import in_new_process
from benchmarks.workloads import Case
from tests.patience import patience


def given(tmp_path: Path, **options: Any) -> Any:
    usual: dict[str, Any] = {"device": "cuda", "data": "random", "full": False, "tiny": False}
    usual |= {
        "only": [],
        "rounds": 1,
        "in_process": True,
        "patience": 9,
        "out": tmp_path / "x.json",
    }
    return SimpleNamespace(**usual | options)


def test_a_line_of_least_squares() -> None:
    assert fitted([1, 16, 64], [2.1, 3.6, 8.4]) == {
        "a": pytest.approx(2.0),
        "b": pytest.approx(0.1),
        "off": pytest.approx(0, abs=1e-9),
    }
    assert fitted([1, 2, 3], [1.0, 3.0, 2.0])["off"] == pytest.approx(0.5)
    assert fitted([16], [5.0]) == {"a": 5.0, "b": 0.0, "off": 0.0}


class Clocked:
    """A run of given times, in total and in its loops."""

    def __init__(self, asked: list[str], way: str, whole: float, up: float, down: float) -> None:
        self.asked, self.way, self.seconds = asked, way, (whole, up, down)

    def whole(self) -> float:
        self.asked.append(self.way)
        return self.seconds[0]

    def loops(self) -> tuple[float, float]:
        assert self.way != "graphs"  # which no event divides
        return self.seconds[1:]


def test_time_of_graphs_outside_of_loops_is_subtracted() -> None:
    asked: list[str] = []
    of: Any = {
        way: {"forward": Clocked(asked, way, w, u, 0), "both": Clocked(asked, way, 2 * w, u, d)}
        for way, w, u, d in (
            ("launched", 9.0, 6.0, 5.0), ("graphs", 5.0, 0.0, 0.0), ("persistent", 4.0, 2.0, 1.0)
        )
    }  # fmt: skip
    found = levels._timed(of, 3)
    assert asked[::2] == [list(of)[i % 3] for i in (0, 1, 2, 1, 2, 0, 2, 0, 1)]  # in turns
    assert found["launched"]["both"] == 11 and found["launched"]["backward"] == 5
    assert found["graphs"]["forward"] == 5 - 2 and found["graphs"]["both"] == 10 - 5
    assert found["graphs"]["whole_both"] == 10 and "backward" not in found["graphs"]


@pytest.mark.parametrize(("cell", "vertices"), [("lstm", 5), ("tree", 11)])
def test_batches_are_as_high_as_they_have_levels(cell: str, vertices: int) -> None:
    batch = level_points.batch_of(cell, 3, 5)
    assert batch.num_vertices == 3 * vertices
    graph = batch.graphs[0]
    heights = np.zeros(vertices, int)
    for v in range(vertices):
        heights[v] = 1 + max((heights[i] for i in graph.children(v)), default=0)
    inner = [int(h) for h in heights if cell == "lstm" or h > 1]
    assert inner == [1 + n + (cell == "tree") for n in range(5)]


def test_points_with_a_bound_are_measured_first() -> None:
    short, full = (level_points.points("cuda", whole, False) for whole in (False, True))
    assert [p.precision for p in short[:6]] == ["tf32"] * 6
    assert {p.hidden for p in short[:6]} == {150, 256, 512}
    assert {(p.cell, p.precision) for p in short} == {(p.cell, p.precision) for p in full}
    assert len(short) == 10 and len(full) == 18 and set(short) < set(full)
    assert level_points.points("cpu", True, False) == []


def test_kernels_that_cannot_be_compiled_are_failures() -> None:
    of = [level_points.Point("lstm", 4, "fp32", "cuda:99")]
    found, failed = in_new_process(level_points.compiled_ahead, of, (1,), 2, patience=patience(120))
    assert found["points"] == 1 and found["seconds"] > 0
    ((what, why),) = failed
    assert what == "kernels: lstm, h 4, fp32" and "device='cuda'" in why


def level(width: int, forward: float, both: float) -> dict[str, Any]:
    def way(scale: float) -> dict[str, Any]:
        return {
            "forward": scale * forward,
            "both": scale * both,
            "launches": {"forward": 7, "both": 9},
        }

    ways = {"launched": way(10), "graphs": way(5), "persistent": way(1)}
    return {"width": width, "levels": 64, "ways": ways}


def record() -> dict[str, Any]:
    def found(precision: str, hidden: int, *widths: Any) -> dict[str, Any]:
        line = {"a": 1.5, "b": 0.25, "off": 0.125}
        fits = {"persistent": {"forward": line, "backward": line}}
        title = f"tree, h {hidden}, {precision}"
        model = {"cell": "tree", "hidden": hidden, "precision": precision, "title": title}
        return {**model, "widths": list(widths), "fits": fits}

    def waits(median: float) -> dict[str, Any]:
        return {"median": median, "p90": 2 * median, "collation": {"median": 9.0}}

    return {
        "machine": {"cpu": ""}, "data": "", "seconds": 0, "command": "", "cases": [],
        "failed": [], "skipped": [], "kernels": [{"points": 2, "seconds": 3.0}],
        "levels": [
            found("tf32", 256, level(1, 1.0, 9.0), level(64, 3.0, 7.0), level(128, 50.0, 50.0)),
            found("tf32", 512, level(1, 5.0, 6.0)),
            found("tf32", 1024, level(1, 50.0, 50.0)),
            found("fp32", 256, level(1, 50.0, 50.0)),
        ],
        "latency": [
            {"precision": p, "hidden": 256, "trees": 500,
             "ways": {"launched": waits(300.0), "persistent": waits(median)}}
            for p, median in (("fp32", 121.0), ("tf32", 119.0))
        ],
    }  # fmt: skip


def test_bounds_of_levels_and_latency_are_checked() -> None:
    of = "persistent, forward"
    assert missed(record()) == [
        f"levels: tree, h 256, tf32, worst at 1 vertices: {of} and backward, us a level",
        f"levels: tree, h 512, tf32, worst at 1 vertices: {of}, us a level",
        "one tree, h 256, fp32: persistent, us",
    ]
    shown = summary_table(record())
    assert f"worst at 64 vertices: {of}, us a level" in shown
    assert "launched 10.00 (7), graphs 5.00 (7), persistent 1.00 (7)" in shown
    assert "forward 1.50 +0.2500 a row (off by 12%)" in shown
    assert "persistent 121 (242), 9 of it collation" in shown
    assert "1024, tf32, worst" not in shown and "fp32, worst" not in shown
    alone = record()
    for found in alone["levels"]:
        for entry in found["widths"]:
            del entry["ways"]["persistent"]
    for found in alone["latency"]:
        del found["ways"]["persistent"]
    assert missed(alone) == []
    assert "persistent, forward" not in summary_table(alone)


def test_a_wrong_way_is_a_failure() -> None:
    ways = level(1, 1.0, 1.0)["ways"]
    ways = {way: {**found, "loss": 1.0} for way, found in ways.items()}
    ways["launched"]["launches"] = {"forward": 66, "both": 130}
    ways["persistent"]["launches"] = {"forward": 3, "both": 4}
    assert levels._wrong("x", ways, 64) == []
    ways["persistent"]["launches"] = {"forward": 3, "both": 66}  # no backward kernel
    assert [why[:29] for _, why in levels._wrong("x", ways, 64)] == [
        "no kernel walks the tasks: la"
    ]
    ways["graphs"]["loss"] = float("nan")
    assert levels._wrong("x", ways, 64)[0] == ("x", "a loss of nan graphs, of 1.0 launched")


def works(calls: list[str], name: str) -> Any:
    calls.append(name)
    return {"name": name}, [("part of it", "odd")] if name == "odd" else []


def breaks(calls: list[str], text: str) -> Any:
    calls.append(text)
    raise RuntimeError(text)


def test_failures_have_a_second_attempt_and_hangs_few(tmp_path: Path) -> None:
    run = gpu.Run(given(tmp_path), 0.0)
    calls: list[str] = []
    hangs = partial(breaks, calls, "no answer within 9 s")
    broken, good = partial(breaks, calls, "broken"), partial(works, calls, "good")
    run.piece(Piece("levels", "a", (partial(works, calls, "odd"), good)))
    run.piece(Piece("levels", "b", (broken, good)))
    assert calls == ["odd", "broken", "good"]
    for title in "cde":
        run.piece(Piece("levels", title, (hangs, good)))
    assert calls.count("good") == 4
    assert calls.count("no answer within 9 s") == gpu.MOST_HANGS == 2
    run.piece(Piece("latency", "f", (good,)))  # nothing else to try
    assert [found["name"] for found in run.record["levels"]] == ["odd", *["good"] * 4]
    assert run.record["latency"] == [{"name": "good"}]
    told = [(failure["part"], failure["error"]) for failure in run.record["failed"]]
    silent = "no answer within 9 s"
    assert told == [
        ("part of it", "odd"), ("b", "broken"), ("c", silent), ("d", silent),
        ("e", "left out: others like it hung"),
    ]  # fmt: skip


def test_a_runner_that_hung_is_left_out_of_later_cases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = gpu.Run(given(tmp_path), 0.0)
    asked = []

    def measured(name: str, case: Any, runners: Any, rounds: int) -> Any:
        asked.append(list(runners))
        silent = {r: f"{r} gave no answer within 9 s" for r in runners if r in ("cavs", "b")}
        return {"failed": silent | {"c": "no such thing"}}

    monkeypatch.setattr(run, "measured", measured)
    case = Case("tree-fc", 4, 1, leaves=2, vocabulary=5, batches=1)
    for _ in range(2):
        run.case(Group("g", (case,), ("cavs", "b", "c")), case)
    assert asked == [["cavs", "b", "c"], ["cavs", "c"]]  # ratios are taken to the first
    assert [f["part"] for f in run.record["failed"]] == [f"g: {case.title}: b"]


def test_pieces(tmp_path: Path) -> None:
    of = {name: pieces(given(tmp_path, in_process=False)) for name, pieces in PIECES.items()}
    assert [p.part for p in of["levels"]] == ["kernels", *["levels"] * 10]
    assert [p.title for p in of["latency"]] == ["latency: fp32", "latency: tf32"]
    for piece in (*of["levels"][1:], *of["latency"]):
        first, second = (attempt.args[-1] for attempt in piece.attempts)
        assert "persistent" in first and tuple(w for w in first if w != "persistent") == second
    assert all(p.part == "levels" for p in PIECES["levels"](given(tmp_path)))
    assert PIECES["levels"](given(tmp_path, device="cpu")) == []
    names = [name for name, *_ in gpu.Run(given(tmp_path, only=["latency"]), 0.0).items() if name]
    assert names == ["latency: fp32", "latency: tf32"]


def test_sessions_with_the_persistent_kernel() -> None:
    made = {g.name: g.runners for g in groups("cuda", "random", True, False)}
    runner = "cavs-without-launches-by-task"
    wanted = {"sst", "fixed-lstm", "var-lstm", "tree-fc", "inference", "sweep", "sweep-rest"}
    assert {name for name, runners in made.items() if runner in runners} == {*wanted, "ablation"}
    assert all(runners[0] == "cavs" for runners in made.values())
    assert not any(runner in g.runners for g in groups("cpu", "random", True, False))


def test_latency_on_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    (piece,) = PIECES["latency"](given(Path(), device="cpu", tiny=True))
    assert len(piece.attempts) == 1
    found, failed = piece.attempts[0]()
    assert failed == [] and found["trees"] == 4 and found["vertices"] > 1
    (way,) = found["ways"].values()
    assert 0 < way["collation"]["median"] < way["median"] <= way["p90"]
    options = ["--device", "cpu", "--hidden", "8", "--trees", "3"]
    assert latency.main(options) == 0
    (shown,) = json.loads(capsys.readouterr().out)["latency"]
    assert shown["hidden"] == 8 and list(shown["ways"]) == ["launched"]
