"""What the compiler made of a model, and what one run of it did: ``cavs.explain``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cavs import _engine
from cavs.compiler.pipeline import Compiled, Passes
from cavs.compiler.program import PRESENT_SPACE, Buffer, Program, Stage
from cavs.compiler.text import buffer_name, cuda_text, map_text, program_text, space_name
from cavs.config import require
from cavs.cuda.device import Device
from cavs.cuda.engine import DECIDED
from cavs.frontend.model import Model
from cavs.ir import BatchRule, Node
from cavs.passes.partition import Body
from cavs.runtime.bound import fewest_tasks
from cavs.runtime.session import Session
from cavs.runtime.variant import BatchLike


@dataclass(frozen=True)
class BodyReport:
    """Nodes that run together. when: eager, loop or lazy; why says what made it so."""

    when: str
    where: str
    why: str
    stage: int
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class BufferReport:
    """A buffer of the program; it lives from stage ``first`` to stage ``last``, inclusive.

    bytes: its rows in the batch at hand; 0 where it has no storage of its own in the arena.
    """

    name: str
    value: str
    role: str
    space: str
    width: int
    first: int
    last: int
    bytes: int


@dataclass(frozen=True)
class RunReport:
    """One run. Times in seconds; bytes as counted by the engine.

    tasks: batch tasks with work in a loop; task_bound: no policy of batching needs fewer, see
    `cavs.runtime.bound.fewest_tasks`. widths: vertices of every task of the schedule. distinct:
    vertices that ran, one for all copies. kept_bytes: values made before the first backward loop
    or gradient that it or what follows reads. instructions: label, kind, bytes read through
    indices, bytes written. A device times stages, not instructions: the seconds by kind are 0.
    replay: what became of CUDA graphs of the batch, see `cavs.Session.report`; empty on the CPU.
    """

    graphs: int
    vertices: int
    edges: int
    distinct: int
    tasks: int
    task_bound: int
    widths: tuple[int, ...]
    product_seconds: float
    map_seconds: float
    other_seconds: float
    pack_seconds: float
    gather_bytes: int
    write_bytes: int
    peak_bytes: int
    arena_bytes: int
    packed_bytes: int
    kept_bytes: int
    products: str
    stages: tuple[tuple[str, str, float], ...]
    instructions: tuple[tuple[str, str, int, int], ...]
    replay: Mapping[str, Any]


@dataclass(frozen=True)
class Explanation:
    """The pipeline of a model for batches like one batch; ``str()`` of it is the report.

    stages: name and text after every pass. kernels: number of the instruction and its lines.
    cuda: the same kernels as CUDA C, which nothing compiles yet.
    not_batched: what ran in more or smaller pieces than it might, and why.
    """

    stages: tuple[tuple[str, str], ...]
    bodies: tuple[BodyReport, ...]
    program: str
    kernels: dict[int, tuple[str, ...]]
    cuda: dict[int, str]
    buffers: tuple[BufferReport, ...]
    not_batched: tuple[str, ...] = ()
    run: RunReport | None = None

    def __repr__(self) -> str:
        return str(self)  # what a prompt shows

    def __str__(self) -> str:
        lines: list[str] = []
        for name, text in self.stages:
            lines += [f"== {name}", text, ""]
        lines.append("== partition")
        for b in self.bodies:
            lines += [f"{b.when:5} {b.where}: {b.why}", f"      {_counted(b.nodes)}"]
        lines += ["", "== program", self.program, "", "== cuda", *self.cuda.values()]
        lines.append("== buffers")
        lines.append(f"{'name':24} {'role':8} {'rows':10} {'width':>6} {'stages':>9} {'bytes':>12}")
        lines += [
            f"{b.name:24} {b.role:8} {b.space:10} {b.width:6} {f'{b.first}-{b.last}':>9} "
            f"{b.bytes:12,}  {b.value}"
            for b in self.buffers
        ]
        if self.run is not None:
            lines += ["", *_run_lines(self.run)]
        if self.not_batched:
            lines += ["", "== not batched", *self.not_batched]
        return "\n".join(lines)


def _counted(names: tuple[str, ...]) -> str:
    return ", ".join(f"{n} x{c}" if c > 1 else n for n, c in Counter(names).items())


def _run_lines(r: RunReport) -> list[str]:
    total = r.product_seconds + r.map_seconds + r.other_seconds
    lines = [
        f"== one step: {r.graphs} graphs, {r.vertices} vertices ({r.distinct} distinct), "
        f"{r.edges} edges",
        f"tasks {r.tasks} with work in a loop; no policy of batching needs fewer than "
        f"{r.task_bound}",
        f"widths {min(r.widths, default=0)} to {max(r.widths, default=0)}, "
        f"mean {sum(r.widths) / max(len(r.widths), 1):.1f}",
    ]
    for name, seconds in (
        ("products", r.product_seconds),
        ("maps", r.map_seconds),
        ("other", r.other_seconds),
    ):
        if total:
            lines.append(f"{name:9} {1e3 * seconds:10.3f} ms {100 * seconds / total:5.1f} %")
    if total:
        lines.append(f"{'packing':9} {1e3 * r.pack_seconds:10.3f} ms")
    lines.append(
        f"gather reads {r.gather_bytes:,} bytes through indices; {r.write_bytes:,} written"
    )
    ratio = f", {r.peak_bytes / r.kept_bytes:.2f} of it" if r.kept_bytes else ""
    lines.append(
        f"memory: backward reads {r.kept_bytes:,} bytes of values; the peak is "
        f"{r.peak_bytes:,}{ratio}; arena {r.arena_bytes:,}, packed weights {r.packed_bytes:,}"
    )
    if r.products != "float32":
        lines.append(f"products: {r.products}, by {_engine.isa(r.products)}")
    lines += _replay_lines(r.replay)
    lines += [f"  {1e3 * s:9.3f} ms  {kind} {label}".rstrip() for label, kind, s in r.stages]
    lines.append("bytes gathered and written")
    lines += [
        f"  {read:12,} {written:12,}  {kind} {label}".rstrip()
        for label, kind, read, written in r.instructions
        if read or written
    ]
    return lines


def _replay_lines(replay: Mapping[str, Any]) -> list[str]:
    if not replay:
        return []
    lines = [f"CUDA graphs: {replay['replays']} of {replay['runs']} runs before this one"]
    for g in replay["graphs"]:
        direct, graph = 1e3 * g["direct_seconds"], 1e3 * g["replay_seconds"]
        times = f": {direct:.3f} ms one by one, {graph:.3f} ms as a graph" if direct else ""
        lines.append(f"  {g['commands']} commands{times}")
    return lines + ([f"  none: {replay['trouble']}"] if replay["trouble"] else [])


def _after_gather(compiled: Compiled) -> set[Node]:
    """Nodes that depend on what another task made."""
    found: set[Node] = set()
    for n in compiled.graph.nodes():
        if n.op.name in ("gather", "gather_grad") or any(x in found for x in n.inputs):
            found.add(n)
    return found


def _body(body: Body, after: set[Node]) -> BodyReport:
    kind = "" if body.kind is None else f".{body.kind}"
    where = ("vertex" if body.base == "rows" else body.base) + kind
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


def _rows(program: Program, schedule: Any, present: Mapping[str, int], buffer: Buffer) -> int:
    space, batch = buffer.space, schedule.batch
    if space <= PRESENT_SPACE:
        return present[program.int_features[PRESENT_SPACE - space]]
    if buffer.held != "all":
        wanted = buffer.held == "inner"
        return sum(end - begin for key, (begin, end), _ in schedule.kinds if key % 2 == wanted)
    if space < 4:
        graphs = len(schedule.graph_offsets) - 1  # the caller's, where vertices are merged, too
        return int((1, graphs, batch.num_vertices, batch.num_edges)[space])
    key = program.kinds[(space - 4) // 2]
    for found, vertices, edges in schedule.kinds:
        if found == key:
            begin, end = edges if space % 2 else vertices
            return int(end - begin)
    return 0


def _buffers(
    program: Program, schedule: Any, present: Mapping[str, int], itemsize: int
) -> tuple[BufferReport, ...]:
    result = []
    for i, b in enumerate(program.buffers):
        stored = b.role == "arena" and b.last >= b.first
        size = _rows(program, schedule, present, b) * b.width * itemsize if stored else 0
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


def _working_kinds(program: Program, schedule: Any) -> set[int]:
    """Kinds of the schedule that have work in a forward loop."""
    loops = [s for s in program.stages if s.kind == "loop" and not s.gradient]
    working = {k for s in loops for k, body in enumerate(s.bodies) if body}
    keys = [key for key, _, _ in schedule.kinds]
    return {i for i, key in enumerate(keys) if program.kinds.index(key) in working}


def _not_batched(compiled: Compiled, schedule: Any, passes: Passes) -> tuple[str, ...]:
    program, lines = compiled.program, []
    working = _working_kinds(program, schedule)
    tasks = [t for t in schedule.tasks if t[0] in working]
    levels = Counter(level for _, level, _, _ in tasks)
    narrow = sum(1 for _, _, (begin, end), _ in tasks if end - begin == 1)
    if narrow:
        lines.append(
            f"{narrow} of {len(tasks)} tasks have one vertex: nothing else is ready at their level"
        )
    split = [level for level, count in levels.items() if count > 1]
    if split:
        lines.append(
            f"{len(split)} levels run as several tasks: their vertices are of different kinds, "
            f"which have different bodies ({sum(levels[x] - 1 for x in split)} more tasks)"
        )
    bodies: Counter[Node] = Counter(
        n for b in compiled.partition.bodies for n in b.nodes if n.op.rule is not BatchRule.REDUCE
    )
    repeated = [n for n, count in bodies.items() if count > 1]
    if repeated:
        lines.append(
            f"{len(repeated)} values are computed again where they are read, which costs less than "
            f"keeping them: {_counted(tuple(n.op.name for n in repeated))}"
        )
    copies = [i.label for i in program.instructions if i.label.startswith("copy ")]
    if copies:
        lines.append(
            f"{len(copies)} copies: two row maps that cannot be one, or a value two readers own: "
            + _counted(tuple(copies))
        )
    default = vars(Passes())
    off = [name for name, on in vars(passes).items() if default[name] and not on]
    if off:
        lines.append(f"passes switched off: {', '.join(off)}")
    return tuple(lines)


def _kept_bytes(program: Program, buffers: tuple[BufferReport, ...]) -> int:
    """Bytes of values made before the first backward loop or gradient that are read then."""
    starts = (n for n, s in enumerate(program.stages) if s.gradient or _sums_gradient(program, s))
    backward = next(starts, 0)
    return sum(b.bytes for b in buffers if b.first < backward <= b.last)


def _sums_gradient(program: Program, stage: Stage) -> bool:
    found = [program.instructions[n] for n in stage.body]
    outs = [program.buffers[i.out[0]] for i in found if i.out is not None]
    return any(b.role == "grad" for b in outs) or any(i.kind == "lookup_grad" for i in found)


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
) -> Explanation:
    """Compiles ``model`` for batches like ``batch`` and says what became of it.

    training: with backward, else the forward program of ``Session.evaluate``. run: also run it,
    once on the clock, on ``device`` with products in ``precision``, after a run to warm up or, on
    a device, as many as decide whether its commands are replayed; with LSTMs over chains by cuDNN
    where ``cudnn`` is "always". Nothing is updated. Raises what Session raises.
    """
    parameters = list(model.parameters().values())
    dtype = parameters[0].value.dtype if parameters else "float32"
    require(cudnn != "auto", "cudnn", cudnn, "'never' or 'always': one of the two is explained")
    session = Session(
        model,
        dtype=dtype,
        passes=passes,
        device=device,
        precision=precision,
        cudnn=cudnn,
        deterministic=deterministic,
    )
    compiled = session.compiled(batch, training=training)
    program = compiled.program
    schedule = session.schedule(batch, training=training)
    present = session.present(batch, training=training)
    buffers = _buffers(program, schedule, present, session.dtype.itemsize)
    after = _after_gather(compiled)
    report: RunReport | None = None
    if run:
        step = session.gradients if training else session.evaluate
        for _ in range(DECIDED if session.overlaps else 1):
            step(batch)
        session.set_profiling(True)
        step(batch)
        report = _ran(session.report(training), compiled, batch, schedule, buffers)
    return Explanation(
        stages=tuple(compiled.stages),
        bodies=tuple(_body(b, after) for b in compiled.partition.bodies),
        program=program_text(program),
        kernels={
            n: tuple(map_text(program, i))
            for n, i in enumerate(program.instructions)
            if i.kind == "map"
        },
        cuda={
            n: cuda_text(program, n) for n, i in enumerate(program.instructions) if i.kind == "map"
        },
        buffers=buffers,
        not_batched=_not_batched(compiled, schedule, session.passes),
        run=report,
    )


def _ran(
    r: dict[str, Any],
    compiled: Compiled,
    batch: BatchLike,
    schedule: Any,
    buffers: tuple[BufferReport, ...],
) -> RunReport:
    working = _working_kinds(compiled.program, schedule)
    tasks = [t for t in schedule.tasks if t[0] in working]
    topology = batch.topology
    return RunReport(
        graphs=int(topology.num_graphs),
        vertices=int(topology.num_vertices),
        edges=int(topology.num_edges),
        distinct=int(schedule.batch.num_vertices),
        tasks=len(tasks),
        task_bound=fewest_tasks(schedule, working),
        widths=tuple(r["widths"]),
        product_seconds=r["product_seconds"],
        map_seconds=r["map_seconds"],
        other_seconds=r["other_seconds"],
        pack_seconds=r["pack_seconds"],
        gather_bytes=r["gather_bytes"],
        write_bytes=r["write_bytes"],
        peak_bytes=r["peak_bytes"],
        arena_bytes=r["arena_bytes"],
        packed_bytes=r["packed_bytes"],
        kept_bytes=_kept_bytes(compiled.program, buffers),
        products=r["products"],
        stages=tuple((s["label"], s["kind"], s["seconds"]) for s in r["stages"]),
        instructions=tuple(
            (i["label"], i["kind"], i["gather_bytes"], i["write_bytes"]) for i in r["instructions"]
        ),
        replay=r.get("replay", {}),
    )
