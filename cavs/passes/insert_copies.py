"""Insert copies where a value cannot be read through a row map."""

from __future__ import annotations

from cavs.errors import CompileError
from cavs.ir import ONE, VERTEX, Graph, Node, Slot, apply, rebuild, rewrite
from cavs.passes.access import Accesses, NoAccessError, is_view, reduces


def _by_way_of_vertices(n: Node, accesses: Accesses) -> Node:
    """No row map leads from an edge to its graph: the edges of ``n`` read it at their parent."""
    domains = [x.type.domain for x in n.inputs] if reduces(n) else [n.type.domain]
    top = max(domains, key=lambda d: d.rank, default=ONE)
    if top.base != "edge":
        return n

    def there(x: Node) -> Node:
        at = VERTEX.of_kind(top.kind)
        return _readable(apply("broadcast", x, shape=x.shape, domain=at), accesses)

    return rebuild(n, tuple(there(x) if x.type.domain.base == "graph" else x for x in n.inputs))


def _readable(n: Node, accesses: Accesses) -> Node:
    """``n``, with copies of what it cannot read where it stands."""
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
    """A computed node equal to ``node``."""
    return apply("broadcast", node, shape=node.shape, domain=node.type.domain)


def insert_copies(graph: Graph) -> Graph:
    """Puts copies where a view cannot be read through, and where a merge needs a value of its own.

    Afterwards every slot and output is a computed node or a merge of computed nodes, or columns of
    such for a slot of one child, and no computed node feeds two merges.
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

    apart = {n.attr("slot") for n in new.nodes() if n.op.name == "gather_out"}

    def held(s: Slot, n: Node) -> Node:
        """Columns of a stored value stay where they are if the reader can find them."""
        if not s.backward or s.base == "edge" or s in apart or not is_view(n):
            return stored(n)
        return n if accesses.held(n) else copy_of(n)

    def added(n: Node) -> Node:
        """A term of a gradient is added as one: parts side by side become one value first."""
        return n if reduces(n) or len(accesses.pieces(n)) == 1 else copy_of(n)

    outputs = {k: (added if k.startswith("grad:") else stored)(n) for k, n in new.outputs.items()}
    return Graph(outputs, {s: held(s, n) for s, n in new.slots.items()})
