"""How long one tree waits for its predictions, in NumPy: collation, schedule and copies included.

Tree after tree of the treebank, none twice, each by every way in turn: "launched" is the device as
it is opened, "persistent" has one kernel walk the narrow tasks. Microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.gpu_cases import SST, small
from benchmarks.options import OptionParser, at_least, refuse_too_few_samples
from benchmarks.runner import make_runner
from benchmarks.runners_cavs import CavsRunner
from benchmarks.samples import RANDOM
from benchmarks.workloads import Case, load
from cavs import data

WAYS = {"launched": "cavs", "persistent": "cavs-without-launches-by-task"}
TREES, WARM = 500, 50
AGREES = 0.05  # relative norm of the difference between ways, tf32 included
Failures = list[tuple[str, str]]


def latency_case(device: str, source: str, precision: str, tiny: bool = False) -> Case:
    """Return a case of one tree per batch; the trees of the warm-up come first."""
    case = replace(
        SST, batch_size=1, training=False, device=device, data=source, precision=precision
    )
    return (
        replace(small(case), batch_size=1, batches=8)
        if tiny
        else replace(case, batches=WARM + TREES)
    )


def ways_on(device: str) -> list[str]:
    """Return the ways of a device; a CPU has one."""
    return list(WAYS)[:1] if device == "cpu" else list(WAYS)


def _shown(values: SequenceOf[float]) -> dict[str, float]:
    median, most = np.quantile(values, (0.5, 0.9))
    return {"median": 1e6 * float(median), "p90": 1e6 * float(most)}


def latency(case: Case, ways: SequenceOf[str]) -> tuple[dict[str, Any], Failures]:
    """Return median and 90th percentile of the whole latency, and of collation alone."""
    workload = load(case)
    runners: dict[str, CavsRunner] = {}
    for way in ways:
        made = make_runner(WAYS[way], workload)
        assert isinstance(made, CavsRunner)
        runners[way] = made
    trees = [batch[0] for batch in workload.batches]
    warm = min(WARM, len(trees) // 2)
    most = max(trees, key=len)

    def predicted(way: str, tree: Any) -> tuple[Any, float, float]:
        graph = runners[way].graphs[id(tree)]
        started = perf_counter()
        batch = data.batch([graph])
        collated = perf_counter()
        found = runners[way].session.predict(batch)["output"]
        return found, perf_counter() - started, collated - started

    for way in ways:
        for tree in (most, *trees[:warm]):  # allocate memory, compile every kind
            predicted(way, tree)
    timed: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    worst: dict[str, float] = dict.fromkeys(ways, 0.0)
    for turn, tree in enumerate(trees[warm:]):
        first = turn % len(ways)
        found = {}
        for way in (*ways[first:], *ways[:first]):
            found[way], *seconds = predicted(way, tree)
            timed[way].append((seconds[0], seconds[1]))
        wanted = found[ways[0]]
        for way, values in found.items():
            off = np.linalg.norm(values - wanted) / max(float(np.linalg.norm(wanted)), 1e-30)
            worst[way] = max(worst[way], float(off))
    name = f"latency: {case.precision}"
    failed = [
        (name, f"{way}: predictions are {off:.1e} from those of {ways[0]}")
        for way, off in worst.items()
        if not off <= AGREES
    ]
    entry: dict[str, Any] = {
        "precision": case.precision,
        "hidden": case.hidden,
        "trees": len(trees) - warm,
        "vertices": float(np.mean([len(tree) for tree in trees[warm:]])),
        "ways": {
            way: _shown([whole for whole, _ in of]) | {"collation": _shown([c for _, c in of])}
            for way, of in timed.items()
        },
    }
    return entry, failed


def main(arguments: list[str] | None = None) -> int:
    parser = OptionParser("benchmarks.latency", __doc__ or "")
    add = parser.add_argument
    add("--device", default="cuda", help='"cuda", "cuda:1", ... or "cpu"')
    add("--data", default=RANDOM, metavar="DIR", help=f'holds sst/; "{RANDOM}": drawn trees')
    add("--precision", nargs="+", choices=("fp32", "tf32", "bf16"), default=["fp32"])
    add("--hidden", type=at_least(1), default=SST.hidden)
    add("--trees", type=at_least(1), default=TREES)
    given = parser.parse_args(arguments)
    case = latency_case(given.device, given.data, given.precision[0])
    refuse_too_few_samples(parser, replace(case, batches=WARM + given.trees))
    found: list[Any] = []
    failed: Failures = []
    for precision in given.precision:
        case = latency_case(given.device, given.data, precision)
        case = replace(case, hidden=given.hidden, batches=WARM + given.trees)
        entry, wrong = latency(case, ways_on(given.device))
        found.append(entry)
        failed += wrong
    print(json.dumps({"latency": found, "failed": failed}, indent=2))
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
