"""One run of a batch on the clock, and what it came to: a training step that moves nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from cavs import _engine
from cavs.cuda.engine import DECIDED
from cavs.frontend.model import Model
from cavs.frontend.parameter import Parameter
from cavs.runtime.loops import LoopReport
from cavs.runtime.session import Session
from cavs.runtime.traffic import InstructionReport
from cavs.runtime.variant import Array, BatchLike

WARM, RUNS, SECONDS = 2, 9, 0.3  # runs before the clock, and on it: at most so many, or so long


class Rule(Protocol):
    """What a step needs of an optimiser; those of cavs.optim have it."""

    def hyper(self, step: int) -> dict[str, Any]:
        """The numbers of an update."""
        ...

    def init_states(self, parameters: Sequence[Parameter]) -> list[list[Array]]:
        """Fresh state arrays of all parameters."""
        ...


@dataclass(frozen=True)
class Times:
    """Seconds of one run, the median of ``runs``; 0 where the engine does not tell.

    wall: the whole call. packing: weights that the update before has changed. each: every stage of
    forward and backward, `stages` all of them. update: gradient norm, clipping, optimiser. What is
    left of wall (`rest`) puts features in the order of rows, plans, binds, and waits for threads to
    come and go. Not in it, for a DataLoader does it meanwhile: collate, and prepare, which merges
    copies and schedules; None where the batch cannot be made anew. products, maps and other are
    those of all ``threads``, added up.
    """

    runs: int
    threads: int
    wall: float
    packing: float
    each: tuple[float, ...]
    update: float
    products: float
    maps: float
    other: float
    collate: float | None
    prepare: float | None

    @property
    def stages(self) -> float:
        """Forward and backward."""
        return sum(self.each)

    @property
    def rest(self) -> float:
        """What of wall is none of its parts."""
        return max(self.wall - self.packing - self.stages - self.update, 0.0)


@dataclass(frozen=True)
class RunReport:
    """One run of a batch, for training a whole step. Times in seconds, sizes in bytes.

    loops: with their tasks; tasks counts those of forward, backward_tasks those of cotangents, and
    no policy of batching needs fewer than task_bound and backward_bound. widths: vertices of each
    task of forward. distinct: vertices that ran, one for all copies.
    gather, scatter and other bytes: see `cavs.runtime.traffic.InstructionReport`.
    kept_bytes: values made before the first backward loop or gradient that it or what follows
    reads. peak_bytes: of values in the arena, the most alive at once; features, parameters and all
    else are not in it. scratch_bytes: of one thread. gradient_bytes: dense gradients.
    sparse_bytes: gradients of rows of tables. state_bytes: of the optimiser, None if none is known.
    A device times stages, not instructions. replay: what became of CUDA graphs of the batch, see
    `cavs.Session.report`; empty on the CPU. updated: whether the step went on to its update; it
    does not where loss or gradient is not finite, and inference has none.
    """

    graphs: int
    vertices: int
    edges: int
    distinct: int
    loops: tuple[LoopReport, ...]
    times: Times
    updated: bool
    gather_bytes: int
    scatter_bytes: int
    other_read_bytes: int
    other_write_bytes: int
    peak_bytes: int
    arena_bytes: int
    kept_bytes: int
    scratch_bytes: int
    packed_bytes: int
    gradient_bytes: int
    sparse_bytes: int
    state_bytes: int | None
    products: str
    stages: tuple[tuple[str, str, float], ...]
    instructions: tuple[InstructionReport, ...]
    replay: Mapping[str, Any]

    @property
    def write_bytes(self) -> int:
        """All that is written."""
        return self.scatter_bytes + self.other_write_bytes

    @property
    def tasks(self) -> int:
        """Tasks of all forward loops."""
        return sum(x.tasks for x in self.loops if not x.gradient)

    @property
    def task_bound(self) -> int:
        """The fewest that any policy needs."""
        return sum(x.bound for x in self.loops if not x.gradient)

    @property
    def backward_tasks(self) -> int:
        """Tasks of all loops of cotangents."""
        return sum(x.tasks for x in self.loops if x.gradient)

    @property
    def backward_bound(self) -> int:
        """The fewest that any policy needs."""
        return sum(x.bound for x in self.loops if x.gradient)

    @property
    def widths(self) -> tuple[int, ...]:
        """Vertices of every task of forward."""
        return tuple(w for x in self.loops if not x.gradient for w in x.widths)


@dataclass(frozen=True)
class Measured:
    """Times, whether there was an update, bytes of the optimiser's states, the engine's report."""

    times: Times
    updated: bool
    state_bytes: int | None
    report: dict[str, Any]


def measured(
    session: Session, batch: BatchLike, training: bool, with_loss: bool, rule: Rule | None
) -> Measured:
    """Runs ``batch`` some times, on the CPU collated anew each time, as in training.

    A training step is a whole one, at a learning rate of 0: then the weights of the next are
    packed again. Parameters keep every bit.
    """
    step = _step(session, training, with_loss, rule)
    for _ in range(DECIDED if session.overlaps else WARM):
        step.run(batch)
    found: list[Times] = []
    began, most = time.perf_counter(), 1 if session.overlaps else RUNS
    while len(found) < most and (not found or time.perf_counter() - began < SECONDS):
        again, collate, prepare = _again(session, batch)
        session.set_profiling(True)
        started = time.perf_counter()
        step.run(batch if session.overlaps else again)  # a device replays what it has seen
        wall = time.perf_counter() - started
        found.append(_times(session.report(training), wall, collate, prepare))
    found.sort(key=lambda t: t.wall)
    times = replace(found[len(found) // 2], runs=len(found))
    return Measured(times, step.updated, step.state_bytes, session.report(training))


def _times(r: dict[str, Any], wall: float, collate: float | None, prepare: float | None) -> Times:
    return Times(
        1,
        r["threads"] if r["shared_segments"] else 1,
        wall,
        r["pack_seconds"],
        tuple(s["seconds"] for s in r["stages"]),
        r["update_seconds"],
        r["product_seconds"],
        r["map_seconds"],
        r["other_seconds"],
        collate,
        prepare,
    )


def _again(session: Session, batch: BatchLike) -> tuple[BatchLike, float | None, float | None]:
    """The batch made anew of its graphs, if it can be, and the seconds of that."""
    select: Callable[[Sequence[int]], BatchLike] | None = getattr(batch, "select", None)
    if select is None:
        return batch, None, None
    started = time.perf_counter()
    again = select(range(batch.num_graphs))
    collated = time.perf_counter()
    session.prepare(again)
    return again, collated - started, time.perf_counter() - collated


@dataclass
class _Step:
    run: Callable[[BatchLike], object]
    state_bytes: int | None = None
    updated: bool = False


def _step(session: Session, training: bool, with_loss: bool, rule: Rule | None) -> _Step:
    if not training:
        return _Step(session.evaluate if with_loss else session.predict)
    parameters = list(session.parameters.values())
    states: list[list[Array]] = [[] for _ in parameters]
    hyper: dict[str, Any] = {"kind": "sgd"}
    found = _Step(lambda batch: None)
    if rule is not None:
        states, hyper = rule.init_states(parameters), rule.hyper(0)
        found.state_bytes = sum(array.nbytes for arrays in states for array in arrays)
    hyper |= {"lr": 0.0}

    def run(batch: BatchLike) -> None:
        result = session.step(batch, hyper, states)
        found.updated = bool(np.isfinite([result.loss, result.grad_norm]).all())

    found.run = run
    return found


@contextmanager
def unchanged(model: Model) -> Iterator[None]:
    """Puts the model back as it was: a step of 0 makes a positive zero of a negative one, and what
    types features of edges have is remembered."""
    parameters, types = list(model.parameters().values()), model._edge_types
    before = [p.current().copy() for p in parameters]
    try:
        yield
    finally:
        model._edge_types = types
        for p, old in zip(parameters, before, strict=True):
            if not np.array_equal(_bytes(p.current()), _bytes(old)):
                p.value[...] = old


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def run_lines(r: RunReport) -> list[str]:
    """The report as text."""
    return [
        f"== one step: {r.graphs} graphs, {r.vertices} vertices ({r.distinct} distinct), "
        f"{r.edges} edges",
        *_task_lines(r),
        *_time_lines(r),
        *_memory_lines(r),
        *_replay_lines(r.replay),
        *_stage_lines(r),
        *_traffic_lines(r),
    ]


def _task_lines(r: RunReport) -> Iterator[str]:
    forward = [loop for loop in r.loops if not loop.gradient]
    yield (
        f"tasks {r.tasks} in {len(forward)} loop{'s' * (len(forward) != 1)}; "
        f"no policy of batching needs fewer than {r.task_bound}"
    )
    if len(forward) < len(r.loops):
        yield f"backward {r.backward_tasks} more, in reverse; at least {r.backward_bound}"
    if r.widths:
        widths = f"widths {min(r.widths)} to {max(r.widths)}, mean {sum(r.widths) / r.tasks:.1f}"
        yield f"{widths}: {sum(r.widths)} vertices in {r.tasks} tasks"
    for loop in r.loops if len(forward) > 1 else ():
        yield f"  stage {loop.stage}, {loop.label}: {loop.tasks} tasks, at least {loop.bound}"


def _time_lines(r: RunReport) -> Iterator[str]:
    t = r.times

    def line(name: str, seconds: float, whole: float) -> str:
        return f"{name:9} {1e3 * seconds:10.3f} ms {100 * seconds / whole:5.1f} %"

    yield f"time of a step on the clock, median of {t.runs}: {1e3 * t.wall:.3f} ms"
    parts = {"packing": t.packing, "stages": t.stages, "update": t.update}
    for name, seconds in parts.items():
        if seconds:
            yield line(name, seconds, t.wall)
    if any(loop.gradient for loop in r.loops) and not r.updated:
        yield "no update: loss or gradient is not finite"
    others = "" if t.update or not r.updated else "update, "  # a device does not tell it apart
    yield (
        line("rest", t.rest, t.wall)
        + f": {others}features to rows, plan, binding, threads, results"
    )
    if t.collate is not None and t.prepare is not None:
        yield (
            f"before it, by a DataLoader while another runs: collation {1e3 * t.collate:.3f} ms, "
            f"copies and schedule {1e3 * t.prepare:.3f} ms"
        )
    total = t.products + t.maps + t.other
    if total:
        yield (
            f"work in the stages, added up over {t.threads} threads, "
            "which is not the time on the clock"
            if t.threads > 1
            else "work in the stages"
        )
        yield line("products", t.products, total)
        yield line("maps", t.maps, total)
        yield line("other", t.other, total)
    if r.products != "float32":
        yield f"products: {r.products}, by {_engine.isa(r.products)}"


def _memory_lines(r: RunReport) -> Iterator[str]:
    kept, ratio = "", ""
    if r.kept_bytes:
        kept = f"backward reads {r.kept_bytes:,} bytes of values; "
        ratio = f", {r.peak_bytes / r.kept_bytes:.2f} of it"
    peak = f"the peak, of values in the arena alone, is {r.peak_bytes:,}{ratio}"
    yield f"memory: {kept}{peak}; arena {r.arena_bytes:,}"
    besides = {
        "scratch of a thread": r.scratch_bytes,
        "packed weights": r.packed_bytes,
        "dense gradients": r.gradient_bytes,
        "rows of sparse gradients": r.sparse_bytes,
    }
    if r.state_bytes is not None:
        besides["states of the optimiser"] = r.state_bytes
    yield "besides: " + ", ".join(f"{name} {size:,}" for name, size in besides.items())


def _replay_lines(replay: Mapping[str, Any]) -> list[str]:
    if not replay:
        return []
    lines = [f"CUDA graphs: {replay['replays']} of {replay['runs']} runs before this one"]
    for g in replay["graphs"]:
        direct, graph = 1e3 * g["direct_seconds"], 1e3 * g["replay_seconds"]
        times = f": {direct:.3f} ms one by one, {graph:.3f} ms as a graph" if direct else ""
        lines.append(f"  {g['commands']} commands{times}")
    return lines + ([f"  none: {replay['trouble']}"] if replay["trouble"] else [])


def _stage_lines(r: RunReport) -> Iterator[str]:
    yield "stages"
    for number, (label, kind, seconds) in enumerate(r.stages):
        yield f"  {1e3 * seconds:9.3f} ms  {number:3} {kind} {label}".rstrip()


def _traffic_lines(r: RunReport) -> Iterator[str]:
    yield (
        f"gather reads {r.gather_bytes:,} bytes of states through edges, scatter writes "
        f"{r.scatter_bytes:,}; other reads through indices {r.other_read_bytes:,}, "
        f"other writes {r.other_write_bytes:,}"
    )
    yield f"  {'gather':>12} {'scatter':>12} {'other reads':>12} {'other writes':>12}"
    for i in r.instructions:
        sizes = i.gather, i.scatter, i.other_reads, i.other_writes
        if any(sizes):
            numbers = " ".join(f"{size:12,}" for size in sizes)
            yield f"  {numbers}  {i.kind} {i.label}".rstrip()
