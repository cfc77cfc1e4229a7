"""Balance on MPI ranks that compute at the same time: iteration times, slowest against mean.

``skewed``: trees of depths 5 to 60, equal numbers for all ranks against balance by structure, the
same batches in turns; where no rank waits for another, they share caches and memory all the time,
and compute takes longer. ``slowed``: trees of one size; the last rank computes everything
``--slow`` times, and LB-BSP finds that out. Each rank needs a core of its own, else times say
nothing. Batches are split and collated before the clock starts, as a loader does. Optimum and ideal
time follow from the time that a graph takes on each rank in the second half of the run.

Equal counts are more even the more trees a batch has, so the speed-up of balance by structure is
checked at the batch size `SKEWED`. Iterations must be short there and in larger batches; in smaller
ones a tree often exceeds a rank's share, which no split can correct ("one too large"). LB-BSP is
checked with the predictors of `CHECKED`, and has converged when nearly all later iterations are
close to the optimum.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

import cavs
from benchmarks.balance import Classifier, tree, trees
from benchmarks.bounds import Row, checked, missed, verdict
from benchmarks.distributed import print_result, run_ranks
from benchmarks.harness import markdown, write_report
from benchmarks.options import at_least
from benchmarks.result_paths import GridParser
from cavs.distributed import Trainer, world
from cavs.distributed.balance import (
    NARX,
    PREDICTORS,
    PairBalancer,
    SpeedBalancer,
    StructureBalancer,
)
from cavs.distributed.balance.shards import WholeBatch, contiguous, shard
from cavs.distributed.launch.launcher import command_of, find_mpirun
from cavs.distributed.step.synchronous_step import Run

GRAPHS = 600  # drawn trees
CASES = ("skewed", "slowed")
PAIRS = "pairs"  # Algorithm 2 of LB-BSP, which predicts no speed
FASTER, SKEWED = 1.2, 24  # speed-up over equal counts, in batches of this size
LONGER = 1.05  # iteration time over the mean of the ranks
CONVERGED, LATER, IDEAL = (
    40,
    0.95,
    1.1,
)  # iterations, share of later ones near the optimum, time
BALANCERS: dict[str, Callable[[], Any]] = {
    **{name: partial(SpeedBalancer, predictor=kind, lag=0) for name, kind in PREDICTORS.items()},
    # The network, which the paper trains on 500 iterations.
    "narx from 40": partial(SpeedBalancer, predictor=partial(NARX, warm_up=40, period=20), lag=0),
    PAIRS: partial(PairBalancer, lag=0),
}
CHECKED = ("narx", "narx from 40", "ema")


@contextlib.contextmanager
def repeated(times: int) -> Iterator[None]:
    """Compute forward and backward so many times in this process; the last time counts."""
    go = Run.go

    def slower(self: Run, words: Any, inputs: tuple[Any, ...]) -> None:
        begun = time.perf_counter()
        for _ in range(times - 1):
            self.executor.run(*inputs)
        spent = time.perf_counter() - begun
        go(self, words, inputs)
        self.compute_seconds += spent

    Run.go = slower  # type: ignore[method-assign]
    try:
        yield
    finally:
        Run.go = go  # type: ignore[method-assign]


def trainer_of(c: Any, hidden: int, split: Any) -> Trainer:
    optimizer = cavs.optim.SGD(lr=1e-6)
    return Trainer(Classifier(hidden), optimizer, communicator=c, split=split, threads=1)


def step(trainer: Trainer, graphs: Sequence[cavs.Graph]) -> dict[str, Any]:
    """Return seconds of an iteration on a prepared batch, and those of the ranks."""
    c = trainer.communicator
    begun = time.perf_counter()
    part = shard(WholeBatch(tuple(graphs)), (c.rank, c.size), trainer.session.split)
    split = time.perf_counter() - begun
    trainer.session.prepare(part)
    mine = np.zeros(c.size)
    mine[c.rank] = 0 if part.empty else part.local.num_graphs
    c.all_reduce(mine)
    c.barrier()
    begun = time.perf_counter()
    report = trainer.advance(part)
    took = time.perf_counter() - begun
    return {
        "seconds": took,
        "split": split,
        "ranks": list(report.rank_seconds),
        "counts": mine.astype(int).tolist(),
    }


def skewed(c: Any, given: argparse.Namespace, size: int) -> dict[str, Any]:
    data, rng = trees(GRAPHS), np.random.default_rng(0)
    splits = {"equal": contiguous, "structure": StructureBalancer()}
    trainers = {name: trainer_of(c, given.hidden, split) for name, split in splits.items()}
    steps: dict[str, list[Any]] = {name: [] for name in trainers}
    large = []  # True if one tree has more vertices than a rank's share
    for _ in range(given.warm_up + given.steps):
        # As a loader does: equal graphs would be merged.
        graphs = [data[i] for i in rng.choice(len(data), size, replace=False)]
        sizes = [graph.num_vertices for graph in graphs]
        large.append(max(sizes) * c.size > sum(sizes))
        for name, trainer in trainers.items():
            steps[name].append(step(trainer, graphs))
    kept = {name: s[given.warm_up :] for name, s in steps.items()}
    total = {name: sum(s["seconds"] for s in of) for name, of in kept.items()}
    mean = {name: sum(float(np.mean(s["ranks"])) for s in of) for name, of in kept.items()}
    found = kept["structure"]
    return {
        "gain": 1 - total["structure"] / total["equal"],
        "uneven": statistics.median(max(s["ranks"]) / np.mean(s["ranks"]) for s in found),
        "iteration": total["structure"] / mean["structure"],
        "split_ms": 1e3 * statistics.median(s["split"] for s in found),
        "before": statistics.median(max(s["ranks"]) / np.mean(s["ranks"]) for s in kept["equal"]),
        "dearer": mean["structure"] / mean["equal"],
        "large": float(np.mean(large[given.warm_up :])),
    }


def optimum(size: int, each: Sequence[float]) -> list[int]:
    """Return the counts with the fastest slowest rank, from the seconds per graph of each rank."""
    counts = [0] * len(each)
    for _ in range(size):
        counts[min(range(len(each)), key=lambda r: (counts[r] + 1) * each[r])] += 1
    return counts


def slowed(c: Any, given: argparse.Namespace, size: int, predictor: str) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    data = [tree(rng, 20) for _ in range(200)]
    trainer = trainer_of(c, given.hidden, BALANCERS[predictor]())
    last = c.rank == c.size - 1
    steps = []
    with repeated(given.slow if last else 1):
        for _ in range(2 * given.steps):
            steps.append(step(trainer, [data[i] for i in rng.integers(0, len(data), size)]))
    late = steps[given.steps :]
    each = [float(np.median([s["ranks"][r] / s["counts"][r] for s in late])) for r in range(c.size)]
    best = optimum(size, each)
    off = [max(abs(a - b) for a, b in zip(s["counts"], best, strict=True)) for s in steps]
    ideal = max(n * t for n, t in zip(best, each, strict=True))
    return {
        "predictor": predictor,
        "slower": each[-1] / min(each),
        "optimum": best,
        "reached": next((i for i, d in enumerate(off) if d <= 1), None),
        "within_one": float(np.mean([d <= 1 for d in off[CONVERGED:]])),
        "compute": statistics.median(max(s["ranks"]) for s in late) / ideal,
        "time": statistics.median(s["seconds"] for s in late) / ideal,
        "equal": max(size / c.size * t for t in each) / ideal,
    }


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Measure on every rank."""
    c = world()
    result: dict[str, Any] = {"ranks": c.size, "skewed": {}, "slowed": {}}
    for size in given.batch_sizes:
        if "skewed" in given.cases:
            result["skewed"][str(size)] = skewed(c, given, size)
        if "slowed" in given.cases:
            result["slowed"][str(size)] = [slowed(c, given, size, p) for p in given.predictors]
    return result


