"""LB-BSP against other ways to coordinate workers that straggle, as Chen et al. 2020 compare them.

``simulated``: the paper's clusters (`benchmarks.coordination`), samples a second and the time until
a small network reaches a loss: with one rate for all schemes, and with the best of `RATES` for
each. ``ranks``: four ranks that sleep while they compute, the last three times as long for a graph
as the first, and now and then any of them for a while. ``links``: four ranks of a parameter server
with the speeds of the paper's four GPUs; the link of the second becomes eight times slower, and
recovers (Fig. 8), which needs root. ``aggregation``: a Tree-LSTM on a treebank, where ranks have
the shares of Fig. 8: the mean of the ranks' means, against the mean over all labels, which is that
of one process.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

import cavs
from benchmarks import coordination as co
from benchmarks.balance import Classifier, trees
from benchmarks.bounds import Row, checked, missed, verdict
from benchmarks.distributed import print_result, run_linked
from benchmarks.harness import markdown, write_report
from benchmarks.links import refusal
from benchmarks.options import at_least, positive
from benchmarks.pacing import paced
from benchmarks.result_paths import GridParser
from benchmarks.sentiment import CLASSES, HIDDEN, WIDTH, WORDS, Sentiment, treebank
from benchmarks.sentiment import trees as drawn_trees
from cavs import nn, ops
from cavs.distributed import Trainer, world
from cavs.distributed.balance import EMA, NARX, Memoryless, PairBalancer, SpeedBalancer
from cavs.distributed.launch.launcher import command_of, find_mpirun

CASES = ("simulated", "ranks", "links", "aggregation")
# Seconds of a batch and of a sample. Inception-V3: the equilibrium of Fig. 8, where the K520 gives
# 26 samples for 2 s and the V100 takes 57 for 0.5 s. ResNet-32: a ratio of speeds of three.
INCEPTION = (
    co.Worker(0.27, 0.0088, 0.05),
    co.Worker(0.38, 0.032, 0.05),
    co.Worker(0.45, 0.050, 0.05),
    co.Worker(0.59, 0.077, 0.05),
)
RESNET = tuple(co.Worker(0.05, each, 0.01) for each in (0.00055, 0.0009, 0.0012, 0.0016))
# CPUs of m4.2xlarge, c5.2xlarge, r4.2xlarge, m4.4xlarge, m4.xlarge: seconds of a sample.
SHARED = [(17, 0.020), (10, 0.014), (2, 0.020), (2, 0.010), (1, 0.040)]
CLUSTERS = {
    "16 GPUs, Inception-V3": co.Cluster("inception", INCEPTION * 4, 32, 0.04),
    "16 GPUs, ResNet-32": co.Cluster("resnet", RESNET * 4, 128, 0.10),
    "32 shared CPUs": co.Cluster(
        "shared",
        tuple(co.Worker(0.0, each) for n, each in SHARED for _ in range(n)),
        32,
        0.12,
        hold=60.0,
        spares=(co.Worker(0.0, 0.014),) * 2,
    ),
}
SCHEMES: dict[str, co.Scheme] = {
    "BSP": co.bsp,
    "SSP": co.stale(co.STALENESS),
    "backup workers": co.backup,
}
ON_GPUS: dict[str, co.Scheme] = {
    **SCHEMES,
    "ASP": co.stale(float("inf")),
    "LB-BSP": co.lbbsp(),
}
ON_CPUS: dict[str, co.Scheme] = {
    **SCHEMES,
    "redundant": co.redundant,
    "FlexRR": co.flexrr,
    "LB-BSP, memoryless": co.lbbsp(Memoryless),
    "LB-BSP, ema": co.lbbsp(EMA),
    "LB-BSP": co.lbbsp(lambda: NARX(warm_up=100, period=100)),
}
RATE, RATES = 0.2, (0.05, 0.1, 0.2)  # one for all schemes, as in the paper; some for each
TARGET = 1.5  # loss
SHARES = (89, 21, 12, 6)  # graphs of 128, Fig. 8
RANKS = 4
SLOW, SLOWER = 1, 8  # the rank whose link becomes slower, and how many times
FASTEST = 1.0  # LB-BSP by the second best


def simulated(given: argparse.Namespace) -> dict[str, Any]:
    """Return samples a second and seconds to the loss of every scheme on every cluster."""
    found: dict[str, Any] = {}
    for name, cluster in CLUSTERS.items():
        schemes = ON_CPUS if cluster.hold else ON_GPUS
        own = found[name] = {}
        for scheme, make in schemes.items():
            seconds = 60 * given.minutes
            own[scheme] = {
                "samples": co.throughput(make, cluster, seconds),
                "seconds": co.time_to_loss(make, cluster, TARGET, [RATE], seconds),
                "best": co.time_to_loss(make, cluster, TARGET, RATES, seconds),
            }
            print(f"{name}: {scheme}", file=sys.stderr, flush=True)
    return found


# ---- real ranks ----------------------------------------------------------------------------------


def graph_seconds(rank: int, ranks: int, scale: float) -> Callable[[int, int], float]:
    """Return the seconds of a run: ranks differ by up to 3, and each is disturbed now and then."""
    rng = np.random.default_rng(rank)
    disturbed = np.repeat(rng.random(200) < 0.1, 10)
    each = scale * (1 + 2 * rank / max(ranks - 1, 1))

    def seconds(graphs: int, step: int) -> float:
        return each * graphs * (3 if disturbed[step % len(disturbed)] else 1)

    return seconds


def on_ranks(given: argparse.Namespace) -> dict[str, float]:
    """Return the graphs a second of all ranks, by scheme."""
    data = trees(given.batch_size)
    schemes: dict[str, dict[str, Any]] = {
        "BSP": {},
        "ASP": {"strategy": "PSLoadBalancing(sync=False)"},
        "SSP": {"strategy": f"PSLoadBalancing(staleness={co.STALENESS})"},
        "backup workers": {"backup": 1},
        "LB-BSP": {"split": SpeedBalancer(predictor=EMA, lag=0)},
    }
    found = {}
    for name, options in schemes.items():
        c = world(120.0)
        backup = options.pop("backup", 0)
        optimizer, batch = cavs.optim.SGD(lr=1e-4), cavs.batch(data)
        with Trainer(Classifier(32), optimizer, communicator=c, threads=1, **options) as t:
            t.session.backup = backup
            t.advance(batch)
            total = 0
            with paced(graph_seconds(c.rank, c.size, given.graph / 1e3)):
                begun = time.perf_counter()
                for _ in range(given.steps) if not t.session.asynchronous else iter(int, 1):
                    report = t.advance(batch)
                    total += sum(report.rank_graphs) or len(data) // c.size
                    if t.session.asynchronous and time.perf_counter() - begun > given.seconds:
                        break
                spent = time.perf_counter() - begun
                t.settle()
            counts = t.session.asynchronous or c.rank == 0  # else all ranks have the same total
            all_ranks = np.array([total * counts], np.float64)
            c.all_reduce(all_ranks)
            found[name] = float(all_ranks[0]) / spent
        c.close()
    return found


def on_links(given: argparse.Namespace) -> dict[str, Any]:
    """Return counts and seconds of all iterations of LB-BSP while a link changes."""
    c, data = world(120.0), drawn_trees(sum(SHARES), False)
    steps = 3 * given.phase
    batch, found = cavs.batch(data), []
    worker = INCEPTION[c.rank]

    def link(megabits: float) -> None:
        rate = ["rate", f"{megabits}mbit", "burst", "64kb", "latency", "20ms"]
        words = ["tc", "qdisc", "change", "dev", "eth0", "root", "tbf", *rate]
        subprocess.run(words, check=True)

    def seconds(graphs: int, step: int) -> float:
        return (worker.fixed + worker.each * graphs) / given.faster

    options = {"strategy": "PS", "split": PairBalancer(), "threads": 1}
    optimizer = cavs.optim.SGD(lr=1e-4)
    with paced(seconds), Trainer(Sentiment(False), optimizer, communicator=c, **options) as t:
        t.advance(batch)
        for step in range(steps):
            if c.rank == SLOW and step in (given.phase, 2 * given.phase):
                link(given.megabits / (SLOWER if step == given.phase else 1))
            begun = time.perf_counter()
            report = t.advance(batch)
            found.append(
                {
                    "counts": report.rank_graphs,
                    "seconds": time.perf_counter() - begun,
                    "delays": report.rank_delays,
                }
            )
    c.close()
    return {"steps": found}


# ---- aggregation ---------------------------------------------------------------------------------


class Weighted(cavs.Model):
    """A Tree-LSTM whose loss weighs each labelled vertex by a feature."""

    def __init__(self) -> None:
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.tree = nn.BinaryTreeLSTM(WIDTH, HIDDEN)
        self.output = nn.Linear(HIDDEN, CLASSES)
        rng = np.random.default_rng(0)
        for p in self.parameters().values():
            p.value[...] = rng.normal(size=p.shape) * 0.1

    def forward(self, batch):
        return self.output(self.tree(batch.graph, x=self.embedding(batch["token"])))

    def loss(self, batch):
        rows = ops.cross_entropy(self.forward(batch), batch["label"], reduction="none")
        return ops.sum_rows(rows * batch["weight"])


def aggregation(given: argparse.Namespace) -> dict[str, list[float]]:
    """Return the accuracy on a held-out part after every epoch, naive and weighted, by rate."""
    data = treebank(given.data, 1 << 20, True) if given.data else drawn_trees(3000, True)
    held, data = data[: len(data) // 10], data[len(data) // 10 :]
    found: dict[str, list[float]] = {}
    for rate in given.rates:
        for way in ("weighted", "naive"):
            trainer = cavs.Trainer(Weighted(), cavs.optim.Adagrad(lr=rate), threads=1)
            rng, curve = np.random.default_rng(0), list[float]()
            for _ in range(given.epochs):
                order = rng.permutation(len(data))
                for begin in range(0, len(data) - 127, 128):
                    graphs = [data[i] for i in order[begin : begin + 128]]
                    trainer.step(cavs.batch(weighed(graphs, way == "naive")))
                curve.append(accuracy(trainer, held))
            found[f"{way}, rate {rate:g}"] = curve
            print(f"{way}, rate {rate:g}: {curve}", file=sys.stderr, flush=True)
    return found


def weighed(graphs: Sequence[cavs.Graph], naive: bool) -> list[cavs.Graph]:
    """Return graphs whose vertices have the weights of their labels in the gradient."""
    ends = [0, *np.cumsum(SHARES).tolist()]
    labels = [int((graph.features["label"] >= 0).sum()) for graph in graphs]
    found = []
    for begin, end in pairwise(ends):
        own = sum(labels[begin:end])
        weight = 1 / (len(SHARES) * own) if naive else 1 / sum(labels)
        for graph in graphs[begin:end]:
            n = graph.num_vertices
            features = {**graph.features, "weight": np.full(n, weight, np.float32)}
            found.append(cavs.Graph(graph.topology, features))
    return found


def accuracy(trainer: cavs.Trainer, graphs: Sequence[cavs.Graph]) -> float:
    """Return the share of labelled vertices whose class is found."""
    hits = total = 0
    for begin in range(0, len(graphs), 128):
        own = list(graphs[begin : begin + 128])
        label = np.concatenate([g.features["label"] for g in own])
        (logits,) = trainer.session.predict(cavs.batch(own)).values()
        found = np.argmax(logits, axis=1)
        hits += int(((found == label) & (label >= 0)).sum())
        total += int((label >= 0).sum())
    return hits / total


# ---- the program ---------------------------------------------------------------------------------


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Measure one case on every rank."""
    (case,) = given.cases
    return {case: on_ranks(given) if case == "ranks" else on_links(given)}


