"""Compute products of the k-th child at the leaves, once for all parents.

``[left.h, right.h] @ U`` at the parent is ``left.(h @ U0) + right.(h @ U1)``. Merged words have
many parents, while phrases seldom have a second one. So leaves are multiplied before the first
task, for every number that they have as a child, and parents multiply the states of their other
children. Both distinguish kinds of vertices (`specialise`), by a name like that of a feature that
may be absent.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from cavs.ir import Graph, Node, Slot, apply, rewrite

WIDEST = 8  # columns of the products per column of a child; wider ones take too much memory

# Slot, number of the child, rows [start, stop) of the weight.
_Gathered = tuple[Slot, int, int, int]


def _gathered(x: Node) -> list[_Gathered] | None:
    """Return the parts of ``x`` if it consists of values of single children side by side."""
    parts: list[_Gathered] = []
    start = 0
    for piece in x.inputs if x.op.name == "concat" else (x,):
        if piece.op.name != "nth_child" or piece.inputs[0].op.name != "gather":
            return None
        stop = start + piece.shape[0]
        parts.append((piece.inputs[0].attr("slot"), piece.attr("k"), start, stop))
        start = stop
    return parts


def _products(graph: Graph) -> dict[Node, list[_Gathered]]:
    found: dict[Node, list[_Gathered]] = {}
    width: dict[Node, int] = defaultdict(int)
    for n in graph.nodes():
        parts = _gathered(n.inputs[0]) if n.op.name == "matmul" else None
        # Gradients have windows only for rows of a parameter that multiply different values.
        plain = parts and n.inputs[1].op.name == "parameter"
        if parts and plain and len({(s, k) for s, k, _, _ in parts}) == len(parts):
            found[n] = parts
            width[n.inputs[0]] += n.shape[0]
    narrowest = {n: min(b - a for _, _, a, b in parts) for n, parts in found.items()}
    return {n: p for n, p in found.items() if width[n.inputs[0]] <= WIDEST * narrowest[n]}


def multiplied_children(graph: Graph) -> int:
    """Return one more than the largest number of a child in a hoisted product; 0 without one."""
    parts = [part for product in _products(graph).values() for part in product]
    return max((k + 1 for _, k, _, _ in parts), default=0)


def hoist_products_to_leaves(graph: Graph) -> Graph:
    """Move products to the leaves, through a new slot for every product and child."""
    products = _products(graph)
    slots: dict[Slot, tuple[Node, list[_Gathered]]] = {}
    inner: dict[Slot, Slot] = {}  # the same slots, gathered from children that are not leaves

    def rule(n: Node, inputs: tuple[Node, ...]) -> Node | None:
        parts = products.get(n)
        if parts is None:
            return None
        children = []
        domain = n.type.domain.at("edge")
        for s, k, _, _ in parts:
            same = inner.setdefault(s, replace(s, leaf=False))
            gather = apply("gather", slot=same, domain=domain)
            children.append(apply("nth_child", gather, k=k))
        joined = children[0] if len(children) == 1 else apply("concat", *children, axis=-1)
        total = apply("matmul", joined, inputs[1])
        for k in dict.fromkeys(k for _, k, _, _ in parts):
            of_child = [part for part in parts if part[1] == k]
            structure = of_child[0][0].structure
            slot = Slot(f"product {len(slots)}", structure, n.shape, child=k, leaf=True)
            slots[slot] = inputs[1], of_child
            gather = apply("gather", slot=slot, domain=domain)
            total = total + apply("nth_child", gather, k=k)
        return total

    new = rewrite(graph, rule)
    for slot, same in inner.items():
        new.slots[same] = new.slots[slot]
    for slot, (weight, of_child) in slots.items():
        products_of = [
            apply("matmul", new.slots[s], apply("rows", weight, start=a, stop=b))
            for s, _, a, b in of_child
        ]
        total = products_of[0]
        for term in products_of[1:]:  # merge_products joins them
            total = total + term
        new.slots[slot] = total
    return new
