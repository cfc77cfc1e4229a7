"""Data-parallel training of the SST Tree-LSTM: scaling, bytes on the wire, hidden communication.

All ranks of one run measure every strategy in turns, and rank 0 also alone while the others wait,
so that other load of the machine affects all of them alike. Times are wall clock: on a machine with
fewer free cores than ranks they mean little; bytes do not depend on it. Communication is the time
that the same strategy takes to send all gradients after the backward pass, undisturbed by
computation; hidden is the share of it that ranks do not wait for when gradients are sent as they
are computed. Both are measured on the rank that computes longest in a step: waiting for that rank
is no communication. Where ranks do not know each other's times, they are the mean of all ranks.
`--megabits` puts slow links between the ranks (see `benchmarks.links`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import cavs
from benchmarks.bounds import Row, checked, missed, verdict
from benchmarks.harness import markdown, write_report
from benchmarks.links import linked, refusal, slow_links
from benchmarks.options import at_least, not_negative, strategy_name
from benchmarks.result_paths import GridParser
from benchmarks.samples import ROOT
from cavs.cli.registry import Task, find
from cavs.distributed import Trainer, world
from cavs.distributed.balance.shards import WholeBatch, shard
from cavs.distributed.comm import SingleCommunicator
from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.launch.launcher import command_of, find_mpirun
from cavs.distributed.step.report import StepReport
from cavs.distributed.strategy.expression import Strategy
from cavs.distributed.strategy.partition import shards_of
from cavs.distributed.sync import ParameterServer, SufficientFactors
from cavs.errors import CavsError

_RESULT = "RESULT "  # begins the line by which rank 0 returns what it measured
ALONE = "alone"
LATE = ", late"
SPEEDUP, HIDDEN = 1.8, 0.7  # on two ranks with the default options of a trainer
BYTES = 0.05  # relative deviation from the formula, for any strategy
BUILT_IN = ("buckets", "messages")
STRATEGIES = (
    "buckets",
    "messages",
    "AllReduce",
    "PartitionedAR",
    "PSLoadBalancing",
    "Parallax",
)


@dataclass
class Runner:
    """A way to train, with its own copy of the model."""

    name: str
    trainer: Trainer
    batches: list[Any]

    def step(self, i: int) -> tuple[float, Any]:
        """Return the seconds of one step and its report."""
        batch = self.batches[i % len(self.batches)]
        begun = time.perf_counter()
        report = self.trainer.advance(batch)
        return time.perf_counter() - begun, report


def task_of(options: argparse.Namespace) -> Task:
    """Return the model and its data."""
    return treebank_task(options.data, hidden_size=options.hidden)


def treebank_task(data: str, **options: Any) -> Task:
    """Return the Tree-LSTM on the treebank below `data`. options: of the model, unless default."""
    entry = find("tree-lstm")
    own = {**entry.options(), "dropout": 0.0, "limit": None, "seed": 0, **options}
    return entry.build(argparse.Namespace(**own, data=os.path.join(data, "sst")))


def make_runner(name: str, communicator: Any, options: argparse.Namespace) -> Runner:
    task = task_of(options)
    graphs = task.required("train")
    c = communicator
    strategy = name.removesuffix(LATE)
    if strategy == "messages":  # no sums in memory that ranks share
        c = c.split(0)
        c.common_memory = lambda nbytes: None
    trainer = Trainer(
        task.model,
        cavs.optim.SGD(lr=0.01),
        communicator=c,
        strategy=None if strategy in (ALONE, *BUILT_IN) else strategy,
        wait_free=not name.endswith(LATE),
        threads=1,
    )
    size = options.batch_size * c.size
    batches = []
    for i in range(options.batches):
        whole = WholeBatch(tuple(graphs[i * size : (i + 1) * size]))
        part = shard(whole, (c.rank, c.size), trainer.session.split)
        batches.append(part)
    return Runner(name, trainer, batches)


def not_covered(strategy: Strategy | None) -> str:
    """Return the first part of a strategy that `formula` does not cover; empty without one."""
    if strategy is None:
        return ""
    if strategy.graph.servers:
        return "servers that run no replica"
    if strategy.is_divergent:
        return "replicas that differ"
    for leaf in strategy.leaves:
        sync = leaf.sync
        if leaf.compressor != "none":
            return f"{leaf.name}: compressor {leaf.compressor}"
        if isinstance(sync, SufficientFactors):
            return f"{leaf.name}: sufficient factors"
        if sync.is_stale:
            return f"{leaf.name}: a stale server"
        if isinstance(sync, ParameterServer) and sync.two_level:
            return f"{leaf.name}: two_level=True"
    return ""


def refuse_uncovered(runners: Sequence[Runner]) -> None:
    """End the program where a strategy sends what `formula` does not cover."""
    for runner in runners:
        reason = not_covered(runner.trainer.strategy)
        if reason:
            raise SystemExit(
                f"{runner.name}: the formula of bytes covers dense gradients and tables, whole or "
                f"in shards, by all-reduce or by synchronous servers, but not {reason}; leave it "
                "out of --strategies"
            )


def formula(runner: Runner) -> float:
    """Return bytes that a rank sends in a step, averaged over ranks and batches, without consensus.

    Dense gradients of D bytes: 2 (N - 1) / N D, by ring or by servers. For a table, each rank sends
    the rows that it touched to all others (all-gather), or to their owners and from there to all.
    """
    c, trainer = runner.trainer.communicator, runner.trainer
    dense, sparse = 0.0, 0.0
    program = trainer.session.session.ready(runner.batches[0].local)[2].program
    for name, p in trainer.parameters.items():
        if program.gradients[name] == "sparse":
            row_bytes = p.value.shape[1] * p.value.itemsize + 4
            sparse += row_bytes * rows_sent(runner, name, p.value.shape)
        else:
            dense += p.value.nbytes
    return 2 * (c.size - 1) / c.size * dense + sparse / c.size / len(runner.batches)


def rows_sent(runner: Runner, name: str, shape: tuple[int, ...]) -> int:
    """Return the rows of a table that all ranks together send in one step on each batch."""
    c, strategy, total = runner.trainer.communicator, runner.trainer.strategy, 0
    node = None if strategy is None else strategy.node(name)
    for batch in runner.batches:
        mine = np.unique(batch.local["token"])
        touched = [np.array(rows) for rows in c.share(mine[mine >= 0].tolist())]
        if node is None:
            total += (c.size - 1) * sum(map(len, touched))
            continue
        for leaf, part in zip(node.leaves, shards_of(node, shape), strict=True):
            rows = [r[(r >= part.start) & (r < part.stop)] for r in touched]
            if isinstance(leaf.sync, ParameterServer):
                owner = strategy.graph.rank_of(leaf.sync.destination)
                total += sum(len(r) for rank, r in enumerate(rows) if rank != owner)
                total += (c.size - 1) * len(np.unique(np.concatenate(rows)))
            else:
                total += (c.size - 1) * sum(map(len, rows))
    return total


def computes_longest(report: StepReport, rank: int) -> bool:
    """True if the others waited for this rank, or if the times of the ranks are unknown."""
    times = report.rank_seconds
    return not times or (rank < len(times) and times[rank] == max(times))


def summary(reports: list[StepReport], c: Communicator) -> dict[str, float]:
    """Return mean bytes sent, and exposed seconds of the rank that computes longest."""
    longest = [r for r in reports if computes_longest(r, c.rank)]
    sent = statistics.mean(r.sent_bytes for r in reports) / c.size
    sums = np.array([sum(r.exposed_seconds for r in longest), len(longest), sent])
    c.all_reduce(sums)
    return {"exposed": float(sums[0] / sums[1]), "bytes": float(sums[2])}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure on every rank; the results are those of rank 0."""
    c = world()
    names = [n for n in options.strategies if c.size > 1 or n == "buckets"]
    names = [name for strategy in names for name in (strategy, strategy + LATE)]
    runners = [make_runner(name, c, options) for name in names]
    alone = make_runner(ALONE, SingleCommunicator(), options) if c.rank == 0 else None
    seconds: dict[str, list[float]] = {name: [] for name in (*names, ALONE)}
    reports: dict[str, list[Any]] = {name: [] for name in names}
    for i in range(options.batches + options.rounds):
        warm = i >= options.batches  # every batch has run: compiled, memory allocated
        for runner in runners:
            c.barrier()
            took, report = runner.step(i)
            if warm:
                seconds[runner.name].append(took)
                reports[runner.name].append(report)
        if i == 0:  # the first step builds the strategies
            refuse_uncovered(runners)
        c.barrier()
        if alone is not None:
            took, _ = alone.step(i)
            if warm:
                seconds[ALONE].append(took)
    result = {"ranks": c.size, "seconds": seconds, "strategies": {}}
    summed = {name: summary(mine, c) for name, mine in reports.items()}
    for runner in runners:
        if runner.name.endswith(LATE):
            continue
        own, late = summed[runner.name], summed[runner.name + LATE]
        result["strategies"][runner.name] = {
            "milliseconds": 1e3 * statistics.median(seconds[runner.name]),
            "late": 1e3 * statistics.median(seconds[runner.name + LATE]),
            "communication": 1e3 * late["exposed"],
            "exposed": 1e3 * own["exposed"],
            "overlap": 1 - own["exposed"] / late["exposed"] if late["exposed"] else 1.0,
            "bytes": own["bytes"],
            "formula": formula(runner),
        }
    if c.rank == 0:
        base = statistics.median(seconds[ALONE])
        for name, record in result["strategies"].items():
            ratios = [a / b for a, b in zip(seconds[ALONE], seconds[name], strict=True)]
            record["speedup"] = c.size * statistics.median(ratios)
        result["alone_milliseconds"] = 1e3 * base
    return result


