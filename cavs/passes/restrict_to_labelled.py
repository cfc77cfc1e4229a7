"""Restrict values that only losses read to the vertices that have a label.

Often only the root of a graph has a label, but a model that is declared for vertices has logits at
each. The cross entropy of a vertex without a label is zero, so it is computed where there is one,
as is everything that only it reads: the output layer, its gradients, dropout before it.
"""

from __future__ import annotations

from cavs.ir import (
    ONE,
    BatchRule,
    Domain,
    Graph,
    Node,
    apply,
    rebuild,
    rewrite,
    users,
)
from cavs.passes.loops import loops_of


def _taken(x: Node, domain: Domain) -> Node:
    """Return ``x`` restricted to the rows of ``domain``."""
    if x.type.domain in (ONE, domain):
        return x
    if x.op.name == "feature" and x.type.domain.base == "vertex":
        return rebuild(x, (), domain)
    if not _is_whole(x.type.domain):
        x = apply("broadcast", x, shape=x.shape, domain=domain.of_vertices)
    return apply("take", x, domain=domain)


def _is_whole(domain: Domain) -> bool:
    """True for all vertices, of a structure if samples have several."""
    return domain.base == "vertex" and domain.kind is None


def _place_losses(graph: Graph) -> Graph:
    """Compute cross entropies where there is a label and place them among zeros. Linear operators
    and sums then move to the labelled rows, too.

    Nodes in a loop stay: a loop computes whole levels, and labelled rows have the order of the
    batch.
    """
    roots, loops = set(graph.roots()), loops_of(graph)

    def rule(n: Node, inputs: tuple[Node, ...]) -> Node | None:
        name = n.op.name
        if n in loops:
            return None
        if name == "cross_entropy_rows":
            logits, label = inputs
            some = label.attr("optional") or label.type.domain.vertex_type is not None
            if not _is_whole(logits.type.domain) or not some or n.inputs[0] in roots:
                return None
            present = Domain("present", label.attr("name"), n.type.domain.structure)
            return apply("place", apply(name, *(_taken(x, present) for x in inputs)))
        if name == "mul" and inputs[1].op.name == "place":
            inputs = inputs[::-1]
        if not inputs or inputs[0].op.name != "place":
            return None
        x = inputs[0].inputs[0]
        if name == "sum_rows":
            return apply(name, x)
        linear = n.op.rule is BatchRule.ROWWISE and 0 in n.op.linear_in
        if not linear or not _is_whole(n.type.domain):
            return None
        return apply("place", rebuild(n, (x, *(_taken(y, x.type.domain) for y in inputs[1:]))))

    return rewrite(graph, rule)


def _read_by_labelled(graph: Graph) -> dict[Node, Domain]:
    """Return vertex values read only where a feature is present, mapped to that domain."""
    nodes = graph.nodes()
    readers, roots = users(nodes), set(graph.roots())
    found: dict[Node, Domain] = {}
    for n in reversed(nodes):
        gathered = n.op.program_input or n.op.name == "lookup"  # views, which are free
        rowwise = n.op.rule is BatchRule.ROWWISE and not gathered
        if not _is_whole(n.type.domain) or n in roots or not rowwise:
            continue
        domains = {
            r.type.domain if r.op.name == "take" else found.get(r) for r in readers.get(n, ())
        }
        domain = domains.pop() if len(domains) == 1 else None
        if domain is not None:
            found[n] = domain
    return found


def restrict_to_labelled(graph: Graph) -> Graph:
    """Restrict values that only losses read to the vertices that have a label.

    The pass runs before differentiation, so that gradients follow.
    """
    graph = _place_losses(graph)
    found = _read_by_labelled(graph)

    def rule(n: Node, inputs: tuple[Node, ...]) -> Node | None:
        if n in found:
            rows = tuple(_taken(x, found[n]) for x in inputs)
            return rows[0] if n.op.name == "push" else rebuild(n, rows, found[n])
        if n.op.name == "take" and n.inputs[0] in found:
            return inputs[0]
        return None

    return rewrite(graph, rule)
