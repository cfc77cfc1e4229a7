"""Store a cotangent that is equal for all children of a vertex once at that vertex."""

from __future__ import annotations

from dataclasses import replace

from cavs.ir import Graph, Node, apply, rewrite


def share_cotangents(graph: Graph) -> Graph:
    """Replace one row per edge by one row per parent, where the rows of a parent are equal."""
    shared = {
        slot: replace(slot, alike=True)
        for slot, n in graph.slots.items()
        if slot.base == "edge" and n.op.name == "broadcast" and n.inputs[0].shape == n.shape
        if n.inputs[0].type.domain == slot.structure.vertex
    }

    def rule(n: Node, inputs: tuple[Node, ...]) -> Node | None:
        if n.op.name != "gather_grad" or n.attr("slot") not in shared:
            return None
        return apply("gather_grad", slot=shared[n.attr("slot")], domain=n.type.domain)

    if not shared:
        return graph
    slots = {shared.get(s, s): n.inputs[0] if s in shared else n for s, n in graph.slots.items()}
    return rewrite(Graph(dict(graph.outputs), slots), rule)
