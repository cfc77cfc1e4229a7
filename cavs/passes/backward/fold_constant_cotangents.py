"""Replace reads of a slot that holds one number at all parents by that number.

The cotangent of what parents do not pull, for instance, is zero. Only specialisation shows it, so
the pass runs after it.
"""

from __future__ import annotations

from cavs.ir import Graph, Node, rewrite
from cavs.passes.rules import constant_of, full


def fold_constant_cotangents(graph: Graph) -> Graph:
    """Fold what children read of constant slots; nothing reads or stores these afterwards."""
    known = {s: constant_of(n) for s, n in graph.slots.items()}

    def rule(n: Node, inputs: tuple[Node, ...]) -> Node | None:
        value = known[n.attr("slot")] if n.op.name == "gather_out" else None
        return None if value is None else full(value, n.type)

    return rewrite(graph, rule)
