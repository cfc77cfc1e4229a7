"""How operands repeat in a kernel of blocks, and copies of those that repeat in another way."""

from __future__ import annotations

import math

from cavs.ir import Node, apply, rebuild
from cavs.passes.rules import where

Shape = tuple[int, ...]


def grid(shape: Shape) -> tuple[int, int]:
    """A row as outer x inner elements: blocks, and numbers in each."""
    return math.prod(shape[:-1]), shape[-1] if shape else 1


def block(x: Shape, shape: Shape) -> tuple[int, bool] | None:
    """How ``x`` is read block by block of ``shape``: elements from one block to the next, and
    whether each has one number. None if that is not enough to say it."""
    outer, inner = grid(shape)
    if x == shape or grid(x) == (outer, inner):
        return (inner if outer > 1 else 0), False
    if math.prod(x) == 1:
        return 0, inner > 1
    if grid(x) == (1, inner):
        return 0, False
    if len(x) == len(shape) and x[-1] == 1 and math.prod(x) == outer:
        return 1, True
    return None


@where(lambda op: op.elementwise)
def copies(node: Node) -> Node | None:
    """(2, 1, 3) read as (2, 4, 3): an axis between others is repeated by joining copies."""
    shape = node.shape
    if len(shape) < 2:
        return None
    inputs = tuple(_repeated(x, shape) for x in node.inputs)
    return None if inputs == node.inputs else rebuild(node, inputs)


def _repeated(x: Node, shape: Shape) -> Node:
    found: Shape = (1,) * (len(shape) - len(x.shape)) + x.shape
    for axis in reversed(range(len(shape) - 1)):
        if block(x.shape, shape) is not None:
            break
        if found[axis] < shape[axis]:
            outer, inner = math.prod(found[:axis]), math.prod(found[axis + 1 :])
            one = apply("reshape", x, shape=(outer, inner) if outer > 1 else (inner,))
            joined = apply("concat", *[one] * shape[axis], axis=-1)
            found = (*found[:axis], shape[axis], *found[axis + 1 :])
            x = apply("reshape", joined, shape=found)
    return x