def main(arguments: list[str] | None = None) -> int:
    parser = GridParser("distributed", __doc__ or "")
    add = parser.add_argument
    add("--data", default=os.environ.get("CAVS_DATA", ""), metavar="DIR", help="holds sst/")
    add("--ranks", type=at_least(1), nargs="+", default=[1, 2, 4], metavar="N")
    add("--hidden", type=at_least(1), default=512)
    add("--batch-size", type=at_least(1), default=64, help="graphs a rank")
    add("--batches", type=at_least(1), default=6, help="different ones")
    add("--rounds", type=at_least(1), default=20)
    add(
        "--strategies",
        nargs="+",
        type=strategy_name(*BUILT_IN),
        default=list(STRATEGIES),
        metavar="NAME",
    )
    add("--quick", action="store_true", help="small: shows that it runs")
    add(
        "--megabits",
        type=not_negative,
        default=0.0,
        metavar="X",
        help="of slow links, which need root",
    )
    add("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.quick:
        given.hidden, given.batch_size, given.batches, given.rounds = 64, 8, 2, 3
    if 1 in given.ranks and "buckets" not in given.strategies:
        parser.error("--ranks 1 measures the strategy buckets alone; name it in --strategies")
    refuse_data(parser, given)
    if given.rank:
        result = measure(given)
        print_result(result, alone=result["ranks"] == 1)
        return 0
    if given.megabits and (why := refusal()):
        raise SystemExit(f"this machine makes no slow links: {why}")
    own = list(sys.argv[1:] if arguments is None else arguments)
    results = []
    for ranks in given.ranks:
        command = command_of(find_mpirun(), ranks, ["-m", "benchmarks.distributed", "--rank", *own])
        results.append(run_linked(command, ranks, given.megabits))
        results[-1] |= {n: getattr(given, n) for n in ("hidden", "batch_size", "megabits")}
        print("\n" + show(results[-1]))
    write_report(given.out, "\n\n".join(map(show, results)), results)
    return 1 if any(missed(targets(result)) for result in results) else 0


def refuse_data(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """End the program where the treebank is missing, or smaller than the batches of all ranks."""
    if given.rank:  # the process that starts the ranks has looked
        return
    if not given.data:
        parser.error("--data DIR or $CAVS_DATA is needed")
    try:
        have = len(task_of(given).required("train"))
    except CavsError as error:
        parser.error(error.what)
    least = max(given.ranks) * given.batch_size * given.batches
    if least > have:
        parser.error(
            f"--batches {given.batches} of {given.batch_size} graphs for each of "
            f"{max(given.ranks)} ranks are {least} graphs, but the treebank has {have}"
        )


def targets(result: dict[str, Any]) -> list[Row]:
    """Return the bounds: on bytes always, on times at hidden 512 and 64 graphs on two ranks."""
    rows = [
        checked(f"{name}: bytes off the formula", off(r), BYTES, False, "{:.1%}")
        for name, r in result["strategies"].items()
        if result["ranks"] > 1
    ]
    found = result["strategies"].get("buckets")
    size = result.get("hidden"), result.get("batch_size"), result["ranks"]
    if found is None or size != (512, 64, 2):
        return rows
    hidden = checked("communication hidden", found["overlap"], HIDDEN, True, "{:.0%}")
    if result.get("megabits"):
        return [hidden, *rows]
    faster = "two ranks over one, trees a second"
    return [checked(faster, found["speedup"], SPEEDUP, True, "{:.2f}"), hidden, *rows]


def off(record: dict[str, Any]) -> float:
    """Return the relative deviation of the bytes sent from the formula."""
    return abs(float(record["bytes"] / record["formula"] - 1))


def run_linked(command: list[str], ranks: int, megabits: float) -> dict[str, Any]:
    """`run_ranks` with links of so many Mbit/s between the ranks; 0: without such links."""
    if not megabits:
        return run_ranks(command)
    with slow_links(ranks, megabits) as links:
        return run_ranks(linked(command, links))


def run_ranks(
    command: list[str], on_line: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Return what rank 0 of a command passes to `print_result`.

    on_line: gets every other line that the ranks print, when it comes.
    """
    result: dict[str, Any] | None = None
    environment = {**os.environ, "CAVS_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as ranks:
        assert ranks.stdout is not None
        for line in ranks.stdout:
            if line.startswith(_RESULT):
                result = json.loads(line.removeprefix(_RESULT))
            else:
                on_line(line)
    if ranks.returncode or result is None:
        raise SystemExit(f"{' '.join(command)} failed with status {ranks.returncode}")
    return result


def print_result(found: Any, *, alone: bool = False) -> None:
    """Print the result of a rank for `run_ranks`; only rank 0 does, or a process that is alone."""
    if alone or os.environ.get("OMPI_COMM_WORLD_RANK", "0") == "0":
        print(_RESULT + json.dumps(found), flush=True)


def show(result: dict[str, Any]) -> str:
    links = f", links of {result['megabits']:g} Mbit/s" if result.get("megabits") else ""
    alone = f"{result['ranks']} ranks{links}; one alone: "
    alone += f"{result['alone_milliseconds']:.1f} ms a step"
    headers = ["strategy", "ms a step", "speed-up", "late: ms a step", "communication", "exposed"]
    rows = [
        [
            name,
            f"{r['milliseconds']:.1f}",
            f"{r['speedup']:.2f}",
            f"{r['late']:.1f}",
            f"{r['communication']:.2f}",
            f"{r['exposed']:.2f}",
            f"{100 * r['overlap']:.0f} %",
            f"{r['bytes'] / 1e6:.3f}",
            f"{r['formula'] / 1e6:.3f}",
        ]
        for name, r in result["strategies"].items()
    ]
    text = alone + "\n\n" + markdown([*headers, "hidden", "MB sent", "formula"], rows)
    return text + verdict(targets(result))


if __name__ == "__main__":
    raise SystemExit(main())
