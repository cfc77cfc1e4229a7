"""Speed-up by batches and by threads: the same samples in several batch sizes, in turns.

Vertices a second in training and inference, against the smallest batch size on as many threads, and
against one thread at the same batch size. All cases run in one process, a pass of each in every
round.
"""

from __future__ import annotations

import os
import random
import sys
import time
from dataclasses import replace
from itertools import product
from typing import Any

import cavs
from benchmarks.harness import markdown, write_report
from benchmarks.new_process import in_new_process
from benchmarks.options import THREADS, at_least, refuse_too_few_samples
from benchmarks.ratios import ratio, summary
from benchmarks.result_paths import GridParser
from benchmarks.runner import make_runner
from benchmarks.workloads import Case, load

PATIENCE = 600  # seconds for one hidden size
LEAST = 0.05  # least seconds of a pass, which repeats its batches
MODES = {True: "training", False: "inference"}


def base_case(workload: str, hidden: int, training: bool, data: str) -> Case:
    """Return the case of a workload's program: trees have inputs of 300, LSTMs eight classes."""
    if workload == "tree-lstm":
        return Case(workload, hidden, 1, training, data=data)
    return Case(workload, hidden, 1, training, embedding=hidden, classes=8, data=data)


def measured(base: Case, sizes: list[int], threads: list[int], trees: int, rounds: int) -> Any:
    """Measure vertices per second of every batch size on every number of threads, and ratios.

    One model per batch size serves all numbers of threads: its address alone changes a step by 2 %.
    """

    class Passes:
        def __init__(self, size: int) -> None:
            self.case = replace(base, batch_size=size, batches=max(1, trees // size))
            workload = load(self.case)
            self.runner = make_runner("cavs", workload)
            self.plans = [self.runner.prepare(batch) for batch in workload.batches]
            self.vertices, self.times = sum(workload.vertices), 1
            once = [self.run(count) for count in threads]  # allocate memory, compile programs
            once = [self.run(count) for count in threads]
            self.times = max(1, round(LEAST / (min(once) * self.vertices)))

        def run(self, count: int) -> float:
            cavs.set_num_threads(count)
            start = time.perf_counter()
            for _ in range(self.times):
                if base.training:
                    self.runner.train_all(self.plans)
                else:
                    for plan in self.plans:
                        self.runner.infer(plan)
            return (time.perf_counter() - start) / self.times / self.vertices

    passes = {size: Passes(size) for size in sizes}
    cases = [(size, count) for size in sizes for count in threads]
    seconds: dict[tuple[int, int], list[float]] = {case: [] for case in cases}
    order = random.Random(0)
    for _ in range(rounds):
        for size, count in order.sample(cases, len(cases)):
            seconds[size, count].append(passes[size].run(count))
    return [
        {
            "case": replace(passes[size].case, threads=count).record(),
            "vertices": summary([1 / s for s in seconds[size, count]]),
            "batching": ratio(seconds[sizes[0], count], seconds[size, count]),
            "threads": ratio(seconds[size, threads[0]], seconds[size, count]),
        }
        for size, count in cases
    ]


def table(found: list[dict[str, Any]]) -> str:
    sizes = [entry["case"]["batch_size"] for entry in found]
    threads = [entry["case"]["threads"] for entry in found]
    headers = ["workload", "h", "batch size", "threads", "vertices/s"]
    headers += [f"to batch size {sizes[0]}", "quartiles", f"to {threads[0]} thread", "quartiles"]

    def shown(r: Any) -> list[str]:
        return [f"{r['median']:.2f}", f"{r['q25']:.2f} to {r['q75']:.2f}"]

    return markdown(
        headers,
        [
            [
                f"{entry['case']['workload']} {MODES[entry['case']['training']]}",
                str(entry["case"]["hidden"]),
                str(entry["case"]["batch_size"]),
                str(entry["case"]["threads"]),
                f"{entry['vertices']['median']:,.0f}",
                *shown(entry["batching"]),
                *shown(entry["threads"]),
            ]
            for entry in found
        ],
    )


def main(arguments: list[str] | None = None) -> int:
    parser = GridParser("batching", __doc__ or "")
    add = parser.add_argument
    workloads = ("tree-lstm", "var-lstm")
    add("--workload", nargs="+", choices=workloads, default=list(workloads))
    add("--mode", nargs="+", choices=list(MODES.values()), default=list(MODES.values()))
    add("--hidden", type=at_least(1), nargs="+", default=[150, 256, 512], metavar="H")
    add("--batch-size", type=at_least(1), nargs="+", default=[1, 64], metavar="N")
    add("--threads", type=THREADS, nargs="+", default=[1, 2], metavar="N")
    add("--trees", type=at_least(1), default=256, help="or sentences of a pass")
    add("--rounds", type=at_least(1), default=25)
    add("--data", default=os.environ.get("CAVS_DATA", ""), metavar="DIR")
    given = parser.parse_args(arguments)
    for workload in given.workload:
        case = replace(base_case(workload, 1, False, given.data), batches=given.trees)
        refuse_too_few_samples(parser, case)
    sizes, threads = given.batch_size, given.threads
    found = []
    for workload, mode, hidden in product(given.workload, given.mode, given.hidden):
        print(f"{workload} {mode}, h {hidden}", file=sys.stderr, flush=True)
        base = base_case(workload, hidden, mode == "training", given.data)
        work = (measured, base, sizes, threads, given.trees, given.rounds)
        found += in_new_process(*work, patience=PATIENCE)
    text = table(found)
    print(text)
    write_report(given.out, text, found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
