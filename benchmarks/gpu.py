"""The whole of one GPU in one command: correctness, ceilings, rivals, ablations, a timeline.

Parts with a bound come first, then the others in order of importance until the time is up; the JSON
file is complete after each, and one table of all parts is printed last. Parts that fail, are left
out or miss a bound are listed and make the exit status 1. At ``--deadline``, running processes are
killed.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.findings import Findings
from benchmarks.gpu_cases import Group, groups
from benchmarks.gpu_parts import BOUNDED, OTHERS, PIECES, Failures, Piece
from benchmarks.gpu_table import missed, summary_table
from benchmarks.options import OptionParser, at_least, not_negative, positive
from benchmarks.products import products_of
from benchmarks.result_paths import RESULTS
from benchmarks.samples import RANDOM, ROOT
from benchmarks.workloads import Case, load, missing_data

PARTS = BOUNDED | OTHERS
MOST_HANGS = 2  # first attempts that may hang; then only parts of other runners are run
SILENT = "no answer within"  # the message of a process that hangs
Item = tuple[str, bool, Callable[[], None]]  # name, True if it may be left out, work


class OutOfTimeError(BaseException):
    """The deadline has passed; a BaseException, which handlers of errors do not catch."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise OutOfTimeError in the block at the deadline, also while it waits."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise OutOfTimeError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Run(Findings):
    """One run of the program, with its results so far and the time that is left."""

    def __init__(self, given: argparse.Namespace, started: float) -> None:
        super().__init__(given, started, "gpu")
        self.record |= {"tiny": given.tiny, "skipped": [], "optional_skipped": []}
        self.hung: set[str] = set()  # runners
        self.hangs = 0  # first attempts that hung

    def part(self, name: str, work: Callable[..., tuple[Any, Failures]]) -> None:
        """Store the result of ``work`` in the record."""
        answer = self.found(name, work, self.given)
        if answer is not None:
            self.record[name], failed = answer
            for what, why in failed:
                self.fail(what, why)

    def piece(self, piece: Piece) -> None:
        """Append the result of the first attempt that works to the list of its part."""
        several = len(piece.attempts) > 1
        for number, work in enumerate(piece.attempts):
            if several and number == 0 and self.hangs >= MOST_HANGS:
                self.fail(piece.title, "left out: others like it hung")
                continue
            answer = self.found(piece.title, work, patience=piece.patience)
            if answer is not None:
                found, failed = answer
                self.record.setdefault(piece.part, []).append(found)
                for what, why in failed:
                    self.fail(what, why)
                return
            self.hangs += number == 0 and SILENT in self.record["failed"][-1]["error"]

    def case(self, group: Group, case: Case) -> None:
        """Measure a case with its runners, except those that hung in an earlier one."""
        name = f"{group.name}: {case.title}"
        runners = [runner for runner in group.runners if runner not in self.hung]
        for runner in self.hung.intersection(group.runners):
            self.fail(f"{name}: {runner}", "left out: it hung before")
        entry = self.measured(name, case, runners, self.given.rounds)
        if entry is None:
            return
        silent = {runner for runner, error in entry["failed"].items() if SILENT in error}
        self.hung |= silent - {group.runners[0]}
        workload = load(case)
        products = products_of(workload, workload.batches[0], case.training)
        entry["group"] = group.name
        entry["samples_per_batch"] = case.batch_size
        entry["flops"] = sum(product.flops for product in products)
        self.record["cases"].append(entry)

    def items(self) -> Iterator[Item]:
        """Return all measurements, those with a bound first."""
        given = self.given

        def parts(of: dict[str, Any]) -> Iterator[Item]:
            for name, work in of.items():
                yield name, False, partial(self.part, name, work)

        def cases(of: list[Group]) -> Iterator[Item]:
            for group in of:
                for case in group.cases:
                    name = f"{group.name}: {case.title}"
                    yield name, group.optional, partial(self.case, group, case)
                # Processes that no later group uses are not needed again.
                later = {runner for g in made[made.index(group) + 1 :] for runner in g.runners}
                gone = [runner for runner in group.runners if runner not in later]
                yield "", False, partial(self.drop, *gone)

        made = groups(given.device, given.data, given.full, given.tiny)
        made = [group for group in made if not given.only or group.name in given.only]
        wanted = {k: v for k, v in PARTS.items() if not given.only or k in given.only}
        yield from parts({k: v for k, v in wanted.items() if k in BOUNDED})
        yield from cases([group for group in made if group.bounded])
        for part, pieces in PIECES.items():
            for piece in pieces(given) if not given.only or part in given.only else ():
                yield piece.title, False, partial(self.piece, piece)
        yield from parts({k: v for k, v in wanted.items() if k in OTHERS})
        yield from cases([group for group in made if not group.bounded])

    def leave_out(self, name: str, optional: bool) -> None:
        if name:
            self.record["optional_skipped" if optional else "skipped"].append(name)

    def all(self) -> None:
        """Run all measurements; none starts after the limit, and all stop at the deadline."""
        items = list(self.items())
        done = 0
        try:
            with deadline(self.given.deadline - self.seconds):
                for name, optional, work in items:
                    if name and self.seconds > self.given.limit:
                        self.leave_out(name, optional)
                    else:
                        if name:
                            self.say(name)
                        work()
                        self.save()
                    done += 1
                self.drop(*list(self.sessions))
        except OutOfTimeError:
            if done < len(items):
                name, optional, _ = items[done]
                self.fail(name or "the end of a group", "killed: time was up")
                for name, optional, _ in items[done + 1 :]:
                    self.leave_out(name, optional)
        finally:
            self.kill()
        self.save()


