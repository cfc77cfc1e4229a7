"""Compute equal vertices of a batch once.

The same word, phrase or subexpression occurs in many graphs of a batch. Vertices with equal
features and children have equal values, so the engine runs the distinct vertices only, as graphs
with shared children (`cavs.data.merge`). A sum over all vertices weights each by its number of
copies, and a sum over those of a graph reads it as often. Gradients follow by differentiation,
because cotangents add up.

Samples of several structures are merged structure by structure. A link into one that is merged
leads to distinct vertices; the vertices that read along a link stay separate.
"""

from __future__ import annotations

from collections.abc import Collection

from cavs.data.features import link_parts, owner_of
from cavs.data.merge_samples import MergedStructure
from cavs.data.vertex_types import ROW
from cavs.ir import Domain, Graph, Link, Node, Structures, apply, rewrite
from cavs.ops.leaves import feature

# Float feature: for how many vertices a distinct one stands. With a blank and the name of a
# structure: one of that structure.
COPIES = "#copies"
PRESENT = "#present "  # + name: for how many where that int feature is present (>= 0)

Distinguishing = tuple[str, ...] | tuple[MergedStructure, ...]


def distinguishing(
    graph: Graph, training: bool = True, structures: Structures | None = None
) -> Distinguishing | None:
    """Return the features that distinguish vertices of ``graph``; None if copies stay separate.

    structures: of samples that have several; the result is then a `MergedStructure` for each of
    them in which copies are merged.
    """
    if structures is None:
        return None if why_separate(graph, training) else features_of_vertices(graph)
    found = (
        MergedStructure(name, features_of_vertices(graph, name), _from_parents(graph, name))
        for name in structures.names
        if not why_separate(graph, training, name)
    )
    return tuple(found) or None


def features_of_vertices(graph: Graph, structure: str = "") -> tuple[str, ...]:
    """Return the features of vertices and edges that ``graph`` reads; ROW features are numbers.

    structure: of samples that have several; the names of its features are those in its graphs.
    """
    domains = ((n, n.type.domain) for n in graph.nodes() if n.op.name == "feature")
    names = {n.attr("name") for n, d in domains if d.by_structure and d.structure == structure}
    own = names
    if structure:  # features of links belong to no graph
        own = {owner_of(name)[1] for name in names if not link_parts(name)[1]}
    return tuple(sorted(name for name in own if not name.startswith(ROW)))


def why_separate(graph: Graph, training: bool = True, structure: str = "") -> str:
    """Return the reason why copies must be computed separately; empty if they need not.

    structure: of samples that have several.
    """
    for n in graph.nodes():
        of_maximum = n.op.name == "max_vertices" and n.inputs[0].type.domain.structure == structure
        if training and of_maximum:
            return "backward has to know which vertex of its graph is the maximum"
        domain = n.type.domain
        if not domain.by_structure or domain.structure != structure:
            continue
        if n.op.name == "uniform":
            where = "in the cell or of what it pushes"
            return f"each draws random numbers of its own (dropout or ops.normal {where})"
        if any(x.type.domain.base == "graph" for x in n.inputs):
            return "each reads a value of its graph"
        link = _link_of(n)
        if domain.base == "pair" or _is_of_link(n) or (link and link.target == structure):
            return "each reads along a link"
        if link:
            return "each reads the vertices that read it along a link"
    if any(n.type.domain.base == "edge" for n in _outputs(graph, structure)):
        return "values of edges are asked for"
    if not structure and _from_parents(graph):
        return "states come from parents"
    if not any(slot.structure.of == structure for slot in graph.slots):
        return "no vertex function hands states on"
    if any(name.startswith("#") for name in features_of_vertices(graph, structure)):  # as COPIES
        return "a feature's name begins with #, as those of the compiler do"
    return ""


def _from_parents(graph: Graph, structure: str = "") -> bool:
    return any(slot.backward and slot.structure.of == structure for slot in graph.slots)


def _link_of(node: Node) -> Link | None:
    """Return the link along which an operator reads; None for other operators."""
    for _, value in node.attrs:
        if isinstance(value, Link):
            return value
    return next((x.type.domain.link for x in node.inputs if x.type.domain.link), None)


def _is_of_link(node: Node) -> bool:
    """True of a feature of a link, which belongs to the structure that the link leads from."""
    name = node.attr("name") if node.op.name == "feature" else ""
    return bool(node.type.domain.structure and link_parts(name)[1])


def _outputs(graph: Graph, structure: str) -> list[Node]:
    return [n for n in graph.outputs.values() if n.type.domain.structure == structure]


def merge_vertices(
    graph: Graph, *, structures: Collection[str] = ("",), counts: bool = True
) -> Graph:
    """Weight every sum over vertices, or over their edges, by the number of copies, and sum over
    the vertices of a graph by its list of members.

    The pass runs before differentiation, so gradients are weighted too. structures: of samples,
    those in which copies are merged; "" of graphs. counts: also weight the numbers of vertices and
    of present features, unless the engine is given them.
    """

    def is_merged(domain: Domain) -> bool:
        return domain.by_structure and domain.structure in structures

    def rule(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        name = node.op.name
        if name == "sum_rows" and is_merged(inputs[0].type.domain):
            return apply("sum_rows", inputs[0] * _copies(inputs[0].type.domain.structure))
        if name == "sum_vertices" and is_merged(inputs[0].type.domain):
            return apply("sum_members", *inputs, members="vertices")
        if not counts:
            return None
        if name == "count_present" and is_merged(inputs[0].type.domain):
            (index,) = inputs
            domain = index.type.domain.of_kind(None)  # those of one type are absent at others
            return apply("sum_rows", feature(PRESENT + index.attr("name"), domain))
        if name == "count_rows":
            return _number_of_rows(node, structures)
        return None

    return rewrite(graph, rule)


def _copies(structure: str) -> Node:
    name = f"{COPIES} {structure}" if structure else COPIES
    return feature(name, Domain("vertex", None, structure))


def _number_of_rows(node: Node, structures: Collection[str]) -> Node | None:
    """Return the weighted number of vertices, or edges; None in place of another number."""
    base, structure = node.attr("base"), dict(node.attrs).get("structure", "")
    if base not in ("vertex", "edge") or structure not in structures:
        return None
    copies = _copies(structure)
    if base == "edge":
        one = apply("broadcast", 1.0, shape=(), domain=Domain("edge", None, structure))
        copies = one * copies
    return apply("sum_rows", copies)