def show(result: dict[str, Any]) -> str:
    text = []
    for name, schemes in result.get("simulated", {}).items():
        bsp = schemes["BSP"]
        rows = [
            [
                scheme,
                f"{r['samples'] / bsp['samples']:.2f}",
                f"{bsp['samples'] / r['samples']:.2f}",
                f"{r['seconds']:.0f}",
                f"{r['seconds'] / bsp['seconds']:.2f}",
                f"{r['best'] / bsp['best']:.2f}",
            ]
            for scheme, r in schemes.items()
        ]
        headers = [name, "samples a second / BSP", "time of a sample / BSP"]
        headers += ["s to the loss", "time to the loss / BSP", "with the best rate of each"]
        text.append(markdown(headers, rows))
    if found := result.get("ranks"):
        rows = [[n, f"{v:.0f}", f"{v / found['BSP']:.2f}"] for n, v in found.items()]
        text.append(markdown([f"{RANKS} ranks", "graphs a second", "/ BSP"], rows))
    if found := result.get("links"):
        rows = [
            [when, ", ".join(map(str, counts)), f"{1e3 * seconds:.0f}", f"{1e3 * delay:.0f}"]
            for when, counts, seconds, delay in phases(found["steps"])
        ]
        headers = ["link of the second rank", "graphs", "ms an iteration", "ms its delay"]
        text.append(markdown(headers, rows))
    if found := result.get("aggregation"):
        epochs = len(next(iter(found.values())))
        rows = [[n, *(f"{a:.1%}" for a in curve)] for n, curve in found.items()]
        headers = ["accuracy after epoch", *(str(i + 1) for i in range(epochs))]
        text.append(markdown(headers, rows))
    return "\n\n".join(text) + verdict(targets(result))


