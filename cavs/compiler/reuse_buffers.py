"""Pick the order of stages with the lowest peak memory, and write new values over dead ones.

This works on a finished program. The engine lays buffers out by the stages they live in; here a
buffer that is written where another one is read last becomes the same buffer, row by row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from cavs.compiler.alias_buffers import Alias, alias_buffers
from cavs.compiler.buffer_accesses import BufferAccess, BufferAccesses, accesses_of, is_dead
from cavs.compiler.coalesce_operands import adjacent_buffers
from cavs.compiler.memory import group_of, peak
from cavs.compiler.order_stages import group_independent_sums, stores_last, sums_first
from cavs.compiler.program import (
    Buffer,
    Program,
    Stage,
    clone,
    instructions_of,
    kind_of,
    kinds_in,
    read,
    relation_of,
    structure_of,
    written,
)

EARLY = 1.05  # reduction of the peak for which products of gradients need not come last


def reuse_buffers(program: Program, concurrent: bool = False) -> None:
    """Reorder stages and reuse buffers of ``program``, in place; no value changes.

    The way with the lowest peak is chosen; early sums only where they save enough. concurrent: sums
    run concurrently with loops, so that no buffer is reused by columns, sums come late, and buffers
    that `coalesce_operands` may join are not written over others.
    """
    for stage in program.stages:
        for body in (stage.body, *stage.bodies):
            stores_last(program, body)
    late = _ordered(program, early=False)
    uses = accesses_of(late)
    if concurrent:
        alike = {n for run in adjacent_buffers(program) for n in run}
        best, _ = _shared(late, uses, False, alike)
    else:
        best, slices = _shared(late, uses, True)
        if slices:
            whole, _ = _shared(late, uses, False)
            slices = peak(best) < peak(whole)
            best = best if slices else whole
        first = _ordered(program, early=True)
        if [_order(s) for s in first.stages] != [_order(s) for s in late.stages]:
            early, _ = _shared(first, accesses_of(first), slices)
            best = early if EARLY * peak(early) < peak(best) else best
    program.buffers, program.instructions = best.buffers, best.instructions
    program.stages, program.loss, program.outputs = best.stages, best.loss, best.outputs


def keep_buffers(program: Program) -> None:
    """Let every buffer live in all stages, for programs whose memory is not planned."""
    for b in program.buffers:
        b.first, b.last = 0, max(len(program.stages) - 1, 0)


def _ordered(program: Program, early: bool) -> Program:
    """Return the program with ordered stages; instructions and buffers keep their numbers."""
    buffers, stages = [clone(b) for b in program.buffers], list(program.stages)
    result = replace(program, buffers=buffers, stages=stages)
    sums_first(result, early)
    group_independent_sums(result)
    _lifetimes(result)
    return result


def _order(stage: Stage) -> tuple[list[int], list[list[int]]]:
    return stage.body, stage.bodies


def _shared(
    program: Program, uses: BufferAccesses, slices: bool, alike: Collection[int] = ()
) -> tuple[Program, bool]:
    """Return a copy that reuses dead buffers, and whether any value reuses columns of a wider one.

    uses: of the program. Only with ``slices`` do values reuse columns.
    """
    buffers, instructions = [clone(b) for b in program.buffers], list(program.instructions)
    result = replace(program, buffers=buffers, instructions=instructions)
    sliced = _share(result, uses.copy(), slices, alike)
    _lifetimes(result)
    return result, sliced


def _lifetimes(program: Program) -> None:
    """Set the first and last stage of every buffer; results are alive to the end."""
    for b in program.buffers:
        b.first, b.last = 1 << 30, -1
    for at, stage in enumerate(program.stages):
        found = [program.instructions[n] for n in instructions_of(stage)]
        for x in {x for i in found for x in (*read(i), *written(i))}:
            b = program.buffers[x]
            b.first, b.last = min(b.first, at), at
    for x in _results(program):
        b = program.buffers[x]
        b.last = max(len(program.stages) - 1, 0)
        b.first = min(b.first, b.last)


def _results(program: Program) -> set[int]:
    return {*program.outputs.values(), *([program.loss] if program.loss >= 0 else [])}


def _share(program: Program, uses: BufferAccesses, slices: bool, alike: Collection[int]) -> bool:
    backward = _backward(program)
    fixed = _results(program)
    sliced = False
    aliases: dict[int, Alias] = {}
    alike_rows: dict[tuple[int | None, int], list[int]] = defaultdict(list)
    for n, b in enumerate(program.buffers):
        if b.role == "arena" and b.space > 1 and n not in fixed and uses[n]:
            alike_rows[relation_of(b.space), structure_of(program, b.space)].append(n)
    for group in alike_rows.values():
        by_width = sorted(group, key=lambda n: (program.buffers[n].width, n))
        for new in sorted(group, key=lambda n: (program.buffers[n].first, n)):
            candidates = [n for n in by_width if n != new and n not in aliases]
            others = backward if new not in alike else len(program.stages)
            taken = _reusable(program, new, candidates, uses, others, slices)
            if not taken:
                continue
            (at, column), b = taken[0], program.buffers[new]
            home = program.buffers[at]
            sliced |= _is_narrow(b, home)
            if kind_of(b.space) is None and kind_of(home.space) is not None:
                home.space, home.held = b.space, b.held
            for n, start in (*((n, 0) for n, _ in taken[1:]), (new, column)):
                aliases[n] = at, start
                uses[at] = uses[at] + [u.moved(start) for u in uses[n]]
                home.first = min(home.first, program.buffers[n].first)
                home.last = max(home.last, program.buffers[n].last)
            home.name += f" > {b.name}"
    alias_buffers(program, aliases)
    return sliced


def _is_narrow(b: Buffer, home: Buffer) -> bool:
    """True if a buffer is so much wider that only columns of it are reused."""
    return 4 * b.width < 3 * home.width


def _backward(program: Program) -> int:
    """Return the stage from which on memory no longer grows: all values for backward exist."""
    loops = [(n, s.gradient) for n, s in enumerate(program.stages) if s.type == "loop"]
    if not any(gradient for _, gradient in loops):
        return len(program.stages)
    return max((n + 1 for n, gradient in loops if not gradient), default=loops[0][0])


def _reusable(
    program: Program,
    new: int,
    candidates: Iterable[int],
    uses: BufferAccesses,
    backward: int,
    slices: bool,
) -> list[Alias]:
    """Return those of ``candidates``, narrow ones first, that ``new`` reuses.

    In this order: a buffer of the same rows, one per kind, one of more rows, and, with ``slices``,
    columns of a wider one. Buffers of other rows are reused only in backward, where memory no
    longer grows, so that unneeded rows and stages cost nothing.
    """
    b = program.buffers[new]
    writes = [u for u in uses[new] if u.write]
    begin = min((u.stage for u in writes), default=0)
    narrow = []
    others = []
    for old in candidates:
        a = program.buffers[old]
        if a.first > b.first or a.width < b.width or a.last < begin:
            continue
        if _is_narrow(b, a):
            narrow.append((old, a))
        elif not (a.space == b.space and a.held == b.held):
            others.append((old, a))
        elif is_dead(writes, uses[old], kind_of(a.space), 0, b.width):
            return [(old, 0)]
    if b.first >= backward:
        found = _others_reusable(program, b, writes, others, uses)
        if found is not None:
            return found
    if slices:
        for old, a in narrow:
            kind = kind_of(a.space)
            alike = a.space == b.space and a.held == b.held
            if not (alike or (kind is None and _holds(program, a, b))):
                continue
            for start in sorted({u.columns.start for u in uses[old] if len(u.columns) == b.width}):
                if is_dead(writes, uses[old], kind, start, b.width):
                    return [(old, start)]
    return []


def _others_reusable(
    program: Program,
    b: Buffer,
    writes: Sequence[BufferAccess],
    candidates: Iterable[tuple[int, Buffer]],
    uses: BufferAccesses,
) -> list[Alias] | None:
    """Return buffers of other rows that ``b`` reuses: one per kind, or one of more rows."""
    wider: list[int] = []
    of_kind: dict[int, list[int]] = defaultdict(list)
    for old, a in candidates:
        kind = kind_of(a.space)
        holds = kind is None and _holds(program, a, b)
        if not (holds or (kind is not None and a.width == b.width)):
            continue
        if is_dead(writes, uses[old], kind, 0, b.width):
            (wider if kind is None else of_kind[kind]).append(old)
    edges = relation_of(b.space) == 0  # vertices without children have none
    kinds = [(k, program.kinds[k]) for k in kinds_in(program, b.space)]
    needed = [
        k
        for k, key in kinds
        if (group_of(key) == "inner" if edges else b.held in ("all", group_of(key)))
    ]
    if kind_of(b.space) is None and all(of_kind[k] for k in needed):
        return [(of_kind[k][0], 0) for k in needed]
    return [(wider[0], 0)] if wider else None


def _holds(program: Program, a: Buffer, b: Buffer) -> bool:
    """True if ``a``, of all kinds, has the rows of ``b``."""
    kind = kind_of(b.space)
    rows = b.held if kind is None else group_of(program.kinds[kind])
    return a.held in ("all", rows)
