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
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.gpu_cases import SST, Group, groups, precisions
from benchmarks.gpu_table import summary_table
from benchmarks.harness import RESULTS, measure, write_json
from benchmarks.products import products_of
from benchmarks.refcheck import check
from benchmarks.samples import RANDOM, ROOT
from benchmarks.sessions import LocalSession, RemoteSession, Session
from benchmarks.workloads import WORKLOADS, Case, load

# Before the groups of cases; the engine may fault, what needs it comes after what does not.
PARTS = ("ceilings", "agreement", "accuracy", "first_step", "timeline")
# Programs whose results are compared before anything is timed.
CHECKED = ("cavs", "hand", "manual")


class Run:
    """One run of the program: what it has found so far, and how much time is left."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.started = time.perf_counter()
        self.record: dict[str, Any] = {
            "benchmark": "gpu",
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": machine.commit(),
            "command": machine.command(),
            "machine": machine.machine(),
            "versions": machine.versions(),
            "device": "",
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

    def part(self, name: str, work: Callable[[], Any]) -> None:
        """Puts what ``work`` returns in the record; a failure is recorded and does not stop us."""
        if self.seconds > self.given.limit:
            self.record["skipped"].append(name)
            return
        self.say(name)
        try:
            self.record[name] = work()
        except Exception as error:  # whatever it is, the other parts still count
            self.fail(name, error)
        self.save()

    def fail(self, name: str, error: object) -> None:
        text = str(error).strip() or type(error).__name__
        self.record["failed"].append({"part": name, "error": text})
        self.say(f"{name} failed: {text}")

    # ---- parts ---------------------------------------------------------------------------------

    def small(self, workload: str) -> Case:
        """A case to check results on."""
        given = self.given
        return Case(
            workload,
            12 if given.tiny else 64,
            8,
            embedding=8 if given.tiny else 48,
            leaves=16,
            length=7 if given.tiny else 20,
            vocabulary=50 if given.tiny else 500,
            data=given.data,
            device=given.device,
            lr=0.1,
        )

    def agreement(self) -> list[str]:
        """Disagreements between programs; also recorded as failures."""
        wrong = [
            line
            for workload in WORKLOADS
            for optimizer in ("sgd", "adagrad")
            for line in check(replace(self.small(workload), optimizer=optimizer), CHECKED)
        ]
        for line in wrong:
            self.fail("agreement", line)
        return wrong

    def accuracy(self) -> dict[str, Any]:
        """Relative norms of the difference to float64, by precision and workload."""
        from benchmarks.accuracy import errors

        found: dict[str, Any] = {}
        for precision in precisions(self.given.device):
            for workload in WORKLOADS:
                case = replace(self.small(workload), precision=precision)
                try:
                    found.setdefault(precision, {})[workload] = errors(case)
                except Exception as error:  # another precision may work
                    self.fail(f"accuracy {case.title}", error)
        return found

    def curve(self) -> dict[str, float]:
        from benchmarks.accuracy import curve

        case = replace(self.small("tree-lstm"), batches=10, lr=0.01)
        steps = self.given.steps or (20 if self.given.tiny else 1000 if self.given.full else 200)
        return curve(case, steps)

    def main_case(self) -> Case:
        return groups(self.given.device, self.given.data, False, self.given.tiny)[0].cases[0]

    def first_step(self) -> dict[str, Any]:
        from benchmarks.first_step import in_new_process

        case = replace(self.main_case(), batch_size=min(SST.batch_size, 64), batches=1)
        return {name: in_new_process(case, 120) for name in ("first_process", "second_process")}

    def timeline(self) -> dict[str, Any]:
        """The report of a profiled step, without its long lists; the trace goes beside the JSON.

        Bytes are counted on the CPU, which runs the same instructions.
        """
        from benchmarks.timeline import chrome_trace, profiled

        case = self.main_case()
        report = profiled(case)
        counted = profiled(replace(case, device="cpu", precision="fp32"))
        path = self.given.out.with_suffix(".trace.json")
        write_json(path, chrome_trace(report))
        kept = {k: v for k, v in report.items() if not isinstance(v, list)}
        kept |= {name: counted[name] for name in ("gather_bytes", "write_bytes")}
        return kept | {"trace": path.name, "stages": len(report["stages"])}

    def ceilings(self) -> dict[str, float]:
        from benchmarks.ceilings import ceilings

        return ceilings(self.given.device, precisions(self.given.device), self.given.tiny)

    def group(self, group: Group, sessions: dict[str, Session]) -> None:
        kind = LocalSession if self.given.in_process else RemoteSession
        for case in group.cases:
            name = f"{group.name}: {case.title}"
            if self.seconds > self.given.limit:
                self.record["skipped"].append(name)
                continue
            self.say(name)
            for runner in group.runners:
                if runner not in sessions:
                    sessions[runner] = kind(runner)
            here = [sessions[runner] for runner in group.runners]
            try:
                entry = measure(case, here, self.given.rounds, group.runners[0])
            except Exception as error:  # a runner of this process, or one that fails in a round
                self.fail(name, error)
                continue
            for runner, error in entry["failed"].items():
                self.fail(f"{name}: {runner}", error)
            workload = load(case)
            batches = [products_of(workload, b, case.training) for b in workload.batches[:1]]
            entry["group"] = group.name
            entry["samples_per_batch"] = case.batch_size
            entry["flops"] = sum(p.flops for products in batches for p in products)
            self.record["cases"].append(entry)
            self.save()
            if group.name == "ablation":  # their processes are not needed again
                for runner in group.runners[1:]:
                    sessions.pop(runner).close()

    def all(self) -> None:
        from benchmarks.ceilings import device_name

        given = self.given
        self.record["device"] = device_name(given.device)
        for name in PARTS:
            if not given.only or name in given.only:
                self.part(name, getattr(self, name))
        sessions: dict[str, Session] = {}
        try:
            for group in groups(given.device, given.data, given.full, given.tiny):
                if not given.only or group.name in given.only:
                    self.group(group, sessions)
        finally:
            for session in sessions.values():
                session.close()
        if not given.only or "curve" in given.only:
            self.part("curve", self.curve)
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
    known = {*PARTS, "curve", *(g.name for g in groups(given.device, given.data, True, False))}
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
    add("--limit", type=float, default=0, help="seconds after which nothing is begun; 0: 540")
    add("--in-process", action="store_true", help="all runners in this process")
    add("--out", type=Path, default=RESULTS / "gpu.json", help="result file; the trace is beside")
    given = parser.parse_args(arguments)
    given.limit = given.limit or (float("inf") if given.full else 540.0)
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
