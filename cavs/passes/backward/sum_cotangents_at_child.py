"""Recompute per-edge cotangents at the child, so that no per-edge buffer is stored.

A cotangent of an edge is an elementwise function of values of the parent, of the child, and of
narrow values of the edge. The child evaluates it for each of its parents and adds up the results in
one kernel (``sum_out``).
"""

from __future__ import annotations

from collections.abc import Collection

from cavs.ir import Graph, Node, Slot, Structure, apply, rebuild, rewrite, toposort

NARROW = 4  # a value of an edge may be stored if the cotangent is at least so many times wider

SlotKey = tuple[Structure, str, tuple[int, ...]]


def edge_cotangent_slots(graph: Graph) -> set[SlotKey]:
    """Return the slots that hold one cotangent per edge."""
    return {_key(s) for s in graph.slots if _is_edge_cotangent(s)}


def sum_cotangents_at_child(graph: Graph, wanted: Collection[SlotKey]) -> Graph:
    """Replace the ``wanted`` slots by sums that each child computes over its parents."""
    read: dict[tuple[Structure, Node], Slot] = {}
    found: dict[Slot, Node] = {}
    for slot, source in graph.slots.items():
        if _is_edge_cotangent(slot) and _key(slot) in wanted:
            value = _at_child(graph, slot, source, read)
            if value is not None:
                found[slot] = apply("sum_out", value)
    _drop_dependent(found)

    def rule(n: Node, inputs: tuple[Node, ...]) -> Node | None:
        return found.get(n.attr("slot")) if n.op.name == "gather_grad" else None

    if not found:
        return graph
    slots = graph.slots | {s: n for (_, n), s in read.items()}
    new = rewrite(Graph(dict(graph.outputs), slots), rule)
    return Graph(new.outputs, {s: n for s, n in new.slots.items() if s not in found})


def _is_edge_cotangent(slot: Slot) -> bool:
    return slot.backward and slot.base == "edge" and not slot.structure.top_down


def _key(slot: Slot) -> SlotKey:
    return slot.structure, slot.name, slot.shape


def _drop_dependent(found: dict[Slot, Node]) -> None:
    """Remove the sums that need another one, and so would form a cycle.

    A value of a child may itself depend on sums over its parents, as in a cell that reads one that
    runs top-down.
    """
    while True:
        read = {
            s: {n.attr("slot") for n in toposort([total]) if n.op.name == "gather_grad"}
            for s, total in found.items()
        }
        dependent = next((s for s, slots in read.items() if not slots.isdisjoint(found)), None)
        if dependent is None:
            return
        del found[dependent]


def _at_child(
    graph: Graph, slot: Slot, source: Node, read: dict[tuple[Structure, Node], Slot]
) -> Node | None:
    """Return ``source`` over the edges from a child to its parents, or None if that is impossible.

    read: the slots through which the child reads values of a parent or an edge; extended in place.
    """
    new: dict[Node, Node] = {}
    rounded: set[Node] = set()  # values whose bits may differ between parent and child
    slots, out = dict(read), slot.structure.vertex.at("out")

    def gather_out(x: Node, alike: bool) -> Node:
        name, key = f"{slot.name} {len(slots)}", (slot.structure, x)
        slots.setdefault(key, Slot(name, slot.structure, x.shape, backward=True, alike=alike))
        return apply("gather_out", slot=slots[key], domain=out)

    def narrow(x: Node) -> bool:
        return NARROW * x.type.width <= source.type.width

    def moved(x: Node) -> bool:
        wide = x.type.domain.base == "edge" and not narrow(x)
        return wide and x.op.elementwise and bool(x.inputs)

    border = {x for x in toposort([source]) if not moved(x)}
    for x in toposort([source], border):
        base = x.type.domain.base
        if moved(x):
            inexact = not rounded.isdisjoint(x.inputs)
            if inexact and x.op.comparison:
                return None
            if inexact or not x.op.exact:
                rounded.add(x)
            new[x] = rebuild(x, tuple(new[y] for y in x.inputs), out)
        elif base == "one":
            new[x] = x
        elif x.op.name == "gather" and _of_any_child(x.attr("slot")):
            new[x] = graph.slots[x.attr("slot")]
        elif base == "edge" and not narrow(x):
            return None
        elif base == "graph":
            new[x] = gather_out(x.at(slot.structure.vertex), alike=True)
        else:
            new[x] = gather_out(x, alike=base == "vertex")
    if new[source].type.domain != out:
        return None
    read.update(slots)
    return new[source]


def _of_any_child(slot: Slot) -> bool:
    return slot.child is None and slot.leaf is None
