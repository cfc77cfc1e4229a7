"""Insert copies where a value cannot be read through a row map."""

from __future__ import annotations

from cavs.errors import CompileError
from cavs.ir import ONE, Graph, Node, Slot, apply, rebuild, rewrite
from cavs.passes.access import Accesses, NoAccessError, is_view, reduces


def _by_way_of_vertices(n: Node, accesses: Accesses) -> Node:
    """Return ``n`` with values of a graph read at the parent, as no row map leads from an edge to
    its graph."""
    domains = [x.type.domain for x in n.inputs] if reduces(n) else [n.type.domain]
    top = max(domains, key=lambda d: d.rank, default=ONE)
    if not top.related:
        return n

    def there(x: Node) -> Node:
        at = apply("broadcast", x, shape=x.shape, domain=top.at("vertex"))
        return _readable(at, accesses)

    return rebuild(n, tuple(there(x) if x.type.domain.base == "graph" else x for x in n.inputs))


def _readable(n: Node, accesses: Accesses) -> Node:
    """Return ``n`` with copies of the inputs that it cannot read through a row map."""
    while True:
        try:
            accesses.check(n)
            return n
        except NoAccessError as error:
            bad = error.node
            if bad not in n.inputs:
                raise CompileError(
                    f"{n.op.name} cannot read {bad.op.name} of {bad.type}",
                    where=n.where,
                    hint="an operator between the two, such as x * 1.0, stores it first",
                ) from error
            n = rebuild(n, tuple(copy_of(x) if x is bad else x for x in n.inputs))


def copy_of(node: Node) -> Node:
    """Return a computed node equal to ``node``."""
    return apply("broadcast", node, shape=node.shape, domain=node.type.domain)


def insert_copies(graph: Graph) -> Graph:
    """Insert copies where a row map cannot be composed, or a merge needs a value of its own.

    Afterwards every slot and output is a computed node or a merge of computed nodes, or columns of
    such for a slot of one child. No computed node feeds two merges.
    """
    owner: dict[Node, Node] = {}
    accesses = Accesses(graph)

    def owned(x: Node, key: Node) -> Node:
        while is_view(x) or owner.setdefault(x, key) is not key:
            x = copy_of(x)
        return x

    def rule(n: Node, inputs: tuple[Node, ...]) -> Node:
        if n.op.name == "merge":
            inputs = tuple(owned(x, n) for x in inputs)
        return _readable(_by_way_of_vertices(rebuild(n, inputs), accesses), accesses)

    new = rewrite(graph, rule)

    def stored(n: Node) -> Node:
        return copy_of(n) if is_view(n) and n.op.name != "merge" else n

    read_by_edge = {n.attr("slot") for n in new.nodes() if n.op.name == "gather_out"}

    def stored_slot(s: Slot, n: Node) -> Node:
        """Read columns of a stored value in place if a row map leads to them."""
        if not s.backward or s.base == "edge" or s in read_by_edge or not is_view(n):
            return stored(n)
        return n if accesses.direct_pieces(n) else copy_of(n)

    def added(n: Node) -> Node:
        """Join parts side by side, as a term of a gradient is added as one value."""
        return n if reduces(n) or len(accesses.pieces(n)) == 1 else copy_of(n)

    outputs = {k: (added if k.startswith("grad:") else stored)(n) for k, n in new.outputs.items()}
    return Graph(outputs, {s: stored_slot(s, n) for s, n in new.slots.items()})
