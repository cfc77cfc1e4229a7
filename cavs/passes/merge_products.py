"""Merge products that share an input, and sums of products."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from cavs.ir import Graph, Node, apply, rebuild, rewrite, users
from cavs.passes.loops import loops_of


def _share_input(graph: Graph) -> Graph:
    """x @ W1, x @ W2 -> slices of x @ [W1 W2]. Eager products are not merged with those of a
    loop."""
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
class _Term:
    """The sum that a product, or a range of its columns, is a term of."""

    total: Node
    start: int
    stop: int


class _Sums:
    """The sums of a graph, each as a list of terms, and the products that are terms."""

    def __init__(self, graph: Graph) -> None:
        nodes = graph.nodes()
        self.roots = set(graph.roots())
        self.readers = users(nodes)
        inner = {n for n in nodes if n.op.name == "add" and self._is_term(n)}
        self.terms = {n: _terms(n, inner) for n in nodes if n.op.name == "add" and n not in inner}
        self.term_of: dict[Node, _Term] = {}
        for total, terms in self.terms.items():
            for x, times in Counter(terms).items():
                if times == 1 and self._is_term(x):
                    cut = (x.attr("start"), x.attr("stop")) if x.op.name == "slice" else None
                    self.term_of[x] = _Term(total, *(cut or (0, x.type.width)))

    def _is_term(self, x: Node) -> bool:
        """True if only one addition, of the same type, reads ``x``, and only once."""
        found = self.readers.get(x, [])
        if x in self.roots or [(r.op.name, r.type) for r in found] != [("add", x.type)]:
            return False
        return sum(y is x for y in found[0].inputs) == 1

    def uses(self, product: Node) -> frozenset[_Term] | None:
        """Return all sums of which ``product`` is a term; None if it has other readers."""
        if product in self.roots:
            return None
        parts = [product] if product in self.term_of else self.readers.get(product, [])
        if any(x is not product and x.op.name != "slice" for x in parts):
            return None
        return (
            frozenset(self.term_of[x] for x in parts) if set(parts) <= set(self.term_of) else None
        )


def _terms(n: Node, inner: set[Node]) -> list[Node]:
    """Return the terms of the sum ``n``, left to right; additions in ``inner`` are expanded."""
    found, stack = [], [n]
    while stack:
        x = stack.pop()
        if x is n or x in inner:
            stack += reversed(x.inputs)
        else:
            found.append(x)
    return found


def _of_some_rows(product: Node) -> bool:
    """True if it multiplies the cotangents of one child number. Most vertices of a task have
    parents for a single number, and the engine skips the rows of the others."""
    x = product.inputs[0]
    slot = x.attr("slot") if x.op.name == "gather_grad" else None
    return slot is not None and slot.child is not None and slot.leaf is not True


def _add_up(graph: Graph) -> Graph:
    """a @ U + c + b @ V -> c + [a b] @ [U; V] for products that are terms of the same sums.

    A sum comprises all its additions, and may be of some columns of the products. The products have
    no other reader, so none waits for another. Those of a loop are merged only with each other.
    """
    loops = loops_of(graph)
    sums = _Sums(graph)
    groups: dict[object, list[Node]] = {}
    for n in graph.nodes():
        uses = sums.uses(n) if n.op.name == "matmul" and not _of_some_rows(n) else None
        if uses:
            groups.setdefault((loops.get(n), n.type, uses), []).append(n)
    group_of = {n: group for group in groups.values() for n in group if len(group) > 1}
    new: dict[Node, Node] = {}

    def product_of(term: Node) -> Node:
        return term.inputs[0] if term.op.name == "slice" else term

    def rule(n: Node, inputs: tuple[Node, ...]) -> Node:
        terms = sums.terms.get(n, [])
        if any(product_of(x) in group_of for x in terms if x in sums.term_of):
            new[n] = summed(terms)
        else:
            new[n] = rebuild(n, inputs)
        return new[n]

    def summed(terms: list[Node]) -> Node:
        parts = []
        for x in terms:
            group = group_of.get(product_of(x)) if x in sums.term_of else None
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
    """Merge products into fewer and larger ones."""
    return _add_up(_share_input(graph))
