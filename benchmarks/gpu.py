"""The whole of one GPU in one command: correctness, ceilings, rivals, ablations, a timeline.

Checks results first, then measures cases in order of importance until the time is up; the JSON file
is complete after each, and one table of everything stands last. What fails or is left out is listed
and makes the exit status 1.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.apart import apart
from benchmarks.gpu_cases import Group, groups
from benchmarks.gpu_parts import AFTER, BEFORE, Failures
from benchmarks.gpu_table import summary_table
from benchmarks.harness import RESULTS, measure, write_json
from benchmarks.products import products_of
from benchmarks.samples import RANDOM, ROOT
from benchmarks.sessions import LocalSession, RemoteSession, Session
from benchmarks.workloads import Case, load


class Run:
    """One run of the program: what it has found so far, and how much time is left."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.started = time.perf_counter()
        self.sessions: dict[str, Session] = {}
        self.record: dict[str, Any] = {
            "benchmark": "gpu",
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": machine.commit(),
            "command": machine.command(),
            "machine": machine.machine(),
            "versions": machine.versions(),
            "data": "drawn" if given.data == RANDOM else "files",
            "tiny": given.tiny,
            "cases": [],
            "failed": [],
            "skipped": [],
        }

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def say(self, text: str) -> None:
        print(f"[{self.seconds:4.0f} s] {text}", file=sys.stderr, flush=True)

    def save(self) -> None:
        self.record["seconds"] = round(self.seconds, 1)
        write_json(self.given.out, self.record)

    def begins(self, name: str) -> bool:
        """Whether there is time for one thing more; it is listed as left out if not."""
        if self.seconds > self.given.limit:
            self.record["skipped"].append(name)
            return False
        self.say(name)
        return True

    def fail(self, name: str, error: object) -> None:
        text = str(error).strip() or type(error).__name__
        self.record["failed"].append({"part": name, "error": text})
        self.say(f"{name} failed: {text}")

    def part(self, name: str, work: Callable[..., tuple[Any, Failures]]) -> None:
        """Puts what ``work`` finds in the record; a failure is recorded and does not stop us."""
        if not self.begins(name):
            return
        given = self.given
        try:
            if given.in_process:
                found, failed = work(given)
            else:
                found, failed = apart(work, given, patience=given.patience)
        except Exception as error:  # whatever it is, the other parts still count
            self.fail(name, error)
        else:
            self.record[name] = found
            for what, why in failed:
                self.fail(what, why)
        self.save()

    def session(self, runner: str) -> Session:
        if runner not in self.sessions:
            local, patience = self.given.in_process, self.given.patience
            self.sessions[runner] = (
                LocalSession(runner) if local else RemoteSession(runner, patience)
            )
        return self.sessions[runner]

    def drop(self, *runners: str) -> None:
        """Ends sessions; one that is asked for again begins anew."""
        for runner in runners:
            if runner in self.sessions:
                self.sessions.pop(runner).close()

    def case(self, group: Group, case: Case) -> None:
        name = f"{group.name}: {case.title}"
        if not self.begins(name):
            return
        try:
            sessions = [self.session(runner) for runner in group.runners]
            entry = measure(case, sessions, self.given.rounds, group.runners[0])
        except Exception as error:  # a runner of this process, or one that failed in a round
            self.fail(name, error)
            self.drop(*group.runners)
            return
        for runner, error in entry["failed"].items():
            self.fail(f"{name}: {runner}", error)
        self.drop(*entry["failed"])  # a device's fault stays with the process
        workload = load(case)
        products = products_of(workload, workload.batches[0], case.training)
        entry["group"] = group.name
        entry["samples_per_batch"] = case.batch_size
        entry["flops"] = sum(product.flops for product in products)
        self.record["cases"].append(entry)
        self.save()

    def all(self) -> None:
        given = self.given

        def wanted(name: str) -> bool:
            return not given.only or name in given.only

        for name, work in BEFORE.items():
            if wanted(name):
                self.part(name, work)
        try:
            for group in groups(given.device, given.data, given.full, given.tiny):
                if wanted(group.name):
                    for case in group.cases:
                        self.case(group, case)
                    if group.name == "ablation":  # their processes are not needed again
                        self.drop(*group.runners[1:])
        finally:
            self.drop(*list(self.sessions))
        for name, work in AFTER.items():
            if wanted(name):
                self.part(name, work)
        self.save()


def build() -> None:
    """Builds the engine into this environment if it is not there.

    Raises RuntimeError with what pip wrote if that fails.
    """
    present = [sys.executable, "-c", "import cavs"]
    if subprocess.run(present, cwd=ROOT, check=False, capture_output=True).returncode == 0:
        return
    print("building cavs", file=sys.stderr, flush=True)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--editable", str(ROOT)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(f"cavs cannot be built here:\n{done.stdout}{done.stderr}")


def refused(given: argparse.Namespace) -> str:
    """Why the options cannot be followed on this machine; empty if they can."""
    if find_spec("torch") is None:
        return 'the rivals need PyTorch: pip install "cavs[bench]"'
    if given.device != "cpu":
        import torch

        if not torch.cuda.is_available():
            return f"PyTorch {torch.__version__} sees no GPU; --device cpu tries the program out"
    known = {*BEFORE, *AFTER, *(g.name for g in groups(given.device, given.data, True, False))}
    unknown = [name for name in given.only if name not in known]
    return f"no part {unknown[0]!r}; there are {', '.join(sorted(known))}" if unknown else ""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--device", default="cuda", help='"cuda", "cuda:1", ... or "cpu" to try the program out')
    add(
        "--data",
        default=os.environ.get("CAVS_DATA", RANDOM),
        metavar="DIR",
        help=f'folder that holds sst/ and wikitext2/; "{RANDOM}": samples are drawn',
    )
    add("--full", action="store_true", help="every size and precision; longer than ten minutes")
    add("--tiny", action="store_true", help="sizes that say nothing, to see that all parts run")
    add("--only", nargs="+", default=[], metavar="PART", help="parts or groups of cases by name")
    add("--rounds", type=int, default=7, help="interleaved repetitions")
    add("--steps", type=int, default=0, help="of the loss curve; 0: 200, or 1000 with --full")
    add("--limit", type=float, default=0, help="seconds after which nothing is begun; 0: 480")
    add("--patience", type=float, default=120, help="seconds that a process may take to answer")
    add("--in-process", action="store_true", help="everything in this process")
    add("--out", type=Path, default=RESULTS / "gpu.json", help="result file; the trace is beside")
    given = parser.parse_args(arguments)
    given.limit = given.limit or (float("inf") if given.full else 480.0)
    build()
    trouble = refused(given)
    if trouble:
        print(trouble, file=sys.stderr)
        return 2
    run = Run(given)
    run.all()
    print(summary_table(run.record))
    return 1 if run.record["failed"] or run.record["skipped"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
