"""A batch that follows the gradient noise scale against batches of one size, on the treebank.

Every training runs on MPI ranks of this machine, behind slow links as between hosts, for the same
number of epochs of the Stanford Sentiment Treebank, with the same rate; compared are the best
accuracy of the roots of the dev part, and the seconds of training (KungFu, figure 4: the adaptive
batch is as good as a small one, in a fifth of its time). Evaluations are not counted. On links of
that kind a step of a small batch takes as long as one of a large batch. The bound on the time is
for such links; `--megabits 0` trains without them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from typing import Any

import cavs
from benchmarks.bounds import Row, checked, missed, verdict
from benchmarks.distributed import print_result, run_linked, treebank_task
from benchmarks.harness import markdown, write_report
from benchmarks.links import refusal
from benchmarks.options import at_least, not_negative, positive
from benchmarks.result_paths import GridParser
from cavs.distributed import Trainer, world
from cavs.distributed.launch.launcher import command_of, find_mpirun
from cavs.train import Policy, TrainingRun
from cavs.train.policies import AdaptiveBatch, GNSBatch

GNS, CRITICAL = ADAPTIVE = "gns", "critical"  # by the policies GNSBatch and AdaptiveBatch
TIME = 0.7  # part of the time that the best batch of one size takes


class Sizes(Policy):
    """Notes the batch size and the seconds of every epoch, without its evaluation."""

    def __init__(self) -> None:
        self.sizes, self.seconds = list[int](), list[float]()
        self.begun = 0.0

    def before_epoch(self, run: TrainingRun) -> None:
        self.sizes.append(run.batch_size)
        self.seconds.append(0.0)
        self.begun = time.perf_counter()

    def after_step(self, run: TrainingRun) -> None:
        self.seconds[-1] = time.perf_counter() - self.begun


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Train with one choice of the batch; return accuracies, seconds and sizes by epoch."""
    sizes = {"hidden_size": given.hidden, "embedding_size": given.embedding}
    task = treebank_task(given.data, **sizes, dropout=0.3, seed=given.seed)
    c = world(120.0)
    trainer = Trainer(
        task.model, cavs.optim.Adagrad(lr=0.05), communicator=c, threads=1, seed=given.seed
    )
    adaptive = given.batch in (GNS, CRITICAL)
    size = given.least if adaptive else int(given.batch)
    train = cavs.DataLoader(task.required("train"), size, shuffle=True, seed=given.seed)
    dev = cavs.DataLoader(task.required("dev"), 100)
    sizes = Sizes()
    policies: list[Policy] = [sizes]
    if given.batch == GNS:
        policies.append(GNSBatch(every=given.every, most=given.most, alpha=given.alpha))
    if given.batch == CRITICAL:
        policies.append(AdaptiveBatch(least=given.least, most=given.most))
    result = trainer.fit(
        train, epochs=given.epochs, dev=dev, metrics=task.metrics, progress=False, policies=policies
    )
    trainer.close()
    accuracies = [epoch["dev_root_accuracy"] for epoch in result.epochs]
    return {"accuracies": accuracies, "seconds": sizes.seconds, "sizes": sizes.sizes}


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return means over the seeds: the best accuracy, its deviation, and the seconds."""
    best = [max(run["accuracies"]) for run in runs]
    return {
        "accuracy": statistics.fmean(best),
        "deviation": statistics.stdev(best) if len(best) > 1 else 0.0,
        "seconds": statistics.fmean(sum(run["seconds"]) for run in runs),
        "sizes": runs[0]["sizes"],
    }


def best_of_one_size(result: dict[str, Any]) -> str:
    """Return the batch of one size with the highest accuracy."""
    one = [name for name in result["batches"] if name not in ADAPTIVE]
    return max(one, key=lambda name: float(result["batches"][name]["accuracy"]))


def show(result: dict[str, Any]) -> str:
    best = best_of_one_size(result)
    seconds = result["batches"][best]["seconds"]
    rows = [
        [
            name,
            f"{100 * r['accuracy']:.1f} ± {100 * r['deviation']:.1f}",
            f"{r['seconds']:.1f}",
            f"{r['seconds'] / seconds:.2f}",
            " ".join(map(str, dict.fromkeys(r["sizes"]))),
        ]
        for name, r in result["batches"].items()
    ]
    headers = ["batch", "accuracy of roots, %", "s of training", "of the best", "sizes"]
    head = f"{result['ranks']} ranks, links of {result['megabits']:g} Mbit/s, h "
    head += f"{result['hidden']}, {result['epochs']} epochs, {result['seeds']} seeds"
    return head + "\n\n" + markdown(headers, rows) + verdict(targets(result))


def targets(result: dict[str, Any]) -> list[Row]:
    """Return the bounds: the accuracy within noise of the best batch, and the time."""
    best = result["batches"][best_of_one_size(result)]
    rows = list[Row]()
    for name in filter(result["batches"].__contains__, ADAPTIVE):
        found = result["batches"][name]
        noise = max(best["deviation"], found["deviation"])
        worse, times = best["accuracy"] - found["accuracy"], found["seconds"] / best["seconds"]
        what = f"{name}: accuracy lost, against the deviation over seeds"
        rows.append(checked(what, worse, noise, False, "{:.3f}"))
        what = f"{name}: seconds, of the best batch of one size"
        rows.append(checked(what, times, TIME, False, "{:.2f}"))
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = GridParser("adaptive_batch", __doc__ or "")
    add = parser.add_argument
    add("--ranks", type=at_least(2), default=2, metavar="N")
    add(
        "--batches",
        nargs="+",
        default=["32", "64", "256", GNS],
        metavar="N|POLICY",
        help=f"sizes, {GNS} or {CRITICAL}",
    )
    add(
        "--megabits", type=not_negative, default=100.0, help="of each rank's link; 0: no slow links"
    )
    add("--least", type=at_least(2), default=64, metavar="N", help="first size of the adaptive one")
    add("--most", type=at_least(2), default=1024, metavar="N", help="largest size")
    add("--every", type=at_least(1), default=1, metavar="N", help="epochs between two changes")
    add("--alpha", type=positive, default=0.02, metavar="X", help="of the smoothed noise scale")
    add("--epochs", type=at_least(1), default=6, metavar="N")
    add("--seeds", type=at_least(1), default=3, metavar="N")
    add("--hidden", type=at_least(1), default=100, metavar="N")
    add("--embedding", type=at_least(1), default=100, metavar="N")
    add("--data", default=os.environ.get("CAVS_DATA", ""), metavar="DIR", help="holds sst/")
    add("--seed", type=at_least(0), default=0, help=argparse.SUPPRESS)
    add("--batch", default="", help=argparse.SUPPRESS)
    add("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if not given.data:
        parser.error("--data DIR or $CAVS_DATA is needed")
    if given.rank:
        found = measure(given)
        print_result(found)
        return 0
    if given.megabits and (why := refusal()):
        raise SystemExit(f"this machine makes no slow links: {why}; --megabits 0 needs none")
    own = list(sys.argv[1:] if arguments is None else arguments)

    def run(batch: str, seed: int) -> dict[str, Any]:
        more = ["--batch", batch, "--seed", str(seed)]
        words = ["-m", "benchmarks.adaptive_batch", "--rank", *own, *more]
        command = command_of(find_mpirun(), given.ranks, words)
        return run_linked(command, given.ranks, given.megabits)

    names = ("ranks", "megabits", "hidden", "epochs", "seeds")
    result: dict[str, Any] = {name: getattr(given, name) for name in names}
    result["batches"] = {
        batch: summary([run(batch, seed) for seed in range(given.seeds)]) for batch in given.batches
    }
    print(show(result))
    write_report(given.out, show(result), [result])
    return 1 if missed(targets(result)) else 0


if __name__ == "__main__":
    raise SystemExit(main())
