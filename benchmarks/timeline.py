"""Steps of a training in the trace format of Chrome: chrome://tracing and Perfetto show it.

On a device as they really ran, one launched while the one before runs, each on a batch made for it;
on the CPU the stages of one step end to end.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from benchmarks.runner import make_runner
from benchmarks.runners_cavs import CavsRunner
from benchmarks.workloads import Case, load

Span = tuple[str, int, float, float]  # name, lane, begin, end: seconds of one clock
PYTHON, HOST, UPLOADS = -2, -1, 2
TRACKS = {
    PYTHON: "host: collation and schedule",
    HOST: "host: engine",
    UPLOADS: "device: uploads",
    0: "device: lane 0",
    1: "device: lane 1",
}
STEPS = 4


def _warm(case: Case) -> tuple[CavsRunner, Any]:
    workload = load(case)
    runner = make_runner("cavs", workload)
    assert isinstance(runner, CavsRunner)
    plan = runner.prepare(workload.batches[0])
    for _ in range(3):
        runner.train(plan) if case.training else runner.infer(plan)
    return runner, plan


def profiled(case: Case) -> dict[str, Any]:
    """Return the engine's report of one step, after three warm-up steps."""
    runner, plan = _warm(case)
    runner.session.set_profiling(True)
    try:
        runner.train(plan) if case.training else runner.infer(plan)
        return runner.report()
    finally:
        runner.session.set_profiling(False)


def traced(case: Case) -> list[Span]:
    """Return the spans of host and device in a few steps of training, launched ahead."""
    runner, _ = _warm(case)
    batches = runner.workload.batches
    made: list[Span] = []

    def step(i: int) -> None:
        begin = time.perf_counter()
        plan = runner.prepare(batches[i % len(batches)])
        made.append(("prepare", PYTHON, begin, time.perf_counter()))
        runner.trainer.launch(plan)

    for i in range(STEPS):  # allocate the memory of every batch
        step(i)
    runner.trainer.land()
    made.clear()
    runner.session.set_tracing(True)
    try:
        for i in range(STEPS):
            step(i)
        runner.trainer.land()
        return sorted(runner.session.trace() + made, key=lambda span: span[2])
    finally:
        runner.session.set_tracing(False)


def busy(spans: Iterable[Span], lanes: Iterable[int] = (0, 1)) -> float:
    """Return the share of the time, from first to last, in which one of some lanes was busy."""
    chosen = set(lanes)
    found = sorted((begin, end) for _, lane, begin, end in spans if lane in chosen)
    covered, until = 0.0, float("-inf")
    for begin, end in found:
        covered += max(0.0, end - max(begin, until))
        until = max(until, end)
    return covered / (until - found[0][0]) if found and until > found[0][0] else 0.0


def _event(name: str, kind: str, track: int, begin: float, length: float, of: Any) -> Any:
    """Return an event in microseconds, as the format needs."""
    return {
        "name": name, "cat": kind, "ph": "X", "pid": 0, "tid": track,
        "ts": begin * 1e6, "dur": length * 1e6, "args": of,
    }  # fmt: skip


def _named(track: int, name: str) -> dict[str, Any]:
    return {"name": "thread_name", "ph": "M", "pid": 0, "tid": track, "args": {"name": name}}


def trace_of_spans(spans: list[Span]) -> dict[str, Any]:
    """Return a trace with tracks for Python, the engine, uploads and each lane."""
    zero = min((begin for _, _, begin, _ in spans), default=0.0)
    tracks = {lane: number for number, lane in enumerate(TRACKS)}
    events = [_named(tracks[lane], name) for lane, name in TRACKS.items()]
    events += [
        _event(name, TRACKS[lane], tracks[lane], begin - zero, end - begin, {})
        for name, lane, begin, end in spans
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def chrome_trace(report: dict[str, Any]) -> dict[str, Any]:
    """Return a trace of the stages in order, with the largest instructions where they are timed.

    Each event has the counts of the report.
    """
    events = [_named(0, "stages"), _named(1, "instructions, summed over tasks")]
    for track, lines in enumerate((report["stages"], report["instructions"])):
        at = 0.0
        for line in lines:
            if line["seconds"] > 0:
                of = {k: v for k, v in line.items() if k not in ("label", "kind", "seconds")}
                name = line["label"] or line["kind"]
                events.append(_event(name, line["kind"], track, at, line["seconds"], of))
                at += line["seconds"]
    return {"traceEvents": events, "displayTimeUnit": "ms"}
