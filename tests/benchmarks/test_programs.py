"""The programs of make bench: paths of results, the ablation, the report."""

from __future__ import annotations

import json
import mmap
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import benchmarks.__main__ as everything
from benchmarks import ablation, harness, machine, naive, preparation, report, result_paths
from benchmarks.result_paths import LATEST, RESULTS
from benchmarks.runner import make_runner
from benchmarks.samples import lattice
from benchmarks.sessions import LocalSession
from benchmarks.workloads import OWN, Case, load
from cavs.compiler.pipeline import Passes


def test_a_narrowed_grid_does_not_replace_a_whole_one() -> None:
    parser = harness.parser_for("x", "", hidden=(4, 8), batch_sizes=(1,), runners=("cavs",))
    parser.add_argument("--leaves", type=int, default=4)

    def out(*options: str) -> Path:
        return parser.parse_args(options).out

    assert out() == out("--data", "random", "--resume", "--refcheck") == RESULTS / "x.json"
    for narrowed in (["--quick"], ["--hidden", "4"], ["--rounds", "3"], ["--leaves", "8"]):
        assert out(*narrowed) == LATEST / "x.json"
    assert out("--quick", "--out", "here.json") == Path("here.json")


def test_make_bench_keeps_results_of_whole_grids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called: list[tuple[str, list[str]]] = []

    def program(name: str, fails: bool = False) -> Any:
        return lambda options: called.append((name, options)) or int(fails)

    assert {"sst", "tree_fc", "naive", "ablation", "preparation"} <= everything.PROGRAMS.keys()
    monkeypatch.setattr(everything, "PROGRAMS", {"a": program("a"), "b": program("b", True)})
    monkeypatch.setattr(everything, "LATEST", tmp_path)
    monkeypatch.setattr(report, "main", program("report"))
    assert everything.main(["--data", "D"]) == 1
    assert "failed in part: b" in capsys.readouterr().out
    quick = ["--data", "D", "--quick"]
    paths = ["--results", str(tmp_path), "--out", str(tmp_path)]
    assert called == [("a", quick), ("b", quick), ("report", paths)]
    called.clear()
    monkeypatch.delenv("CAVS_DATA", raising=False)
    assert everything.main(["a", "--full", "--resume", "--data", ""]) == 0
    assert called == [("a", ["--resume"]), ("report", [])]


def test_quick_programs_of_make_bench_write_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: dict[str, Any] = {}
    monkeypatch.setattr(
        result_paths.GridParser,
        "error",
        lambda self, message: pytest.fail(f"{self.prog}: {message}"),
    )

    def measured(given: Any, *_: Any, **__: Any) -> int:
        found[given.out.stem] = given
        return 0

    for module in (ablation, naive, everything.sst, everything.tree_fc, everything.lstm):
        monkeypatch.setattr(module, "run", measured)
        module.main(["--quick", "--data", "random"])
    assert {given.out.parent for given in found.values()} == {LATEST}
    assert set(found) == {"ablation", "naive", "sst", "tree_fc", "lstm"}


def test_ablation_has_every_pass_where_it_matters() -> None:
    every = {field.name for field in fields(Passes)}
    assert set(ablation.PASSES) == every and "restrict_to_labelled" in every
    assert {name for shown in ablation.CASES.values() for name in shown} == every
    assert OWN.keys() <= {case.workload for case in ablation.CASES}


def test_ablation_measures_a_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "REST", 0.0)
    monkeypatch.setattr(machine, "busy", lambda: 0.0)
    monkeypatch.setattr(LocalSession, "_warm_up", lambda self: None)
    cases = {
        Case("lattice", 0, 0, leaves=3, embedding=0, vocabulary=20): ("hoist_products_to_child",),
        Case("root-label", 0, 0, leaves=4, embedding=0, vocabulary=20): ("restrict_to_labelled",),
    }
    monkeypatch.setattr(ablation, "CASES", cases)
    out = tmp_path / "ablation.json"
    options = ["--hidden", "4", "--batch-size", "2", "--batches", "1", "--quick", "--in-process"]
    assert ablation.main([*options, "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    assert [list(entry["runners"]) for entry in record["cases"]] == [
        ["cavs", "cavs-without-hoist_products_to_child"],
        ["cavs", "cavs-without-restrict_to_labelled"],
    ]
    cavs = record["cases"][1]["runners"]["cavs"]
    assert cavs["gather_bytes"] > 0 and cavs["write_bytes"] > 0 and cavs["peak_bytes"] > 0
    assert "| restrict_to_labelled    | root-label training, h 4" in record["summary"]
    shown = capsys.readouterr().out
    assert record["summary"] in shown and "gathered MiB" in shown
    assert record["summary"] in report.section(
        "ablation", report.read_results(tmp_path)["ablation"], []
    )
    only = ["--passes", "trim_products", "--workload", "lattice"]
    with pytest.raises(SystemExit):
        ablation.main([*options, *only])
    assert "add --all" in capsys.readouterr().err


@pytest.mark.parametrize("workload", OWN)
def test_workloads_of_cavs_alone_train(workload: str) -> None:
    case = Case(workload, 4, 3, embedding=4, batches=1, leaves=4, vocabulary=30, data="random")
    loaded = load(case)
    runner = make_runner("cavs", loaded)
    plan = runner.prepare(loaded.batches[0])
    losses = [runner.train(plan) for _ in range(30)]
    assert losses[-1] < losses[0]
    assert runner.gradients(plan)[1].keys() == runner.parameters().keys()


def test_a_lattice_shares_its_children() -> None:
    found = lattice(4, np.arange(4, dtype=np.int32), 2)
    assert found.left.tolist() == [-1, -1, -1, -1, 0, 1, 2, 4, 5, 7]
    assert found.right.tolist() == [-1, -1, -1, -1, 1, 2, 3, 5, 6, 8]
    assert found.height.tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 3]
    assert found.token.tolist() == [0, 1, 2, 3] + [-1] * 6
    assert found.label.tolist() == [-1] * 9 + [2]


