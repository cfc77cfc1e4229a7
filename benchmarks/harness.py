"""Measures several runners on the same cases in turns, and keeps what was measured.

A round is one pass of every runner, in an order that changes from round to round; ratios are taken
within each round and their median is quoted, so that what else the machine does cancels out.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.options import THREADS, at_least
from benchmarks.ratios import Summary, quartiles, ratio, summary
from benchmarks.refcheck import check
from benchmarks.result_paths import GridParser
from benchmarks.runner import RUNNERS, base_of, python_of
from benchmarks.sessions import LocalSession, RemoteSession, Session, SessionError
from benchmarks.workloads import Case, missing_data

QUIET = 0.05  # share of all cores used by others above which a measurement is marked
REST = 0.005  # seconds between passes, in which threads of the last one fall asleep


def markdown(headers: SequenceOf[str], rows: Iterable[SequenceOf[str]]) -> str:
    """Return a Markdown table with padded columns."""
    table = [list(headers), *(list(row) for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(headers))]
    lines = [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |"
        for row in table
    ]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines)


def speed_table(size: str, unit: str, cases: SequenceOf[Any]) -> str:
    """Return a row per case and runner: ``unit`` a second, and the time over that of `cavs`.

    size: header of the hidden size. Cases have "hidden", a number of ``unit``, and the entries of
    `benchmarks.ratios.take_turns`.
    """
    rows = [
        [
            str(case["hidden"]),
            name,
            f"{case[unit] / seconds['median']:,.0f}",
            quartiles(case["ratios"][name], "{:.2f}"),
        ]
        for case in cases
        for name, seconds in case["seconds"].items()
    ]
    return markdown([size, "runner", f"{unit} a second", "time over ours"], rows)


def write_report(path: Path, text: str, results: Any) -> None:
    """Write results and the `text` that shows them, for `benchmarks.report`."""
    write_json(path, {**machine.surroundings(), "text": text, "results": results})


def write_json(path: Path, record: Any) -> None:
    """Write JSON atomically: readers see the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def measure(case: Case, sessions: SequenceOf[Session], rounds: int, reference: str) -> Any:
    """Measure one case: times of every runner round by round, summaries, and ratios to `reference`.

    Times are seconds per vertex, so that runners with fewer batches are comparable. A runner that
    fails is recorded with its error and left out; the others continue.
    """
    before = machine.busy()
    vertices: dict[str, int] = {}
    failed: dict[str, str] = {}
    live = []
    for session in sessions:
        try:
            vertices[session.name] = session.configure(case)
            live.append(session)
        except SessionError as error:
            print(error, file=sys.stderr)
            failed[session.name] = str(error).partition("\n")[0]  # later lines name folders
    wall: dict[str, list[float]] = {session.name: [] for session in live}
    cpu: dict[str, list[float]] = {session.name: [] for session in live}
    prepared: dict[str, list[float]] = {session.name: [] for session in live}
    constructed: dict[str, list[float]] = {session.name: [] for session in live}
    for turn in range(rounds if live else 0):
        first = turn % len(live)
        for session in live[first:] + live[:first]:
            time.sleep(REST)
            done, plans, built = session.run(), session.prepare(), session.construct()
            per = vertices[session.name]
            if built is not None:
                constructed[session.name].append(built.wall / per)
            wall[session.name].append(done.wall / per)
            cpu[session.name].append(done.cpu / per)
            prepared[session.name].append(plans.wall / per)
    per_batch = max(vertices.values(), default=0) / case.batches
    runners = {
        session.name: {
            "step": summary([t * per_batch for t in wall[session.name]]),
            "step_cpu": summary([t * per_batch for t in cpu[session.name]]),
            "prepare": summary([t * per_batch for t in prepared[session.name]]),
            "vertices_per_second": 1 / summary(wall[session.name])["median"],
            "peak_memory": session.peak_memory(),
            **session.moved(),
            "seconds_per_vertex": wall[session.name],
            "cpu_seconds_per_vertex": cpu[session.name],
            "prepare_seconds_per_vertex": prepared[session.name],
            "construct_seconds_per_vertex": constructed[session.name],
        }
        for session in live
    }
    ratios: dict[str, dict[str, Summary]] = {}
    if reference in wall:
        for name, times in wall.items():
            if name != reference:
                ratios[name] = {
                    "wall": ratio(times, wall[reference]),
                    "cpu": ratio(cpu[name], cpu[reference]),
                }
    return {
        "case": case.record(),
        "title": case.title,
        "vertices_per_batch": per_batch,
        "runners": runners,
        "reference": reference,
        "ratios": ratios,
        "failed": failed,
        "busy_before": before,
    }


