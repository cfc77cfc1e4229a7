"""Which of what a program writes is scatter: rows that gather reads, or its gradient.

Found before values take the places of others, for then a buffer is of one value.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from cavs.compiler.program import Instruction, Program
from cavs.passes.access import TO_CHILDREN, TO_PARENTS

GATHERS = TO_CHILDREN | TO_PARENTS  # as `is_gather` in csrc/exec/traffic.cc


def mark_scatter_traffic(program: Program) -> None:
    """Notes of every instruction how many columns of a row it scatters, for reports."""
    states: dict[int, set[int]] = defaultdict(set)
    for i in program.instructions:
        for buffer, column, width, _, array, _ in (*i.inputs, *(load[0] for load in i.loads)):
            if array in GATHERS:
                states[buffer].update(range(column, column + width))
    for i in program.instructions:
        i.scatters = sum(len(states[b].intersection(w)) for b, w in _written(i) if b in states)


def _written(i: Instruction) -> Iterator[tuple[int, list[int]]]:
    """The buffers of which an instruction writes a row for each of its own, and the columns."""
    for buffer, column, stride, mode, _ in i.stores:
        inner = i.inner if mode == "write" else 1
        yield buffer, [column + o * stride + j for o in range(i.outer) for j in range(inner)]
    if i.out is not None and i.kind in ("matmul", "copy", "segment_max"):
        buffer, column, width = i.out[:3]
        yield buffer, list(range(column, column + width))
