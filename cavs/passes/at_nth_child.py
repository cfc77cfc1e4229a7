"""A product of what is gathered from the k-th child is done at the child, once for all parents.

``[left.h, right.h] @ U`` at the parent is ``left.(h @ U0) + right.(h @ U1)``. Merged copies have
many parents, so fewer rows are multiplied: those that are a k-th child of any vertex. That is a
kind of vertex (`specialise`), named like a feature that may be absent.
"""

from __future__ import annotations

from cavs.ir import EDGE, Graph, Node, Slot, Structure, apply, rewrite

USED = "#child "  # + k: present at vertices that are the k-th child of another

# Slot, number of the child, rows [start, stop) of the weight.
_Gathered = tuple[Slot, int, int, int]


def _gathered(x: Node) -> list[_Gathered] | None:
    """What ``x`` is made of if it is nothing but values of single children, side by side."""
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
    for n in graph.nodes():
        if n.op.name == "matmul":
            parts = _gathered(n.inputs[0])
            if parts is not None:
                found[n] = parts
    return found


def multiplied_children(graph: Graph) -> int:
    """One more than the largest number of a child that `at_nth_child` uses; 0: none."""
    parts = [part for product in _products(graph).values() for part in product]
    return max((k + 1 for _, k, _, _ in parts), default=0)


def at_nth_child(graph: Graph) -> Graph:
    """Moves products to the children, through a new slot for every product and child."""
    products = _products(graph)
    slots: dict[Slot, tuple[Node, list[_Gathered]]] = {}

    def rule(n: Node, inputs: tuple[Node, ...]) -> Node | None:
        parts = products.get(n)
        if parts is None:
            return None
        total: Node | None = None
        for k in dict.fromkeys(k for _, k, _, _ in parts):
            of_child = [part for part in parts if part[1] == k]
            structure: Structure = of_child[0][0].structure
            slot = Slot(f"product {len(slots)}", structure, n.shape, child=k)
            slots[slot] = inputs[1], of_child
            gather = apply("gather", slot=slot, domain=EDGE)
            term = apply("nth_child", gather, k=k)
            total = term if total is None else total + term
        return total

    new = rewrite(graph, rule)
    for slot, (weight, of_child) in slots.items():
        total: Node | None = None  # merge_products makes one product of the terms
        for s, _, a, b in of_child:
            rows = apply("rows", weight, start=a, stop=b)
            term = apply("matmul", new.slots[s], rows)
            total = term if total is None else total + term
        assert total is not None
        new.slots[slot] = total
    return new