def table(measured: SequenceOf[Any]) -> str:
    """Return a row per case and runner: milliseconds per batch, spread, time over the reference.

    A case has a star if other work used more than `QUIET` of the cores just before it.
    """
    rows, starred = [], False
    for entry in measured:
        disturbed = (entry["busy_before"] or 0) > QUIET
        starred |= disturbed
        title = entry["title"] + (" *" if disturbed else "")
        for name, runner in entry["runners"].items():
            step, prepare = runner["step"], runner["prepare"]
            found = entry["ratios"].get(name)
            alone = "1" if name == entry["reference"] else ""
            rows.append(
                [
                    title,
                    name,
                    f"{step['median'] * 1e3:.3g}",
                    f"{step['q25'] * 1e3:.3g}-{step['q75'] * 1e3:.3g}",
                    f"{runner['step_cpu']['median'] * 1e3:.3g}",
                    f"{prepare['median'] * 1e3:.2g}",
                    f"{runner['vertices_per_second'] / 1e3:.0f} k",
                    f"{found['wall']['median']:.2f}" if found else alone,
                    f"{found['cpu']['median']:.2f}" if found else alone,
                ]
            )
        rows += [[title, name, "failed", *[""] * 6] for name in entry["failed"]]
    reference = next((entry["reference"] for entry in measured), "")
    headers = [
        "case",
        "runner",
        "ms a batch",
        "quartiles",
        "CPU ms",
        "preparation ms",
        "vertices/s",
        f"time / {reference}",
        "CPU time / same",
    ]
    note = (
        f"\n\n\\* other work used more than {QUIET:.0%} of the cores just before" if starred else ""
    )
    return markdown(headers, rows) + note


def memory_table(measured: SequenceOf[Any]) -> str:
    """Return the traffic of a step, as the engine counts it, and the peak memory of each process.

    Empty if the results have no traffic.
    """

    def shown(runner: Any, name: str) -> str:
        return f"{runner[name] / 2**20:,.1f}" if name in runner else ""

    names = ("gather_bytes", "write_bytes", "peak_bytes", "peak_memory")
    if not any("gather_bytes" in r for entry in measured for r in entry["runners"].values()):
        return ""
    rows = [
        [entry["title"], name, *(shown(runner, what) for what in names)]
        for entry in measured
        for name, runner in entry["runners"].items()
    ]
    headers = ["case", "runner", "gathered MiB", "written MiB", "values MiB", "process MiB"]
    return markdown(headers, rows) + (
        "\n\ngathered, written: a step on a batch, read through edges and written in all; values: "
        "the most of a step that is alive at once; process: the most that it has held"
    )


def parser_for(
    program: str,
    description: str,
    *,
    hidden: SequenceOf[int],
    batch_sizes: SequenceOf[int],
    runners: SequenceOf[str],
) -> GridParser:
    """Return a parser with the options that every program has."""
    parser = GridParser(program, description)
    add = parser.add_argument
    add(
        "--hidden",
        type=at_least(1),
        nargs="+",
        default=list(hidden),
        metavar="H",
        help="hidden sizes",
    )
    add("--batch-size", type=at_least(1), nargs="+", default=list(batch_sizes), metavar="N")
    add("--mode", nargs="+", choices=("training", "inference"), default=["training", "inference"])
    add("--threads", type=THREADS, nargs="+", default=[1, 2], metavar="N")
    add(
        "--runners",
        nargs="+",
        default=list(runners),
        metavar="NAME",
        help="which to measure; cavs-without-PASS is cavs with a compiler pass off, "
        "cavs-in-int16 with products in that precision; a rival whose library wants another "
        "environment runs in the Python that CAVS_BENCH_PYTHON_NAME names, as "
        "CAVS_BENCH_PYTHON_DYNET",
    )
    add(
        "--reference",
        default="",
        metavar="NAME",
        help="ratios are taken to its time; empty: cavs if it runs, else the first",
    )
    add("--rounds", type=at_least(1), default=9, help="interleaved repetitions")
    add("--batches", type=at_least(0), default=0, help="batches of a pass; 0: by batch size")
    add("--optimizer", choices=("adagrad", "sgd"), default="adagrad")
    add(
        "--data",
        default=os.environ.get("CAVS_DATA", ""),
        metavar="DIR",
        help='folder that holds sst/ and wikitext2/, or "random": samples are drawn; default: '
        "$CAVS_DATA",
    )
    add(
        "--resume",
        action="store_true",
        help="keep the cases that the result file has of these sources, machine and runners",
    )
    add("--in-process", action="store_true", help="all runners in one process")
    add("--refcheck", action="store_true", help="first check that all runners agree")
    add(
        "--quick",
        action="store_true",
        help="three rounds of the first hidden size, batch sizes 1 and 64 only",
    )
    return parser