def test_memory_is_shown_for_runners_that_count_it() -> None:
    runners = {
        "cavs": {
            "gather_bytes": 1 << 20,
            "write_bytes": 3 << 19,
            "peak_bytes": 0,
            "peak_memory": 0,
        },
        "hand": {"peak_memory": 5 << 20},
    }
    text = harness.memory_table([{"title": "t", "runners": runners}])
    assert "| cavs   | 1.0          | 1.5         | 0.0        | 0.0         |" in text
    assert "| hand   |              |             |            | 5.0         |" in text
    assert harness.memory_table([{"title": "t", "runners": {"hand": runners["hand"]}}]) == ""


def test_peak_of_the_process_is_that_of_the_case() -> None:
    machine.forget_peak()
    before = machine.peak_memory()
    assert before > 1 << 20
    with mmap.mmap(-1, 1 << 25) as block:  # goes back to the system at once, unlike an array
        for page in range(0, len(block), mmap.PAGESIZE):
            block[page] = 1
        high = machine.peak_memory()
        assert high >= before + (1 << 24)
    machine.forget_peak()
    assert machine.peak_memory() <= high - (1 << 24)


def test_a_plot_is_written_per_mode_and_threads(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")

    def entry(batch_size: int, training: bool, **rates: float) -> dict[str, Any]:
        case = Case("tree-fc", 8, batch_size, training=training)
        runners = {
            name: {
                "vertices_per_second": rate, "step": {"median": 1.0, "q25": 1.0, "q75": 1.0},
                "step_cpu": {"median": 1.0}, "prepare": {"median": 1.0},
            }
            for name, rate in rates.items()
        }  # fmt: skip
        return {
            "case": case.record(), "title": case.title, "runners": runners, "reference": "cavs",
            "ratios": {}, "failed": {}, "busy_before": 0.0,
        }  # fmt: skip

    cases = [
        entry(16, True, cavs=3.0, hand=2.0),
        entry(1, True, cavs=1.0),
        entry(1, False, cavs=1.0),
    ]
    record = {
        "benchmark": "tree-fc", "created": "now", "commit": "", "command": "python -m x",
        "machine": machine.machine(), "versions": {}, "cases": cases,
    }  # fmt: skip
    written = report.plot("x", record, tmp_path)
    assert written == ["x-training-1.png", "x-inference-1.png"]
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in written)
    harness.write_json(tmp_path / "in" / "x.json", record)
    folders = ["--results", str(tmp_path / "in"), "--out", str(tmp_path / "out")]
    assert report.main(folders) == 0
    page = (tmp_path / "out" / "results.md").read_text()
    assert "![x-training-1.png](x-training-1.png)" in page and "## x" in page
    # Cases of several workloads are no curve.
    other = cases[1] | {"case": cases[1]["case"] | {"workload": "lattice"}}
    harness.write_json(tmp_path / "in" / "x.json", record | {"cases": [*cases, other]})
    assert report.main(folders) == 0
    assert "![" not in (tmp_path / "out" / "results.md").read_text()
    assert report.main(["--results", str(tmp_path / "none")]) == 1


def test_preparation_is_quick_on_request(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(preparation, "in_new_process", lambda *work, patience: asked.append(work))
    monkeypatch.setattr(preparation, "shares_table", lambda found: "shares")
    monkeypatch.setattr(preparation, "growth_table", lambda found: "growth")
    monkeypatch.setattr(preparation, "write_report", lambda out, *_: asked.append((out,)))
    assert preparation.main(["--quick", "--data", "random"]) == 0
    assert asked.pop() == (LATEST / "preparation.json",)
    assert {work[1].threads for work in asked if work[0] is preparation.share} == {1}
    assert max(work[2] for work in asked if work[0] is preparation.growth) == 100_000
