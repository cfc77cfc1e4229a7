"""Algebraic simplification. Common subexpressions are one node already (interning).

Also the shape rules that fusion and specialisation rely on: slices move towards the products they
cut, cotangents of slices become concatenations, zeros vanish.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from cavs.ir import (
    BatchRule,
    Domain,
    Graph,
    Node,
    TensorType,
    apply,
    rebuild,
    rewrite,
)
from cavs.passes.broadcast_blocks import copy_broadcast
from cavs.passes.rules import Rules, as_type, constant_of, full, of, where, zeros


@where(lambda op: op.elementwise and op.name != "broadcast")
def _fold(node: Node) -> Node | None:
    """Elementwise operators of constants."""
    if not node.inputs or node.op.evaluate is None:  # users may leave evaluate out
        return None
    values = []
    for x in node.inputs:
        values.append(constant_of(x))
        if values[-1] is None:
            return None
    with np.errstate(all="ignore"):
        return full(float(node.op.evaluate(node, *(np.float64(v) for v in values))), node.type)


@of("add")
def _add(node: Node) -> Node | None:
    """x + 0 and x + (-y)."""
    a, b = node.inputs
    if constant_of(b) == 0.0:
        return as_type(a, node.type)
    if constant_of(a) == 0.0:
        return as_type(b, node.type)
    return a - b.inputs[0] if b.op.name == "neg" else None


@of("sub")
def _sub(node: Node) -> Node | None:
    """x - 0, 0 - x and x - (-y)."""
    a, b = node.inputs
    if constant_of(b) == 0.0:
        return as_type(a, node.type)
    if constant_of(a) == 0.0:
        return as_type(-b, node.type)
    return a + b.inputs[0] if b.op.name == "neg" else None


@of("mul")
def _mul(node: Node) -> Node | None:
    """x * 0 and x * 1."""
    a, b = node.inputs
    ca, cb = constant_of(a), constant_of(b)
    if 0.0 in (ca, cb):
        return zeros(node.type)
    if cb == 1.0:
        return as_type(a, node.type)
    return as_type(b, node.type) if ca == 1.0 else None


@of("div")
def _div(node: Node) -> Node | None:
    """0 / x and x / 1."""
    a, b = node.inputs
    if constant_of(a) == 0.0:
        return zeros(node.type)
    return as_type(a, node.type) if constant_of(b) == 1.0 else None


@of("where")
def _choice(node: Node) -> Node | None:
    """``where`` with equal branches, as dropout of an absent input, or with a known condition."""
    condition, a, b = node.inputs
    known, ca, cb = constant_of(condition), constant_of(a), constant_of(b)
    if a is b or known is not None:
        return as_type(b if known == 0.0 else a, node.type)
    return full(ca, node.type) if ca is not None and ca == cb else None


@where(lambda op: not op.elementwise and bool(op.linear_in or op.jointly_linear))
def _zero(node: Node) -> Node | None:
    """Linear operators of zeros."""
    known = any(constant_of(node.inputs[i]) == 0.0 for i in node.op.linear_in)
    if not known and node.op.jointly_linear:
        known = all(constant_of(x) == 0.0 for x in node.inputs)
    return zeros(node.type) if known else None


@of("broadcast")
def _broadcast(node: Node) -> Node | None:
    """A broadcast that repeats nothing, or a broadcast."""
    (x,) = node.inputs
    if x.type == node.type:
        return x
    return as_type(x.inputs[0], node.type) if x.op.name == "broadcast" else None


@where(lambda op: (op.elementwise and op.name != "broadcast") or op.name == "cross_entropy_grad")
def _implicit_broadcast(node: Node) -> Node | None:
    """Drop broadcasts of operands that the operator broadcasts anyway."""
    for i, x in enumerate(node.inputs):
        if x.op.name != "broadcast":
            continue
        inputs = (*node.inputs[:i], x.inputs[0], *node.inputs[i + 1 :])
        try:
            kept = node.op.infer([y.type for y in inputs], dict(node.attrs)) == node.type
        except ValueError:
            kept = False
        if kept:
            return rebuild(node, inputs)
    return None


def _repeats_rows(x: Node) -> bool:
    """True if ``x`` broadcasts whole rows of a coarser domain to a finer one."""
    if x.op.name != "broadcast" or x.inputs[0].op.name == "constant":
        return False
    (y,) = x.inputs
    return y.shape == x.shape and y.type.domain.base != x.type.domain.base


def _has_fewer(rows: Domain, finer: Domain) -> bool:
    """True if there are no more ``rows`` than ``finer`` ones. Vertices with children have edges,
    and graphs have vertices, but not of every kind; specialisation leaves out leaves that no edge
    reads."""
    if rows.base == "vertex":
        return rows.kind == finer.kind
    return rows.base == "one" or (finer.base == "vertex" and finer.kind is None)


@of("matmul")
def _product_of_repeated(node: Node) -> Node | None:
    """A product of repeated rows is the repeated product."""
    x, w = node.inputs
    if not _repeats_rows(x) or not _has_fewer(x.inputs[0].type.domain, x.type.domain):
        return None
    product = apply("matmul", x.inputs[0], w)
    return apply("broadcast", product, shape=node.shape, domain=node.type.domain)


@of("matmul_tn")
def _gradient_of_repeated(node: Node) -> Node | None:
    """The product of a gradient reads repeated rows where they are stored."""
    for x, other in (node.inputs, node.inputs[::-1]):
        if _repeats_rows(x) and x.type.domain == other.type.domain and not _repeats_rows(other):
            return rebuild(node, tuple(y.inputs[0] if y is x else y for y in node.inputs))
    return None


@of("keep_axis")
def _keep_axis(node: Node) -> Node | None:
    """A kept axis is a reshape."""
    return apply("reshape", node.inputs[0], shape=node.shape)


@of("reshape")
def _reshape(node: Node) -> Node | None:
    """A reshape to the same shape, of a reshape, or of repeated rows."""
    (x,) = node.inputs
    if x.shape == node.shape:
        return x
    if x.op.name == "reshape":
        return apply("reshape", x.inputs[0], shape=node.shape)
    if x.op.name == "broadcast" and x.inputs[0].shape == x.shape:
        inner = apply("reshape", x.inputs[0], shape=node.shape)
        return apply("broadcast", inner, shape=node.shape, domain=node.type.domain)
    return None


@of("push")
def _push(node: Node) -> Node | None:
    """A push of a push."""
    (x,) = node.inputs
    return x if x.op.name == "push" else None


@of("slice")
def _slice(node: Node) -> Node | None:
    """Slices of slices, concatenations, pads and elementwise operators."""
    (x,) = node.inputs
    start, stop = node.attr("start"), node.attr("stop")
    if start == 0 and stop == x.shape[-1]:
        return x
    if x.op.name == "slice":
        inner = x.attr("start")
        return x.inputs[0][inner + start : inner + stop]
    if x.op.name == "concat" and x.attr("axis") == -1:
        pieces, at = [], 0
        for piece in x.inputs:
            low, high = max(start - at, 0), min(stop - at, piece.shape[-1])
            if low < high:
                pieces.append(piece[low:high] if high - low < piece.shape[-1] else piece)
            at += piece.shape[-1]
        # The type may have its kind from another piece.
        return as_type(
            pieces[0] if len(pieces) == 1 else apply("concat", *pieces, axis=-1), node.type
        )
    if x.op.name == "pad":
        at = x.attr("start")
        size = x.inputs[0].shape[-1]
        if start >= at and stop <= at + size:
            return x.inputs[0][start - at : stop - at]
        if stop <= at or start >= at + size:
            return zeros(node.type)
        return None
    if x.op.elementwise and x.inputs and x.op.name != "uniform":
        return _slice_elementwise(node, x, start, stop)
    return None


def _slice_elementwise(node: Node, x: Node, start: int, stop: int) -> Node | None:
    """slice(f(a, b)) = f(slice(a), slice(b)), so that fused kernels have the width of a gate."""

    def cut(y: Node) -> Node:
        return y[start:stop] if y.shape and y.shape[-1] > 1 else y

    inputs = tuple(cut(y) for y in x.inputs)
    if x.op.name == "broadcast":
        return apply("broadcast", *inputs, shape=node.shape, domain=node.type.domain)
    return rebuild(x, inputs)


@of("concat")
def _concat(node: Node) -> Node | None:
    """Concatenations of concatenations and of neighbouring slices."""
    if node.attr("axis") != -1:
        return None
    if any(x.op.name == "concat" for x in node.inputs):
        flat = [y for x in node.inputs for y in (x.inputs if x.op.name == "concat" else (x,))]
        return apply("concat", *flat, axis=-1)
    merged: list[Node] = []
    for x in node.inputs:
        last = merged[-1] if merged else None
        if (
            last is not None
            and last.op.name == x.op.name == "slice"
            and last.inputs == x.inputs
            and last.attr("stop") == x.attr("start")
        ):
            merged[-1] = x.inputs[0][last.attr("start") : x.attr("stop")]
        else:
            merged.append(x)
    if len(merged) == len(node.inputs):
        return None
    return merged[0] if len(merged) == 1 else apply("concat", *merged, axis=-1)


def _placed(x: Node) -> list[tuple[tuple[int, int], Node]] | None:
    """Return columns and values of a pad, or of a concatenation with gaps of zeros."""
    if x.op.name == "pad":
        start = x.attr("start")
        return [((start, start + x.inputs[0].shape[-1]), x.inputs[0])]
    if x.op.name != "concat" or all(constant_of(y) != 0.0 for y in x.inputs):
        return None
    result, at = [], 0
    for y in x.inputs:
        if constant_of(y) != 0.0:
            result.append(((at, at + y.shape[-1]), y))
        at += y.shape[-1]
    return result


_MOST_TERMS = 1000  # terms of a sum; overlapping pads may have one for each path


def _count_placed(node: Node) -> int:
    """Return how many terms of a sum `_placed` matches, at most 2; cached, as sums may be long."""
    stack = [node]
    while stack:
        x = stack[-1]
        terms = x.inputs if x.op.name == "add" else ()
        if left := [y for y in terms if y.placed is None]:
            stack += left
            continue
        own = [y.placed or 0 for y in terms if y.op.name != "add" or y.type == x.type]
        x.placed = min(2, sum(own)) if terms else int(_placed(x) is not None)
        stack.pop()
    assert node.placed is not None
    return node.placed


@of("add")
def _pads(node: Node) -> Node | None:
    """Sums of pads, the cotangents of split, become one concatenation."""
    if _count_placed(node) < 2:
        return None
    terms: list[Node] = []
    stack = [node]
    while stack and len(terms) < _MOST_TERMS:
        x = stack.pop()
        if x.op.name == "add" and x.type == node.type:
            stack += x.inputs
        else:
            terms.append(x)
    if stack:
        return None
    ranges: dict[tuple[int, int], Node] = {}
    rest: list[Node] = []
    for x in terms:
        pieces = _placed(x)
        if pieces is None:
            rest.append(x)
            continue
        for key, piece in pieces:
            ranges[key] = ranges[key] + piece if key in ranges else piece
    order = sorted(ranges)
    if any(a[1] > b[0] for a, b in pairwise(order)):
        return None
    parts, at, size = [], 0, node.shape[-1]
    for low, high in [*order, (size, size)]:
        if low > at:
            gap = TensorType(node.type.dtype, (*node.shape[:-1], low - at), node.type.domain)
            parts.append(zeros(gap))
        if high > low:
            parts.append(ranges[low, high])
        at = high
    total = apply("concat", *parts, axis=-1) if len(parts) > 1 else parts[0]
    for x in rest:
        total = total + x
    return total


@of("transpose")
def _transpose(node: Node) -> Node | None:
    x = node.inputs[0]
    if x.op.name == "transpose":
        return x.inputs[0]
    if x.op.name == "matmul_tn":
        return apply("matmul_tn", x.inputs[1], x.inputs[0])
    if x.op.name == "add":
        return apply("transpose", x.inputs[0]) + apply("transpose", x.inputs[1])
    return None


@where(lambda op: op.rule is BatchRule.ROWWISE)
def _graph_at_edges(node: Node) -> Node | None:
    """Values of a graph are read by edges at their vertex."""
    if not node.type.domain.related:
        return None
    for i, x in enumerate(node.inputs):
        if x.type.domain.base == "graph":
            at = node.type.domain.at("vertex")
            y = apply("broadcast", x, shape=x.shape, domain=at)
            return rebuild(node, (*node.inputs[:i], y, *node.inputs[i + 1 :]))
    return None


@where(lambda op: op.same_row or op.name == "slice")
def _known(node: Node) -> Node | None:
    """A constant in another shape, or a part of it."""
    value = constant_of(node.inputs[0])
    return None if value is None else full(value, node.type)


@of("stop_gradient")
def _stopped(node: Node) -> Node | None:
    """Drop ``stop_gradient`` after differentiation."""
    return node.inputs[0]


@of("sum_rows")
def _one_row(node: Node) -> Node | None:
    """The sum over one row is that row."""
    return node.inputs[0] if node.inputs[0].type.domain.base == "one" else None


RULES = Rules(
    _fold,
    _zero,
    _add,
    _sub,
    _mul,
    _div,
    _choice,
    _broadcast,
    _implicit_broadcast,
    _product_of_repeated,
    _gradient_of_repeated,
    _keep_axis,
    _reshape,
    _push,
    _slice,
    _concat,
    _pads,
    _transpose,
    _graph_at_edges,
    _known,
    _one_row,
    copy_broadcast,
    _stopped,
)


# Rules that the lowering relies on.
CANONICAL = Rules(_transpose, _graph_at_edges, _known, _one_row, copy_broadcast)


def simplify_node(node: Node, rules: Rules = RULES) -> Node:
    """Apply the rules to one node until none fits; its inputs are simplified already.

    Nodes are immutable and rules depend on nothing else, so a settled node stays settled.
    """
    for _ in range(100):
        if node.settled is rules:
            return node
        for rule in rules.of(node.op):
            new = rule(node)
            if new is not None and new is not node:
                node = new
                break
        else:
            node.settled = rules
            return node
    return node


def prune(graph: Graph) -> Graph:
    """Drop slots that no output depends on."""
    needed: set[Any] = set()
    seen = set(graph.outputs.values())
    left = list(seen)
    while left:
        node = left.pop()
        found = node.inputs
        if node.op.reads_slot:
            slot = node.attr("slot")
            if slot not in needed:
                needed.add(slot)
                found = (*found, graph.slots[slot])
        for x in found:
            if x not in seen:
                seen.add(x)
                left.append(x)
    if len(needed) == len(graph.slots):
        return graph
    return Graph(dict(graph.outputs), {s: v for s, v in graph.slots.items() if s in needed})


def simplify(graph: Graph, rules: Rules = RULES) -> Graph:
    """Simplify until nothing changes, and drop what no output depends on."""

    def rule(node: Node, inputs: tuple[Node, ...]) -> Node:
        return simplify_node(rebuild(node, inputs), rules)

    graph = prune(graph)
    while any(n.settled is not rules for n in graph.nodes()):
        new = rewrite(graph, rule, rules)
        if new == graph:
            break
        graph = prune(new)
    return graph
