"""The harness with runners of known times, and its results."""

from __future__ import annotations

import argparse
import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import __main__ as everything
from benchmarks import harness, lstm, machine, preparation, sst
from benchmarks.harness import (
    batches_for,
    cases_from,
    markdown,
    measure,
    parser_for,
    write_json,
    write_report,
)
from benchmarks.ratios import ratio, summary
from benchmarks.report import read_results, section
from benchmarks.sessions import LocalSession, Pass, RemoteSession, Session, SessionError
from benchmarks.workloads import Case


@pytest.fixture(autouse=True)
def idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the machine count as idle: measuring its load takes time."""
    monkeypatch.setattr(machine, "busy", lambda: 0.0)


class Scripted(Session):
    """A session with given times, which runs nothing."""

    def __init__(self, name: str, walls: list[float], order: list[str], vertices: int = 10) -> None:
        super().__init__(name)
        self.walls, self.order, self.vertices = iter(walls), order, vertices

    def configure(self, case: Case) -> int:
        return self.vertices

    def run(self) -> Pass:
        self.order.append(self.name)
        wall = next(self.walls)
        return Pass(wall, 2 * wall)

    def prepare(self) -> Pass:
        return Pass(1.0, 1.0)

    def peak_memory(self) -> int:
        return 7

    def close(self) -> None:
        return


CASE = Case("tree-fc", 8, 2, batches=2, leaves=4)


def test_ratio_is_paired_by_round() -> None:
    # The machine slows down tenfold in the middle; every round still says 2.
    assert ratio([2.0, 20.0, 2.0], [1.0, 10.0, 1.0])["median"] == 2.0
    assert ratio([2.0, 20.0, 2.0], [1.0, 10.0, 1.0])["q75"] == 2.0
    with pytest.raises(ValueError, match="2 and 1 rounds"):
        ratio([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="no values"):
        summary([])


def test_rounds_change_order_and_times_are_by_vertex() -> None:
    order: list[str] = []
    sessions = [Scripted("a", [1.0] * 3, order), Scripted("b", [2.0] * 3, order, vertices=5)]
    entry = measure(CASE, sessions, 3, "a")
    assert order == ["a", "b", "b", "a", "a", "b"]
    # b needed twice the time for half the vertices.
    assert entry["ratios"]["b"]["wall"]["median"] == pytest.approx(4.0)
    assert "a" not in entry["ratios"]
    assert entry["vertices_per_batch"] == 5
    assert entry["runners"]["a"]["step"]["median"] == pytest.approx(0.5)
    assert entry["runners"]["a"]["step_cpu"]["median"] == pytest.approx(1.0)
    assert entry["runners"]["b"]["vertices_per_second"] == pytest.approx(2.5)
    text = harness.table([entry])
    assert "time / a" in text and "4.00" in text


def test_a_failing_runner_does_not_stop_the_others() -> None:
    class Broken(Scripted):
        def configure(self, case: Case) -> int:
            raise SessionError("no such thing")

    order: list[str] = []
    entry = measure(CASE, [Broken("b", [], order), Scripted("a", [1.0], order)], 1, "a")
    assert entry["failed"] == {"b": "no such thing"}
    assert list(entry["runners"]) == ["a"]
    assert "failed" in harness.table([entry])


def test_a_busy_machine_is_starred() -> None:
    entry = measure(CASE, [Scripted("a", [1.0], [])], 1, "a")
    quiet, busy = {**entry, "busy_before": 0.0}, {**entry, "busy_before": 0.5}
    assert "*" not in harness.table([quiet])
    assert f"{CASE.title} *" in harness.table([quiet, busy])


def test_command_names_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["x.py", "--data", "/a/b", "--hidden", "4", "--out=/c/d", "--quick"]
    monkeypatch.setattr("sys.argv", given)
    monkeypatch.setattr("sys.modules", {"__main__": object()})
    assert machine.command() == "python x.py --data DIR --hidden 4 --quick"


def test_markdown_pads_columns() -> None:
    assert markdown(["a", "bb"], [["ccc", "d"]]) == "| a   | bb |\n|-----|----|\n| ccc | d  |"


def test_json_is_written_atomically(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(path.parent.iterdir()) == [path]


def test_the_report_reads_written_results(tmp_path: Path) -> None:
    entry = measure(CASE, [Scripted("a", [1.0], [])], 1, "a")
    record = {
        "benchmark": "tree-fc", "created": "now", "commit": "", "command": "python -m x",
        "machine": machine.machine(), "versions": machine.versions(), "cases": [entry],
    }  # fmt: skip
    write_json(tmp_path / "x.json", record)
    write_report(tmp_path / "ranks.json", "| ranks |", [{"ranks": 2}])
    write_json(tmp_path / "other.json", {"results": []})
    assert read_results(tmp_path).keys() == {"ranks", "x"}
    assert "\n| ranks |\n" in section("ranks", read_results(tmp_path)["ranks"], [])
    text = section("x", read_results(tmp_path)["x"], ["x.png"])
    assert CASE.title in text and "![x.png](x.png)" in text and "commit unknown" in text
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ValueError, match=r"bad\.json is no JSON"):
        read_results(tmp_path)


def _options(*arguments: str) -> argparse.Namespace:
    parser = parser_for("x", "y", hidden=(4, 8), batch_sizes=(1, 16, 64), runners=("a",))
    return parser.parse_args(arguments)


def test_grid_of_cases() -> None:
    base = Case("tree-fc", 0, 0, embedding=0)
    assert len(cases_from(_options(), base)) == 2 * 3 * 2 * 2
    quick = cases_from(_options("--quick", "--threads", "1"), base)
    assert {(c.hidden, c.batch_size, c.threads) for c in quick} == {(4, 1, 1), (4, 64, 1)}
    assert {c.embedding for c in quick} == {4}
    assert batches_for(1, False) == 32 and batches_for(256, False) == 1


def test_unknown_runner_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    given = _options("--runners", "no_such_runner")
    assert harness.run(given, [CASE]) == 2
    assert "no_such_runner" in capsys.readouterr().err


def test_cavs_in_a_process_of_its_own() -> None:
    session = RemoteSession("cavs")
    try:
        assert session.configure(CASE) == 2 * 2 * 7
        done = session.run()
        assert done.wall > 0 and done.cpu > 0 and session.prepare().wall > 0
        assert session.peak_memory() > 1 << 20
        with pytest.raises(SessionError, match="no such workload"):
            session.configure(Case("no such workload", 8, 2))
    finally:
        session.close()
    assert session.process.poll() == 0


@pytest.mark.parametrize("threads", [1, 2])
def test_floor_runs_here(threads: int) -> None:
    session = LocalSession("floor")
    assert session.configure(replace(CASE, threads=threads)) == 28
    assert session.run().wall > 0


def test_a_run_resumes_an_interrupted_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []
    stop_at: list[str] = []

    def scripted(case: Case, sessions: list[Session], rounds: int, reference: str) -> object:
        if case.title in stop_at:
            raise KeyboardInterrupt
        measured.append(case.title)
        runner = {"step": {"median": 1.0, "q25": 1.0, "q75": 1.0}, "step_cpu": {"median": 1.0}}
        runner |= {"prepare": {"median": 1.0}, "vertices_per_second": 1.0}
        return {
            "case": case.record(),
            "title": case.title,
            "runners": {session.name: runner for session in sessions},
            "reference": reference,
            "ratios": {},
            "failed": {},
            "busy_before": 0.0,
        }

    monkeypatch.setattr(harness, "measure", scripted)
    monkeypatch.setattr(harness, "RemoteSession", lambda name: Scripted(name, [], []))
    parser = parser_for("tree_fc", "", hidden=(8,), batch_sizes=(1, 2), runners=("cavs", "floor"))
    out = tmp_path / "out.json"

    def go(*more: str) -> list[str]:
        measured.clear()
        given = parser.parse_args(["--threads", "1", "--out", str(out), *more])
        harness.run(given, cases_from(given, CASE), show=lambda _: None)
        return list(measured)

    titles = [case.title for case in cases_from(parser.parse_args(["--threads", "1"]), CASE)]
    assert len(titles) == 4
    stop_at.append(titles[2])
    with pytest.raises(KeyboardInterrupt):
        go()
    stop_at.clear()
    assert go("--resume") == titles[2:]
    assert [entry["title"] for entry in json.loads(out.read_text())["cases"]] == titles
    assert go("--resume") == []
    assert go("--resume", "--runners", "cavs") == titles  # other runners
    assert go() == titles
    monkeypatch.setattr(machine, "commit", lambda: "another")
    assert go("--resume") == []
    monkeypatch.setattr(machine, "sources", lambda: "others")
    assert go("--resume") == titles


def test_results_documents_and_tests_are_not_among_the_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    names = ["pyproject.toml", "cavs/x.py", "csrc/x.cc", "benchmarks/sst.py"]
    for name in (*names, "benchmarks/results/sst.json", "docs/x.md", "tests/x.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    first = machine.sources()
    for name in ("benchmarks/results/sst.json", "docs/x.md", "tests/x.py"):
        (tmp_path / name).write_text("2")
    assert machine.sources() == first
    for name in names:
        (tmp_path / name).write_text("2")
        assert machine.sources() != first
        (tmp_path / name).write_text("1")
    (tmp_path / "cavs/x.py").rename(tmp_path / "cavs/y.py")
    assert machine.sources() != first


def test_results_are_no_change_of_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    for file in (tmp_path / "x.py", results / "sst.json"):
        file.write_text("1")
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
        who = ["-c", "user.name=x", "-c", "user.email=x@x"]
        subprocess.run(["git", *who, *command], cwd=tmp_path, check=True)
    clean = machine.commit()
    (results / "sst.json").write_text("2")
    assert machine.commit() == clean and len(clean) == 40
    (tmp_path / "x.py").write_text("2")
    assert machine.commit() == f"{clean} with changes"


@pytest.mark.parametrize("program", ["sst", "lstm", "preparation", "all"])
def test_missing_data_are_an_error_before_anything_is_measured(
    program: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("CAVS_DATA", raising=False)
    monkeypatch.setattr(harness, "RemoteSession", pytest.fail)
    monkeypatch.setattr(
        preparation, "in_new_process", lambda work, *_, **__: pytest.fail(str(work))
    )
    out = tmp_path / "out.json"
    out.write_text("good")
    mains = {"sst": sst.main, "lstm": lstm.main, "preparation": preparation.main}
    if program == "all":
        monkeypatch.setattr(everything, "PROGRAMS", {"tree_fc": pytest.fail, "sst": pytest.fail})
        assert everything.main([]) == 2
    else:
        assert mains[program](["--out", str(out)]) == 2
    told = capsys.readouterr().err
    assert "--data DIR" in told and "--data random" in told
    assert everything.main(["sst", "--data", str(tmp_path)]) == 2
    assert f"there is no {tmp_path / 'sst'}" in capsys.readouterr().err
    assert out.read_text() == "good"


def test_a_run_of_failures_keeps_the_old_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Failing(Scripted):
        def configure(self, case: Case) -> int:
            raise SessionError("no")

    monkeypatch.setattr(harness, "RemoteSession", lambda name: Failing(name, [], []))
    parser = parser_for("tree_fc", "", hidden=(8,), batch_sizes=(1, 2), runners=("cavs",))
    out = tmp_path / "out.json"
    out.write_text("good")
    given = parser.parse_args(["--out", str(out)])
    assert harness.run(given, cases_from(given, CASE)) == 1
    assert f"every case failed; {out} is left as it is" in capsys.readouterr().err
    assert out.read_text() == "good"
