"""Equal vertices of a batch are computed once.

The same word, phrase or subexpression stands in many graphs of a batch. If features and children
are equal, so are the values, so the engine runs the distinct vertices only, as graphs with shared
children (`cavs.data.merge`). A sum over all vertices then weighs each by its number of copies, and
one over those of a graph finds it as often; the rest of the gradients follows by differentiation,
because cotangents add up.
"""

from __future__ import annotations

from cavs.ir import EDGE, FLOAT, VERTEX, Domain, Graph, Node, apply, rewrite

COPIES = "#copies"  # float feature: for how many vertices a distinct one stands
PRESENT = "#present "  # + name: for how many where that int feature is present (>= 0)


def distinguishing(graph: Graph, training: bool = True) -> tuple[str, ...] | None:
    """The features by which vertices of ``graph`` differ; None where copies must stay apart."""
    return None if why_apart(graph, training) else features_of_vertices(graph)


def features_of_vertices(graph: Graph) -> tuple[str, ...]:
    """The features of vertices and edges that ``graph`` reads."""
    found = (n for n in graph.nodes() if n.op.name == "feature" and n.type.domain.by_structure)
    return tuple(sorted({n.attr("name") for n in found}))


def why_apart(graph: Graph, training: bool = True) -> str:
    """Why copies must be computed one by one, in words; empty where they need not."""
    for n in graph.nodes():
        if training and n.op.name == "max_vertices":
            return "backward has to know which vertex of its graph is the maximum"
        if not n.type.domain.by_structure:
            continue
        if n.op.name == "uniform":
            return "each draws random numbers of its own (dropout in the cell or of what it pushes)"
        if any(x.type.domain.base == "graph" for x in n.inputs):
            return "each reads a value of its graph"
    if any(n.type.domain.base == "edge" for n in graph.outputs.values()):
        return "values of edges are asked for"
    if any(slot.backward for slot in graph.slots):
        return "states come from parents"
    if not graph.slots:
        return "no vertex function hands states on"
    if any(name.startswith("#") for name in features_of_vertices(graph)):  # as COPIES does
        return "a feature's name begins with #, as those of the compiler do"
    return ""


def _feature(name: str, domain: Domain = VERTEX) -> Node:
    return apply("feature", name=name, dtype=FLOAT, shape=(), domain=domain, optional=False)


def _weighed(node: Node, inputs: tuple[Node, ...]) -> Node | None:
    if node.op.name == "sum_rows" and inputs[0].type.domain.by_structure:
        return apply("sum_rows", inputs[0] * _feature(COPIES))
    if node.op.name == "sum_vertices":
        return apply("sum_members", *inputs, members="vertices")
    return None


def _counted(node: Node, inputs: tuple[Node, ...]) -> Node | None:
    if node.op.name == "count_present" and inputs[0].type.domain.by_structure:
        (index,) = inputs
        return apply("sum_rows", _feature(PRESENT + index.attr("name"), index.type.domain))
    if node.op.name == "count_rows" and node.attr("base") == "vertex":
        return apply("sum_rows", _feature(COPIES))
    if node.op.name == "count_rows" and node.attr("base") == "edge":
        one = apply("broadcast", 1.0, shape=(), domain=EDGE)
        return apply("sum_rows", one * _feature(COPIES))
    return _weighed(node, inputs)


def merge_vertices(graph: Graph, *, counts: bool = True) -> Graph:
    """Weighs every sum over vertices, or over the edges below them, by the copies they stand for,
    and sums those of a graph by its list of them.

    Before differentiation: gradients are weighed by it too. counts: numbers of vertices and of
    present features are weighed as well; not where they are told to the engine.
    """
    return rewrite(graph, _counted if counts else _weighed)
