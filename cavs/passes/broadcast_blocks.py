"""Broadcasting inside the blocks of a fused kernel, and copies for other broadcasts."""

from __future__ import annotations

import math

from cavs.ir import Node, apply, rebuild
from cavs.passes.rules import where

Shape = tuple[int, ...]


def grid(shape: Shape) -> tuple[int, int]:
    """Return a row as outer x inner elements: the number of blocks, and of elements in each."""
    return math.prod(shape[:-1]), shape[-1] if shape else 1


def block(x: Shape, shape: Shape) -> tuple[int, bool] | None:
    """Return how ``x`` is read by blocks of ``shape``: the stride between blocks, and whether a
    block has one element. None if no such stride exists."""
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
def copy_broadcast(node: Node) -> Node | None:
    """Concatenate copies to broadcast an inner axis, such as (2, 1, 3) to (2, 4, 3)."""
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
