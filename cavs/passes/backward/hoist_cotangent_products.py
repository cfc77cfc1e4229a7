"""Multiply cotangents by a transposed weight at the child instead of at the parent.

``d(children) = d @ W^T`` at the parent has one row per edge, which lives until the task of the
child runs; ``d`` is stored anyway, for the gradient of W. So ``d`` is scattered if it is no wider,
and a child multiplies the sum over its parents by its rows of W. The schedule sorts the rows of a
task by their number as a child (csrc/schedule), so that each number multiplies its own rows only.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from cavs.ir import ONE, Graph, Node, Slot, apply, rewrite, users

SORTED_NUMBERS = 8  # numbers of a child that the schedule sorts by: kNumbers of csrc/graph/graph.h


def hoist_cotangent_products(graph: Graph, shared: bool) -> Graph:
    """Move products of a differentiated graph from the parent to the child.

    shared: also those of cotangents that all children share. They are then computed at every child,
    which is more rows where few vertices are leaves.
    """
    sources = _movable(graph, shared)
    if not sources:
        return graph
    moved = {s: replace(s, shape=_product(n).inputs[0].shape) for s, n in sources.items()}

    def rule(n: Node, inputs: tuple[Node, ...]) -> Node | None:
        if n.op.name != "gather_grad" or n.attr("slot") not in moved:
            return None
        slot = n.attr("slot")
        source = sources[slot]
        (weight,) = _product(source).inputs[1].inputs
        assert weight.type.domain == ONE
        if source.op.name == "slice":
            start, stop = source.attr("start"), source.attr("stop")
            weight = apply("rows", weight, start=start, stop=stop)
        gathered = apply("gather_grad", slot=moved[slot], domain=n.type.domain)
        return apply("matmul", gathered, apply("transpose", weight))

    new = rewrite(graph, rule)
    slots: dict[Slot, Node] = {}
    for slot, n in new.slots.items():
        slots[moved.get(slot, slot)] = _product(n).inputs[0] if slot in moved else n
    return Graph(dict(new.outputs), slots)


def _product(source: Node) -> Node:
    return source.inputs[0] if source.op.name == "slice" else source


def _movable(graph: Graph, shared: bool) -> dict[Slot, Node]:
    """Slots that hold columns of a product with a transposed weight.

    Nothing else reads the product, and together the slots are at least as wide as its left operand.
    """
    slots: dict[Node, list[Slot]] = defaultdict(list)
    for slot, source in graph.slots.items():
        p = _product(source)
        if slot.backward and p.op.name == "matmul":
            left, right = p.inputs
            if left.type.domain == p.type.domain and right.op.name == "transpose":
                slots[p].append(slot)
    readers = users(graph.nodes())
    found: dict[Slot, Node] = {}
    for p, of_product in slots.items():
        sources = {graph.slots[s] for s in of_product}
        others = [n for s in {p, *sources} for n in readers.get(s, ()) if n not in sources]
        outputs = sources.intersection(graph.outputs.values()) or p in graph.outputs.values()
        fits = all(_fits(s, shared) for s in of_product)
        wide = sum(n.shape[0] for n in sources) >= p.inputs[0].shape[0]
        if fits and wide and not others and not outputs:
            found.update((s, graph.slots[s]) for s in of_product)
    return found


def _fits(slot: Slot, shared: bool) -> bool:
    """True if the children multiply no more rows than the parents would, or ``shared`` allows."""
    if slot.base == "edge":
        return True
    return shared if slot.alike else slot.child is not None and slot.child < SORTED_NUMBERS
