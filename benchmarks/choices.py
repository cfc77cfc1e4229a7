"""The builder that `auto` takes, against all registered ones and all it chooses from, in turns.

All ranks of one run train the SST Tree-LSTM with every builder, a step of each in a round, so that
other load of the machine affects all of them alike. Next to the measured time is the prediction of
the simulation, from the same calibration as that of `auto`. `--megabits` puts slow links between
the ranks (see `benchmarks.links`): then communication decides, not the number of free cores.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.bounds import Row, checked, missed, verdict
from benchmarks.distributed import Runner, make_runner, print_result, refuse_data, run_linked
from benchmarks.harness import markdown, write_report
from benchmarks.links import refusal
from benchmarks.options import at_least, builder_name, not_negative
from benchmarks.result_paths import GridParser
from cavs.distributed import world
from cavs.distributed.comm import SingleCommunicator
from cavs.distributed.launch.launcher import command_of, find_mpirun
from cavs.distributed.planning.auto import CANDIDATES
from cavs.distributed.planning.builders import builders_of_equal_replicas
from cavs.distributed.planning.compute import Compute
from cavs.distributed.planning.cost import calibrate, simulate
from cavs.distributed.strategy import in_order
from cavs.distributed.strategy.ranks import cluster_of, hosts_of
from cavs.distributed.strategy.variable import measured_variables

SLOWER = 0.1  # than the fastest builder
AUTO = "auto"
BUILDERS = tuple(
    n for n in dict.fromkeys((*CANDIDATES, *builders_of_equal_replicas())) if n != AUTO
)


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Measure on every rank; the results are those of rank 0."""
    c = world()
    alone = make_runner("alone", SingleCommunicator(), given)
    alone.step(0)
    trainer, part = alone.trainer, alone.batches[0].local
    hosts = hosts_of(c)
    cluster = cluster_of(hosts)
    network = calibrate(c, hosts, cluster.network)
    cluster = dataclasses.replace(cluster, network=network)
    names = list(trainer.parameters)
    order = trainer.session.session.ready(part)[0].gradient_order()
    variables = measured_variables(trainer.model, part, dtype="float32")
    variables = in_order(variables, [names[i] for i in order])
    made = []
    for name in (*given.builders, AUTO):
        made.append(make_runner(name, c, given))
        made[-1].step(0)
        if c.rank == 0:
            print(f"{name}: ready", file=sys.stderr)
    runners, chosen = to_measure(made)
    seconds: dict[str, list[float]] = {runner.name: [] for runner in runners}
    for i in range(given.batches):
        for runner in runners:
            runner.step(i)
    order = random.Random(0)
    for i in range(given.rounds):
        for runner in order.sample(runners, len(runners)):
            c.barrier()
            seconds[runner.name].append(runner.step(i)[0])
        if c.rank == 0:
            print(f"round {i + 1} of {given.rounds}", file=sys.stderr)
    own = statistics.median(alone.step(i)[0] for i in range(3 * given.batches))
    compute = np.array([own])
    c.all_reduce(compute)
    work = Compute(float(compute[0]) / c.size / 3, float(compute[0]) / c.size * 2 / 3)
    fastest = [min(times) for times in zip(*seconds.values(), strict=True)]
    records = {
        runner.name: {
            "milliseconds": 1e3 * statistics.median(seconds[runner.name]),
            # Ratios within each round, so that its noise affects all alike.
            "slower": statistics.median(
                t / best for t, best in zip(seconds[runner.name], fastest, strict=True)
            ),
            "predicted": 1e3 * simulate(runner.trainer.strategy, variables, cluster).seconds,
            "overlapped": 1e3 * simulate(runner.trainer.strategy, variables, cluster, work).seconds,
        }
        for runner in runners
    }
    return {
        "ranks": c.size,
        "auto": chosen,
        "alone": 1e3 * work.seconds,
        "network": dataclasses.asdict(network),
        "builders": records,
    }


