"""Store operands of a product next to each other, so that it reads them as one matrix; on devices.

A product of cuBLASLt takes matrices: operands in separate buffers are a product each. The gates of
a cell are slices of one value, so that backward every product reads all their cotangents.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cavs.compiler.alias_buffers import Alias, alias_buffers
from cavs.compiler.program import Instruction, Operand, Program

ALIGNED = 8  # values: 16 bytes of bfloat16, the widest load


def coalesce_operands(program: Program) -> None:
    """Join buffers of ``program`` to wider ones, and operands in adjacent columns to one, in place.

    A buffer joins the longest run that it is in. Outputs of the program stay alone.
    """
    fixed = {program.loss, *program.outputs.values()}
    aliases: dict[int, Alias] = {}
    joined: set[int] = set()
    for run in adjacent_buffers(program):
        if any(n in fixed or n in joined for n in run):
            continue
        joined.update(run)
        column = 0
        for n in run:
            if n != run[0]:
                aliases[n] = run[0], column
            column += program.buffers[n].width
        home = program.buffers[run[0]]
        home.first = min(program.buffers[n].first for n in run)
        home.last = max(program.buffers[n].last for n in run)
        home.name = ", ".join(program.buffers[n].name for n in run)
        home.width = column
    if aliases:
        alias_buffers(program, aliases)
        program.instructions[:] = [_joined(i) for i in program.instructions]


def adjacent_buffers(program: Program) -> list[tuple[int, ...]]:
    """Return runs of buffers that could be one, left to right, the longest runs first."""
    runs = {run for i in program.instructions for side in _sides(i) for run in _runs(program, side)}
    return sorted(runs, key=lambda run: (-len(run), run))


def _sides(i: Instruction) -> Iterator[list[Operand]]:
    """Iterate over the groups of operands that a product reads as one matrix."""
    if i.traits.packed_weight:
        yield i.inputs
    elif i.traits.product:
        yield i.inputs[: i.split]
        yield i.inputs[i.split :]


def _runs(program: Program, side: list[Operand]) -> Iterator[tuple[int, ...]]:
    """Iterate over runs of two or more whole, aligned operands in a row, over the same rows."""
    run: list[int] = []
    like: object = None
    for o in side:
        b = program.buffers[o.buffer]
        whole = o.column == 0 and o.width == b.width and b.role in ("arena", "scratch")
        whole &= o.width % ALIGNED == 0
        own = (o[3:], b.role, b.space, b.held) if whole and o.buffer not in run else None
        if own is None or own != like:
            if len(run) > 1:
                yield tuple(run)
            run = []
        if own is not None:
            run.append(o.buffer)
        like = own
    if len(run) > 1:
        yield tuple(run)


def _joined(i: Instruction) -> Instruction:
    """Join operands that are adjacent columns of the same rows."""
    sides = [_joined_columns(side) for side in _sides(i)]
    if not sides:
        return i
    split = len(sides[0]) if i.traits.sums else i.split
    return replace(i, inputs=[o for side in sides for o in side], split=split)


def _joined_columns(side: list[Operand]) -> list[Operand]:
    result: list[Operand] = []
    for o in side:
        last = result[-1] if result else None
        if last is not None and o == last._replace(column=last.columns.stop, width=o.width):
            result[-1] = last._replace(width=last.width + o.width)
        else:
            result.append(o)
    return result