def batches_for(batch_size: int, quick: bool) -> int:
    """Return the number of batches of a pass: long enough to time, short enough for many rounds."""
    wanted = {True: 64, False: 256}[quick]
    return max(1, min(8 if quick else 32, wanted // batch_size))


def cases_from(given: argparse.Namespace, base: Case) -> list[Case]:
    """Return the grid of the options over a case that fixes the other fields."""
    hidden, sizes = given.hidden, given.batch_size
    if given.quick:
        hidden = hidden[:1]
        sizes = [size for size in sizes if size in (1, 64)] or sizes[:1]
    return [
        replace(
            base,
            hidden=h,
            batch_size=size,
            training=mode == "training",
            threads=threads,
            batches=given.batches or batches_for(size, given.quick),
            optimizer=given.optimizer,
            data=given.data,
            embedding=base.embedding or h,
        )
        for h in hidden
        for size in sizes
        for mode in given.mode
        for threads in given.threads
    ]


def kept(
    given: argparse.Namespace, record: Any, reference: str, runners: Mapping[str, SequenceOf[str]]
) -> dict[str, Any]:
    """Return the entries of an earlier run in the result file, if its settings are the same.

    Keys are cases as JSON, as in ``runners``.
    """
    if not given.resume or not given.out.exists():
        return {}
    old = json.loads(given.out.read_text(encoding="utf-8"))
    same = ("benchmark", "sources", "versions", "quick", "isolated")
    here = [record["machine"].get(part) for part in ("cpu", "cores")]
    if any(old.get(key) != record[key] for key in same) or here != [
        old["machine"].get(part) for part in ("cpu", "cores")
    ]:
        return {}
    found = {_key(entry["case"]): entry for entry in old["cases"]}
    return {
        case: entry
        for case, entry in found.items()
        if not entry["failed"]
        and entry["reference"] == reference
        and set(entry["runners"]) == set(runners.get(case, ()))
    }


def _key(case: dict[str, Any]) -> str:
    return json.dumps(case, sort_keys=True)


def run(
    given: argparse.Namespace,
    cases: SequenceOf[Case],
    show: Callable[[str], None] = print,
    *,
    runners: Mapping[Case, SequenceOf[str]] | None = None,
    summarise: Callable[[SequenceOf[Any]], str] | None = None,
) -> int:
    """Measure all cases; the result file is complete after each. Return 1 if a runner failed.

    While every case has failed, and where data are missing (then 2), that file stays as it was.

    runners: of each case, where not all have the same. summarise: what the results say, to be
    shown first.
    """
    of = runners or dict.fromkeys(cases, given.runners)
    names = list(dict.fromkeys(name for case in cases for name in of[case]))
    for case in cases:
        known = RUNNERS[case.workload]
        for name in of[case]:
            if base_of(name)[0] not in known:
                print(f"no runner {name!r}; there are {', '.join(known)}", file=sys.stderr)
                return 2
    if given.reference and given.reference not in names:
        print(f"no reference {given.reference!r} among {', '.join(names)}", file=sys.stderr)
        return 2
    missing = missing_data((case.workload for case in cases), cases[0].data)
    if missing:
        print(missing, file=sys.stderr)
        return 2
    if given.refcheck:
        checked = [name for name in names if "floor" not in name]
        wrong = check(replace(cases[0], hidden=32, embedding=24, leaves=16), checked)
        for line in wrong:
            show(line)
        if wrong:
            return 1
    reference = given.reference or ("cavs" if "cavs" in names else names[0])
    record: dict[str, Any] = {
        "benchmark": cases[0].workload,
        **machine.surroundings(),
        "quick": given.quick,
        "isolated": not given.in_process,
        "cases": [],
    }
    elsewhere = [name for name in names if python_of(name) != sys.executable]
    if given.in_process and elsewhere:
        raise ValueError(f"{elsewhere[0]} has a Python of its own, so it cannot run --in-process")
    kind = LocalSession if given.in_process else RemoteSession
    sessions: dict[str, Session] = {name: kind(name) for name in names}
    failed = False
    try:
        for session in sessions.values():
            for package, version in session.own_versions().items():
                record["versions"][f"{package} of {session.name}"] = version
        done = kept(given, record, reference, {_key(c.record()): of[c] for c in cases})
        for number, case in enumerate(cases, start=1):
            print(f"[{number}/{len(cases)}] {case.title}", file=sys.stderr, flush=True)
            entry = done.get(_key(case.record())) or measure(
                case,
                [sessions[name] for name in of[case]],
                3 if given.quick else given.rounds,
                reference,
            )
            for name, error in entry["failed"].items():
                failed = True
                print(f"  {name} failed: {error}", file=sys.stderr)
            record["cases"].append(entry)
            if summarise is not None:
                record["summary"] = summarise(record["cases"])
            if _succeeded(record):
                write_json(given.out, record)
    finally:
        for session in sessions.values():
            session.close()
    show(tables(record))
    if not _succeeded(record):
        print(f"every case failed; {given.out} is left as it is", file=sys.stderr)
        return 1
    show(f"\nwritten to {given.out}")
    return 1 if failed else 0


def _succeeded(record: dict[str, Any]) -> bool:
    """True if a runner was measured in some case."""
    return any(entry["runners"] for entry in record["cases"])


def tables(record: Any) -> str:
    """Return the tables of a record of cases: summary, times, traffic and memory."""
    parts = [record.get("summary", ""), table(record["cases"]), memory_table(record["cases"])]
    return "\n\n".join(filter(None, parts))