def show(result: dict[str, Any]) -> str:
    text = [f"{result['ranks']} ranks"]
    if result["skewed"]:
        headers = ["skewed trees, global batch", "less time", "times as fast"]
        headers += ["slowest / mean", "with equal counts"]
        headers += ["iteration / mean compute", "compute / with equal counts", "ms to prepare"]
        headers.append("one too large")
        columns = ("uneven", "before", "iteration", "dearer", "split_ms")
        rows = [
            [
                *(size, f"{r['gain']:.1%}", f"{1 / (1 - r['gain']):.2f}"),
                *(f"{r[k]:.3f}" for k in columns),
                f"{r['large']:.0%}",
            ]
            for size, r in result["skewed"].items()
        ]
        text.append(markdown(headers, rows))
    if result["slowed"]:
        headers = ["a slow rank, global batch", "predictor", "times slower", "optimum"]
        headers += ["within 1 at", "from 40 on within 1", "compute / ideal", "iteration / ideal"]
        rows = []
        for size, found in result["slowed"].items():
            for r in found:
                best = ", ".join(map(str, r["optimum"]))
                row = [size, r["predictor"], f"{r['slower']:.2f}", best, str(r["reached"])]
                row += [f"{r['within_one']:.0%}", f"{r['compute']:.3f}", f"{r['time']:.3f}"]
                rows.append([*row, f"{r['equal']:.2f}"])
        text.append(markdown([*headers, "equal counts"], rows))
    return "\n\n".join(text) + verdict(targets(result))


