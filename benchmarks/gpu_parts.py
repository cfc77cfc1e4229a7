"""The parts of the GPU program other than timed cases; each may run in a new process."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from benchmarks.gpu_cases import groups, precisions
from benchmarks.harness import write_json
from benchmarks.refcheck import check
from benchmarks.runner import RUNNERS
from benchmarks.workloads import WORKLOADS, Case

Failures = list[tuple[str, str]]  # name and reason of each


@dataclass(frozen=True)
class Piece:
    """A share of a part that may fail alone: attempts, tried in this order until one works.

    ``patience``: seconds that an attempt may take.
    """

    part: str
    title: str
    attempts: tuple[Callable[[], tuple[Any, Failures]], ...]
    patience: float = 40.0


# Programs whose results are compared before anything is timed.
CHECKED = ("cavs", "hand", "manual")


def _small(given: argparse.Namespace, workload: str) -> Case:
    """Return a case for the comparison of results."""
    tiny = given.tiny
    return Case(
        workload,
        12 if tiny else 64,
        8,
        embedding=8 if tiny else 48,
        leaves=16,
        length=7 if tiny else 20,
        vocabulary=50 if tiny else 500,
        data=given.data,
        device=given.device,
        lr=0.1,
    )


def _main(given: argparse.Namespace) -> Case:
    return groups(given.device, given.data, False, given.tiny)[0].cases[0]


def ceilings(given: argparse.Namespace) -> tuple[Any, Failures]:
    """Return the peak rates of the device, bytes and operations per second, and its name."""
    from benchmarks.ceilings import ceilings as found
    from benchmarks.ceilings import device_name

    top = found(given.device, precisions(given.device), given.tiny)
    return {"device": device_name(given.device), **top}, []


def agreement(given: argparse.Namespace) -> tuple[Any, Failures]:
    """Return disagreements between programs, which are failures too."""
    wrong = [
        line
        for workload in WORKLOADS
        for optimizer in ("sgd", "adagrad")
        for line in check(replace(_small(given, workload), optimizer=optimizer), CHECKED)
    ]
    return wrong, [("agreement", line) for line in wrong]


def cudnn(given: argparse.Namespace) -> tuple[Any, Failures]:
    """Return disagreements between LSTMs by cuDNN and by our own kernels; none on the CPU."""
    if given.device == "cpu":
        return [], []
    lstms = [w for w in WORKLOADS if RUNNERS[w].get("cavs-cudnn")]
    wrong = [line for w in lstms for line in check(_small(given, w), ["cavs-cudnn"], "cavs")]
    return wrong, [("cudnn", line) for line in wrong]


def accuracy(given: argparse.Namespace) -> tuple[Any, Failures]:
    """Return relative norms of the difference to float64, by precision and workload."""
    from benchmarks.accuracy import errors

    found: dict[str, Any] = {}
    failed: Failures = []
    for precision in precisions(given.device):
        small = [_small(given, workload) for workload in WORKLOADS]
        # Most products of these have too few rows for cuBLASLt.
        large = [] if given.tiny else [replace(case, hidden=256, batch_size=64) for case in small]
        for case in [replace(case, precision=precision) for case in small + large]:
            name = f"{case.workload}, h {case.hidden}" if case.hidden == 256 else case.workload
            try:
                found.setdefault(precision, {})[name] = errors(case)
            except Exception as error:  # another precision may work
                failed.append((f"accuracy {case.title}", str(error)))
    return found, failed


def curve(given: argparse.Namespace) -> tuple[Any, Failures]:
    """Compare losses of training with those of the CPU, on as many trees as the treebank has.

    With few batches a model overfits, and rounding decides the small rest of the loss.
    """
    from benchmarks.accuracy import curve as found

    case = replace(_small(given, "tree-lstm"), batches=10, lr=0.05)
    if not given.tiny:
        case = replace(case, hidden=128, embedding=128, batch_size=32, batches=250)
    return found(case, given.steps or 1000), []


def first_step(given: argparse.Namespace) -> tuple[Any, Failures]:
    """Time the first step of two new processes in turn; the first finds nothing compiled."""
    from benchmarks.first_step import in_new_process

    case = replace(_main(given), batch_size=min(_main(given).batch_size, 64), batches=1)
    names = ("first_process", "second_process")
    with tempfile.TemporaryDirectory(prefix="cavs-cold-") as cache:
        return {name: in_new_process(case, given.patience, cache) for name in names}, []


def fresh(given: argparse.Namespace) -> tuple[Any, Failures]:
    """Compare training on batches built when needed with ready ones."""
    from benchmarks.fresh import fresh as found

    case = replace(_main(given), batches=2 if given.tiny else 24)
    return found(case, given.rounds), []


def timeline(given: argparse.Namespace) -> tuple[Any, Failures]:
    """Return the report of a profiled step, without long lists; the trace is a file of its own."""
    from benchmarks.timeline import busy, chrome_trace, profiled, trace_of_spans, traced

    case = _main(given)
    report = profiled(case)
    path = given.out.with_suffix(".trace.json")
    kept = {k: v for k, v in report.items() if not isinstance(v, list)}
    if case.device == "cpu":
        write_json(path, chrome_trace(report))
    else:
        spans = traced(case)
        write_json(path, trace_of_spans(spans))
        kept["busy"] = busy(spans)
    return kept | {"trace": path.name, "stages": len(report["stages"])}, []


def launches(given: argparse.Namespace) -> tuple[Any, Failures]:
    """Return the cost of a launch, alone and in graphs; nothing on the CPU."""
    from benchmarks.launches import launches as found
    from cavs.cuda.device import open_device

    if given.device == "cpu":
        return [], []
    return found(open_device(given.device), 2 if given.tiny else 20), []


def level_pieces(given: argparse.Namespace) -> list[Piece]:
    """Time a level, one process per model; after a failure, without the persistent kernel.

    Before, the kernels of all models are compiled in parallel, except for a run in one process.
    """
    from benchmarks.level_points import LEVELS, WAYS, WIDTHS, compiled_ahead, points
    from benchmarks.levels import levels_of

    made = points(given.device, given.full, given.tiny)
    widths, levels = ((1, 2), 4) if given.tiny else (WIDTHS, LEVELS)
    ahead = partial(compiled_ahead, made, widths, levels)
    pieces = [Piece("kernels", "kernels of all levels", (ahead,), 120.0)]
    rest = tuple(way for way in WAYS if way != "persistent")
    for point in made:
        tries = tuple(
            partial(levels_of, point, given.rounds, widths, levels, ways)
            for ways in (tuple(WAYS), rest)
        )
        pieces.append(Piece("levels", f"levels: {point.title}", tries))
    return pieces if made and not given.in_process else pieces[1:]


def latency_pieces(given: argparse.Namespace) -> list[Piece]:
    """Time one tree at a time, in float32 and tf32, with the same second attempt."""
    from benchmarks.latency import latency, latency_case, ways_on

    pieces = []
    for precision in precisions(given.device)[:2]:
        case = latency_case(given.device, given.data, precision, given.tiny)
        ways = ways_on(given.device)
        tries = [partial(latency, case, of) for of in dict.fromkeys((tuple(ways), (ways[0],)))]
        pieces.append(Piece("latency", f"latency: {precision}", tuple(tries)))
    return pieces


# Parts with a bound that are measured piece by piece.
PIECES = {"levels": level_pieces, "latency": latency_pieces}
# Parts with a bound, and those that their figures are compared with; then the others.
BOUNDED = {
    "ceilings": ceilings,
    "accuracy": accuracy,
    "curve": curve,
    "first_step": first_step,
    "fresh": fresh,
}
OTHERS = {"agreement": agreement, "cudnn": cudnn, "launches": launches, "timeline": timeline}
