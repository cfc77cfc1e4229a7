"""Choose a program whose training step holds less memory, where the plain one holds much."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

from cavs.compiler.memory import Shape, kept, peak
from cavs.compiler.program import Program

MAX_PEAK = 1.5  # peak of a plain step that is accepted, relative to what backward reads


class MemoryPlan(NamedTuple):
    """Ways to hold less memory, at the cost of time.

    sum_in_loops: loops sum gradients, so that states are dead earlier, though products have fewer
    rows. sum_at_child: cotangents of edges are summed where they are computed, at the child, so
    that no row is stored for each edge.
    """

    sum_in_loops: bool = False
    sum_at_child: bool = False


PLAIN = MemoryPlan()
PLANS = (MemoryPlan(True, False), MemoryPlan(False, True), MemoryPlan(True, True))


class _HasProgram(Protocol):
    program: Program


C = TypeVar("C", bound=_HasProgram)


def least_memory(
    plain: C, shape: Shape, edge_cotangents: bool, compile_with: Callable[[MemoryPlan], C]
) -> C:
    """Return the first result that is small enough for graphs of ``shape``, or the smallest.

    plain: the result without a plan. edge_cotangents: it stores any. compile_with: of a plan.
    """
    best = plain
    for plan in PLANS if edge_cotangents else PLANS[:1]:
        if holds_much(best.program, shape):
            other = compile_with(plan)
            if holds_less(other.program, best.program, shape):
                best = other
    return best


def holds_much(program: Program, shape: Shape) -> bool:
    """True if a step holds much more at its peak than backward reads."""
    return peak(program, shape) > MAX_PEAK * kept(program, shape)


def holds_less(program: Program, other: Program, shape: Shape) -> bool:
    """True if a step of ``program`` has a lower peak than one of ``other``."""
    return peak(program, shape) < peak(other, shape)
