"""Keep the gradient of a branch that is not taken zero.

The cotangent of the branch that a ``where`` does not take is zero, and so must be all that follows
from it. The product of that zero and an infinite slope is NaN instead, such as that of ``log(h)``
in ``where(h > 0, log(h), 0)`` at 0. So below a ``where`` a cotangent of zero gives zero, whatever
the slope is. Graphs without a ``where`` are differentiated as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cavs.ir import BatchRule, Graph, Node, apply, rebuild


class Branches:
    """The nodes of a graph whose cotangents may be zero while their slopes are infinite."""

    def __init__(self, graph: Graph, nodes: Sequence[Node]) -> None:
        self._selected = _selected(graph, nodes)
        self._unbounded = _unbounded(graph, nodes) if self._selected else set()

    def vjp(self, node: Node, d: Node) -> Sequence[Node | None]:
        """Return the cotangents of the inputs of ``node``, zero where ``d`` is."""
        op = node.op
        assert op.vjp is not None
        linear = op.jointly_linear or (len(node.inputs) == 1 and bool(op.linear_in))
        if node not in self._selected or linear or op.exact or op.rule is not BatchRule.ROWWISE:
            return op.vjp(node, d)
        if (op.total or not op.elementwise) and self._unbounded.isdisjoint(node.inputs):
            return op.vjp(node, d)
        if op.takes_weights:  # a gradient of a weight sums over all rows
            taken = apply("keep_axis", apply("max_axis", apply("abs", d)))
            row = apply("where", taken, node.inputs[0], 0.0)
            return op.vjp(rebuild(node, (row, *node.inputs[1:])), d)
        return [None if dx is None else _zero_with(d, dx) for dx in op.vjp(node, d)]


def _zero_with(d: Node, dx: Node) -> Node:
    """Return ``dx``, zero where ``d`` is; ``dx`` may have one axis more than ``d``."""
    if d.type.domain != dx.type.domain or d.shape not in (dx.shape, dx.shape[:-1]):
        return dx  # the rule of a user's operator has summed over elements already
    return apply("where", d if d.shape == dx.shape else apply("keep_axis", d), dx, 0.0)


def _selected(graph: Graph, nodes: Sequence[Node]) -> set[Node]:
    """Return the nodes that a branch of a ``where`` depends on, also through slots.

    A random condition, as that of dropout, does not count: it protects no value.
    """
    found: set[Node] = set()
    before = -1
    while len(found) > before:
        before = len(found)
        for n in reversed(nodes):
            if n in found:
                found.update(n.inputs)
                if n.op.reads_slot:
                    found.add(graph.slots[n.attr("slot")])
            elif n.op.name == "where" and not _is_random(n.inputs[0]):
                found.update(n.inputs[1:])
    return found


def _is_random(condition: Node) -> bool:
    """True if a condition compares random numbers with constants."""
    sources = [x.op.name for x in condition.inputs if x.op.name != "constant"]
    return bool(sources) and all(name == "uniform" for name in sources)


def _unbounded(graph: Graph, nodes: Sequence[Node]) -> set[Node]:
    """Return the nodes that may be infinite or NaN at finite parameters and features."""
    found: set[Node] = set()
    before = -1
    while len(found) > before:
        before = len(found)
        for n in nodes:
            if n in found or n.op.comparison:
                continue
            sources = [graph.slots[n.attr("slot")]] if n.op.reads_slot else n.inputs
            infinite = n.op.name == "constant" and not np.isfinite(n.attr("value"))
            partial = n.op.elementwise and not n.op.total
            if infinite or partial or not found.isdisjoint(sources):
                found.add(n)
    return found
