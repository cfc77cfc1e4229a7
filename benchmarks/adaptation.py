"""Costs of adaptation on MPI ranks: monitors of gradients, and changes of the number of ranks.

``monitors``: the time of a step with a monitor over that without, in turns of `TURN` steps on the
same batches, so that both see the same machine. ``resize``: the seconds from the end of the step
after which a policy resizes to the beginning of the next step, less the same where nothing
changes; and those to the end of the next step, which compiles on ranks that join. ``tree``: the
seconds in which `TREE_RANKS` ranks that do nothing else change the tree of named collectives. Ranks
share the cores of this machine, so that no more than `--ranks` may train at once.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from typing import Any

import cavs
from benchmarks.balance import Classifier, trees
from benchmarks.bounds import Row, checked, missed, verdict
from benchmarks.distributed import print_result, run_ranks
from benchmarks.harness import markdown, write_report
from benchmarks.options import at_least
from benchmarks.result_paths import GridParser
from cavs.distributed import Trainer, world
from cavs.distributed.comm.launcher_pipe import SPARES
from cavs.distributed.launch.launcher import command_of, find_mpirun
from cavs.train import Policy, TrainingRun, monitors

CASES = ("monitors", "resize", "tree")
TREE_RANKS, TREE_CALLS = 8, 41
TURN = 4  # steps with a monitor, and as many without
MONITORS = {
    "noise scale, every step": monitors.NoiseScale(),
    "gradient variance, every 8th step": monitors.GradientVariance(interval=8),
    "noise scale and gradient variance, every step": monitors.GradientVariance(),
}
LONGER = 0.03  # part of a step that a monitor may take
DOWN, UP, TREE = 0.2, 0.5, 0.015  # seconds


def measure_monitors(given: argparse.Namespace) -> dict[str, Any]:
    """Return the part of a step that each monitor takes, on rank 0."""
    graphs, c = trees(given.batch_size), world(60.0)
    batch, found = cavs.batch(graphs), {}
    trainer = Trainer(Classifier(given.hidden), cavs.optim.SGD(lr=1e-4), communicator=c, threads=1)
    for _ in range(2 * TURN):
        trainer.step(batch)
    for name, monitor in MONITORS.items():
        both = [monitor, monitors.NoiseScale()] if " and " in name else [monitor]
        seconds: dict[bool, list[float]] = {True: [], False: []}
        for turn in range(given.turns):
            watched = turn % 2 == 1
            for i in range(TURN):
                due = [m for m in both if (trainer.steps + i) % m.interval == 0]
                trainer.coordinator.watch(due if watched else [])
                begun = time.perf_counter()
                trainer.step(batch)
                seconds[watched].append(time.perf_counter() - begun)
        with_monitor, without = (statistics.median(seconds[w]) for w in (True, False))
        means = [
            statistics.fmean(sorted(seconds[w])[: 3 * len(seconds[w]) // 4]) for w in (True, False)
        ]
        found[name] = {
            "part": with_monitor / without - 1,
            "part_of_means": means[0] / means[1] - 1,
            "milliseconds": 1e3 * without,
        }
    trainer.close()
    return found


class Timed(Policy):
    """Resizes by a plan and takes the times of steps."""

    def __init__(self, plan: dict[int, int]) -> None:
        self.plan, self.times = plan, list[tuple[int, int, float, float]]()
        self.begun = self.ended = 0.0

    def before_step(self, run: TrainingRun) -> None:
        self.begun = time.perf_counter()

    def after_step(self, run: TrainingRun) -> None:
        now = time.perf_counter()
        if self.ended:
            self.times.append((run.step, run.size, self.begun - self.ended, now - self.ended))
        if run.step in self.plan:
            run.resize(self.plan[run.step])
        self.ended = time.perf_counter()


def measure_resize(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the times of every change, on rank 0."""
    sizes, plan = [given.ranks, 1, given.ranks], dict[int, int]()
    step = 0
    for _ in range(given.changes):
        for size in sizes[1:]:
            step += given.steps
            plan[step] = size
    c = world(60.0)
    trainer = Trainer(Classifier(given.hidden), cavs.optim.Adam(lr=1e-4), communicator=c, threads=1)
    policy = Timed(plan)
    graphs = trees(given.batch_size)
    loader = cavs.DataLoader(graphs * (step + given.steps), given.batch_size)
    trainer.fit(loader, epochs=1, progress=False, policies=[policy])
    trainer.close()
    if c.rank != 0:  # it has missed some steps
        return []
    usual: dict[int, list[tuple[float, float]]] = {}
    for number, size, until_begin, until_end in policy.times:
        if number - 1 not in plan:
            usual.setdefault(size, []).append((until_begin, until_end))
    found = []
    for number, size, until_begin, until_end in policy.times:
        if number - 1 in plan:
            calm = [statistics.median(column) for column in zip(*usual[size], strict=True)]
            before = next(s for n, s, _, _ in policy.times if n == number - 1)
            found.append(
                {
                    "from": before,
                    "to": size,
                    "seconds": until_begin - calm[0],
                    "with_step": until_end - calm[1],
                }
            )
    return found


