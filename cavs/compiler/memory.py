"""Estimate the memory that a step holds, from the program and the shape of the graphs."""

from __future__ import annotations

from typing import NamedTuple

from cavs.compiler.program import Buffer, Program, Stage, kinds_in, relation_of


class Shape(NamedTuple):
    """Number of leaves and edges of graphs, relative to the vertices that have children."""

    leaves: float
    edges: float


def peak(program: Program, shape: Shape | None = None) -> float:
    """Return the largest number of elements alive at once, with one row per kind with children.

    Without a shape, every kind has one row.
    """
    alive = [0.0] * len(program.stages)
    for b in program.buffers:
        elements = _elements(program, b, shape)
        for at in range(b.first, b.last + 1) if elements else ():
            alive[at] += elements
    return max(alive, default=0)


def kept(program: Program, shape: Shape) -> float:
    """Return the number of elements that backward reads of what was computed before it."""
    start = first_backward(program)
    return sum(_elements(program, b, shape) for b in program.buffers if b.first < start <= b.last)


def first_backward(program: Program) -> int:
    """Return the first stage that is a loop of cotangents or sums a gradient; 0 without one.

    Values computed before it and read there or later are kept for backward.
    """
    starts = (n for n, s in enumerate(program.stages) if s.gradient or _sums_gradient(program, s))
    return next(starts, 0)


def group_of(key: int) -> str:
    """Return the group of vertices that the kind ``key`` belongs to, see ``Buffer.held``."""
    return "inner" if key % 2 else "leaves"


def _sums_gradient(program: Program, stage: Stage) -> bool:
    found = [program.instructions[n] for n in stage.body]
    outs = [program.buffers[i.out.buffer] for i in found if i.out is not None]
    return any(b.role == "grad" for b in outs) or any(i.traits.sparse_gradient for i in found)


def _elements(program: Program, buffer: Buffer, shape: Shape | None) -> float:
    if buffer.role != "arena" or buffer.space <= 1:
        return 0
    keys = [program.kinds[k] for k in kinds_in(program, buffer.space)]
    held = [key for key in keys if buffer.held in ("all", group_of(key))]
    if shape is None:
        return buffer.width * len(held)
    inner = sum(key % 2 for key in program.kinds)
    rows = {1: 1.0, 0: shape.leaves * inner / max(len(program.kinds) - inner, 1)}
    if relation_of(buffer.space) == 0:
        rows = {1: shape.edges, 0: 0.0}
    return buffer.width * sum(rows[key % 2] for key in held)
