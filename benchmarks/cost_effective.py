"""The number of ranks that is worth its cost: the policy on simulated clusters.

The cost model says how long a step takes on 1 to `--most` machines, each with `--batch-size` graphs
of its own and `--compute` ms of computation. `CostEffectiveSize` sees these throughputs; what is
compared is the number of graphs for the cost of one machine for one second, against all machines
(KungFu, figure 6: it settles at 6 of 8 ranks, 20 % more examples for a dollar).
"""

from __future__ import annotations

from typing import Any

from benchmarks.balance import Classifier
from benchmarks.bounds import Row, checked, missed, verdict
from benchmarks.harness import markdown, write_report
from benchmarks.options import at_least, positive
from benchmarks.result_paths import GridParser
from cavs.distributed.cluster.resources import GIGABIT, Network, Node, ResourceSpec
from cavs.distributed.planning import builders
from cavs.distributed.planning.compute import Compute
from cavs.distributed.planning.cost import simulate
from cavs.distributed.strategy import variables_of
from cavs.train.policies import CostEffectiveSize

NETWORKS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0)  # Gbit/s
EVERY = 400  # steps between two changes, the paper's


class SimulatedRun:
    """A training as the policy sees it. throughputs: graphs a second, by the number of ranks."""

    def __init__(self, throughputs: dict[int, float]) -> None:
        self.throughputs = throughputs
        self.size, self.step, self.max_size = 1, 0, max(throughputs)

    @property
    def throughput(self) -> float:
        return self.throughputs[self.size]

    def all_reduce(self, value: float, op: str) -> float:
        return value

    def resize(self, size: int) -> bool:
        self.size = size
        return True


def throughputs(hidden: int, batch: int, compute: float, gigabits: float, most: int) -> Any:
    """Return the graphs a second of 1 to `most` machines. compute: ms of a step on each."""
    variables = variables_of(Classifier(hidden))
    found = {}
    for size in range(1, most + 1):
        nodes = tuple(
            Node(address=f"machine{i}", cpus=(0,), gpus=(), chief=i == 0) for i in range(size)
        )
        cluster = ResourceSpec(nodes=nodes, network=Network(bandwidth=gigabits * GIGABIT))
        strategy = builders.build("Buckets", variables, cluster)
        work = Compute(compute / 3e3, compute / 1.5e3)
        found[size] = size * batch / simulate(strategy, variables, cluster, work).seconds
    return found


def settled(found: dict[int, float]) -> int:
    """Return the number of ranks at which the policy settles."""
    run, policy = SimulatedRun(found), CostEffectiveSize(every=EVERY)
    for _ in range(EVERY * (2 * len(found) + 2)):
        run.step += 1
        policy.after_step(run)  # type: ignore[arg-type]
    return run.size


def show(result: dict[str, Any]) -> str:
    rows = [
        [
            f"{r['gigabits']:g}",
            str(r["size"]),
            f"{r['each'][str(r['size'])]:.0f}",
            f"{r['each'][str(result['most'])]:.0f}",
            f"{r['gain']:+.0%}",
        ]
        for r in result["networks"]
    ]
    headers = ["Gbit/s", "settles at", "graphs a machine-second", "on all", "gain"]
    head = f"up to {result['most']} machines, h {result['hidden']}, {result['batch_size']} graphs "
    head += f"and {result['compute']:g} ms of computation on each"
    return head + "\n\n" + markdown(headers, rows) + verdict(targets(result))


def targets(result: dict[str, Any]) -> list[Row]:
    """Return the bound: where the policy stops early, a machine-second gives more graphs."""
    gains = [r["gain"] for r in result["networks"] if r["size"] < result["most"]]
    if not gains:
        return []
    return [
        checked("least gain where it settles below all machines", min(gains), 0, True, "{:.2f}")
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = GridParser("cost_effective", __doc__ or "")
    add = parser.add_argument
    add("--most", type=at_least(2), default=8, metavar="N")
    add("--hidden", type=at_least(1), default=512, metavar="N")
    add("--batch-size", type=at_least(1), default=64, metavar="N", help="of each machine")
    add("--compute", type=positive, default=300.0, metavar="MS")
    given = parser.parse_args(arguments)
    result: dict[str, Any] = {
        name: getattr(given, name) for name in ("most", "hidden", "batch_size", "compute")
    }
    result["networks"] = []
    for gigabits in NETWORKS:
        found = throughputs(given.hidden, given.batch_size, given.compute, gigabits, given.most)
        size = settled(found)
        each = {str(n): t / n for n, t in found.items()}
        gain = each[str(size)] / each[str(given.most)] - 1
        result["networks"].append({"gigabits": gigabits, "size": size, "each": each, "gain": gain})
    print(show(result))
    write_report(given.out, show(result), [result])
    return 1 if missed(targets(result)) else 0


if __name__ == "__main__":
    raise SystemExit(main())
