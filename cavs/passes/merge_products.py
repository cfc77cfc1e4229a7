"""Products that share an input become one; sums of products become one longer product."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from cavs.ir import Graph, Node, apply, rebuild, rewrite, users
from cavs.passes.loops import loops_of


def _share_input(graph: Graph) -> Graph:
    """x @ W1, x @ W2 -> x @ [W1 W2], cut again. Products of a loop stay apart from eager ones."""
    by_input: dict[object, list[Node]] = {}
    loops = loops_of(graph)
    for n in graph.nodes():
        if n.op.name == "matmul" and n.type.domain.base != "one":
            by_input.setdefault((n.inputs[0], loops.get(n)), []).append(n)

    def rule(n: Node, inputs: tuple[Node, ...]) -> Node | None:
        products = by_input.get((n.inputs[0], loops.get(n)), []) if n.op.name == "matmul" else []
        if len(products) < 2:
            return None
        weights = apply("concat", *(p.inputs[1] for p in products), axis=-1)
        joined = apply("matmul", inputs[0], weights)
        start = sum(p.shape[0] for p in products[: products.index(n)])
        return joined[start : start + n.shape[0]]

    return rewrite(graph, rule)


@dataclass(frozen=True)
class _Place:
    """Where a product, or columns of it, is a term: the sum as a whole, and which columns."""

    total: Node
    start: int
    stop: int


class _Sums:
    """The sums of a graph, each as the list of its terms, and the products that stand in them."""

    def __init__(self, graph: Graph) -> None:
        nodes = graph.nodes()
        self.roots = set(graph.roots())
        self.readers = users(nodes)
        inner = {n for n in nodes if n.op.name == "add" and self._is_term(n)}
        self.terms = {n: _terms(n, inner) for n in nodes if n.op.name == "add" and n not in inner}
        self.place: dict[Node, _Place] = {}
        for total, terms in self.terms.items():
            for x, times in Counter(terms).items():
                if times == 1 and self._is_term(x):
                    cut = (x.attr("start"), x.attr("stop")) if x.op.name == "slice" else None
                    self.place[x] = _Place(total, *(cut or (0, x.type.width)))

    def _is_term(self, x: Node) -> bool:
        """Read by one addition of its own type, once, and by nothing else."""
        found = self.readers.get(x, [])
        if x in self.roots or [(r.op.name, r.type) for r in found] != [("add", x.type)]:
            return False
        return sum(y is x for y in found[0].inputs) == 1

    def places(self, product: Node) -> frozenset[_Place] | None:
        """Every place of ``product``; None if it is also read elsewhere than in sums."""
        if product in self.roots:
            return None
        parts = [product] if product in self.place else self.readers.get(product, [])
        if any(x is not product and x.op.name != "slice" for x in parts):
            return None
        return frozenset(self.place[x] for x in parts) if set(parts) <= set(self.place) else None


def _terms(n: Node, inner: set[Node]) -> list[Node]:
    """The terms of the sum ``n``, left to right; additions in ``inner`` are looked into."""
    found, stack = [], [n]
    while stack:
        x = stack.pop()
        if x is n or x in inner:
            stack += reversed(x.inputs)
        else:
            found.append(x)
    return found


def _of_some_rows(product: Node) -> bool:
    """Whether it multiplies what parents whose k-th child a vertex is have scattered: most vertices
    of a task have such parents for one k, and the engine leaves out the others' rows."""
    x = product.inputs[0]
    slot = x.attr("slot") if x.op.name == "gather_grad" else None
    return slot is not None and slot.child is not None and slot.leaf is not True


def _add_up(graph: Graph) -> Graph:
    """a @ U + c + b @ V -> c + [a b] @ [U; V]: products that stand in the same sums become one.

    A sum is all its additions together, and may be of some columns of the products. Nothing else
    reads the products, so none of them waits for another. Those of a loop stay apart from others.
    """
    loops = loops_of(graph)
    sums = _Sums(graph)
    groups: dict[object, list[Node]] = {}
    for n in graph.nodes():
        places = sums.places(n) if n.op.name == "matmul" and not _of_some_rows(n) else None
        if places:
            groups.setdefault((loops.get(n), n.type, places), []).append(n)
    group_of = {n: group for group in groups.values() for n in group if len(group) > 1}
    new: dict[Node, Node] = {}

    def product_of(term: Node) -> Node:
        return term.inputs[0] if term.op.name == "slice" else term

    def rule(n: Node, inputs: tuple[Node, ...]) -> Node:
        terms = sums.terms.get(n, [])
        if any(product_of(x) in group_of for x in terms if x in sums.place):
            new[n] = summed(terms)
        else:
            new[n] = rebuild(n, inputs)
        return new[n]

    def summed(terms: list[Node]) -> Node:
        parts = []
        for x in terms:
            group = group_of.get(product_of(x)) if x in sums.place else None
            if group is None:
                parts.append(new[x])
            elif product_of(x) is group[0]:
                left = apply("concat", *(new[p].inputs[0] for p in group), axis=-1)
                right = apply("concat", *(new[p].inputs[1] for p in group), axis=-2)
                joined = apply("matmul", left, right)
                parts.append(joined if x is group[0] else joined[x.attr("start") : x.attr("stop")])
        total, *rest = parts
        for part in rest:
            total = total + part
        return total

    return rewrite(graph, rule)


def merge_products(graph: Graph) -> Graph:
    """Fewer and larger products."""
    return _add_up(_share_input(graph))
