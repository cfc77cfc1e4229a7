"""Preparation of a step: collation, merging of equal vertices and the schedule, on one thread.

Vertices a second batch after batch, the share of a training step where steps come between, whose
values sweep the caches, the same of collation and schedule alone (unmerged), and time and memory of
graphs that grow.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.fresh import fresh
from benchmarks.harness import batches_for, markdown, write_report
from benchmarks.new_process import in_new_process
from benchmarks.options import THREADS, at_least, refuse_too_few_samples
from benchmarks.ratios import summary
from benchmarks.result_paths import GridParser
from benchmarks.runner import make_runner
from benchmarks.runners_cavs import CavsRunner
from benchmarks.workloads import WORKLOADS, Case, load, missing_data

PATIENCE = 600  # seconds for one case
ALONE = 10  # passes in a row
GROWTH_HIDDEN = 8  # few, so that the cost of a vertex is not that of its values


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def in_turns(
    prepare: Callable[[Any], Any],
    train: Callable[[list[Any]], Any],
    batches: Sequence[Any],
    rounds: int,
) -> dict[str, Any]:
    """Return seconds per batch: a ``step``, preparation ``between`` steps, and ``alone``.

    share: of each round, preparation between steps over a step; summarised. train: takes a step on
    each of the prepared batches.
    """
    plans = [prepare(batch) for batch in batches]
    train(plans)  # allocate memory, compile programs

    def prepare_all(passes: int) -> float:
        start = time.perf_counter()
        for _ in range(passes):
            for batch in batches:  # a batch is freed when the next comes, as in training
                prepare(batch)
        return (time.perf_counter() - start) / len(plans) / passes

    def step() -> float:
        return seconds(lambda: train(plans)) / len(plans)

    rows = [(step(), prepare_all(1), prepare_all(ALONE)) for _ in range(rounds)]
    steps, betweens, alone = map(list, zip(*rows, strict=True))
    return {
        "step": summary(steps),
        "between": summary(betweens),
        "alone": summary(alone),
        "share": summary([p / s for s, p, _ in rows]),
    }


def between(case: Case, runner_name: str, rounds: int) -> dict[str, Any]:
    """Return the times of `in_turns` for a runner, and the vertices of a batch."""
    workload = load(case)
    runner = make_runner(runner_name, workload)
    assert isinstance(runner, CavsRunner)
    found = in_turns(runner.prepare, runner.train_all, workload.batches, rounds)
    return {"vertices": sum(workload.vertices) / len(workload.batches), **found}


def share(case: Case, rounds: int) -> dict[str, Any]:
    """Return the times of `between`, and as ``scheduled`` those without merging.

    loaded: how much longer steps take on batches that a DataLoader prepares in the background.
    """
    return {
        "case": case.record(),
        **between(case, "cavs", rounds),
        "scheduled": between(case, "cavs-without-merge_vertices", rounds),
        "loaded": fresh(case, rounds)["exposed"],
    }


def growth(shape: str, vertices: int) -> dict[str, Any]:
    """Measure one graph in a new process: seconds to build it, to prepare it and for a step.

    bytes: peak memory per vertex.
    """
    import cavs
    from cavs import nn

    random = np.random.default_rng(0)
    machine.forget_peak()  # a process inherits the peak of the one that started it
    before = machine.peak_memory()
    features = {
        "token": random.integers(0, 1000, vertices).astype(np.int32),
        "label": random.integers(0, 5, vertices).astype(np.int32),
    }
    if shape == "chain":
        make = lambda: cavs.Graph.chain(vertices, features=features)  # noqa: E731
    else:  # the parent of a vertex is a random one of the ten before it: deep, of any arity
        back = np.minimum(random.integers(1, 11, vertices), np.arange(vertices))
        parents = np.where(np.arange(vertices) > 0, np.arange(vertices) - back, -1)
        make = lambda: cavs.Graph.from_parents(parents, features=features)  # noqa: E731
    start = time.perf_counter()
    graph = make()
    built = time.perf_counter() - start

    class Classifier(cavs.Model):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(1000, GROWTH_HIDDEN)
            self.cell = nn.ChildSumTreeLSTM(GROWTH_HIDDEN, GROWTH_HIDDEN)
            self.out = nn.Linear(GROWTH_HIDDEN, 5)

        def loss(self, batch: Any) -> Any:
            states = self.cell(batch.graph, x=self.embed(batch["token"]))
            return cavs.ops.cross_entropy(self.out(states), batch["label"])

    trainer = cavs.Trainer(Classifier(), cavs.optim.SGD(lr=0.01))
    batch = cavs.batch([graph])
    prepare = seconds(lambda: trainer.session.prepare(batch))
    trainer.step(batch)
    peak = machine.peak_memory()
    fresh = cavs.batch([graph])
    return {
        "shape": shape,
        "vertices": vertices,
        "levels": graph.depth,
        "build": built,
        "prepare": prepare + seconds(lambda: trainer.session.prepare(fresh)),
        "step": seconds(lambda: trainer.step(fresh)),
        "bytes": (peak - before) / vertices,
    }


def shares_table(found: list[dict[str, Any]]) -> str:
    headers = [
        "case",
        "vertices",
        "alone ms",
        "vertices/s",
        "between steps ms",
        "share of a step",
        "unmerged ms",
        "unmerged share",
        "loaded",
    ]
    return markdown(
        headers,
        [
            [
                Case(**entry["case"]).title,
                f"{entry['vertices']:.0f}",
                f"{entry['alone']['median'] * 1e3:.3f}",
                f"{entry['vertices'] / entry['alone']['median'] / 1e6:.1f} M",
                f"{entry['between']['median'] * 1e3:.3f}",
                f"{entry['share']['median']:.1%}",
                f"{entry['scheduled']['between']['median'] * 1e3:.3f}",
                f"{entry['scheduled']['share']['median']:.1%}",
                f"{entry['loaded']['median']:+.1%}",
            ]
            for entry in found
        ],
    )


def growth_table(found: list[dict[str, Any]]) -> str:
    headers = [
        "graph",
        "vertices",
        "levels",
        "build s",
        "preparation s",
        "step s",
        "bytes a vertex",
    ]
    return markdown(
        headers,
        [
            [
                entry["shape"],
                f"{entry['vertices']:,}",
                f"{entry['levels']:,}",
                f"{entry['build']:.3f}",
                f"{entry['prepare']:.3f}",
                f"{entry['step']:.3f}",
                f"{entry['bytes']:.0f}",
            ]
            for entry in found
        ],
    )


def main(arguments: list[str] | None = None) -> int:
    parser = GridParser("preparation", __doc__ or "")
    add = parser.add_argument
    add("--workloads", nargs="+", choices=WORKLOADS, default=["tree-lstm", "tree-fc", "var-lstm"])
    add("--hidden", type=at_least(1), nargs="+", default=[128], metavar="H")
    add("--batch-size", type=at_least(1), nargs="+", default=[32, 256], metavar="N")
    add("--threads", type=THREADS, nargs="+", default=[1, 2], metavar="N", help="of the step")
    add("--vertices", type=at_least(1), nargs="*", default=[5_000, 100_000, 1_000_000], metavar="N")
    add("--rounds", type=at_least(1), default=10)
    add("--batches", type=at_least(0), default=0, help="batches of a pass; 0: by batch size")
    add("--data", default=os.environ.get("CAVS_DATA", ""), metavar="DIR")
    add(
        "--quick",
        action="store_true",
        help="three rounds of the first batch size on one thread, graphs up to 100,000 vertices",
    )
    given = parser.parse_args(arguments)
    if given.quick:
        given.batch_size, given.threads, given.rounds = given.batch_size[:1], given.threads[:1], 3
        given.vertices = [n for n in given.vertices if n <= 100_000]
    cases = [
        replace(
            Case(workload, hidden, size, data=given.data),
            batches=given.batches or batches_for(size, quick=False),
            threads=threads,
            embedding=hidden if workload == "tree-fc" else 300,
        )
        for workload in given.workloads
        for hidden in given.hidden
        for size in given.batch_size
        for threads in given.threads
    ]
    missing = missing_data(given.workloads, given.data)
    if missing:
        print(missing, file=sys.stderr)
        return 2
    for case in cases:
        refuse_too_few_samples(parser, case)
    shares = [in_new_process(share, case, given.rounds, patience=PATIENCE) for case in cases]
    text = shares_table(shares)
    print(text, end="\n\n", flush=True)
    shapes = [(shape, n) for shape in ("chain", "tree") for n in given.vertices]
    by_size = [in_new_process(growth, shape, n, patience=PATIENCE) for shape, n in shapes]
    print(growth_table(by_size))
    write_report(
        given.out, f"{text}\n\n{growth_table(by_size)}", {"shares": shares, "growth": by_size}
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