def targets(result: dict[str, Any]) -> list[Row]:
    """Return the bounds: on skewed trees by batch size, on a slow rank also by predictor."""
    rows = []
    for size, r in result["skewed"].items():
        name, fast = f"skewed trees, batches of {size}", 1 / (1 - r["gain"])
        if int(size) == SKEWED:
            measure = f"{name}: times as fast as equal counts"
            rows.append(checked(measure, fast, FASTER, True, "{:.2f}"))
        if int(size) < SKEWED:
            continue
        measure = f"{name}: iteration over mean compute"
        rows.append(checked(measure, r["iteration"], LONGER, False, "{:.3f}"))
    for size, found in result["slowed"].items():
        for r in found:
            if r["predictor"] not in CHECKED:
                continue
            name = f"a slow rank, batches of {size}, {r['predictor']}"
            reached = float("inf") if r["reached"] is None else r["reached"]
            measure = f"{name}: iterations to within one graph of the optimum"
            rows.append(checked(measure, reached, CONVERGED, False, "{:.0f}"))
            measure = f"{name}: later iterations that are so near"
            rows.append(checked(measure, r["within_one"], LATER, True, "{:.0%}"))
            rows.append(checked(f"{name}: iteration over ideal", r["time"], IDEAL, False, "{:.3f}"))
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = GridParser("stragglers", __doc__ or "")
    add = parser.add_argument
    add("--ranks", type=at_least(2), default=2, metavar="N")
    add("--cases", nargs="+", choices=CASES, default=list(CASES))
    add("--hidden", type=at_least(1), default=512, metavar="N")
    add(
        "--batch-sizes",
        type=at_least(1),
        nargs="+",
        default=[16, 24, 32],
        metavar="N",
        help="of all ranks",
    )
    add(
        "--slow",
        type=at_least(1),
        default=3,
        metavar="N",
        help="times that the last rank is slower",
    )
    add("--predictors", nargs="+", choices=list(BALANCERS), default=list(BALANCERS), metavar="NAME")
    add("--steps", type=at_least(1), default=60, metavar="N")
    add("--warm-up", type=at_least(0), default=20, metavar="N", help="steps that do not count")
    add("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if not given.ranks <= min(given.batch_sizes) <= max(given.batch_sizes) <= GRAPHS:
        parser.error(
            f"--batch-sizes: a batch has a graph for every rank, and at most the {GRAPHS} drawn"
        )
    if "slowed" in given.cases and 2 * given.steps <= CONVERGED:
        parser.error(
            f"--steps: the bounds are on steps after the first {CONVERGED} of twice as many"
        )
    if given.rank:
        result = measure(given)
        print_result(result)
        return 0
    own = list(sys.argv[1:] if arguments is None else arguments)
    program = ["-m", "benchmarks.stragglers", "--rank", *own]
    result = run_ranks(command_of(find_mpirun(), given.ranks, program))
    print(show(result))
    write_report(given.out, show(result), [result])
    return 1 if missed(targets(result)) else 0


if __name__ == "__main__":
    raise SystemExit(main())
