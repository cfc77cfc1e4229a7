"""Compute products of scattered values once at the child, not at every edge to it.

``child.h @ U`` has one row per edge. Where children are shared, edges outnumber vertices, so the
product is scattered next to ``h``: one more slot, with one row per vertex. Its cotangent is then
summed over the parents before it is multiplied, and the products of leaves leave the loop.
"""

from __future__ import annotations

from cavs.ir import BatchRule, Graph, Node, Slot, Structure, apply, rebuild, rewrite, toposort


def _child_of(x: Node) -> Structure | None:
    """Return the structure whose children alone determine the edge value ``x``, or None.

    They do if ``x`` is a rowwise function of gathered values and of values of one row. A function
    that may be infinite stays at the edges, as the product is computed at every vertex, of which
    some are no children.
    """
    found: set[Structure] = set()
    for y in toposort([x]):
        if y.op.name == "gather":
            found.add(y.attr("slot").structure)
        elif y.type.domain.base != "one":
            given = not y.inputs or "domain" in dict(y.attrs)
            if y.type.domain.base != "edge" or y.op.rule is not BatchRule.ROWWISE or given:
                return None
            if y.op.elementwise and not y.op.total:
                return None
    return found.pop() if len(found) == 1 else None


def _at_child(x: Node, slots: dict[Slot, Node]) -> Node:
    """Return the value of the child whose gather is the edge value ``x``."""
    value: dict[Node, Node] = {}
    for y in toposort([x]):
        if y.op.name == "gather":
            value[y] = slots[y.attr("slot")]
        else:
            value[y] = rebuild(y, tuple(value[z] for z in y.inputs))
    return value[x]


def hoist_products_to_child(graph: Graph) -> Graph:
    """Move the products of gathered values; before differentiation, so that gradients follow."""
    made: dict[Slot, tuple[Node, ...]] = {}

    def rule(n: Node, inputs: tuple[Node, ...]) -> Node | None:
        # The function of one type would have the product computed at all children.
        edges = n.type.domain.base == "edge" and n.type.domain.kind is None
        whole = n.op.name == "matmul" and edges
        structure = _child_of(inputs[0]) if whole else None
        if structure is None:
            return None
        slot = Slot(f"product {len(made)}", structure, n.shape)
        made[slot] = inputs
        return apply("gather", slot=slot, domain=structure.edge)

    new = rewrite(graph, rule)
    slots = dict(new.slots)
    for slot, (x, w) in made.items():
        slots[slot] = apply("matmul", _at_child(x, slots), w)
    return Graph(dict(new.outputs), slots)
