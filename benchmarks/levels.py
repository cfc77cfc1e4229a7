"""Microseconds a level, where every level has W vertices: launched, as CUDA graphs, by one kernel.

"lstm": W chains of an LSTM. "tree": W combs of a binary Tree-LSTM, whose inner vertices have a leaf
and an inner vertex below them. Forward alone, and a training step without its update; one batch of
each width, whose runs take turns way by way. "launched": one by one. "graphs": replayed.
"persistent": one kernel walks the narrow tasks.

Loops alone count, by events around their stages; all leaves of the combs are a task of the loop,
which counts too. No event divides a CUDA graph: of its whole run the least is taken off that
another way takes outside of its loops. By each cell, hidden size and precision also the line of
least squares through the time of a task: a microseconds, and b for each of its rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np

from benchmarks.level_points import (
    CELLS,
    LEVELS,
    MODES,
    WAYS,
    WIDTHS,
    Failures,
    Point,
    batch_of,
    session_of,
)
from benchmarks.options import OptionParser, at_least
from benchmarks.ratios import summary
from cavs import data
from cavs.runtime import Session

SETTLED = 8  # runs after which a repeated batch is a graph, in both staging buffers
AGREES = 0.02  # relative difference of losses between ways, bfloat16 included


class _Run:
    """A way to run one batch, forward alone or with backward."""

    def __init__(self, session: Session, batch: data.GraphBatch, training: bool) -> None:
        self.executor, self.inputs, _ = session.ready(batch, training)

    def loss(self) -> float:
        return float(self.executor.run(*self.inputs, 0, 0))

    def replays(self) -> int:
        """Number of runs so far that were CUDA graphs."""
        return int(self.executor.report()["replay"]["replays"])

    def whole(self) -> float:
        """Return seconds on the device, from the first launch to the last."""
        self.executor.clock()
        self.loss()
        seconds = self.executor.clocked()
        if seconds is None:
            raise RuntimeError("the run was not clocked")
        return float(seconds)

    def loops(self) -> tuple[float, float]:
        """Return seconds of the loops: forward, and of cotangents."""
        self.executor.set_profiling(True)
        try:
            self.loss()
            stages = self.executor.report()["stages"]
        finally:
            self.executor.set_profiling(False)
        found = [0.0, 0.0]
        for stage in stages:
            if stage["kind"] == "loop":
                found[stage["label"].endswith("backward")] += stage["seconds"]
        return found[0], found[1]


def _settled(session: Session, batch: data.GraphBatch, way: str) -> tuple[dict[str, _Run], float]:
    """Return runs of a batch that are ready to be timed, and the loss."""
    made = {mode: _Run(session, batch, training) for mode, training in MODES.items()}
    for run in made.values():
        for _ in range(SETTLED):
            run.loss()
        before = run.replays()
        loss = [run.loss(), run.loss()][-1]  # for both staging buffers
        if way == "graphs" and run.replays() != before + 2:
            raise RuntimeError("runs are not replayed as CUDA graphs")
    return made, loss


def _timed(of: dict[str, dict[str, _Run]], rounds: int) -> dict[str, dict[str, float]]:
    """Return medians of seconds of every way: ``forward``, ``both``, ``backward``, whole runs."""
    seconds: dict[str, dict[str, list[float]]] = {way: {} for way in of}
    ways = list(of)
    for turn in range(rounds):
        first = turn % len(ways)
        for way in ways[first:] + ways[:first]:
            for mode, run in of[way].items():
                found = {f"whole_{mode}": run.whole()}
                if way != "graphs":
                    up, down = run.loops()
                    found[mode] = up + down
                    if mode == "both":
                        found["backward"] = down
                for name, value in found.items():
                    seconds[way].setdefault(name, []).append(value)
    medians = {
        way: {name: summary(values)["median"] for name, values in found.items()}
        for way, found in seconds.items()
    }
    others = [found for way, found in medians.items() if way != "graphs"]
    if "graphs" in medians and others:
        for mode in MODES:
            outside = min(found[f"whole_{mode}"] - found[mode] for found in others)
            of_graphs = medians["graphs"]
            of_graphs[mode] = of_graphs[f"whole_{mode}"] - max(outside, 0.0)
    return medians


def measured(
    sessions: dict[str, Session], point: Point, width: int, levels: int, rounds: int
) -> tuple[dict[str, Any], Failures]:
    """Measure one width: microseconds per level, launches and the loss of every way.

    RuntimeError if the levels are not tasks of so many vertices.
    """
    batch = batch_of(point.cell, width, levels)
    of, losses = {}, {}
    for way, session in sessions.items():
        of[way], losses[way] = _settled(session, batch, way)
    ways: dict[str, dict[str, Any]] = {}
    for way, found in _timed(of, rounds).items():
        ways[way] = {name: 1e6 * seconds / levels for name, seconds in found.items()}
        reports = {mode: run.executor.report() for mode, run in of[way].items()}
        ways[way]["launches"] = {mode: r["segments"] for mode, r in reports.items()}
        ways[way]["loss"] = losses[way]
        for report in reports.values():
            if sum(rows == width for rows in report["widths"]) < levels:
                raise RuntimeError(f"{levels} levels of {width} vertices are not as many tasks")
    failed = _wrong(f"levels: {point.title}, {width} a level", ways, levels)
    return {"width": width, "levels": levels, "ways": ways}, failed


def _wrong(name: str, ways: dict[str, dict[str, Any]], levels: int) -> Failures:
    """Return the reasons for which the times of a way are void."""
    failed: Failures = []
    alone = ways.get("launched")
    for way, found in ways.items():
        if alone and way == "persistent":
            saved = {mode: n - found["launches"][mode] for mode, n in alone["launches"].items()}
            # In each loop, one launch must replace at least one launch per level.
            if saved["forward"] < levels - 1 or saved["both"] < 2 * (levels - 1):
                failed.append((name, f"no kernel walks the tasks: launches saved are {saved}"))
        if alone and not math.isclose(found["loss"], alone["loss"], rel_tol=AGREES):
            failed.append((name, f"a loss of {found['loss']} {way}, of {alone['loss']} launched"))
    return failed


def fitted(rows: SequenceOf[float], times: SequenceOf[float]) -> dict[str, float]:
    """Return the least-squares line a + b * rows, and the largest relative deviation from it."""
    b, a = np.polyfit(rows, times, 1) if len(rows) > 1 else (0.0, times[0])
    off = max(abs(a + b * r - t) / t if t > 0 else 0.0 for r, t in zip(rows, times, strict=True))
    return {"a": float(a), "b": float(b), "off": float(off)}


def _fits(widths: SequenceOf[Any]) -> dict[str, dict[str, dict[str, float]]]:
    """Return microseconds per task of every way but graphs, forward and backward."""
    ways = [way for way in widths[0]["ways"] if way != "graphs"] if widths else []
    rows = [found["width"] for found in widths]
    return {
        way: {
            name: fitted(rows, [found["ways"][way][name] for found in widths])
            for name in ("forward", "backward")
        }
        for way in ways
    }


def levels_of(
    point: Point,
    rounds: int,
    widths: SequenceOf[int] = WIDTHS,
    levels: int = LEVELS,
    ways: Iterable[str] = tuple(WAYS),
) -> tuple[dict[str, Any], Failures]:
    """Measure all widths of a point, and fit; a width that fails is reported and left out."""
    sessions = {way: session_of(point, way) for way in ways}
    found: list[Any] = []
    failed: Failures = []
    for width in widths:
        try:
            entry, wrong = measured(sessions, point, width, levels, rounds)
        except Exception as error:
            if not found:  # nothing runs: other ways may
                raise
            failed.append((f"levels: {point.title}, {width} a level", str(error)))
        else:
            found.append(entry)
            failed += wrong
    model = {"cell": point.cell, "hidden": point.hidden, "precision": point.precision}
    return {"title": point.title, **model, "widths": found, "fits": _fits(found)}, failed


def main(arguments: list[str] | None = None) -> int:
    parser = OptionParser("benchmarks.levels", __doc__ or "")
    add = parser.add_argument
    add("--device", default="cuda", help='"cuda", "cuda:1", ...')
    add("--cells", nargs="+", choices=CELLS, default=list(CELLS))
    add("--hidden", type=at_least(1), nargs="+", default=[256], metavar="H")
    add("--precision", nargs="+", choices=("fp32", "tf32", "bf16"), default=["tf32"])
    add(
        "--widths",
        type=at_least(1),
        nargs="+",
        default=list(WIDTHS),
        metavar="W",
        help="vertices a level",
    )
    add("--levels", type=at_least(1), default=LEVELS, help="of each graph")
    add("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    add("--rounds", type=at_least(1), default=7, help="interleaved repetitions")
    given = parser.parse_args(arguments)
    found: list[Any] = []
    failed: Failures = []
    for p in given.precision:
        for h in given.hidden:
            for cell in given.cells:
                point = Point(cell, h, p, given.device)
                how = given.rounds, given.widths, given.levels, given.ways
                try:
                    entry, wrong = levels_of(point, *how)
                except Exception as error:  # other models may run
                    failed.append((f"levels: {point.title}", str(error)))
                else:
                    found.append(entry)
                    failed += wrong
    print(json.dumps({"levels": found, "failed": failed}, indent=2))
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