def phases(steps: Sequence[Any]) -> list[tuple[str, list[int], float, float]]:
    """Return counts, seconds and delay at the ends of the phases, and right after a change."""
    phase, near = len(steps) // 3, 10
    moments = {
        "as the others'": (phase - near, phase),
        "just slower": (phase, phase + near),
        "slower": (2 * phase - near, 2 * phase),
        "recovered": (3 * phase - near, 3 * phase),
    }
    found = []
    for name, (begin, end) in moments.items():
        own = steps[begin:end]
        counts = np.rint(np.mean([s["counts"] for s in own], axis=0)).astype(int).tolist()
        delays = [s["delays"][SLOW] if s["delays"] else 0.0 for s in own]
        seconds = float(np.median([s["seconds"] for s in own]))
        found.append((name, counts, seconds, float(np.mean(delays))))
    return found


def targets(result: dict[str, Any]) -> list[Row]:
    """Return the bounds: LB-BSP against the second best, and what a slower link changes."""
    rows = []
    for name, schemes in result.get("simulated", {}).items():
        rivals = {n: r["seconds"] for n, r in schemes.items() if not n.startswith("LB-BSP")}
        best = min(rivals, key=rivals.__getitem__)
        part = schemes["LB-BSP"]["seconds"] / rivals[best]
        measure = f"{name}: time of LB-BSP to the loss by that of {best}"
        rows.append(checked(measure, part, FASTEST, False, "{:.2f}"))
    if found := result.get("links"):
        alike, just, slower, recovered = phases(found["steps"])
        less = 1 - slower[1][SLOW] / alike[1][SLOW]
        rows.append(
            checked("part of its graphs that the slow link costs", less, 0.2, True, "{:.2f}")
        )
        name = "iteration once balanced, by that right after the link is slower"
        rows.append(checked(name, slower[2] / just[2], 0.95, False, "{:.2f}"))
        back = recovered[1][SLOW] / alike[1][SLOW]
        rows.append(checked("graphs once the link has recovered", back, 0.8, True, "{:.2f}"))
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = GridParser("lbbsp", __doc__ or "")
    add = parser.add_argument
    add("--cases", nargs="+", choices=CASES, default=list(CASES))
    add("--minutes", type=positive, default=6.0, help="simulated: that a scheme has")
    add("--batch-size", type=at_least(RANKS), default=64, metavar="N", help="ranks: of all ranks")
    add("--graph", type=positive, default=4.0, metavar="MS", help="ranks: of the fastest rank")
    add("--steps", type=at_least(2), default=60, metavar="N", help="ranks: synchronous steps")
    add("--seconds", type=positive, default=15.0, help="ranks: of asynchronous steps")
    add("--megabits", type=positive, default=100.0, help="links: of every rank")
    add("--faster", type=positive, default=4.0, help="links: than the GPUs of the paper")
    add("--phase", type=at_least(20), default=100, metavar="N", help="links: iterations of each")
    add("--data", default="", metavar="DIR", help="aggregation: SST; drawn trees unless given")
    add("--epochs", type=at_least(1), default=3, metavar="N", help="aggregation")
    add("--rates", type=positive, nargs="+", default=[0.05, 0.2], help="aggregation")
    add("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.rank:
        result = measure(given)
        print_result(result)
        return 0
    if "links" in given.cases and (why := refusal()):
        raise SystemExit(f"this machine makes no slow links: {why}")
    own, result = list(sys.argv[1:] if arguments is None else arguments), dict[str, Any]()
    for case in given.cases:
        program = ["-m", "benchmarks.lbbsp", "--rank", *own, "--cases", case]
        if case == "simulated":
            result[case] = simulated(given)
        elif case == "aggregation":
            result[case] = aggregation(given)
        else:
            command = command_of(find_mpirun(), RANKS, program)
            megabits = given.megabits if case == "links" else 0.0
            result |= run_linked(command, RANKS, megabits)
    print(show(result))
    write_report(given.out, show(result), [result])
    return 1 if missed(targets(result)) else 0


if __name__ == "__main__":
    raise SystemExit(main())
