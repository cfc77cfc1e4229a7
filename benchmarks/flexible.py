"""Less synchronisation: partial exchange and averages of models against all-reduce.

``throughput``: graphs a second of `--ranks` ranks behind links of `--megabits` Mbit/s, over those
of all-reduce, with compute and communication of all ranks on the cores of this machine. It needs
what `benchmarks.links` does. ``accuracy``: of the roots of the dev part of the Stanford Sentiment
Treebank after `--epochs` epochs on `--accuracy-ranks` ranks, best epoch, mean over `--seeds`.
``simulated``: a step of the same model on `MACHINES` machines with one rank each and a network of
`NETWORK` Gbit/s, by the cost model. The shapes are those of the thesis before KungFu, sections 3.5
and 4.5.
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
from benchmarks.distributed import print_result, run_linked, run_ranks, treebank_task
from benchmarks.harness import markdown, write_report
from benchmarks.options import at_least, positive
from benchmarks.result_paths import GridParser
from cavs.distributed import Trainer, world
from cavs.distributed.cluster.resources import GIGABIT, Network, Node, ResourceSpec
from cavs.distributed.launch.launcher import command_of, find_mpirun
from cavs.distributed.planning import builders
from cavs.distributed.planning.compute import Compute
from cavs.distributed.planning.cost import simulate
from cavs.distributed.strategy import variables_of
from cavs.train import Policy
from cavs.train.policies import ExchangeSchedule

CASES = ("throughput", "accuracy", "simulated")
ALL_REDUCE, SCHEDULE = "Buckets", "schedule"
STRATEGIES = (
    ALL_REDUCE,
    "PartialExchange(budget=0.1)",
    "PartialExchange(budget=0.3)",
    "PartialExchange(budget=0.5)",
    "SMA(every=10)",
    "PeerAverage(mode='sync')",
    "PeerAverage(mode='async')",
)
MACHINES, NETWORK = 16, 10.0
FASTER = {"PartialExchange(budget=0.1)": 3.0, "PeerAverage(mode='async')": 5.0}
WORSE = {SCHEDULE: 0.01, "PeerAverage(mode='sync')": 0.01, "PeerAverage(mode='async')": 0.02}


def measure_throughput(given: argparse.Namespace) -> dict[str, Any]:
    """Return graphs a second and bytes a step of each strategy, on rank 0."""
    c, found = world(120.0), {}
    batch = cavs.batch(trees(given.batch_size, words=given.words))
    for name in given.strategies:
        model, optimizer = Classifier(given.hidden, given.words), cavs.optim.SGD(lr=1e-3)
        trainer = Trainer(model, optimizer, communicator=c, strategy=name, threads=1)
        for _ in range(given.warm_up):
            trainer.step(batch)
        c.barrier()
        seconds, sent = [], []
        for _ in range(given.steps):
            begun = time.perf_counter()
            sent.append(trainer.advance(batch).sent_bytes)
            seconds.append(time.perf_counter() - begun)
        total = sum(seconds)
        found[name] = {
            "graphs_per_second": given.batch_size * given.steps / total,
            "milliseconds": 1e3 * total / given.steps,
            "megabytes": statistics.fmean(sent) / 1e6,
        }
        trainer.settle()
        c.barrier()
    return found


def measure_accuracy(given: argparse.Namespace) -> dict[str, Any]:
    """Return the best accuracy of roots with one strategy and seed, on rank 0."""
    sizes = {"hidden_size": given.accuracy_hidden, "embedding_size": given.embedding}
    task = treebank_task(given.data, **sizes, dropout=0.3, seed=given.seed)
    c = world(120.0)
    (name,) = given.strategies
    policies: list[Policy] = []
    strategy = None if name in (ALL_REDUCE, SCHEDULE) else name
    if name == SCHEDULE:
        policies = [ExchangeSchedule(f"0:1;{max(1, 2 * given.epochs // 3)}:0.1")]
    trainer = Trainer(
        task.model,
        cavs.optim.Adagrad(lr=0.05),
        communicator=c,
        strategy=strategy,
        threads=1,
        seed=given.seed,
    )
    train = cavs.DataLoader(task.required("train"), 25 * c.size, shuffle=True, seed=given.seed)
    dev = cavs.DataLoader(task.required("dev"), 100)
    result = trainer.fit(
        train, epochs=given.epochs, dev=dev, metrics=task.metrics, progress=False, policies=policies
    )
    accuracies = [epoch["dev_root_accuracy"] for epoch in result.epochs]
    trainer.close()
    return {"best": max(accuracies), "last": accuracies[-1]}


def simulated(given: argparse.Namespace) -> dict[str, Any]:
    """Return the milliseconds of a step on many machines, by the cost model."""
    network = Network(bandwidth=NETWORK * GIGABIT)
    nodes = tuple(
        Node(address=f"machine{i}", cpus=(0,), gpus=(), chief=i == 0) for i in range(MACHINES)
    )
    cluster = ResourceSpec(nodes=nodes, network=network)
    variables = variables_of(Classifier(given.hidden, given.words))
    compute = Compute(given.compute / 3e3, given.compute / 1.5e3)
    found = {}
    for name in given.strategies:
        strategy = builders.build(name, variables, cluster)
        found[name] = {
            "milliseconds": 1e3 * simulate(strategy, variables, cluster, compute).seconds
        }
    return found


def show(result: dict[str, Any]) -> str:
    text = []
    if found := result.get("throughput"):
        base = found[ALL_REDUCE]["graphs_per_second"]
        rows = [
            [
                name,
                f"{r['milliseconds']:.0f}",
                f"{r['megabytes']:.3f}",
                f"{r['graphs_per_second'] / base:.2f}",
            ]
            for name, r in found.items()
        ]
        text.append(
            f"{result['ranks']} ranks behind links of {result['megabits']:g} Mbit/s, "
            f"h {result['hidden']}, batches of {result['batch_size']}\n\n"
            + markdown(["strategy", "ms a step", "MB sent by a rank", "times all-reduce"], rows)
        )
    if found := result.get("accuracy"):
        base = statistics.fmean(found[ALL_REDUCE])
        rows = [
            [name, f"{100 * statistics.fmean(r):.1f}", f"{100 * (statistics.fmean(r) - base):+.1f}"]
            for name, r in found.items()
        ]
        text.append(
            f"{result['accuracy_ranks']} ranks, {result['epochs']} epochs, "
            f"mean of {len(found[ALL_REDUCE])} seeds\n\n"
            + markdown(["strategy", "accuracy of roots, %", "to all-reduce"], rows)
        )
    if found := result.get("simulated"):
        base = found[ALL_REDUCE]["milliseconds"]
        rows = [
            [name, f"{r['milliseconds']:.1f}", f"{base / r['milliseconds']:.2f}"]
            for name, r in found.items()
        ]
        text.append(
            f"{MACHINES} machines, {NETWORK:g} Gbit/s, {result['compute']:g} ms of computation\n\n"
            + markdown(["strategy", "simulated ms a step", "times all-reduce"], rows)
        )
    return "\n\n".join(text) + verdict(targets(result))


def targets(result: dict[str, Any]) -> list[Row]:
    """Return the bounds: the speed over all-reduce, and the accuracy under it."""
    rows = []
    if found := result.get("throughput"):
        base = found[ALL_REDUCE]["graphs_per_second"]
        for name, bound in FASTER.items():
            if name in found:
                times = found[name]["graphs_per_second"] / base
                rows.append(checked(f"{name}: times all-reduce", times, bound, True, "{:.2f}"))
    if found := result.get("accuracy"):
        base = statistics.fmean(found[ALL_REDUCE])
        for name, bound in WORSE.items():
            if name in found:
                worse = base - statistics.fmean(found[name])
                rows.append(checked(f"{name}: less accuracy", worse, bound, False, "{:.3f}"))
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = GridParser("flexible", __doc__ or "")
    add = parser.add_argument
    add("--cases", nargs="+", choices=CASES, default=list(CASES))
    add("--strategies", nargs="+", default=list(STRATEGIES), metavar="NAME")
    add("--ranks", type=at_least(2), default=4, metavar="N")
    add("--megabits", type=positive, default=100.0, metavar="X", help="of each rank's link")
    add("--hidden", type=at_least(1), default=512, metavar="N")
    add("--words", type=at_least(1), default=500, metavar="N", help="rows of the table")
    add("--batch-size", type=at_least(2), default=16, metavar="N", help="of all ranks")
    add("--warm-up", type=at_least(1), default=3, metavar="N", help="steps")
    add("--steps", type=at_least(1), default=20, metavar="N")
    add("--data", default=os.environ.get("CAVS_DATA", ""), metavar="DIR", help="holds sst/")
    add("--epochs", type=at_least(1), default=6, metavar="N")
    add("--seeds", type=at_least(1), default=3, metavar="N")
    add("--accuracy-ranks", type=at_least(2), default=4, metavar="N")
    add("--accuracy-hidden", type=at_least(1), default=100, metavar="N")
    add("--embedding", type=at_least(1), default=100, metavar="N")
    add("--compute", type=positive, default=20.0, metavar="MS", help="of a step, simulated")
    add("--seed", type=at_least(0), default=0, help=argparse.SUPPRESS)
    add("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if not given.rank and ALL_REDUCE not in given.strategies:
        parser.error(f"--strategies needs {ALL_REDUCE}, with which the others are compared")
    if given.rank:
        (case,) = given.cases
        run = measure_throughput if case == "throughput" else measure_accuracy
        found = run(given)
        print_result(found)
        return 0
    if "accuracy" in given.cases and not given.data:
        parser.error("--data DIR or $CAVS_DATA is needed")
    names = ("ranks", "megabits", "hidden", "batch_size", "epochs", "accuracy_ranks", "compute")
    result: dict[str, Any] = {name: getattr(given, name) for name in names}
    own = list(sys.argv[1:] if arguments is None else arguments)

    def command(ranks: int, *more: str) -> list[str]:
        words = ["-m", "benchmarks.flexible", "--rank", *own, *more]
        return command_of(find_mpirun(), ranks, words)

    if "throughput" in given.cases:
        words = command(given.ranks, "--cases", "throughput")
        result["throughput"] = run_linked(words, given.ranks, given.megabits)
    if "accuracy" in given.cases:
        result["accuracy"] = {
            name: [
                run_ranks(
                    command(
                        given.accuracy_ranks,
                        *("--cases", "accuracy", "--strategies", name, "--seed", str(seed)),
                    )
                )["best"]
                for seed in range(given.seeds)
            ]
            for name in [*given.strategies, SCHEDULE]
        }
    if "simulated" in given.cases:
        result["simulated"] = simulated(given)
    print(show(result))
    write_report(given.out, show(result), [result])
    return 1 if missed(targets(result)) else 0


if __name__ == "__main__":
    raise SystemExit(main())
