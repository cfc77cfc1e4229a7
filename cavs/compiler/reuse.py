"""Pass 7, second half: sums run early, and values take the places of those that die with them.

Works on a finished program. The engine lays buffers out by the stages they live in; here a buffer
that is written where another is read for the last time becomes the same buffer, row by row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from cavs.compiler.program import Instruction, Operand, Program, Stage, kind_of
from cavs.passes.access import LOCAL_ARRAYS

SUMS = frozenset(["matmul_tn", "sum_rows", "lookup_grad"])  # over all rows of a space or a task


def plan_reuse(program: Program) -> None:
    """Reorders stages and joins buffers of ``program``, in place; no value changes."""
    _sums_first(program)
    for stage in program.stages:
        for body in (stage.body, *stage.bodies):
            _keepers_last(program, body)
    _lifetimes(program)
    _share(program)
    _lifetimes(program)


# ---- order -------------------------------------------------------------------------------------


def _instructions(stage: Stage) -> list[int]:
    return [*stage.body, *(i for body in stage.bodies for i in body)]


def _sums_first(program: Program) -> None:
    """Runs a sum over all rows as soon as its rows are known: what it alone still reads dies."""
    touched = [_touched(program, _instructions(s)) for s in program.stages]
    order = _ordered(touched, [s.kind == "global" for s in program.stages])
    program.stages[:] = [program.stages[s] for s in order]


def _keepers_last(program: Program, body: list[int]) -> None:
    """Stores values for other stages as late as it can: their places may be free by then.

    Sums over the rows of a task stay behind everything else.
    """
    rows = [n for n in body if program.instructions[n].kind not in SUMS]
    touched = [_touched(program, [n]) for n in rows]
    keeps = [
        any(program.buffers[b].role == "arena" for b in _written(program.instructions[n]))
        for n in rows
    ]
    order = _ordered(touched, [not k for k in keeps])
    body[:] = [*(rows[n] for n in order), *(n for n in body if n not in set(rows))]


_Touched = tuple[set[object], set[object]]  # what is read and what is written


def _ordered(touched: list[_Touched], first: list[bool]) -> list[int]:
    """An order that keeps every dependence; of what may run next, the ``first`` ones."""
    needs: list[set[int]] = []
    for late, (reads, writes) in enumerate(touched):
        before = enumerate(touched[:late])
        needs.append({e for e, (r, w) in before if reads & w or writes & (r | w)})
    waiting = list(range(len(touched)))
    order: list[int] = []
    while waiting:
        ready = [n for n in waiting if needs[n] <= set(order)]
        chosen = next((n for n in ready if first[n]), ready[0])
        waiting.remove(chosen)
        order.append(chosen)
    return order


def _touched(program: Program, numbers: Iterable[int]) -> _Touched:
    """What instructions read and write: buffers, and gradients by parameter."""

    def key(buffer: int) -> object:
        b = program.buffers[buffer]
        return ("grad", b.index) if b.role == "grad" else buffer

    reads: set[object] = set()
    writes: set[object] = set()
    for n in numbers:
        i = program.instructions[n]
        reads.update(key(o[0]) for o in (*i.inputs, *(load[0] for load in i.loads)))
        writes.update(key(b) for b in _written(i))
        if i.kind == "lookup_grad":
            writes.add(("grad", i.argument2))
    return reads, writes


def _written(i: Instruction) -> list[int]:
    return [s[0] for s in i.stores] + ([] if i.out is None else [i.out[0]])


def _lifetimes(program: Program) -> None:
    """First and last stage of every buffer; results live to the end."""
    for b in program.buffers:
        b.first, b.last = 1 << 30, -1
    for at, stage in enumerate(program.stages):
        for n in _instructions(stage):
            i = program.instructions[n]
            for x in (*(o[0] for o in i.inputs), *(load[0][0] for load in i.loads), *_written(i)):
                b = program.buffers[x]
                b.first, b.last = min(b.first, at), max(b.last, at)
    for x in _results(program):
        b = program.buffers[x]
        b.last = max(len(program.stages) - 1, 0)
        b.first = min(b.first, b.last)


def _results(program: Program) -> set[int]:
    return {*program.outputs.values(), *([program.loss] if program.loss >= 0 else [])}


# ---- buffers that share a place ----------------------------------------------------------------


@dataclass(frozen=True)
class _Use:
    """An instruction reads or writes ``buffer``, in rows of ``kind`` (None: of any).

    local: it reads within the rows it runs over, and the edges of those.
    """

    buffer: int
    instruction: Instruction
    stage: int
    body: int
    position: int
    kind: int | None
    write: bool = False
    local: bool = True


def _share(program: Program) -> None:
    backward = next((n for n, s in enumerate(program.stages) if s.reversed), len(program.stages))
    uses = _uses(program)
    fixed = _results(program)
    place: dict[int, int] = {}
    by_base: dict[int, list[int]] = defaultdict(list)
    for n, b in enumerate(program.buffers):
        if b.role == "arena" and b.space > 1 and n not in fixed and uses[n]:
            by_base[b.space % 2].append(n)
    for group in by_base.values():
        for new in sorted(group, key=lambda n: (program.buffers[n].first, n)):
            old = _best(program, new, group, uses, place, backward)
            if old is not None:
                place[new] = old
                uses[old] = uses[old] + uses[new]
                a, b = program.buffers[old], program.buffers[new]
                a.last = max(a.last, b.last)
                a.name += f" > {b.name}"
    _rename(program, place)


def _best(
    program: Program,
    new: int,
    group: Iterable[int],
    uses: dict[int, list[_Use]],
    place: dict[int, int],
    backward: int,
) -> int | None:
    """The buffer whose rows ``new`` takes over; one of the very same rows before a wider one.

    A kind takes its rows of all vertices only in backward: there memory no longer grows, so that
    the other rows, which stay with them, cost nothing.
    """
    b = program.buffers[new]
    found = []
    for old in group:
        a = program.buffers[old]
        if old == new or old in place or a.first > b.first or a.width < b.width:
            continue
        if 4 * b.width < 3 * a.width:  # too much would stay alive unused
            continue
        same = a.space == b.space
        if not same and (kind_of(a.space) is not None or b.first < backward):
            continue
        if all(_dead(u, uses[old]) for u in uses[new] if u.write):
            found.append((not same, a.width, old))
    return min(found)[2] if found else None


def _dead(write: _Use, uses: list[_Use]) -> bool:
    """Whether the rows of a buffer that ``write`` takes die in its stage, before it or with it."""
    dies_here = False
    for u in uses:
        if u.kind is not None and write.kind is not None and u.kind != write.kind:
            continue
        if u.stage < write.stage:
            continue
        if u.stage > write.stage or u.body != write.body or u.position > write.position:
            return False
        if not u.local:
            return False
        if u.position == write.position and not _aligned(u, write.buffer):
            return False
        dies_here = True
    return dies_here


def _aligned(read: _Use, new: int) -> bool:
    """Whether a kernel reads, element by element, what it then overwrites with ``new``."""
    i = read.instruction
    if i.kind != "map" or read.write:
        return False
    stores = [s for s in i.stores if s[0] == new]
    loads = [(n, *load) for n, load in enumerate(i.loads) if load[0][0] == read.buffer]
    kept = {s[4] for s in i.stores}  # a loaded value stored as it is might be overwritten before
    return all(
        s[3] == "write"
        and n not in kept
        and not scalar
        and o[1:5] == (s[1], i.outer * i.inner, "self", "none")
        and (i.outer == 1 or stride == s[2] == i.inner)
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
                for o in (*i.inputs, *(load[0] for load in i.loads)):
                    local = o[3] != "one" and o[4] in LOCAL_ARRAYS
                    rows = kind if local else None
                    use = _Use(o[0], i, at, body, position, rows, local=local)
                    result[o[0]].append(use)
                for x in set(_written(i)):
                    result[x].append(_Use(x, i, at, body, position, kind, write=True))
    return result


def _rename(program: Program, place: dict[int, int]) -> None:
    """Takes the buffers that have another's place out of the program."""
    kept = [n for n in range(len(program.buffers)) if n not in place]
    number = {n: i for i, n in enumerate(kept)}
    number |= {n: number[_home(n, place)] for n in place}

    def moved(o: Operand) -> Operand:
        return (number[o[0]], *o[1:])

    for n, i in enumerate(program.instructions):
        program.instructions[n] = replace(
            i,
            inputs=[moved(o) for o in i.inputs],
            out=None if i.out is None else moved(i.out),
            loads=[(moved(o), stride, scalar) for o, stride, scalar in i.loads],
            stores=[(number[s[0]], *s[1:]) for s in i.stores],
        )
    program.buffers = [program.buffers[n] for n in kept]
    program.loss = number.get(program.loss, program.loss)
    program.outputs = {name: number[n] for name, n in program.outputs.items()}


def _home(n: int, place: dict[int, int]) -> int:
    while n in place:
        n = place[n]
    return n
