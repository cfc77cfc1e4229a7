"""Report how a model is compiled and how one batch runs: ``cavs.explain``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from cavs.compiler.memory import first_backward
from cavs.compiler.pipeline import Compiled, Passes
from cavs.compiler.program import Buffer, Program
from cavs.compiler.text import buffer_name, cuda_text, map_text, program_text, space_name
from cavs.config import require
from cavs.cuda.device import Device
from cavs.cuda.engine import persistent_plan
from cavs.cuda.persistent import describe
from cavs.cuda.storage import half_buffers
from cavs.data.source import as_path
from cavs.data.whole_file import write_whole
from cavs.frontend.model import Model
from cavs.inspect.explained_model import functions_in, kinds_and_tasks
from cavs.inspect.explanation import page
from cavs.inspect.explanation_report import (
    BodyReport,
    BufferReport,
    ExplanationReport,
    StageReport,
)
from cavs.inspect.loop_report import LoopReport, loops_of
from cavs.inspect.measure import Measured, Rule, RunReport, measured, unchanged
from cavs.inspect.run_text import run_lines
from cavs.inspect.traffic import traffic_of
from cavs.inspect.unbatched import counted, not_batched
from cavs.ir import Node
from cavs.passes.partition import Body
from cavs.runtime.interface import BatchLike
from cavs.runtime.scheduling import Scheduling
from cavs.runtime.session import Session
from cavs.runtime.space_rows import BatchRows, rows_of


class _Mode(TypedDict):
    training: bool
    with_loss: bool


@dataclass(frozen=True)
class Explanation(ExplanationReport):
    """The pipeline of a model for batches like one batch; ``str()`` of it is the report.

    `html` is the report as a page, which `write_html` writes.
    """

    def html(self) -> str:
        """Return the report as one HTML page, which loads nothing and needs no script."""
        return page(self)

    def write_html(self, path: str | os.PathLike[str]) -> Path:
        """Write the page of `html` into the file ``path``, whole or not at all; return its path.

        ConfigError if that cannot be written.
        """
        target = as_path(path)
        write_whole(target, self.html())
        return target

    def __repr__(self) -> str:
        return str(self)  # for a prompt

    def __str__(self) -> str:
        lines: list[str] = []
        for name, text in self.stages:
            lines += [f"== {name}", text, ""]
        lines.append("== partition")
        for b in self.bodies:
            lines += [f"{b.when:5} {b.where}: {b.why}", f"      {counted(b.nodes)}"]
        lines += ["", "== program", self.program, "", "== cuda", *self.cuda.values()]
        if self.persistent:
            lines += ["== persistent", *self.persistent, ""]
        lines.append("== buffers")
        lines.append(f"{'name':24} {'role':8} {'rows':10} {'width':>6} {'stages':>9} {'bytes':>12}")
        lines += [
            f"{b.name:24} {b.role:8} {b.space:10} {b.width:6} {f'{b.first}-{b.last}':>9} "
            f"{b.bytes:12,}  {b.value}"
            for b in self.buffers
        ]
        if self.run is not None:
            lines += ["", *run_lines(self.run)]
        if self.not_batched:
            lines += ["", "== not batched", *self.not_batched]
        return "\n".join(lines)


def _after_gather(compiled: Compiled) -> set[Node]:
    """Return the nodes that depend on values of other tasks."""
    found: set[Node] = set()
    for n in compiled.graph.nodes():
        if n.op.reads_slot or any(x in found for x in n.inputs):
            found.add(n)
    return found


def _body(body: Body, after: set[Node]) -> BodyReport:
    where = str(body.space.at("vertex") if body.space.base == "rows" else body.space)
    names = tuple(n.op.name for n in body.nodes)
    waits = any(n in after for n in body.nodes)
    if body.loop is not None:
        moved = sum(n not in after for n in body.nodes)
        why = f"between gather and scatter of {body.loop}: a task at a time"
        why += f"; {moved} moved in or repeated to save memory traffic" if moved else ""
        return BodyReport("loop", where, why, body.stage, names)
    if body.reduction:
        (n,) = body.nodes
        what = "lookup gradient" if n.op.name == "lookup_grad" else "sum over rows"
        why = f"{what}: once over all rows" + (", after the last task" if waits else "")
    elif waits:
        why = "after gather, but nothing of it is scattered: once over all rows"
    else:
        why = "no gather before it: once over all rows, before the first task"
    return BodyReport("lazy" if waits else "eager", where, why, body.stage, names)


def _rows_held(program: Program, rows: BatchRows, buffer: Buffer) -> int:
    if buffer.held == "all":
        return rows_of(program, rows, buffer.space)
    wanted = buffer.held == "inner"
    return sum(end - begin for key, (begin, end), _ in rows.schedule.kinds if key % 2 == wanted)


def _buffers(program: Program, rows: BatchRows, itemsize: int) -> tuple[BufferReport, ...]:
    result = []
    for i, b in enumerate(program.buffers):
        stored = b.role == "arena" and b.last >= b.first
        size = _rows_held(program, rows, b) * b.width * itemsize if stored else 0
        result.append(
            BufferReport(
                buffer_name(program, i),
                b.name,
                b.role,
                space_name(program, b.space) if b.held == "all" else b.held,
                b.width,
                b.first,
                b.last,
                size,
            )
        )
    return tuple(result)


def explain(
    model: Model,
    batch: BatchLike,
    *,
    training: bool = True,
    run: bool = True,
    passes: Passes | None = None,
    device: str | Device = "cpu",
    precision: str = "float32",
    cudnn: str = "never",
    deterministic: bool = False,
    optimizer: Rule | None = None,
    scheduling: str = "auto",
) -> Explanation:
    """Compile ``model`` for batches like ``batch`` and report the result.

    training: with backward, else the forward program of ``Session.evaluate``, or, for a model
    without a loss, of ``Session.predict``. run: also time a run on ``device`` with
    products in ``precision``, after runs to warm up or, on a device, as many as decide whether its
    commands are replayed; with LSTMs over chains by cuDNN where ``cudnn`` is "always". A run of
    training is a whole step of ``optimizer``, such as ``cavs.optim.Adam(0.001)``, else of SGD, at a
    learning rate of 0: parameters keep every bit. scheduling: as for ``Session``. Raises what
    Session raises.
    """
    parameters = list(model.parameters().values())
    dtype = parameters[0].value.dtype if parameters else "float32"
    require(cudnn != "auto", "cudnn", cudnn, "'never' or 'always': one of the two is explained")
    fits = optimizer is None or hasattr(optimizer, "hyper")
    require(fits, "optimizer", optimizer, "a cavs.optim optimiser")
    session = Session(
        model,
        dtype=dtype,
        passes=passes,
        device=device,
        precision=precision,
        cudnn=cudnn,
        deterministic=deterministic,
        scheduling=scheduling,
    )
    with_loss = training or type(model).loss is not Model.loss
    how: _Mode = {"training": training, "with_loss": with_loss}
    found: Measured | None = None
    with unchanged(model):
        compiled = session.compiled(batch, **how)
        rows = session.batch_rows(batch, **how)
        if run:
            found = measured(session, batch, training, with_loss, optimizer)
            scheduled = session.compare_scheduling(batch, **how)
    program, schedule = compiled.program, rows.schedule
    buffers = _buffers(program, rows, session.dtype.itemsize)
    loops = loops_of(program, schedule)
    variant = session.latest(training)
    assert variant is not None
    after = _after_gather(compiled)
    maps = [n for n, i in enumerate(program.instructions) if i.traits.fused]
    kinds, tasks = kinds_and_tasks(program, schedule, loops)
    start = first_backward(program)
    return Explanation(
        stages=tuple(compiled.stages),
        bodies=tuple(_body(b, after) for b in compiled.partition.bodies),
        program=program_text(program),
        kernels={n: tuple(map_text(program, program.instructions[n])) for n in maps},
        cuda={n: cuda_text(program, n) for n in maps if not program.instructions[n].outward},
        buffers=buffers,
        not_batched=not_batched(
            compiled, variant, batch, session.passes, loops, found.report if found else {}
        ),
        persistent=_persistent(session, program, precision),
        model=type(model).__name__,
        training=training,
        functions=functions_in(model),
        kinds=kinds,
        tasks=tasks,
        order=tuple(
            StageReport(s.label, s.type, 0 < start <= n) for n, s in enumerate(program.stages)
        ),
        run=None
        if found is None
        else _ran(found, session, compiled, batch, scheduled, rows, buffers, loops),
    )


def _persistent(session: Session, program: Program, precision: str) -> tuple[str, ...]:
    """Return the loops that a kernel can walk on the device of a session; none on the CPU."""
    device = session.device
    if device is None:
        return ()
    real = "double" if session.dtype.itemsize == 8 else "float"
    half = half_buffers(program) if precision == "bfloat16" else ()
    lines = describe(persistent_plan(device, program, real, precision, half))
    used = "walked by one kernel" if device.persistent == "always" else "launched one by one"
    head = f"persistent={device.persistent!r}: tasks of up to {device.narrow_rows} rows are {used}"
    return (head, *lines) if lines else ()


def _ran(
    found: Measured,
    session: Session,
    compiled: Compiled,
    batch: BatchLike,
    scheduled: Scheduling,
    rows: BatchRows,
    buffers: tuple[BufferReport, ...],
    loops: tuple[LoopReport, ...],
) -> RunReport:
    r, program, size = found.report, compiled.program, session.dtype.itemsize
    moved = traffic_of(program, rows, r["instructions"], size)
    grads = program.gradients
    tables = {
        i.argument2: line["write_bytes"]
        for i, line in zip(program.instructions, r["instructions"], strict=True)
        if i.traits.sparse_gradient and grads[program.parameters[i.argument2]] == "sparse"
    }
    topology = batch.topology
    return RunReport(
        graphs=int(topology.num_graphs),
        vertices=int(topology.num_vertices),
        edges=int(topology.num_edges),
        distinct=int(rows.schedule.batch.num_vertices),
        loops=loops,
        times=found.times,
        updated=found.updated,
        gather_bytes=r["gather_bytes"],
        scatter_bytes=sum(i.scatter for i in moved),
        other_read_bytes=sum(i.other_reads for i in moved),
        other_write_bytes=sum(i.other_writes for i in moved),
        peak_bytes=r["peak_bytes"],
        arena_bytes=r["arena_bytes"],
        kept_bytes=sum(b.bytes for b in buffers if b.first < first_backward(program) <= b.last),
        scratch_bytes=r["scratch_bytes"],
        packed_bytes=r["packed_bytes"],
        gradient_bytes=sum(
            p.current().size * size
            for name, p in session.parameters.items()
            if grads.get(name) == "dense"
        ),
        sparse_bytes=sum(tables.values()),
        state_bytes=found.state_bytes,
        products=r["products"],
        stages=tuple(
            (s["label"], s["kind"], seconds)
            for s, seconds in zip(r["stages"], found.times.each, strict=True)
        ),
        instructions=moved,
        replay=r.get("replay", {}),
        scheduling=scheduled,
        structures=_structures(batch, rows.schedule),
    )


def _structures(batch: BatchLike, schedule: Any) -> dict[str, tuple[int, int]]:
    """Return the number of vertices of each structure of samples, and of those that run."""

    def first_vertices(of: Any) -> list[int]:
        found: list[int] = of.vertex_offsets[:: of.num_graphs].tolist()
        return found

    if batch.structures is None:
        return {}
    every, rows = (np.diff(first_vertices(x)) for x in (batch.topology, schedule.batch))
    numbers = zip(every.tolist(), rows.tolist(), strict=True)
    return dict(zip(batch.structures, numbers, strict=True))
