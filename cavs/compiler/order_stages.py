"""Order stages and instructions: sums early and next to each other, stores late."""

from __future__ import annotations

from collections import defaultdict
from heapq import heapify, heappop, heappush
from itertools import groupby

from cavs.compiler.program import (
    Program,
    Stage,
    Touches,
    Window,
    instructions_of,
    touches,
    window,
    written,
)


def sums_first(program: Program, early: bool) -> None:
    """Run a sum over all rows as soon as its rows are known: values that it reads last are dead.

    Stages before the caller's cotangents stay there. Unless ``early``, products that complete a
    gradient come last, behind the last loop: gradients of tables and biases are sent to other
    processes meanwhile, and products that run next to each other share the threads better.
    """
    stages = program.stages
    last = max((n for n, s in enumerate(stages) if s.type == "loop"), default=0)
    touched = [touches(program, instructions_of(s)) for s in stages]
    ends = {key: n for n, (_, writes) in enumerate(touched) for key in writes}

    def rank(at: int, stage: Stage) -> int:
        product = any(program.instructions[n].traits.product for n in stage.body)
        if early:
            return int(product) if stage.type == "global" else 2
        if stage.type != "global":
            return 1 if at > last else 3
        return 2 if product and any(ends[key] == at for key in touched[at][1]) else 0

    forward = program.forward_stages
    ranks = [rank(n, s) + 4 * (n >= forward >= 0) for n, s in enumerate(stages)]
    stages[:] = [stages[s] for s in _ordered(touched, ranks)]


def group_independent_sums(program: Program) -> None:
    """Move sums that do not depend on each other together: the engine runs those concurrently."""
    order: list[Stage] = []
    forward = set(program.stages[: max(program.forward_stages, 0)])

    def part(stage: Stage) -> tuple[bool, bool]:
        return stage.type == "global", stage in forward

    for (sums, _), group in groupby(program.stages, part):
        run = list(group)
        turns: list[int] = []
        uses = [(touches(program, s.body), _window(program, s.body)) for s in run if sums]
        for late in uses:
            waits = (t + 1 for t, early in zip(turns, uses, strict=False) if _depend(early, late))
            turns.append(max(waits, default=0))
        order += [run[n] for n in sorted(range(len(run)), key=turns.__getitem__)] if sums else run
    program.stages[:] = order


def _depend(a: tuple[Touches, Window], b: tuple[Touches, Window]) -> bool:
    """True if a sum reads what the other writes, or both write the same elements."""
    (reads, writes), (others_reads, others_writes) = a[0], b[0]
    if reads & others_writes or writes & others_reads:
        return True
    overlap = all(x.start < y.stop and y.start < x.stop for x, y in zip(a[1], b[1], strict=True))
    return overlap and bool(writes & others_writes)


def _window(program: Program, body: list[int]) -> Window:
    """Return the rows and columns of a gradient that the sums of a stage write."""
    i = program.instructions[body[0]]
    if i.out is None or not i.traits.sums or program.buffers[i.out.buffer].role != "grad":
        return range(2**62), range(2**62)
    windows = [window(program, program.instructions[n]) for n in body]
    rows, columns = ([w[side] for w in windows] for side in (0, 1))
    return _span(rows), _span(columns)


def _span(ranges: list[range]) -> range:
    return range(min(r.start for r in ranges), max(r.stop for r in ranges))


def stores_last(program: Program, body: list[int]) -> None:
    """Store values for other stages as late as possible: buffers to reuse may be dead by then.

    Sums over the rows of a task stay behind everything else.
    """
    rows = [n for n in body if not program.instructions[n].traits.sums]
    sums = [n for n in body if program.instructions[n].traits.sums]
    touched = [touches(program, [n]) for n in rows]
    keeps = [
        any(program.buffers[b].role == "arena" for b in written(program.instructions[n]))
        for n in rows
    ]
    order = _ordered(touched, [int(k) for k in keeps])
    body[:] = [*(rows[n] for n in order), *sums]


def _ordered(touched: list[Touches], rank: list[int]) -> list[int]:
    """Return an order that keeps every dependence, with low ranks as early as it allows."""
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
