"""Scale cotangents by a value of one row at the child instead of at the parent.

``d * w``, where ``w`` has one row for all vertices, such as a query that is a parameter, may be
much wider than ``d``. Only specialisation shows that ``w`` has one row, so the pass runs after it.
"""

from __future__ import annotations

from dataclasses import replace

from cavs.ir import ONE, Graph, Node, Slot, apply, rewrite

NARROW = 4  # ``d`` is scattered if ``d * w`` is at least so many times wider


def hoist_cotangent_scales(graph: Graph) -> Graph:
    """Scatter ``d`` and multiply the gathered sum by ``w``, where ``d`` is much narrower."""
    moved: dict[Slot, tuple[Slot, Node]] = {}
    narrow: dict[Slot, Node] = {}
    read_by_edge = {n.attr("slot") for n in graph.nodes() if n.op.name == "gather_out"}
    for slot, source in graph.slots.items():
        parts = list(source.inputs) if source.op.name == "merge" else [source]
        movable = slot.backward and slot not in read_by_edge
        pairs = [_scaled(x) for x in parts] if movable else [None]
        scales = {pair[1] for pair in pairs if pair is not None}
        if None in pairs or len(scales) != 1:
            continue
        rows = [pair[0] for pair in pairs if pair is not None]
        new = replace(slot, shape=rows[0].shape)
        moved[slot] = new, scales.pop()
        narrow[new] = rows[0]
        if source.op.name == "merge":
            narrow[new] = apply("merge", *rows, **{**dict(source.attrs), "shape": new.shape})

    def rule(n: Node, inputs: tuple[Node, ...]) -> Node | None:
        if n.op.name != "gather_grad" or n.attr("slot") not in moved:
            return None
        slot, w = moved[n.attr("slot")]
        return apply("gather_grad", slot=slot, domain=n.type.domain) * w

    if not moved:
        return graph
    slots = {s: n for s, n in graph.slots.items() if s not in moved}
    return rewrite(Graph(dict(graph.outputs), {**slots, **narrow}), rule)


def _scaled(x: Node) -> tuple[Node, Node] | None:
    """Return (d, w) if ``x`` is ``d * w`` with a ``w`` of one row and a much narrower ``d``."""
    if x.op.name != "mul":
        return None
    w, d = sorted(x.inputs, key=lambda y: y.type.domain.rank)
    fits = w.type.domain == ONE and d.type.domain == x.type.domain and w.shape == x.shape
    return (d, w) if fits and len(d.shape) == 1 and NARROW * d.shape[0] <= x.shape[0] else None
