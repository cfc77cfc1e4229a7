"""Mark what instructions write for gather, or its gradient, to read: scatter.

This runs before buffers are reused, while each of them holds one value.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from cavs.compiler.program import Instruction, Program
from cavs.passes.access import TO_CHILDREN, TO_PARENTS

GATHERS = TO_CHILDREN | TO_PARENTS  # as `is_gather` in csrc/exec/traffic.cc


def mark_scatter_traffic(program: Program) -> None:
    """Set how many columns of a row each instruction scatters, for reports."""
    states: dict[int, set[int]] = defaultdict(set)
    for i in program.instructions:
        for o in i.operands:
            if o.array in GATHERS:
                states[o.buffer].update(o.columns)
    for i in program.instructions:
        i.scatters = sum(len(states[b].intersection(w)) for b, w in _written(i) if b in states)


def _written(i: Instruction) -> Iterator[tuple[int, list[int]]]:
    """Iterate over the buffers with a row per row of the instruction, and the columns written."""
    for s in i.stores:
        inner = i.inner if s.mode == "write" else 1
        starts = (s.column + o * s.outer_stride for o in range(i.outer))
        yield s.buffer, [start + j for start in starts for j in range(inner)]
    if i.out is not None and i.traits.walked:
        yield i.out.buffer, list(i.out.columns)
