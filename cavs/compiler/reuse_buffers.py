"""Pick the order of stages with the lowest peak memory, and write new values over dead ones.

This works on a finished program. The engine lays buffers out by the stages they live in; here a
buffer that is written where another one is read last becomes the same buffer, row by row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from cavs.compiler.alias_buffers import Alias, alias_buffers
from cavs.compiler.coalesce_operands import adjacent_buffers
from cavs.compiler.memory import group_of, peak
from cavs.compiler.order_stages import group_independent_sums, stores_last, sums_first
from cavs.compiler.program import (
    Buffer,
    Instruction,
    Operand,
    Program,
    Stage,
    Store,
    clone,
    instructions_of,
    kind_of,
    read,
    written,
)
from cavs.passes.access import LOCAL_ARRAYS, TO_CHILDREN, TO_PARENTS

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
    if concurrent:
        best, _ = _shared(late, False, {n for run in adjacent_buffers(program) for n in run})
    else:
        best, slices = _shared(late, True)
        if slices:
            whole, _ = _shared(late, False)
            slices = peak(best) < peak(whole)
            best = best if slices else whole
        first = _ordered(program, early=True)
        if [_order(s) for s in first.stages] != [_order(s) for s in late.stages]:
            early, _ = _shared(first, slices)
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


def _shared(program: Program, slices: bool, alike: Collection[int] = ()) -> tuple[Program, bool]:
    """Return a copy that reuses dead buffers, and whether any value reuses columns of a wider one.

    Only with ``slices`` do values reuse columns.
    """
    buffers, instructions = [clone(b) for b in program.buffers], list(program.instructions)
    result = replace(program, buffers=buffers, instructions=instructions)
    sliced = _share(result, slices, alike)
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


class _Use(NamedTuple):
    """A read or write of columns of a buffer by an instruction, in rows of ``kind`` (None: any).

    columns: of the buffer that is reused; ``shift`` behind those that the instruction names. local:
    it reads the rows it runs over, or their edges. ahead: it reads rows of tasks that come later in
    its loop. parents: it reads rows of vertices with children alone. leaf: ``kind`` has none.
    """

    buffer: int
    instruction: Instruction
    stage: int
    body: int
    position: int
    kind: int | None
    columns: range
    shift: int = 0
    write: bool = False
    local: bool = True
    ahead: bool = False
    parents: bool = False
    leaf: bool = False

    def moved(self, column: int) -> _Use:
        """Return the same use in a buffer where its own begins at ``column``."""
        there = range(self.columns.start + column, self.columns.stop + column)
        return self._replace(columns=there, shift=self.shift + column)


def _share(program: Program, slices: bool, alike: Collection[int]) -> bool:
    backward = _backward(program)
    uses = _uses(program)
    fixed = _results(program)
    sliced = False
    aliases: dict[int, Alias] = {}
    by_base: dict[int, list[int]] = defaultdict(list)
    for n, b in enumerate(program.buffers):
        if b.role == "arena" and b.space > 1 and n not in fixed and uses[n]:
            by_base[b.space % 2].append(n)
    for group in by_base.values():
        for new in sorted(group, key=lambda n: (program.buffers[n].first, n)):
            candidates = [n for n in group if n != new and n not in aliases]
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
    uses: dict[int, list[_Use]],
    backward: int,
    slices: bool,
) -> list[Alias]:
    """Return the buffers that ``new`` reuses.

    In this order: a buffer of the same rows, one per kind, one of more rows, and, with ``slices``,
    columns of a wider one. Buffers of other rows are reused only in backward, where memory no
    longer grows, so that unneeded rows and stages cost nothing.
    """
    b = program.buffers[new]
    writes = [u for u in uses[new] if u.write]
    begin = min((u.stage for u in writes), default=0)
    same: list[tuple[int, int]] = []
    wider: list[tuple[int, int]] = []
    parts: list[tuple[int, Alias]] = []
    of_kind: dict[int, list[int]] = defaultdict(list)
    for old in candidates:
        a = program.buffers[old]
        if a.first > b.first or a.width < b.width or a.last < begin:
            continue
        kind = kind_of(a.space)
        alike = a.space == b.space and a.held == b.held
        holds = kind is None and _holds(program, a, b)
        if not _is_narrow(b, a):
            if not _is_dead(writes, uses[old], kind, 0, b.width):
                continue
            if alike:
                same.append((a.width, old))
            elif holds:
                wider.append((a.width, old))
            elif kind is not None and a.width == b.width:
                of_kind[kind].append(old)
        elif slices and (alike or holds):
            starts = {u.columns.start for u in uses[old] if len(u.columns) == b.width}
            dead = (c for c in sorted(starts) if _is_dead(writes, uses[old], kind, c, b.width))
            parts += [(a.width, (old, c)) for c in dead][:1]
    if same:
        return [(min(same)[1], 0)]
    if b.first >= backward:
        edges = b.space % 2 == 1  # vertices without children have none
        kinds = [
            k
            for k, key in enumerate(program.kinds)
            if (group_of(key) == "inner" if edges else b.held in ("all", group_of(key)))
        ]
        if kind_of(b.space) is None and all(of_kind[k] for k in kinds):
            return [(of_kind[k][0], 0) for k in kinds]
        if wider:
            return [(min(wider)[1], 0)]
    return [min(parts)[1]] if parts else []


def _holds(program: Program, a: Buffer, b: Buffer) -> bool:
    """True if ``a``, of all kinds, has the rows of ``b``."""
    kind = kind_of(b.space)
    rows = b.held if kind is None else group_of(program.kinds[kind])
    return a.held in ("all", rows)


def _is_dead(
    writes: Iterable[_Use], uses: Iterable[_Use], kind: int | None, column: int, width: int
) -> bool:
    """True if columns of a buffer of ``kind`` are dead where ``writes`` would fill them."""
    end = column + width
    touched = [u for u in uses if u.columns.start < end and column < u.columns.stop]
    here = False
    for u in writes:
        if kind is None or u.kind is None or kind == u.kind:
            found = _last_read(u, touched, column)
            if found == "later":
                return False
            here |= found == "here"
    return here


def _overlap(a: range, b: range) -> bool:
    return a.start < b.stop and b.start < a.stop


def _last_read(write: _Use, uses: Iterable[_Use], column: int) -> str:
    """Return when rows that ``write`` would overwrite, from ``column`` on, are read last.

    In stages "before" it, in its own stage no later than it ("here"), or "later".
    """
    end = "before"
    for u in uses:
        if u.kind is not None and write.kind is not None and u.kind != write.kind:
            continue
        if u.parents and write.leaf:
            continue
        if u.stage < write.stage:
            continue
        if u.stage == write.stage and u.ahead:
            end = "here"
            continue
        if u.stage > write.stage or u.body != write.body or u.position > write.position:
            return "later"
        if not u.local:
            return "later"
        if u.position == write.position and not _aligned(u, write.buffer, write.shift + column):
            return "later"
        end = "here"
    return end


def _aligned(read: _Use, new: int, column: int) -> bool:
    """True if a kernel reads, element by element, what it then overwrites.

    It overwrites with ``new``, which would begin at ``column``.
    """
    i = read.instruction
    if i.traits.in_place and i.out is not None and not read.write:
        # The kernel sums a row before it writes any of it.
        logits, *slope = i.inputs
        begins = logits.column + read.shift == i.out.column + column
        same = begins and logits[2:5] == (i.out.width, "self", "none")
        return same and all(o.buffer != read.buffer for o in slope)
    if not i.traits.fused or i.outward or read.write:
        return False
    stores = [s for s in i.stores if s.buffer == new]
    loads = [(n, *load) for n, load in enumerate(i.loads) if load.operand.buffer == read.buffer]
    kept = {s.register for s in i.stores}  # loads that are stored unchanged

    def disjoint(o: Operand, s: Store) -> bool:
        begin = s.column + column
        there = range(begin, begin + (i.outer - 1) * s.outer_stride + i.inner)
        here = range(o.column + read.shift, o.column + read.shift + o.width)
        return not _overlap(here, there)

    return all(
        disjoint(o, s)
        or (
            s.mode == "write"
            and n not in kept
            and not scalar
            and o.column + read.shift == s.column + column
            and o[2:5] == (i.outer * i.inner, "self", "none")
            and (i.outer == 1 or stride == s.outer_stride == i.inner)
        )
        for s in stores
        for n, o, stride, scalar in loads
    )


def _uses(program: Program) -> dict[int, list[_Use]]:
    result: dict[int, list[_Use]] = defaultdict(list)
    for at, stage in enumerate(program.stages):
        for body, numbers in enumerate(stage.bodies or [stage.body]):
            for position, n in enumerate(numbers):
                i = program.instructions[n]
                kind = kind_of(i.space)
                for o in i.operands:
                    local = o.map != "one" and o.array in LOCAL_ARRAYS
                    rows = kind if local else None
                    read = o.columns
                    ahead = o.array in (TO_CHILDREN if stage.reversed else TO_PARENTS)
                    ahead &= stage.type == "loop"
                    parents = o.array in ("nth_parents", "parents")
                    how = {"local": local, "ahead": ahead, "parents": parents}
                    use = _Use(o.buffer, i, at, body, position, rows, read, **how)
                    result[o.buffer].append(use)
                for x, columns in _stored(i):
                    leaf = kind is not None and program.kinds[kind] % 2 == 0
                    use = _Use(x, i, at, body, position, kind, columns, write=True, leaf=leaf)
                    result[x].append(use)
    return result


def _stored(i: Instruction) -> Iterator[tuple[int, range]]:
    """Return the buffers that an instruction writes, and in which columns."""
    for s in i.stores:
        yield s.buffer, s.columns(i.outer, i.inner)
    if i.out is not None:
        yield i.out.buffer, i.out.columns
