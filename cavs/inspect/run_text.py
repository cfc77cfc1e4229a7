"""The report of one run of a batch as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cavs import _engine
from cavs.inspect.measure import RunReport


def run_lines(r: RunReport) -> list[str]:
    """Return the report as text."""
    return [
        f"== one step: {r.graphs} graphs, {r.vertices} vertices ({r.distinct} distinct), "
        f"{r.edges} edges",
        *_structure_lines(r),
        *_task_lines(r),
        *_time_lines(r),
        *_memory_lines(r),
        *_replay_lines(r.replay),
        *_stage_lines(r),
        *_traffic_lines(r),
    ]


def _structure_lines(r: RunReport) -> Iterator[str]:
    for name, (vertices, distinct) in r.structures.items():
        yield f"  {name}: {vertices} vertices ({distinct} distinct)"


def _task_lines(r: RunReport) -> Iterator[str]:
    forward = [loop for loop in r.loops if not loop.gradient]
    yield (
        f"tasks {r.tasks} in {len(forward)} loop{'s' * (len(forward) != 1)}; "
        f"no policy of batching needs fewer than {r.task_bound}"
    )
    if len(forward) < len(r.loops):
        yield f"backward {r.backward_tasks} more, in reverse; at least {r.backward_bound}"
    if (s := r.scheduling).tasks:
        each = ", ".join(f"{name} {count}" for name, count in s.tasks.items())
        yield f"by policy: {each}; at least {s.bound}; the order is {s.name!r}"
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
    others = "" if t.update or not r.updated else "update, "  # a device does not time it separately
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
