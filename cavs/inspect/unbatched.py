"""Report which work of a batch ran in more or smaller pieces than it might, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from cavs.compiler.pipeline import Compiled, Passes
from cavs.compiler.program import Program
from cavs.inspect.loop_report import LoopReport
from cavs.ir import BatchRule, Node
from cavs.passes.merge_vertices import features_of_vertices, why_separate
from cavs.passes.specialise import Kind
from cavs.runtime import program_cache
from cavs.runtime.interface import BatchLike
from cavs.runtime.scheduling import Scheduling
from cavs.runtime.variant import Variant


def not_batched(
    compiled: Compiled,
    variant: Variant,
    batch: BatchLike,
    passes: Passes,
    loops: Sequence[LoopReport],
    report: dict[str, Any],
) -> tuple[str, ...]:
    """Return a line for each reason. report: of a session; empty where nothing ran."""
    return (
        *_narrow(compiled, loops, variant.decisions.scheduling),
        *_unmerged(variant, batch, passes),
        *_merged_features(variant),
        *_alone(report),
        *_repeated(compiled),
        *_switched_off(passes),
    )


def _narrow(
    compiled: Compiled, loops: Sequence[LoopReport], scheduling: Scheduling | None
) -> Iterator[str]:
    """Report tasks of one vertex and tasks of several kinds; loops with equal reports share it."""
    policy = scheduling.name if scheduling is not None and scheduling.policy is not None else ""
    alike: dict[tuple[str, ...], list[str]] = {}
    forward = [loop for loop in loops if not loop.gradient]
    for loop in forward:
        kinds = _kinds_in(loop, compiled.program)
        lines = tuple(_by_policy(loop, kinds, policy) if policy else _by_level(loop, kinds))
        alike.setdefault(lines, []).append(f"{loop.label} (stage {loop.stage})")
    for lines, labels in alike.items():
        where = f"{', '.join(labels)}: " if len(forward) > 1 else ""
        yield from (where + line for line in lines)


def _kinds_in(loop: LoopReport, program: Program) -> str:
    names = program.optional, program.types, program.structures.names
    return "; ".join(Kind.of(key, *names).text(program.optional) for key in loop.keys)


def _by_policy(loop: LoopReport, kinds: str, policy: str) -> Iterator[str]:
    """Report a loop whose levels are groups of tasks in the order of a policy."""
    narrow = sum(width == 1 for width in loop.widths)
    if narrow:
        yield (
            f"{narrow} of {loop.tasks} tasks have one vertex: no other vertex of its kind was "
            f"ready at the turn that the policy {policy!r} gave it"
        )
    if len(loop.keys) > 1:
        yield (
            f"{len(loop.keys)} kinds of vertices, which have different bodies, run in {loop.tasks} "
            f"tasks in the order of the policy {policy!r}, and no order needs fewer than "
            f"{loop.bound}: {kinds}"
        )


def _by_level(loop: LoopReport, kinds: str) -> Iterator[str]:
    levels = Counter(loop.levels)
    narrow = [lv for lv, width in zip(loop.levels, loop.widths, strict=True) if width == 1]
    alone = sum(1 for level in narrow if levels[level] == 1)
    nothing = "nothing else is ready at their level"
    another = "what else is ready at their level is of another kind"
    if narrow:
        why = {0: another, len(narrow): nothing}.get(
            alone, f"{alone} because {nothing}, {len(narrow) - alone} because {another}"
        )
        yield f"{len(narrow)} of {loop.tasks} tasks have one vertex: {why}"
    split = [level for level, count in levels.items() if count > 1]
    if split:
        yield (
            f"{len(split)} levels run as several tasks: their vertices are of different kinds, "
            f"which have different bodies ({sum(levels[x] - 1 for x in split)} more tasks): {kinds}"
        )


def _unmerged(variant: Variant, batch: BatchLike, passes: Passes) -> Iterator[str]:
    """Report vertices that equal another one and are not merged with it."""
    several: Any = batch
    graphs = {"": batch} if batch.structures is None else several.graphs
    with_cells = {slot.structure.of for slot in variant.traced.graph.slots}
    for name in sorted(with_cells.difference(variant.merged_structures)):
        why = _why_separate(variant, batch, passes, name)
        names = features_of_vertices(variant.traced.graph, name)
        of = f" of {name}" if name else ""
        if any(x.startswith("#") for x in names):
            yield f"equal vertices{of} are not looked for: {why}"
            continue
        vertices = int(graphs[name].topology.num_vertices)
        equal = vertices - int(graphs[name].merged(names).num_vertices)
        if equal:
            same = "although another has the same features and children"
            yield f"{equal} of {vertices} vertices{of} run {same}: {why}"


def _why_separate(variant: Variant, batch: BatchLike, passes: Passes, structure: str) -> str:
    """Return the reason why equal vertices of a structure are not merged; "" of graphs."""
    if variant.key.recurrent:
        return "LSTMs over chains run as a whole"
    if not passes.merge_vertices:
        return "the pass merge_vertices is off"
    why = why_separate(variant.traced.graph, variant.key.training, structure)
    if not why and batch.topology.num_vertices < program_cache.MIN_MERGED:
        least = program_cache.MIN_MERGED
        return f"in a batch of fewer than {least} vertices looking for them costs too much"
    return why or "so few are equal that the distinct ones are no program of their own"


def _merged_features(variant: Variant) -> Iterator[str]:
    merged = variant.decisions.merged_features
    if merged:
        names = ", ".join(sorted(merged))
        yield (
            f"with or without {names} makes no kinds any more, there were too many: "
            "vertices without read rows of zeros"
        )


def _alone(report: dict[str, Any]) -> Iterator[str]:
    threads = report.get("threads", 0)
    if threads > 1 and report["segments"] and not report["shared_segments"]:
        work = f"about {1e6 * report['estimated_seconds']:.0f} microseconds of work"
        yield f"one thread of {threads} runs all stages: {work} are too little to share"


def _repeated(compiled: Compiled) -> Iterator[str]:
    bodies: Counter[Node] = Counter(
        n for b in compiled.partition.bodies for n in b.nodes if n.op.rule is not BatchRule.REDUCE
    )
    repeated = [n for n, count in bodies.items() if count > 1]
    if repeated:
        yield (
            f"{len(repeated)} values are computed again where they are read, which costs less than "
            f"keeping them: {counted(n.op.name for n in repeated)}"
        )
    copies = [i.label for i in compiled.program.instructions if i.label.startswith("copy ")]
    if copies:
        yield (
            f"{len(copies)} copies: two row maps that cannot be one, or a value two readers own: "
            f"{counted(copies)}"
        )


def _switched_off(passes: Passes) -> Iterator[str]:
    default = vars(Passes())
    off = [name for name, on in vars(passes).items() if default[name] and not on]
    if off:
        yield f"passes switched off: {', '.join(off)}"
    if passes.hoist_products_to_leaves and not passes.specialise:
        needed = "it needs kinds of vertices, which specialise makes"
        yield f"hoist_products_to_leaves is off, too: {needed}"


def counted(names: Iterable[str]) -> str:
    """Return names with their counts: ``add, mul x2``."""
    return ", ".join(f"{n} x{c}" if c > 1 else n for n, c in Counter(names).items())
