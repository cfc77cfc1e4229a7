"""Compute equal vertices of a batch once.

The same word, phrase or subexpression occurs in many graphs of a batch. Vertices with equal
features and children have equal values, so the engine runs the distinct vertices only, as graphs
with shared children (`cavs.data.merge`). A sum over all vertices weights each by its number of
copies, and a sum over those of a graph reads it as often. Gradients follow by differentiation,
because cotangents add up.
"""

from __future__ import annotations

from cavs.data.vertex_types import ROW
from cavs.ir import EDGE, VERTEX, Graph, Node, apply, rewrite
from cavs.ops.leaves import feature

COPIES = "#copies"  # float feature: for how many vertices a distinct one stands
PRESENT = "#present "  # + name: for how many where that int feature is present (>= 0)


def distinguishing(graph: Graph, training: bool = True) -> tuple[str, ...] | None:
    """Return the features that distinguish vertices of ``graph``; None if copies stay separate."""
    return None if why_separate(graph, training) else features_of_vertices(graph)


def features_of_vertices(graph: Graph) -> tuple[str, ...]:
    """Return the features of vertices and edges that ``graph`` reads; ROW features are numbers."""
    found = (n for n in graph.nodes() if n.op.name == "feature" and n.type.domain.by_structure)
    names = {n.attr("name") for n in found}
    return tuple(sorted(name for name in names if not name.startswith(ROW)))


def why_separate(graph: Graph, training: bool = True) -> str:
    """Return the reason why copies must be computed separately; empty if they need not."""
    for n in graph.nodes():
        if training and n.op.name == "max_vertices":
            return "backward has to know which vertex of its graph is the maximum"
        if not n.type.domain.by_structure:
            continue
        if n.type.domain.structure:
            return "samples have several structures"
        if n.op.name == "uniform":
            where = "in the cell or of what it pushes"
            return f"each draws random numbers of its own (dropout or ops.normal {where})"
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


def _weighed(node: Node, inputs: tuple[Node, ...]) -> Node | None:
    if node.op.name == "sum_rows" and inputs[0].type.domain.by_structure:
        return apply("sum_rows", inputs[0] * feature(COPIES, VERTEX))
    if node.op.name == "sum_vertices":
        return apply("sum_members", *inputs, members="vertices")
    return None


def _counted(node: Node, inputs: tuple[Node, ...]) -> Node | None:
    if node.op.name == "count_present" and inputs[0].type.domain.by_structure:
        (index,) = inputs
        domain = index.type.domain.of_kind(None)  # those of one type are absent at others
        return apply("sum_rows", feature(PRESENT + index.attr("name"), domain))
    if node.op.name == "count_rows" and node.attr("base") == "vertex":
        return apply("sum_rows", feature(COPIES, VERTEX))
    if node.op.name == "count_rows" and node.attr("base") == "edge":
        one = apply("broadcast", 1.0, shape=(), domain=EDGE)
        return apply("sum_rows", one * feature(COPIES, VERTEX))
    return _weighed(node, inputs)


def merge_vertices(graph: Graph, *, counts: bool = True) -> Graph:
    """Weight every sum over vertices, or over their edges, by the number of copies, and sum over
    the vertices of a graph by its list of members.

    The pass runs before differentiation, so gradients are weighted too. counts: also weight the
    numbers of vertices and of present features, unless the engine is given them.
    """
    return rewrite(graph, _counted if counts else _weighed)
