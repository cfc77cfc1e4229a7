"""Pass 7, second half: sums run early and side by side, values take the places of dying ones.

Works on a finished program. The engine lays buffers out by the stages they live in; here a buffer
that is written where another is read for the last time becomes the same buffer, row by row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import accumulate, groupby

from cavs.compiler.program import (
    Buffer,
    Instruction,
    Operand,
    Program,
    Stage,
    Touches,
    Window,
    instructions_of,
    kind_of,
    touches,
    window,
    written,
)
from cavs.passes.access import LOCAL_ARRAYS

SUMS = frozenset(["matmul_tn", "sum_rows", "lookup_grad"])  # over all rows of a space or a task


def plan_reuse(program: Program) -> None:
    """Reorders stages and joins buffers of ``program``, in place; no value changes."""
    _sums_first(program)
    _side_by_side(program)
    for stage in program.stages:
        for body in (stage.body, *stage.bodies):
            _keepers_last(program, body)
    _lifetimes(program)
    _share(program)
    _lifetimes(program)


# ---- order -------------------------------------------------------------------------------------


def _sums_first(program: Program) -> None:
    """Runs a sum over all rows as soon as its rows are known: what it alone still reads dies.

    Behind the last loop, products that end a gradient rather come last, unless that takes more
    memory: gradients of tables and biases travel to other processes while they run, and side by
    side they share the threads better.
    """
    stages = program.stages
    last = max((n for n, s in enumerate(stages) if s.kind == "loop"), default=0)
    touched = [touches(program, instructions_of(s)) for s in stages]
    ends = {key: n for n, (_, writes) in enumerate(touched) for key in writes}

    def is_product(stage: Stage) -> bool:
        return any(program.instructions[n].kind == "matmul_tn" for n in stage.body)

    def early(at: int, stage: Stage) -> int:
        return int(is_product(stage)) if stage.kind == "global" else 2

    def late(at: int, stage: Stage) -> int:
        if stage.kind != "global":
            return 1 if at > last else 3
        return 2 if is_product(stage) and any(ends[key] == at for key in touched[at][1]) else 0

    orders = [
        _ordered(touched, [rank(n, s) for n, s in enumerate(stages)]) for rank in (late, early)
    ]
    order = min(orders, key=lambda order: _width(program, [touched[n] for n in order]))
    stages[:] = [stages[s] for s in order]


def _side_by_side(program: Program) -> None:
    """Brings sums that do not wait for each other together: the engine shares those out at once."""
    order: list[Stage] = []
    for sums, group in groupby(program.stages, lambda stage: stage.kind == "global"):
        run = list(group)
        turns: list[int] = []
        places = [(touches(program, s.body), _window(program, s.body)) for s in run if sums]
        for late in places:
            waits = (t + 1 for t, early in zip(turns, places, strict=False) if _wait(early, late))
            turns.append(max(waits, default=0))
        order += [run[n] for n in sorted(range(len(run)), key=turns.__getitem__)] if sums else run
    program.stages[:] = order


def _wait(a: tuple[Touches, Window], b: tuple[Touches, Window]) -> bool:
    """Whether one of two sums reads what the other writes, or both write one place."""
    (reads, writes), (others_reads, others_writes) = a[0], b[0]
    if reads & others_writes or writes & others_reads:
        return True
    meet = all(x.start < y.stop and y.start < x.stop for x, y in zip(a[1], b[1], strict=True))
    return meet and bool(writes & others_writes)


def _window(program: Program, body: list[int]) -> Window:
    """Rows and columns of a gradient that the sums of a stage write."""
    i = program.instructions[body[0]]
    if i.out is None or i.kind not in SUMS or program.buffers[i.out[0]].role != "grad":
        return range(2**62), range(2**62)
    places = [window(program, program.instructions[n]) for n in body]
    rows, columns = ([p[side] for p in places] for side in (0, 1))
    return _span(rows), _span(columns)


def _span(ranges: list[range]) -> range:
    return range(min(r.start for r in ranges), max(r.stop for r in ranges))


def _width(program: Program, touched: list[Touches]) -> int:
    """The most elements a row that stages in this order need at a time."""
    lives: dict[object, tuple[int, int]] = {}
    for at, (reads, writes) in enumerate(touched):
        for key in reads | writes:
            lives[key] = lives.get(key, (at, at))[0], at
    change = [0] * (len(touched) + 1)
    for key, (first, last) in lives.items():
        if isinstance(key, int) and program.buffers[key].role == "arena":
            change[first] += program.buffers[key].width
            change[last + 1] -= program.buffers[key].width
    return max(accumulate(change))


def _keepers_last(program: Program, body: list[int]) -> None:
    """Stores values for other stages as late as it can: their places may be free by then.

    Sums over the rows of a task stay behind everything else.
    """
    rows = [n for n in body if program.instructions[n].kind not in SUMS]
    touched = [touches(program, [n]) for n in rows]
    keeps = [
        any(program.buffers[b].role == "arena" for b in written(program.instructions[n]))
        for n in rows
    ]
    order = _ordered(touched, [int(k) for k in keeps])
    body[:] = [*(rows[n] for n in order), *(n for n in body if n not in set(rows))]


def _ordered(touched: list[Touches], rank: list[int]) -> list[int]:
    """An order that keeps every dependence; of what may run next, the first of lowest rank."""
    writer: dict[object, int] = {}  # the last one
    readers: dict[object, list[int]] = defaultdict(list)  # since then
    needs: list[set[int]] = []
    needed_by: list[list[int]] = [[] for _ in touched]
    for late, (reads, writes) in enumerate(touched):
        before = {writer[key] for key in reads | writes if key in writer}
        before.update(*(readers[key] for key in writes))
        for early in before:
            needed_by[early].append(late)
        needs.append(before)
        for key in reads:
            readers[key].append(late)
        for key in writes:
            writer[key] = late
            readers[key] = []
    ready = [(rank[n], n) for n, before in enumerate(needs) if not before]
    heapify(ready)
    order: list[int] = []
    while ready:
        chosen = heappop(ready)[1]
        order.append(chosen)
        for late in needed_by[chosen]:
            needs[late].remove(chosen)
            if not needs[late]:
                heappush(ready, (rank[late], late))
    return order


def _lifetimes(program: Program) -> None:
    """First and last stage of every buffer; results live to the end."""
    for b in program.buffers:
        b.first, b.last = 1 << 30, -1
    for at, stage in enumerate(program.stages):
        for n in instructions_of(stage):
            i = program.instructions[n]
            for x in (*(o[0] for o in i.inputs), *(load[0][0] for load in i.loads), *written(i)):
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
    backward = _backward(program)
    uses = _uses(program)
    fixed = _results(program)
    place: dict[int, int] = {}
    by_base: dict[int, list[int]] = defaultdict(list)
    for n, b in enumerate(program.buffers):
        if b.role == "arena" and b.space > 1 and n not in fixed and uses[n]:
            by_base[b.space % 2].append(n)
    for group in by_base.values():
        for new in sorted(group, key=lambda n: (program.buffers[n].first, n)):
            candidates = [n for n in group if n != new and n not in place]
            taken = _best(program, new, candidates, uses, backward)
            if not taken:
                continue
            home, b = program.buffers[taken[0]], program.buffers[new]
            if len(taken) > 1:
                home.space, home.held = b.space, b.held
            for n in (*taken[1:], new):
                place[n] = taken[0]
                uses[taken[0]] = uses[taken[0]] + uses[n]
                home.first = min(home.first, program.buffers[n].first)
                home.last = max(home.last, program.buffers[n].last)
            home.name += f" > {b.name}"
    _rename(program, place)


def _backward(program: Program) -> int:
    """The stage from which on memory no longer grows: what is kept for backward is there."""
    loops = [(n, s.gradient) for n, s in enumerate(program.stages) if s.kind == "loop"]
    if not any(gradient for _, gradient in loops):
        return len(program.stages)
    return max((n + 1 for n, gradient in loops if not gradient), default=loops[0][0])


def _best(
    program: Program,
    new: int,
    candidates: Iterable[int],
    uses: dict[int, list[_Use]],
    backward: int,
) -> list[int]:
    """The buffers whose rows ``new`` takes over: one of the very same rows, or else one a kind, or
    else one of more rows.

    What has other rows only in backward: there memory no longer grows, so that the rows and stages
    that are taken without need cost nothing.
    """
    b = program.buffers[new]
    writes = [u for u in uses[new] if u.write]
    begin = min((u.stage for u in writes), default=0)
    same: list[tuple[int, int]] = []
    wider: list[tuple[int, int]] = []
    of_kind: dict[int, list[int]] = defaultdict(list)
    for old in candidates:
        a = program.buffers[old]
        # Of a much wider one too much would stay alive unused.
        if a.first > b.first or a.width < b.width or 4 * b.width < 3 * a.width or a.last < begin:
            continue
        kind = kind_of(a.space)
        ends = set()
        for u in writes:
            if None in (kind, u.kind) or kind == u.kind:
                ends.add(_end(u, uses[old]))
                if "later" in ends:
                    break
        if "later" in ends or "here" not in ends:
            continue
        if (a.space, a.held) == (b.space, b.held):
            same.append((a.width, old))
        elif kind is None and _holds(program, a, b):
            wider.append((a.width, old))
        elif kind is not None and a.width == b.width:
            of_kind[kind].append(old)
    if same:
        return [min(same)[1]]
    if b.first < backward:
        return []
    kinds = [k for k, key in enumerate(program.kinds) if b.held in ("all", _group(key))]
    if kind_of(b.space) is None and all(of_kind[k] for k in kinds):
        return [of_kind[k][0] for k in kinds]
    return [min(wider)[1]] if wider else []


def _holds(program: Program, a: Buffer, b: Buffer) -> bool:
    """Whether ``a``, of all kinds, has the rows of ``b``."""
    kind = kind_of(b.space)
    rows = b.held if kind is None else _group(program.kinds[kind])
    return a.held in ("all", rows)


def _group(key: int) -> str:
    """Where vertices of the kind ``key`` are held, see Buffer."""
    return "inner" if key % 2 else "leaves"


def _end(write: _Use, uses: list[_Use]) -> str:
    """When the rows of a buffer that ``write`` takes die: in stages before it, in its own stage
    ("here", before it or with it), or later."""
    end = "before"
    for u in uses:
        if u.kind is not None and write.kind is not None and u.kind != write.kind:
            continue
        if u.stage < write.stage:
            continue
        if u.stage > write.stage or u.body != write.body or u.position > write.position:
            return "later"
        if not u.local:
            return "later"
        if u.position == write.position and not _aligned(u, write.buffer):
            return "later"
        end = "here"
    return end


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
                for x in set(written(i)):
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