def build(patience: float) -> None:
    """Build the engine in this environment if it is missing.

    Raises RuntimeError with what pip wrote if that fails, or takes longer than `patience` seconds.
    """
    present = [sys.executable, "-c", "import cavs"]
    if subprocess.run(present, cwd=ROOT, check=False, capture_output=True).returncode == 0:
        return
    print("building cavs", file=sys.stderr, flush=True)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--editable", str(ROOT)]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", *options],
            check=False,
            capture_output=True,
            text=True,
            timeout=patience,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"cavs is not built after {patience:g} s") from error
    if done.returncode != 0:
        raise RuntimeError(f"cavs cannot be built here:\n{done.stdout}{done.stderr}")


def refused(given: argparse.Namespace) -> str:
    """Return why this machine cannot run with these options; empty if it can."""
    if find_spec("torch") is None:
        return 'the rivals need PyTorch: pip install "cavs[bench]"'
    if given.device != "cpu":
        import torch

        if not torch.cuda.is_available():
            return f"PyTorch {torch.__version__} sees no GPU; --device cpu tries the program out"
    known = {*PARTS, *PIECES, *(g.name for g in groups(given.device, given.data, True, False))}
    unknown = [name for name in given.only if name not in known]
    if unknown:
        return f"no part {unknown[0]!r}; there are {', '.join(sorted(known))}"
    return missing_data(("tree-lstm", "var-lstm"), given.data)


def main(arguments: list[str] | None = None) -> int:
    started = time.perf_counter()
    parser = OptionParser("benchmarks.gpu", __doc__ or "")
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
    add("--rounds", type=at_least(1), default=7, help="interleaved repetitions")
    add("--steps", type=at_least(0), default=0, help="of the loss curve; 0: 1000")
    add(
        "--limit", type=not_negative, default=0, help="seconds after which nothing is begun; 0: 500"
    )
    add(
        "--deadline", type=not_negative, default=0, help="seconds after which all is killed; 0: 580"
    )
    add("--patience", type=positive, default=120, help="seconds that a process may take to answer")
    add("--no-bounds", action="store_true", help="a missed bound is no failure")
    add("--in-process", action="store_true", help="everything in this process")
    add(
        "--out",
        type=Path,
        default=RESULTS / "gpu.json",
        help="result file; the trace is next to it",
    )
    given = parser.parse_args(arguments)
    given.limit = given.limit or (float("inf") if given.full else 500.0)
    given.deadline = given.deadline or (1e9 if given.full else 580.0)
    build(given.deadline)
    trouble = refused(given)
    if trouble:
        print(trouble, file=sys.stderr)
        return 2
    run = Run(given, started)
    run.all()
    print(summary_table(run.record))
    failed = run.record["failed"] or run.record["skipped"]
    return 1 if failed or (missed(run.record) and not given.no_bounds) else 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # a normal exit would wait for processes that hang in a driver
