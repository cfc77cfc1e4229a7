"""Operators: their definition, their traits and the registry."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cavs.ir.types import TensorType


class BatchRule(enum.Enum):
    """How an operator acts on the rows of a batch."""

    ROWWISE = "rowwise"  # row r of the result needs row r of the inputs only
    REDUCE = "reduce"  # reads all rows at once: parameter gradients, losses, whole recurrences
    GRAPH = "graph"  # reads rows through the structure


class Reads(enum.Enum):
    """How the kernel of an operator reads a row of an operand."""

    PIECES = "pieces"  # columns of several buffers side by side, each through a row map
    MAPPED = "mapped"  # columns of one buffer through a row map, which may sum a segment
    ONE_ROW_EACH = "one row each"  # columns of one buffer through a row map that sums nothing
    IN_ORDER = "in order"  # columns of one buffer, row r as row r


@dataclass(frozen=True, eq=False)
class Op:
    """The definition of one operator.

    infer(types, attrs) -> TensorType; raises ValueError (shapes, rows) or TypeError (dtypes) with a
    short reason, and a cure where there is one.
    vjp(node, cotangent) -> a cotangent (or None) for each input, of a type that broadcasts to it.
    evaluate(node, *rows) -> the result of one row in NumPy (ROWWISE operators).
    expr(e, *inputs, **attrs) -> scalar expression of an elementwise operator, from which the CPU
    and CUDA kernels and the NumPy reference are made.
    cost: rough number of instructions per element; decides what backward recomputes.

    The other fields are traits: facts that passes ask for, so that no pass lists operators by name.
    A trait that is left out is the safe answer; it can only cost an optimisation.
    """

    name: str
    infer: Callable[[Sequence[TensorType], dict[str, Any]], TensorType]
    vjp: Callable[[Any, Any], Sequence[Any]] | None = None
    evaluate: Callable[..., Any] | None = None
    expr: Callable[..., Any] | None = None
    rule: BatchRule = BatchRule.ROWWISE
    cost: int = 1

    linear_in: tuple[int, ...] = ()  # inputs in each of which it is linear while others are fixed
    jointly_linear: bool = False  # linear in all of several inputs together
    total: bool = False  # elementwise; finite, with finite slopes, at all inputs of moderate size
    exact: bool = False  # elementwise; a result is an operand, its negative, 0 or 1: not rounded
    comparison: bool = False  # 1 where a relation of the inputs holds, else 0
    reduction: str = ""  # "sum", "max", "product": of an axis, the children or vertices of a graph
    zero_at_leaves: bool = False  # zero at vertices without children
    one_at_leaves: bool = False  # one at vertices without children
    reads_slot: bool = False  # reads the slot in its attribute ``slot``
    windowed: bool = False  # with attributes ``at`` and ``shape``, a window of a larger sum
    program_input: bool = False  # known before anything is computed, like features and parameters
    any_kind: bool = False  # reads rows of vertices of any kind, where they are stored
    view: bool = False  # read where the inputs are stored: a row map, not a kernel
    same_row: bool = False  # a row holds the elements of the input's row in the same order
    rearranges: bool = False  # a row holds elements of the inputs' rows, and zeros
    reads: Reads = Reads.MAPPED
    takes_weights: bool = False  # the inputs after the first are packed as weights
    instruction: str = ""  # the instruction that computes it, if it takes rows and an index feature
    symbol: str = ""  # infix sign in messages and printed programs

    @cached_property
    def elementwise(self) -> bool:
        """True if one scalar expression gives every element."""
        return self.expr is not None

    @cached_property
    def reduces_axis(self) -> bool:
        """True for a reduction over the last axis of a row."""
        return self.reduction != "" and self.rule is BatchRule.ROWWISE

    @cached_property
    def reduces_segments(self) -> bool:
        """True for a reduction over the children of a vertex or the vertices of a graph."""
        return self.reduction != "" and self.rule is BatchRule.GRAPH


REGISTRY: dict[str, Op] = {}


def defop(name: str, **fields: Any) -> Op:
    """Register an operator under ``name`` and return it; a second definition is an error."""
    if name in REGISTRY:
        raise ValueError(f"operator {name!r} is defined twice")
    op = REGISTRY[name] = Op(name, **fields)
    return op
