"""Products of what a child scattered are made once at the child, not once at every edge to it.

``child.h @ U`` has a row an edge. Where children are shared, edges outnumber vertices, and the
product is better scattered beside ``h``: one more slot, a row a vertex. Its cotangent is then
summed over the parents before it is multiplied, and the products of leaves leave the loop.
"""

from __future__ import annotations

from cavs.ir import EDGE, BatchRule, Graph, Node, Slot, Structure, apply, rebuild, rewrite, toposort


def _child_of(x: Node) -> Structure | None:
    """The structure whose children give the edge value ``x``; None where more than they does.

    They alone do if it is a rowwise function of gathered values and of what has one row. One that
    may be infinite is left where children alone are: the product is made at every vertex.
    """
    found: set[Structure] = set()
    for y in toposort([x]):
        if y.op.name == "gather":
            found.add(y.attr("slot").structure)
        elif y.type.domain.base != "one":
            given = not y.inputs or "domain" in dict(y.attrs)
            if y.type.domain != EDGE or y.op.rule is not BatchRule.ROWWISE or given:
                return None
            if y.op.elementwise and not y.op.total:
                return None
    return found.pop() if len(found) == 1 else None


def _at_child(x: Node, slots: dict[Slot, Node]) -> Node:
    """The value of the child whose gather is the edge value ``x``."""
    value: dict[Node, Node] = {}
    for y in toposort([x]):
        if y.op.name == "gather":
            value[y] = slots[y.attr("slot")]
        else:
            value[y] = rebuild(y, tuple(value[z] for z in y.inputs))
    return value[x]


def hoist_products_to_child(graph: Graph) -> Graph:
    """Moves the products of gathered values; before differentiation, so that gradients follow."""
    made: dict[Slot, tuple[Node, ...]] = {}

    def rule(n: Node, inputs: tuple[Node, ...]) -> Node | None:
        structure = _child_of(inputs[0]) if n.op.name == "matmul" else None
        if structure is None:
            return None
        slot = Slot(f"product {len(made)}", structure, n.shape)
        made[slot] = inputs
        return apply("gather", slot=slot, domain=EDGE)

    new = rewrite(graph, rule)
    slots = dict(new.slots)
    for slot, (x, w) in made.items():
        slots[slot] = apply("matmul", _at_child(x, slots), w)
    return Graph(dict(new.outputs), slots)
