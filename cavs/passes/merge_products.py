"""Pass 4: products that share an input become one; sums of products become one longer product."""

from __future__ import annotations

from cavs.ir import Graph, Node, apply, rewrite, users
from cavs.passes.partition import loops_of


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


def _add_up(graph: Graph) -> Graph:
    """a @ U + b @ V -> [a b] @ [U; V], where both are used nowhere else and neither is hoisted."""
    loops = loops_of(graph)
    readers = users(graph.nodes())
    roots = set(graph.roots())

    def rule(n: Node, inputs: tuple[Node, ...]) -> Node | None:
        if n.op.name != "add" or any(x.op.name != "matmul" for x in n.inputs):
            return None
        if any(x in roots or len(readers[x]) > 1 for x in n.inputs):
            return None
        if loops.get(n.inputs[0]) is not loops.get(n.inputs[1]):
            return None
        a, b = inputs
        if a.op.name != "matmul" or b.op.name != "matmul" or a.type != b.type or a is b:
            return None
        if a.inputs[0].type.domain != b.inputs[0].type.domain:
            return None
        x = apply("concat", a.inputs[0], b.inputs[0], axis=-1)
        return apply("matmul", x, apply("concat", a.inputs[1], b.inputs[1], axis=-2))

    return rewrite(graph, rule)


def merge_products(graph: Graph) -> Graph:
    """Fewer and larger products."""
    return _add_up(_share_input(graph))
