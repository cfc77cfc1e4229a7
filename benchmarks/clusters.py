"""Simulated steps of strategies: on the clusters of AutoDist, and on up to 1,024 workers.

Clusters and models are those of Zhang 2020, Tables 7.2 and 7.3, and a Tree-LSTM. Nothing is
measured: times are those of the simulation in `cavs.distributed.planning.cost`. On every cluster
what `auto` takes is held against every builder, with options too that it does not choose from.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Sequence

from benchmarks.bounds import Row, checked, missed, verdict
from benchmarks.options import OptionParser, at_least
from cavs.distributed.cluster.resources import GIGABIT, Network, Node, ResourceSpec
from cavs.distributed.planning.auto import CANDIDATES, compare, make_strategy
from cavs.distributed.planning.builders import build, builders_of_equal_replicas
from cavs.distributed.planning.compute import Compute
from cavs.distributed.planning.cost import simulate
from cavs.distributed.strategy import Strategy, Variable

# GPUs and Gbit/s of every node; one connection between AWS nodes reaches 10 Gbit/s.
TABLE = {
    "A1": [(1, 40)] * 16,
    "A2": [(1, 40)] * 11,
    "B1": [(4, 25)] * 2,
    "B2": [(4, 25)] * 3,
    "B3": [(4, 25)] * 4,
    "B4": [(4, 50)] * 1,
    "B5": [(4, 50)] * 2,
    "B6": [(4, 50)] * 3,
    "B7": [(4, 50)] * 4,
    "B8": [(4, 50)] * 8,
    "B9": [(1, 10), (4, 25)],
    "B10": [(4, 25), (4, 50)],
    "B11": [(4, 25)] * 2 + [(4, 50)] * 2,
    "B12": [(1, 25), (4, 50)],
}


def cluster(name: str) -> ResourceSpec:
    """Return a cluster of the table."""
    return nodes(TABLE[name], flow=float("inf") if name.startswith("A") else 10)


def nodes(shapes: Sequence[tuple[int, float]], flow: float = float("inf")) -> ResourceSpec:
    """Return nodes of so many GPUs and Gbit/s; the limit of one connection is in Gbit/s."""
    return ResourceSpec(
        nodes=tuple(
            Node(
                address=f"n{i}",
                gpus=tuple(range(gpus)),
                bandwidth=gigabits * GIGABIT,
                chief=i == 0,
            )
            for i, (gpus, gigabits) in enumerate(shapes)
        ),
        network=Network(flow_bandwidth=flow * GIGABIT, local_bandwidth=80 * GIGABIT),
    )


def named(*shapes):
    return [Variable(name=f"v{i}", **fields) for i, fields in enumerate(shapes)]


def dense(*shape, factors=None):
    return {"shape": shape, "factors": factors}


def vgg16(batch=32):
    shapes, channels = [], 3
    for width, count in [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)]:
        for _ in range(count):
            shapes += [dense(3, 3, channels, width), dense(width)]
            channels = width
    for rows, columns in [(25088, 4096), (4096, 4096), (4096, 1000)]:
        shapes += [dense(rows, columns, factors=batch), dense(columns)]
    return named(*shapes)


def resnet101():
    shapes, before = [dense(7, 7, 3, 64)], 64
    for width, count in [(64, 3), (128, 4), (256, 23), (512, 3)]:
        for _ in range(count):
            shapes += [dense(1, 1, before, width), dense(width), dense(3, 3, width, width)]
            shapes += [dense(width), dense(1, 1, width, 4 * width), dense(4 * width)]
            before = 4 * width
    return named(*shapes, dense(2048, 1000, factors=32), dense(1000))


def bert_large():
    shapes = [dense(30522, 1024), dense(512, 1024)]
    for _ in range(24):
        shapes += [dense(1024, 1024, factors=1024)] * 4 + [dense(1024)] * 6
        shapes += [dense(1024, 4096, factors=1024), dense(4096), dense(4096, 1024, factors=1024)]
    return named(*shapes)


def ncf_sparse():
    tables = [{"shape": (138_493, 64), "sparse": True, "rows": 250}]
    tables += [{"shape": (26_744, 64), "sparse": True, "rows": 250}]
    layers = [(128, 256), (256, 128), (128, 64), (64, 1)]
    return named(*tables, *(dense(*shape, factors=256) for shape in layers))


def tree_lstm(hidden=512, vertices=2400):
    table = {"shape": (21_701, 300), "sparse": True, "rows": 700}
    return named(
        table,
        dense(300, 4 * hidden, factors=vertices),
        dense(hidden, 3 * hidden, factors=vertices),
        dense(hidden, hidden, factors=vertices),
        dense(4 * hidden),
        dense(hidden, 5, factors=vertices),
        dense(5),
    )


# Models, with approximate seconds of forward and backward on one of these GPUs.
MODELS: dict[str, tuple[Callable[[], list[Variable]], float]] = {
    "vgg16": (vgg16, 0.3),
    "resnet101": (resnet101, 0.25),
    "bert_large": (bert_large, 0.5),
    "ncf_sparse": (ncf_sparse, 0.02),
    "tree_lstm": (tree_lstm, 0.05),
}
SHOWN = ("auto", "AllReduce(chunk=8)", "PSLoadBalancing", "PartitionedPS", "Poseidon", "PS")


def line(model: str, place: str, resources: ResourceSpec) -> str:
    """Return milliseconds of a step by builder; first the best that auto finds, with its name."""
    make, seconds = MODELS[model]
    variables, compute = make(), Compute(seconds / 3, seconds * 2 / 3)
    best = compare(CANDIDATES, variables, resources, compute)[0]
    times = [best.simulation.seconds]
    for name in SHOWN[1:]:
        strategy = build(name, variables, resources)
        times.append(simulate(strategy, variables, resources, compute).seconds)
    columns = "".join(f"{1e3 * t:20.1f}" for t in times)
    return f"{model:12} {place:>8}{columns}  {best.builder}"


SLOWER = 0.1  # than the fastest rival
RIVALS = (
    *(name for name in builders_of_equal_replicas() if name != "auto"),
    *(f"{name}(chunk={n})" for name in ("AllReduce", "Parallax") for n in (2, 16, 64)),
    "PartitionedAR(chunk=16)",
    "RandomAxisPartitionAR(chunk=16, seed=1)",
    "Horovod(fusion=4194304)",
    "Poseidon(otherwise='all_reduce', local_replication=True)",
    *(f"{name}(two_level=False)" for name in ("PSLoadBalancing", "PartitionedPS", "Poseidon")),
    *(
        f"{name}(local_replication=True)"
        for name in (
            "PS",
            "PSLoadBalancing",
            "PartitionedPS",
            "UnevenPartitionedPS",
            "Parallax",
            "Poseidon",
        )
    ),
)


def rivals(model: str, where: str, overlapped: bool) -> Row:
    """Return how much slower auto is on a cluster than the fastest of `RIVALS`.

    overlapped: the GPUs compute while messages travel; otherwise nothing hides the messages.
    """
    make, seconds = MODELS[model]
    variables, resources = make(), cluster(where)
    compute = Compute(seconds / 3, seconds * 2 / 3) if overlapped else Compute()

    def took(strategy: Strategy) -> float:
        return simulate(strategy, variables, resources, compute).seconds

    mine = took(make_strategy("auto", variables, resources, compute))
    times = {name: took(build(name, variables, resources)) for name in RIVALS}
    best = min(times, key=times.__getitem__)
    hidden = "" if overlapped else ", nothing hides messages"
    measure = f"{model} on {where}{hidden}: auto takes longer than {best}"
    return checked(measure, mine / times[best] - 1, SLOWER, False, "{:.1%}")


def workers_of(text: str) -> int:
    """Return a number of workers that fill their nodes: an argparse type."""
    value = at_least(1)(text)
    if value > 4 and value % 4:
        raise argparse.ArgumentTypeError(f"{text!r} workers do not fill nodes of four GPUs")
    return value


def main(argv: Sequence[str] | None = None) -> int:
    parser = OptionParser("benchmarks.clusters", __doc__ or "")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["vgg16", "tree_lstm"])
    parser.add_argument("--clusters", nargs="*", choices=TABLE, default=["A1", "B3", "B8"])
    parser.add_argument(
        "--workers",
        type=workers_of,
        nargs="*",
        default=[4, 16, 64, 256, 1024],
        metavar="N",
        help="on nodes of four GPUs and 50 Gbit/s",
    )
    parser.add_argument(
        "--check",
        nargs="*",
        choices=MODELS,
        default=list(MODELS),
        metavar="MODEL",
        help="on all clusters",
    )
    given = parser.parse_args(argv)
    print("ms a step" + " " * 12 + "".join(f"{name:>20}" for name in SHOWN) + "  auto takes")
    for model in given.models:
        for name in given.clusters:
            print(line(model, name, cluster(name)), flush=True)
        for workers in given.workers:
            gpus = min(workers, 4)
            print(line(model, str(workers), nodes([(gpus, 50)] * (workers // gpus))), flush=True)
    rows = []
    for model in given.check:
        for name, overlapped in itertools.product(TABLE, (True, False)):
            rows.append(rivals(model, name, overlapped))
            print(f"{len(rows)} of {2 * len(given.check) * len(TABLE)}", file=sys.stderr)
    print(verdict(rows))
    return 1 if missed(rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
