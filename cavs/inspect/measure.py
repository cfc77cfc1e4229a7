"""Time one run of a batch: inference, or a training step that changes no parameter."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from cavs.cuda.engine import DECIDED
from cavs.frontend.model import Model
from cavs.frontend.parameter import Parameter
from cavs.inspect.loop_report import LoopReport
from cavs.inspect.traffic import InstructionReport
from cavs.runtime.interface import Array, BatchLike
from cavs.runtime.scheduling import Scheduling
from cavs.runtime.session import Session

WARM = 2  # runs that are not timed
RUNS, SECONDS = 9, 0.3  # limits of timed runs


class Rule(Protocol):
    """The part of an optimiser that a step needs; those of cavs.optim implement it."""

    def hyper(self, step: int) -> dict[str, Any]:
        """Return the numbers of an update."""
        ...

    def init_states(self, parameters: Sequence[Parameter]) -> list[list[Array]]:
        """Return fresh state arrays of all parameters."""
        ...


@dataclass(frozen=True)
class Times:
    """Seconds of one run, the median of ``runs``; 0 where the engine does not time it.

    wall: the whole call. packing: weights that the last update has changed. each: every stage of
    forward and backward, `stages` all of them. update: gradient norm, clipping, optimiser. The
    `rest` of wall permutes features to rows, plans, binds, and starts and stops threads. Two times
    are not part of it, as a DataLoader spends them in the background: collate, and prepare, which
    merges equal vertices and schedules; None where the batch cannot be collated again. products,
    maps and other are summed over all ``threads``.
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
        """Seconds of forward and backward."""
        return sum(self.each)

    @property
    def rest(self) -> float:
        """Seconds of wall that are in none of its parts."""
        return max(self.wall - self.packing - self.stages - self.update, 0.0)


@dataclass(frozen=True)
class RunReport:
    """One run of a batch, for training a whole step. Times in seconds, sizes in bytes.

    loops: with their tasks; tasks counts those of forward, backward_tasks those of cotangents, and
    no policy of batching needs fewer than task_bound and backward_bound. widths: vertices of each
    task of forward. distinct: vertices that ran, one for all equal ones. structures: of samples
    that have several, by name, the number of vertices and of those that ran.
    gather, scatter and other bytes: see `cavs.inspect.traffic.InstructionReport`.
    kept_bytes: values computed before backward that it reads. peak_bytes: the largest size of
    values in the arena that are alive at once; features, parameters and others are not in it.
    scratch_bytes: of one thread. gradient_bytes: dense gradients. sparse_bytes: gradients of rows
    of tables. state_bytes: of the optimiser, None if none is known. A device times stages, not
    instructions. replay: CUDA graphs of the batch, see `cavs.Session.report`; empty on the CPU.
    updated: True if the step updated parameters; it does not where loss or gradient is not finite,
    and inference never does. scheduling: tasks of vertices with children by each policy, where they
    are of several kinds, and the one that ran; see `cavs.runtime.scheduling`.
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
    scheduling: Scheduling
    structures: Mapping[str, tuple[int, int]]

    @property
    def write_bytes(self) -> int:
        """Bytes of all writes."""
        return self.scatter_bytes + self.other_write_bytes

    @property
    def tasks(self) -> int:
        """Number of tasks of all forward loops."""
        return sum(x.tasks for x in self.loops if not x.gradient)

    @property
    def task_bound(self) -> int:
        """Lower bound on these tasks for any policy."""
        return sum(x.bound for x in self.loops if not x.gradient)

    @property
    def backward_tasks(self) -> int:
        """Number of tasks of all loops of cotangents."""
        return sum(x.tasks for x in self.loops if x.gradient)

    @property
    def backward_bound(self) -> int:
        """Lower bound on these tasks for any policy."""
        return sum(x.bound for x in self.loops if x.gradient)

    @property
    def widths(self) -> tuple[int, ...]:
        """Number of vertices of every task of forward."""
        return tuple(w for x in self.loops if not x.gradient for w in x.widths)


class Measured(NamedTuple):
    """Times, True if there was an update, bytes of the optimiser's states, report of the median."""

    times: Times
    updated: bool
    state_bytes: int | None
    report: dict[str, Any]


def measured(
    session: Session, batch: BatchLike, training: bool, with_loss: bool, rule: Rule | None
) -> Measured:
    """Run ``batch`` several times, on the CPU collated again each time, as in training.

    A training step is a whole one, at a learning rate of 0, so that the next one packs weights
    again. Parameters keep every bit.
    """
    step = _step(session, training, with_loss, rule)
    for _ in range(DECIDED if session.overlaps else WARM):
        step.run(batch)
    found: list[tuple[Times, dict[str, Any]]] = []
    began, most = time.perf_counter(), 1 if session.overlaps else RUNS
    while len(found) < most and (not found or time.perf_counter() - began < SECONDS):
        again, collate, prepare = _again(session, batch, training)
        session.set_profiling(True)
        started = time.perf_counter()
        step.run(batch if session.overlaps else again)  # a device replays known batches
        wall = time.perf_counter() - started
        report = session.report(training)
        found.append((_times(report, wall, collate, prepare), report))
    found.sort(key=lambda run: run[0].wall)
    median, report = found[len(found) // 2]
    times = replace(median, runs=len(found))
    return Measured(times, step.updated, step.state_bytes, report)


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


def _again(
    session: Session, batch: BatchLike, training: bool
) -> tuple[BatchLike, float | None, float | None]:
    """Collate the graphs of the batch again, if possible; return the seconds that it took."""
    select: Callable[[Sequence[int]], BatchLike] | None = getattr(batch, "select", None)
    if select is None:
        return batch, None, None
    started = time.perf_counter()
    again = select(range(batch.num_graphs))
    collated = time.perf_counter()
    session.prepare(again, training)
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
    """Restore the model afterwards.

    A step of 0 turns negative zeros positive, and types of edge features are stored in the model.
    """
    parameters, types = list(model.parameters().values()), vars(model).get("_feature_types")
    before = [p.current().copy() for p in parameters]
    try:
        yield
    finally:
        if types is not None:
            model._feature_types = types
        else:  # the class attribute, which cannot be copied
            vars(model).pop("_feature_types", None)
        for p, old in zip(parameters, before, strict=True):
            if not np.array_equal(_bytes(p.current()), _bytes(old)):
                p.value[...] = old


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
