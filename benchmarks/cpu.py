"""All bounds on the speed and memory of cavs on the CPU, measured and checked in one run.

Every line is measured by the code of the program for it. The JSON file is complete after each
case, and the last thing printed is one table of what was found and of what must hold. The exit
status is 1 if a part failed or a bound does not hold.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from functools import partial
from importlib.util import find_spec
from typing import Any

from benchmarks import batching, cpu_cases, machine
from benchmarks.cpu_table import checked_rows, missed, summary_table
from benchmarks.findings import Findings
from benchmarks.options import at_least, positive
from benchmarks.preparation import between, growth
from benchmarks.result_paths import GridParser
from benchmarks.runner import make_runner
from benchmarks.runners_cavs import CavsRunner
from benchmarks.workloads import WORKLOADS, Case, load, missing_data

UNMERGED = "cavs-without-merge_vertices"
PARTS = (
    "training",
    "inference",
    "one-tree",
    "naive",
    "floor",
    "lstm",
    "batching",
    "preparation",
    "growth",
    "memory",
)
Item = tuple[str, str, Callable[[], None]]  # part, name of the measurement, work


def prepared(case: Case, rounds: int) -> dict[str, Any]:
    """Measure preparation with and without merging, alone and between training steps."""
    merged, unmerged = between(case, "cavs", rounds), between(case, UNMERGED, rounds)
    return {"case": case.record(), "title": case.title, "merged": merged, "unmerged": unmerged}


def held(case: Case) -> dict[str, Any]:
    """Return bytes of a training step by runner: peak, and those stored for backward."""
    from cavs import explain

    found: dict[str, Any] = {"case": case.record(), "title": case.title}
    for name in ("cavs", UNMERGED):
        workload = load(case)
        runner = make_runner(name, workload)
        assert isinstance(runner, CavsRunner)
        batch = runner.prepare(workload.batches[0])
        run = explain(runner.model, batch, passes=runner.passes).run
        assert run is not None
        found[name] = {"peak": run.peak_bytes, "kept": run.kept_bytes}
    return found


class Run(Findings):
    """One run of the program, with its results so far."""

    def __init__(self, given: argparse.Namespace, started: float) -> None:
        super().__init__(given, started, "cpu")
        lists: dict[str, list[Any]] = {"batching": [], "preparation": [], "growth": []}
        self.record |= {"quick": given.quick, **lists, "memory": []}

    def rounds(self, usual: int) -> int:
        return int(self.given.rounds) or usual

    def against(self, a: cpu_cases.Against) -> None:
        name = f"{a.part}: {a.case.title}"
        entry = self.measured(name, a.case, a.runners, self.rounds(a.rounds))
        if entry is not None:
            entry |= {"part": a.part, "what": a.what, "needs": a.needs}
            self.record["cases"].append(entry)

    def batches(self, name: str, b: cpu_cases.Batching) -> None:
        before = machine.busy()
        work = (b.case, list(b.sizes), [1, 2], b.samples, self.rounds(b.rounds))
        found = self.found(name, batching.measured, *work)
        if found is not None:
            needs = {"batches": b.batches, "second_core": b.second_core}
            self.record["batching"].append({"found": found, **needs, "busy_before": before})

    def part(self, kind: str, name: str, work: Callable[..., Any], *arguments: Any) -> None:
        """Append the result of ``work`` to the list of this part in the record."""
        before = machine.busy()
        found = self.found(name, work, *arguments)
        if found is not None:
            self.record[kind].append({**found, "busy_before": before})

    def items(self) -> list[Item]:
        """Return all measurements."""
        data, quick = self.given.data, self.given.quick
        made: list[Item] = []
        for a in cpu_cases.against(data, quick):
            made.append((a.part, a.case.title, partial(self.against, a)))
        # No later part needs the processes of rivals.
        made.append(("", "", lambda: self.drop(*list(self.sessions))))
        for b in cpu_cases.batching(data, quick):
            title = f"{b.case.workload} {batching.MODES[b.case.training]}, h {b.case.hidden}"
            made.append(("batching", title, partial(self.batches, f"batching: {title}", b)))

        def add(kind: str, title: str, work: Callable[..., Any], *arguments: Any) -> None:
            name = f"{kind}: {title}"
            made.append((kind, title, partial(self.part, kind, name, work, *arguments)))

        for case in cpu_cases.preparation(data, quick):
            add("preparation", case.title, prepared, case, self.rounds(10))
        for shape, vertices in cpu_cases.growth(quick):
            add("growth", f"{shape} of {vertices:,} vertices", growth, shape, vertices)
        for case in cpu_cases.memory(data, quick):
            add("memory", case.title, held, case)
        return made

    def all(self) -> None:
        """Run all measurements; no process remains, also after an error."""
        only = self.given.only
        items = [item for item in self.items() if not only or item[0] in ("", *only)]
        named = sum(1 for _, title, _ in items if title)
        number = 0
        try:
            for part, title, work in items:
                if title:
                    number += 1
                    self.say(f"{number}/{named} {part}: {title}")
                work()
                self.save()
        finally:
            self.kill()
        self.record["bounds"] = checked_rows(self.record)
        self.save()  # sets the time that the table shows
        self.record["text"] = summary_table(self.record)
        self.save()


def main(arguments: SequenceOf[str] | None = None) -> int:
    started = time.perf_counter()
    parser = GridParser("cpu", __doc__ or "")
    add = parser.add_argument
    add(
        "--data",
        default=os.environ.get("CAVS_DATA", ""),
        metavar="DIR",
        help='folder that holds sst/ and wikitext2/; "random": samples are drawn',
    )
    add("--only", nargs="+", choices=PARTS, default=[], metavar="NAME", help=", ".join(PARTS))
    add("--rounds", type=at_least(0), default=0, help="interleaved repetitions; 0: by part")
    add("--patience", type=positive, default=600, help="seconds that a process may take to answer")
    add("--in-process", action="store_true", help="everything in this process")
    add(
        "--quick",
        action="store_true",
        help="a round in sizes that say nothing, to see that all parts run: what misses a bound is "
        "no failure",
    )
    given = parser.parse_args(arguments)
    if find_spec("torch") is None:
        print('the rivals need PyTorch: pip install "torch==2.13.0"', file=sys.stderr)
        return 2
    if missing := missing_data(WORKLOADS, given.data):
        print(missing, file=sys.stderr)
        return 2
    run = Run(given, started)
    run.all()
    print(run.record["text"])
    return 1 if run.record["failed"] or (missed(run.record) and not given.quick) else 0


if __name__ == "__main__":
    raise SystemExit(main())