def to_measure(made: Sequence[Runner]) -> tuple[list[Runner], str]:
    """Return runners with distinct strategies, and the name of the one that auto takes.

    made: the runners of each builder and of auto; auto is measured, under the name of its builder,
    if its strategy is none of the others.
    """
    found: dict[str, Runner] = {}
    for runner in made:
        found.setdefault(runner.trainer.strategy.digest, runner)
    automatic = next(runner for runner in made if runner.name == AUTO)
    chosen = found[automatic.trainer.strategy.digest]
    if chosen is automatic:
        taken = {runner.name for runner in made}
        builder = automatic.trainer.strategy.builder
        chosen.name = f"{builder} of auto" if builder in taken else builder
    return list(found.values()), chosen.name


def place(result: dict[str, Any]) -> float:
    """Return how much slower the builder of auto is than the fastest: 0.1 is a tenth."""
    times = {name: r["milliseconds"] for name, r in result["builders"].items()}
    return float(times[result["auto"]] / min(times.values()) - 1)


def show(result: dict[str, Any]) -> str:
    rows = [
        [
            name + (" (auto)" if name == result["auto"] else ""),
            f"{r['milliseconds']:.1f}",
            f"{r['predicted']:.1f}",
            f"{r['overlapped']:.1f}",
        ]
        for name, r in sorted(
            result["builders"].items(), key=lambda item: float(item[1]["milliseconds"])
        )
    ]
    network = result["network"]
    far = "bandwidth" if result.get("megabits") else "local_bandwidth"
    late = "latency" if result.get("megabits") else "local_latency"
    links = f", links of {result['megabits']:g} Mbit/s" if result.get("megabits") else ""
    return (
        f"{result['ranks']} ranks{links}; measured {8e-6 * network[far]:.0f} Mbit/s, "
        f"{1e6 * network[late]:.0f} us a message; one alone: {result['alone']:.1f} ms a step\n\n"
        + markdown(["builder", "ms a step", "predicted: alone", "with compute"], rows)
        + f"\n\nauto takes {result['auto']}: {place(result):.1%} slower than the fastest"
        + verdict(targets(result))
    )


def targets(result: dict[str, Any]) -> list[Row]:
    """Return the bound on the builder that auto takes."""
    measure = "auto takes longer than the fastest builder"
    return [checked(measure, place(result), SLOWER, False, "{:.1%}")]


def main(arguments: list[str] | None = None) -> int:
    parser = GridParser("choices", __doc__ or "")
    add = parser.add_argument
    add("--data", default=os.environ.get("CAVS_DATA", ""), metavar="DIR", help="holds sst/")
    add("--ranks", type=at_least(2), nargs="+", default=[2, 4], metavar="N")
    add("--hidden", type=at_least(1), default=256)
    add("--batch-size", type=at_least(1), default=16, help="graphs a rank")
    add("--batches", type=at_least(1), default=3, help="different ones")
    add("--rounds", type=at_least(1), default=15)
    add("--builders", nargs="+", type=builder_name, default=list(BUILDERS), metavar="NAME")
    add("--megabits", type=not_negative, nargs="*", default=[], metavar="X", help="of slow links")
    add("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if AUTO in given.builders:
        parser.error(f"--builders: {AUTO} is always measured; leave it out")
    refuse_data(parser, given)
    given.data = os.path.abspath(given.data)
    if given.rank:
        result = measure(given)
        print_result(result)
        return 0
    if given.megabits and (why := refusal()):
        raise SystemExit(f"this machine makes no slow links: {why}")
    own = list(sys.argv[1:] if arguments is None else arguments)
    results = []
    for ranks in given.ranks:
        program = ["-m", "benchmarks.choices", "--rank", *own]
        for megabits in given.megabits or [0.0]:
            command = command_of(find_mpirun(), ranks, program)
            results.append(run_linked(command, ranks, megabits))
            results[-1]["megabits"] = megabits
            print("\n" + show(results[-1]), flush=True)
    write_report(given.out, "\n\n".join(map(show, results)), results)
    return 1 if any(missed(targets(result)) for result in results) else 0


if __name__ == "__main__":
    raise SystemExit(main())
