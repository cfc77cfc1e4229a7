"""The GPU program on the CPU in tiny sizes, its table, and its rivals on the device "meta"."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchmarks import gpu  # noqa: E402
from benchmarks.gpu_cases import (  # noqa: E402
    BATCH_SIZES,
    HIDDEN,
    precisions,
)
from benchmarks.gpu_cases import groups as groups_of  # noqa: E402
from benchmarks.gpu_parts import first_step  # noqa: E402
from benchmarks.gpu_table import missed, summary_table  # noqa: E402
from benchmarks.new_process import in_new_process  # noqa: E402
from benchmarks.rivals import base, floor, graphs  # noqa: E402
from benchmarks.rivals.device import set_up  # noqa: E402
from benchmarks.runner import RUNNERS, make_runner  # noqa: E402
from benchmarks.runners_cavs import SWITCHES  # noqa: E402
from benchmarks.sessions import RemoteSession, SessionError  # noqa: E402
from benchmarks.timeline import chrome_trace  # noqa: E402
from benchmarks.workloads import WORKLOADS, Case, initial_parameters, load  # noqa: E402
from tests.patience import patience  # noqa: E402

TINY = [
    "--device",
    "cpu",
    "--tiny",
    "--in-process",
    "--rounds",
    "1",
    "--steps",
    "20",
    "--no-bounds",
]


@pytest.mark.slow
def test_every_part_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "gpu.json"
    assert gpu.main([*TINY, "--data", "random", "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    assert record["failed"] == [] and record["skipped"] == []
    assert record["optional_skipped"] == []
    wanted = groups_of("cpu", "random", False, True)
    wanted.sort(key=lambda g: not g.bounded)
    measured = [(e["group"], set(e["runners"])) for e in record["cases"]]
    assert measured == [(g.name, set(g.runners)) for g in wanted for _ in g.cases]
    assert record["ceilings"].keys() == {"device", "bytes", "fp32"}
    assert record["agreement"] == []
    assert max(record["accuracy"]["fp32"]["tree-fc"].values()) < 1e-5
    assert record["curve"]["worst"] == 0.0  # the CPU against itself
    assert record["first_step"]["second_process"]["first"] > 0
    assert record["first_step"]["second_process"]["total"] > 0
    assert record["fresh"]["fresh"]["median"] > 0
    assert record["latency"][0]["ways"]["launched"]["median"] > 0 and "levels" not in record
    shown = capsys.readouterr().out
    assert shown.splitlines()[-1].startswith("| 20 steps, loss from")  # the table stands last
    trace = json.loads((tmp_path / record["timeline"]["trace"]).read_text())
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert spans and all(e["dur"] > 0 for e in spans)


def test_skipped_parts_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "gpu.json"
    assert gpu.main([*TINY, "--limit", "1e-9", "--out", str(out)]) == 1
    record = json.loads(out.read_text())
    assert "accuracy" in record["skipped"] and record["cases"] == []
    assert "left out: time was up" in capsys.readouterr().out


def test_a_part_that_fails_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no such engine")

    monkeypatch.setitem(gpu.PARTS, "accuracy", broken)
    monkeypatch.setitem(RUNNERS["tree-lstm"], "hand", "benchmarks.nowhere:Nothing")
    options = ["--only", "accuracy", "ceilings", "sst", "--out", str(tmp_path / "gpu.json")]
    assert gpu.main([*TINY, *options]) == 1
    shown = capsys.readouterr().out
    assert "failed: no such engine" in shown and "failed: No module named" in shown
    assert "copy, read plus written" in shown


def test_a_bound_that_does_not_hold_is_a_failure(tmp_path: Path) -> None:
    options = ["--only", "sst", "--out", str(tmp_path / "gpu.json")]
    assert gpu.main([*TINY, *options]) == 0
    strict = [option for option in TINY if option != "--no-bounds"]
    assert gpu.main([*strict, *options]) == 1
    record = json.loads((tmp_path / "gpu.json").read_text())
    assert record["failed"] == record["skipped"] == []
    assert any("trees a second" in measure for measure in missed(record))


def test_the_first_process_finds_nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = []

    def run(command: Any, *, env: Any, **_: Any) -> Any:
        folder = Path(env["CAVS_CACHE"])
        folders.append((folder, sorted(folder.iterdir())))
        (folder / "kernel").touch()
        return SimpleNamespace(returncode=0, stdout='{"total": 1.0}')

    monkeypatch.setattr(subprocess, "run", run)
    given = SimpleNamespace(device="cuda", data="random", tiny=True, patience=1)
    found, failed = first_step(given)  # type: ignore[arg-type]
    assert found == {"first_process": {"total": 1.0}, "second_process": {"total": 1.0}}
    (cold, nothing), (warm, kernels) = folders
    assert cold == warm and nothing == [] and kernels == [cold / "kernel"]
    assert failed == [] and not cold.exists()


def hang(_: Any) -> None:
    """A part that never ends, and has started a process that never ends."""
    subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"], check=True)


def test_hanging_processes_are_killed_at_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(gpu.PARTS, "accuracy", hang)
    own = [option for option in TINY if option != "--in-process"]
    options = ["--only", "accuracy", "agreement", "sst", "--deadline", "4"]
    start = time.perf_counter()
    assert gpu.main([*own, *options, "--out", str(tmp_path / "gpu.json")]) == 1
    assert time.perf_counter() - start < patience(60)
    record = json.loads((tmp_path / "gpu.json").read_text())
    assert record["failed"] == [{"part": "accuracy", "error": "killed: time was up"}]
    assert [name.partition(":")[0] for name in record["skipped"]] == ["sst", "agreement"]
    assert "killed: time was up" in capsys.readouterr().out


def test_parts_with_a_bound_come_first() -> None:
    given = SimpleNamespace(
        device="cuda", data="random", full=False, tiny=False, only=[], out=Path("x"),
        rounds=1, in_process=False,
    )  # fmt: skip
    run = gpu.Run(given, 0.0)  # type: ignore[arg-type]
    names = [name for name, *_ in run.items() if name]
    bounded = ("ceilings", "accuracy", "curve", "first_step", "fresh", "sst", "tree-fc", "fixed")
    bounded += ("kernels", "levels", "latency")
    found = [name.startswith(bounded) for name in names]
    assert found == sorted(found, reverse=True) and found.count(True) == 9 + 13
    optional = [name for name, optional, _ in run.items() if optional]
    assert optional and all(name.startswith("sweep-rest") for name in optional)
    assert names[-len(optional) :] == optional


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([*TINY, "--only", "weather", "--out", str(tmp_path / "x.json")]) == 2
    assert "no part 'weather'; there are ablation" in capsys.readouterr().err
    if not torch.cuda.is_available():
        assert gpu.main(["--out", str(tmp_path / "x.json")]) == 2
        assert "sees no GPU" in capsys.readouterr().err
        with pytest.raises(RuntimeError, match="sees no GPU"):
            set_up(Case("tree-fc", 1, 1, device="cuda"))
    with pytest.raises(ValueError, match="there are fp32, tf32 and bf16"):
        set_up(Case("tree-fc", 1, 1, precision="fp8"))
    assert not (tmp_path / "x.json").exists()


def test_groups() -> None:
    short, full = (groups_of("cuda", "random", whole, False) for whole in (False, True))
    assert [g.name for g in short][:3] == ["sst", "tree-fc", "fixed-lstm"]
    by_name = {g.name: g for g in short}
    assert {r for r in by_name["ablation"].runners if "without" in r} >= {
        f"cavs-without-{name}" for name in SWITCHES
    }
    swept = {(c.hidden, c.batch_size) for g in short for c in g.cases if c.workload == "tree-lstm"}
    assert swept >= {(h, n) for h in HIDDEN for n in BATCH_SIZES}
    assert len(full[-1].cases) == 6
    assert sum(len(g.cases) for g in full) > sum(len(g.cases) for g in short) + len(swept)
    assert {c.precision for g in short for c in g.cases} == set(precisions("cuda"))
    for g in (*short, *full):
        for runner in g.runners:
            known = {c.workload for c in g.cases}
            assert all(runner.partition("-without-")[0] in RUNNERS[w] for w in known)
        assert all(c.device == "cuda" for c in g.cases)
    assert all(c.precision == "fp32" for g in groups_of("cpu", "", True, False) for c in g.cases)


def entry(group: str, times: dict[str, float]) -> dict[str, Any]:
    def step(seconds: float) -> dict[str, float]:
        return {"median": seconds, "q25": seconds, "q75": seconds}

    ours = times["cavs"]
    return {
        "group": group,
        "title": group,
        "case": {"precision": "fp32"},
        "flops": 10**9,
        "samples_per_batch": 256,
        "runners": {
            name: {"step": step(t), "prepare": step(0.1 * t), "peak_memory": 2**30}
            for name, t in times.items()
        },
        "ratios": {n: {"wall": {"median": t / ours}} for n, t in times.items() if n != "cavs"},
    }


def test_bounds_are_checked() -> None:
    record: dict[str, Any] = {
        "machine": {"cpu": "a CPU"},
        "data": "drawn",
        "seconds": 1.0,
        "command": "x",
        "cases": [
            entry("sst", {"cavs": 0.004, "hand": 0.008, "hand-graph": 0.007, "manual-graph": 0.01}),
            entry("tree-fc", {"cavs": 0.004, "floor-torch": 0.003}),
        ],
        "failed": [{"part": "p", "error": "first\nsecond"}],
        "skipped": ["q"],
        "ceilings": {"device": "a GPU", "bytes": 1e12, "fp32": 1e13},
        "accuracy": {"fp32": {"tree-fc": {"loss": 1e-7, "gradients": 2e-5}}},
        "first_step": {"first_process": {"total": 9.0}, "second_process": {"total": 1.0}},
        "fresh": {
            "title": "sst",
            "batch_size": 256,
            "fresh": {"median": 0.008},
            "prepare": {"median": 0.002},
            "exposed": {"median": 0.04},
        },
        "curve": {"steps": 1000, "worst": 0.05, "first": 1.6, "last": 0.9},
        "timeline": {"indexed_bytes": 10**9, "write_bytes": 10**9},
    }
    cells = [
        [c.strip() for c in line.split("|")[1:-1]] for line in summary_table(record).split("\n")
    ]
    rows = {row[0]: row[1:] for row in cells if row}
    assert summary_table(record).startswith("a GPU; drawn data; 1 s; x\n")
    assert rows["sst: trees a second"] == ["64,000", "at least 60,000", "yes"]
    assert rows["sst: batched by hand over ours"] == ["2.00", "at least 3.00", "NO"]
    assert rows["sst: the best under CUDA graphs over ours"] == ["1.75", "at least 1.50", "yes"]
    assert rows["sst: preparation alone, over a step"] == ["10.0%", "at most 5.0%", "NO"]
    made = "sst: trees a second, on batches made meanwhile"
    assert rows[made] == ["32,000", "at least 60,000", "NO"]
    longer = "sst: a step is longer than on ready batches (preparation takes 25.0% of it)"
    assert rows[longer] == ["4.0%", "at most 5.0%", "yes"]
    curve = "1000 steps, loss from 1.600 to 0.900: difference to the CPU's"
    assert rows[curve] == ["5.0e-02", "at most 1.0e-03", "NO"]
    assert missed(record) == [m for m, row in rows.items() if row[2] == "NO" and m != "p"]
    assert rows["tree-fc: share of the product floor"] == ["0.75", "at least 0.50", "yes"]
    assert rows["difference to float64, fp32"] == ["2.0e-05", "at most 1.0e-05", "NO"]
    assert rows["import and first step of the second process, seconds"] == [
        "1.00",
        "at most 1.50",
        "yes",
    ]
    assert rows["sst: products"][0] == "0.25 TFLOP/s, 2.5% of the ceiling"
    assert rows["sst: read by index and written"][0] == "500.0 GB/s, 50.0% of the ceiling"
    assert rows["p"] == ["failed: first", "", "NO"]
    assert rows["q"][0] == "left out: time was up"


def test_a_trace_lays_stages_end_to_end() -> None:
    def line(label: str, seconds: float) -> dict[str, Any]:
        return {"label": label, "kind": "rows", "seconds": seconds}

    report = {
        "stages": [line("a", 1e-3), line("b", 0.0), line("c", 2e-3)],
        "instructions": [line("m", 5e-4) | {"flops": 7.0}],
    }
    events = [e for e in chrome_trace(report)["traceEvents"] if e["ph"] == "X"]
    assert [(e["name"], e["tid"], e["ts"], e["dur"]) for e in events] == [
        ("a", 0, 0.0, 1000.0),
        ("c", 0, 1000.0, 2000.0),
        ("m", 1, 0.0, 500.0),
    ]
    assert events[-1]["args"] == {"flops": 7.0}


def test_processes_that_hang_or_end_are_errors() -> None:
    assert in_new_process(abs, -3, patience=60) == 3
    for work, argument, text in (
        (int, "x", "invalid literal"),
        (time.sleep, 60, "no answer within 0.5 s"),
        (os._exit, 7, "ended with code 7"),
    ):
        with pytest.raises(RuntimeError, match=text):
            in_new_process(work, argument, patience=0.5 if work is time.sleep else 60)
    session = RemoteSession("hand", patience=1e-3)
    with pytest.raises(SessionError, match="no answer within"):
        session.configure(Case("tree-fc", 8, 2, leaves=4, vocabulary=9, batches=2))
    with pytest.raises(SessionError, match="ended with code"):
        session.run()
    session.close()


class Replayed:
    """Graphs whose replay does the work again, or, if ``stale``, returns its first result."""

    stale = False

    def __init__(self) -> None:
        self.work: Any = None
        self.results: dict[int, Any] = {}
        self.replays = 0

    def capture(self, work: Any, plans: Any) -> None:
        self.work = work
        self.results = {id(plan): work(plan) for plan in plans}

    def __contains__(self, plan: Any) -> bool:
        return id(plan) in self.results

    def replay(self, plan: Any) -> Any:
        self.replays += 1
        return self.results[id(plan)] if self.stale else self.work(plan)


@pytest.mark.parametrize("name", ["hand-graph", "manual-graph"])
def test_steps_are_replayed_and_compared(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "Graphs", Replayed)
    case = Case(
        "tree-lstm", 8, 3, embedding=6, data="random", batches=2, optimizer="sgd", lr=0.5
    )  # fmt: skip
    for training in (True, False):
        made = load(replace(case, training=training))
        captured, plain = make_runner(name, made), make_runner(name.removesuffix("-graph"), made)
        assert isinstance(captured, graphs.Graphed)
        plans = [captured.prepare(batch) for batch in made.batches]
        captured.device = SimpleNamespace(type="cuda")  # type: ignore[assignment]
        captured.settle(plans)
        graph = captured.graphs
        assert isinstance(graph, Replayed) and len(graph.results) == 2
        captured.load_parameters(initial_parameters(made))
        before = graph.replays
        if training:
            losses = [captured.train(plan) for plan in plans]
            assert losses == pytest.approx([plain.train(plan) for plan in plans], rel=1e-5)
        else:
            torch.testing.assert_close(captured.infer(plans[0]), plain.infer(plans[0]))
        assert graph.replays == before + (2 if training else 1)
    monkeypatch.setattr(Replayed, "stale", True)
    made = load(case)
    captured = make_runner(name, made)
    plans = [captured.prepare(batch) for batch in made.batches]
    captured.device = SimpleNamespace(type="cuda")  # type: ignore[attr-defined]
    with pytest.raises(ArithmeticError, match="a replayed step has loss"):
        captured.settle(plans)


OURS = {f"benchmarks.runners_{name}" for name in ("cavs", "floor", "torch")}
# A sparse gradient without memory has no rows, and the others run on the CPU alone.
NOT_HERE = {"naive", "dynet", "dynet-depth", "dgl"}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_rivals_stay_on_their_device(
    workload: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device "meta" computes nothing, but refuses tensors of other devices."""
    for module in (base, floor):
        monkeypatch.setattr(module, "set_up", lambda _: torch.device("meta"))
    for module in ("hand_tree", "lstm"):
        place = importlib.import_module(f"benchmarks.rivals.{module}")
        monkeypatch.setattr(place, "autocast", lambda _: nullcontext())
    case = Case(
        workload, 12, 4, embedding=8, leaves=8, length=7, vocabulary=30, data="random", batches=2,
        device="cuda",
    )  # fmt: skip
    for optimizer in ("sgd", "adagrad"):
        made = load(replace(case, precision=precision, optimizer=optimizer))
        for name in RUNNERS[workload].keys() - NOT_HERE:
            if "compile" in name:
                continue
            module, _, attribute = RUNNERS[workload][name].partition(":")
            if module in OURS:
                continue
            kind = getattr(importlib.import_module(module), attribute)
            if precision == "bf16" and "manual" in name:
                with pytest.raises(ValueError, match="has fp32 and tf32 only"):
                    kind(made, initial_parameters(made))
                continue
            runner = kind(made, initial_parameters(made))
            plan = runner.prepare(made.batches[0])
            if name == "floor-torch":
                runner.train(plan)
                continue
            loss, rows = runner.compute_gradients(plan)
            runner.updates.step(plan.unique, rows)
            assert {x.device.type for x in (loss, rows, runner.infer(plan))} == {"meta"}