def measure_tree() -> dict[str, float]:
    """Return the seconds of a change of the tree, on rank 0: median and nine tenths."""
    c = world(60.0)
    named, seconds = c.named(), []
    for i in range(TREE_CALLS):
        c.barrier()
        begun = time.perf_counter()
        changed = named.set_tree([i % 2] * c.size)
        seconds.append(time.perf_counter() - begun)
        assert changed, "the ranks ask for the same tree"
    c.barrier()
    c.close()
    cuts = statistics.quantiles(seconds, n=10)
    return {"median": cuts[4], "nine_tenths": cuts[8]}


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Measure one case on every rank."""
    (case,) = given.cases
    if case == "tree":
        return {"tree": measure_tree()}
    return {case: measure_monitors(given) if case == "monitors" else measure_resize(given)}


def show(result: dict[str, Any]) -> str:
    text = [f"{result['ranks']} ranks, h {result['hidden']}, batches of {result['batch_size']}"]
    if found := result.get("monitors"):
        rows = [
            [name, f"{r['milliseconds']:.1f}", f"{r['part']:+.1%}", f"{r['part_of_means']:+.1%}"]
            for name, r in found.items()
        ]
        headers = ["monitor", "ms a step without", "longer (median)", "(mean of the fastest 3/4)"]
        text.append(markdown(headers, rows))
    if changes := result.get("resize"):
        rows = [
            [f"{r['from']} to {r['to']}", f"{r['seconds']:.3f}", f"{r['with_step']:.3f}"]
            for r in changes
        ]
        headers = ["ranks", "s until the next step begins", "s until it ends"]
        text.append(markdown(headers, rows))
    if found := result.get("tree"):
        row = [str(TREE_RANKS), f"{1e3 * found['median']:.1f}", f"{1e3 * found['nine_tenths']:.1f}"]
        text.append(markdown(["ranks that change the tree", "median ms", "90 % within ms"], [row]))
    return "\n\n".join(text) + verdict(targets(result))


def targets(result: dict[str, Any]) -> list[Row]:
    """Return the bounds: the part of a step that a monitor takes, and the seconds of a change."""
    rows = []
    for name, r in result.get("monitors", {}).items():
        if " and " not in name:
            rows.append(checked(f"{name}: part of a step", r["part"], LONGER, False, "{:.1%}"))
    changes = result.get("resize", [])
    for way, bound, chosen in (
        ("fewer", DOWN, [r["seconds"] for r in changes if r["to"] < r["from"]]),
        ("more", UP, [r["seconds"] for r in changes if r["to"] > r["from"]]),
    ):
        if chosen:
            name = f"{way} ranks: median seconds until the next step begins"
            rows.append(checked(name, statistics.median(chosen), bound, False, "{:.3f}"))
    if found := result.get("tree"):
        name = f"{TREE_RANKS} ranks change the tree: median seconds"
        rows.append(checked(name, found["median"], TREE, False, "{:.4f}"))
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = GridParser("adaptation", __doc__ or "")
    add = parser.add_argument
    add("--ranks", type=at_least(2), default=2, metavar="N")
    add("--cases", nargs="+", choices=CASES, default=list(CASES))
    add("--hidden", type=at_least(1), default=512, metavar="N")
    add("--batch-size", type=at_least(2), default=32, metavar="N", help="of all ranks")
    add("--turns", type=at_least(4), default=24, metavar="N", help=f"of {TURN} steps each")
    add("--changes", type=at_least(1), default=3, metavar="N", help="down and up again")
    add("--steps", type=at_least(3), default=6, metavar="N", help="between two changes")
    add("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.rank:
        result = measure(given)
        print_result(result)
        return 0
    result = {"ranks": given.ranks, "hidden": given.hidden, "batch_size": given.batch_size}
    own = list(sys.argv[1:] if arguments is None else arguments)
    os.environ[SPARES] = "0"
    for case in given.cases:
        program = ["-m", "benchmarks.adaptation", "--rank", *own, "--cases", case]
        ranks = TREE_RANKS if case == "tree" else given.ranks
        result |= run_ranks(command_of(find_mpirun(), ranks, program))
    print(show(result))
    write_report(given.out, show(result), [result])
    return 1 if missed(targets(result)) else 0


if __name__ == "__main__":
    raise SystemExit(main())
