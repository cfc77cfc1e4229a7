"""Trim products to the columns that are read and the inputs that are not zero.

Specialisation leaves unread columns and zeros behind. The forget gate of a leaf is not read, so its
columns of W need not be multiplied. Its cotangent is zero, so neither need its rows of W^T, nor its
columns of the gradient.
"""

from __future__ import annotations

from cavs.ir import Graph, Node, apply, rewrite, users
from cavs.passes.rules import constant_of
from cavs.passes.simplify import simplify_node

Range = tuple[int, int]


def joined(ranges: list[Range]) -> list[Range]:
    """Return the same columns as ascending ranges that do not touch."""
    result: list[Range] = []
    for low, high in sorted(ranges):
        if result and low <= result[-1][1]:
            result[-1] = (result[-1][0], max(high, result[-1][1]))
        else:
            result.append((low, high))
    return result


def size(ranges: list[Range]) -> int:
    """Return the number of columns in ``ranges``."""
    return sum(high - low for low, high in ranges)


def columns(x: Node, ranges: list[Range]) -> Node:
    """Return the columns of ``x`` in ``ranges``, side by side."""
    if size(ranges) == x.shape[-1]:
        return x
    parts = [simplify_node(x[low:high]) for low, high in ranges]
    return parts[0] if len(parts) == 1 else apply("concat", *parts, axis=-1)


def nonzero(x: Node) -> list[Range]:
    """Return the columns of ``x`` that are not known to be zero."""
    if x.op.name != "concat" or x.attr("axis") != -1:
        return [(0, x.shape[-1])]
    found, at = [], 0
    for piece in x.inputs:
        if constant_of(piece) != 0.0:
            found.append((at, at + piece.shape[-1]))
        at += piece.shape[-1]
    return joined(found)


def _read(graph: Graph) -> dict[Node, list[Range]]:
    """Return the products that only slices read, not all columns, with the columns that are
    read."""
    readers, roots = users(graph.nodes()), set(graph.roots())
    result = {}
    for n in graph.nodes():
        found = readers.get(n, [])
        if n.op.name == "matmul" and n not in roots and {r.op.name for r in found} == {"slice"}:
            ranges = joined([(r.attr("start"), r.attr("stop")) for r in found])
            if size(ranges) < n.shape[-1]:
                result[n] = ranges
    return result


def trim_products(graph: Graph) -> Graph:
    """Narrow products to the columns that are read and the inputs that are not zero."""
    read = _read(graph)

    def rule(n: Node, inputs: tuple[Node, ...]) -> Node | None:
        if n.op.name == "matmul":
            x, w = inputs
            kept = nonzero(x)
            if size(kept) < x.shape[-1]:
                rows = columns(apply("transpose", w), kept)
                x, w = columns(x, kept), apply("transpose", rows)
            return apply("matmul", x, columns(w, read[n]) if n in read else w)
        if n.op.name == "slice" and n.inputs[0] in read:
            start, before = n.attr("start"), 0
            for low, high in read[n.inputs[0]]:
                if low <= start < high:
                    return inputs[0][before + start - low : before + n.attr("stop") - low]
                before += high - low
        return None

    return rewrite(graph, rule)
