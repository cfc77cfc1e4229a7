"""A step's stages in the trace format of Chrome: chrome://tracing and Perfetto show it."""

from __future__ import annotations

from typing import Any

from benchmarks.runner import make_runner
from benchmarks.runners_cavs import CavsRunner
from benchmarks.workloads import Case, load


def profiled(case: Case) -> dict[str, Any]:
    """The engine's report of one step, after three to warm up."""
    workload = load(case)
    runner = make_runner("cavs", workload)
    assert isinstance(runner, CavsRunner)
    plan = runner.prepare(workload.batches[0])
    for _ in range(3):
        runner.train(plan) if case.training else runner.infer(plan)
    runner.session.set_profiling(True)
    try:
        runner.train(plan) if case.training else runner.infer(plan)
        return runner.report()
    finally:
        runner.session.set_profiling(False)


def chrome_trace(report: dict[str, Any]) -> dict[str, Any]:
    """Stages one after the other, as they ran; the largest instructions where they are timed.

    Microseconds, as the format wants; each event carries what the report counted.
    """
    events: list[dict[str, Any]] = []

    def span(track: int, line: dict[str, Any], at: float) -> float:
        length = line["seconds"] * 1e6
        counted = {k: v for k, v in line.items() if k not in ("label", "kind", "seconds")}
        events.append(
            {
                "name": line["label"] or line["kind"],
                "cat": line["kind"],
                "ph": "X",
                "pid": 0,
                "tid": track,
                "ts": at,
                "dur": length,
                "args": counted,
            }
        )
        return at + length

    for track, name in enumerate(("stages", "instructions, summed over tasks")):
        label = {"name": name}
        events.append({"name": "thread_name", "ph": "M", "pid": 0, "tid": track, "args": label})
    for track, lines in enumerate((report["stages"], report["instructions"])):
        at = 0.0
        for line in lines:
            if line["seconds"] > 0:
                at = span(track, line, at)
    return {"traceEvents": events, "displayTimeUnit": "ms"}
