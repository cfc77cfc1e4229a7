"""Operators that read rows through the structure: the paper's primitives and their adjoints.

The gradient of gather is scatter and the reverse; the interpreter and the lowering give them their
meaning (rule GRAPH), so they have no one-row reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cavs.errors import TraceError, user_line
from cavs.ir import (
    FLOAT,
    GRAPH,
    VERTEX,
    BatchRule,
    Domain,
    Node,
    TensorType,
    apply,
    as_node,
    defop,
    need_floats,
)
from cavs.ops.types import at_all_types


def _edge_to_vertex(types: Sequence[TensorType], attrs: dict[str, Any]) -> TensorType:
    (t,) = types
    if not t.domain.related:
        raise ValueError("needs a value of every child, as v.gather() gives")
    need_floats(types)
    return TensorType(FLOAT, t.shape, t.domain.at("vertex"))


def _out_to_vertex(types: Sequence[TensorType], attrs: dict[str, Any]) -> TensorType:
    (t,) = types
    if t.domain.base != "out":
        raise ValueError("needs a value of every edge that leaves a vertex")
    return TensorType(FLOAT, t.shape, t.domain.at("vertex"))


def _domain_attr(types: Sequence[TensorType], attrs: dict[str, Any]) -> TensorType:
    return TensorType(FLOAT, attrs["slot"].shape, attrs["domain"])


# gather: the scattered value of the child of each edge. Its cotangent feeds the backward slot.
_READER: dict[str, Any] = {
    "infer": _domain_attr,
    "rule": BatchRule.GRAPH,
    "view": True,
    "reads_slot": True,
}
defop("gather", zero_at_leaves=True, **_READER)
# gather_grad: the sum of a backward slot over the edges that leave each vertex.
defop("gather_grad", **_READER)
# gather_out: the row of a backward slot for each edge that leaves a vertex, or for its parent;
# sum_out: the sum over these edges.
defop("gather_out", **_READER)
defop("sum_out", infer=_out_to_vertex, rule=BatchRule.GRAPH, linear_in=(0,))
defop(
    "sum_children",
    infer=_edge_to_vertex,
    vjp=lambda n, d: (d,),
    rule=BatchRule.GRAPH,
    reduction="sum",
    view=True,
    zero_at_leaves=True,
    linear_in=(0,),
)


def _max_vjp(n: Node, d: Node) -> list[Node]:
    hit = apply("equal", n.inputs[0], n)
    return [hit * (d / apply("maximum", apply("sum_children", hit), 1.0))]


defop(
    "max_children",
    infer=_edge_to_vertex,
    vjp=_max_vjp,
    rule=BatchRule.GRAPH,
    reduction="max",
    zero_at_leaves=True,
)


def _prod_vjp(n: Node, d: Node) -> list[Node]:
    """Return the product of the other factors, which is zero if one of them is."""
    (x,) = n.inputs
    zero = apply("equal", x, 0.0)
    nonzero = apply("where", zero, 1.0, x)
    others = apply("product_children", nonzero) / nonzero
    return [d * apply("where", apply("sum_children", zero) > zero, 0.0, others)]


defop(
    "product_children",
    infer=_edge_to_vertex,
    vjp=_prod_vjp,
    rule=BatchRule.GRAPH,
    reduction="product",
    one_at_leaves=True,
)
# The value at the edge to the k-th child, zeros where there is none; and the reverse.
defop(
    "nth_child",
    infer=_edge_to_vertex,
    vjp=lambda n, d: (apply("to_nth_child", d, k=n.attr("k")),),
    rule=BatchRule.GRAPH,
    view=True,
    zero_at_leaves=True,
    linear_in=(0,),
)
defop(
    "to_nth_child",
    infer=lambda types, attrs: TensorType(FLOAT, types[0].shape, types[0].domain.at("edge")),
    vjp=lambda n, d: (apply("nth_child", d, k=n.attr("k")),),
    rule=BatchRule.GRAPH,
    view=True,
    zero_at_leaves=True,
    linear_in=(0,),
)
defop(
    "num_children",
    infer=lambda types, attrs: TensorType(FLOAT, (), attrs.get("domain", VERTEX)),
    rule=BatchRule.GRAPH,
    view=True,
    program_input=True,
    zero_at_leaves=True,
)


def _to_graphs(types: Sequence[TensorType], attrs: dict[str, Any]) -> TensorType:
    if types[0].domain.base != "vertex" or types[0].domain.kind is not None:
        raise ValueError("needs a value of every vertex")
    need_floats(types)
    return TensorType(FLOAT, types[0].shape, GRAPH)


def _from_graphs(types: Sequence[TensorType], attrs: dict[str, Any]) -> TensorType:
    if types[0].domain != GRAPH:
        raise ValueError("needs a value of every graph")
    need_floats(types)
    return TensorType(FLOAT, types[0].shape, Domain("vertex", None, attrs.get("structure", "")))


def _to_members(n: Node, d: Node) -> tuple[Node]:
    structure = n.inputs[0].type.domain.structure
    named = {"structure": structure} if structure else {}
    return (apply("to_members", d, members=n.attr("members"), **named),)


defop(
    "sum_vertices",
    infer=_to_graphs,
    vjp=lambda n, d: (d,),
    rule=BatchRule.GRAPH,
    reduction="sum",
    view=True,
    linear_in=(0,),
)


def _graph_max_vjp(n: Node, d: Node) -> list[Node]:
    hit = apply("equal", n.inputs[0], n)
    return [hit * (d / apply("maximum", apply("sum_vertices", hit), 1.0))]


defop(
    "max_vertices",
    infer=_to_graphs,
    vjp=_graph_max_vjp,
    rule=BatchRule.GRAPH,
    reduction="max",
)


# The sum over the members of a graph, and its transpose: the sum over the graphs that a vertex is a
# member of. members: "roots", "leaves" or all "vertices"; a merged vertex is a member of several
# graphs.
defop(
    "sum_members",
    infer=_to_graphs,
    vjp=_to_members,
    rule=BatchRule.GRAPH,
    reduction="sum",
    view=True,
    linear_in=(0,),
)
defop(
    "to_members",
    infer=_from_graphs,
    vjp=lambda n, d: (apply("sum_members", d, members=n.attr("members")),),
    rule=BatchRule.GRAPH,
    view=True,
    linear_in=(0,),
)


def _take_infer(types: Sequence[TensorType], attrs: dict[str, Any]) -> TensorType:
    if types[0].domain != attrs["domain"].of_vertices:
        raise ValueError("needs a value of every vertex")
    return TensorType(FLOAT, types[0].shape, attrs["domain"])


def _place_infer(types: Sequence[TensorType], attrs: dict[str, Any]) -> TensorType:
    if types[0].domain.base != "present":
        raise ValueError("needs a value of the vertices that have a feature")
    return TensorType(FLOAT, types[0].shape, types[0].domain.of_vertices)


# The rows of the vertices that have an integer feature, and the reverse, with zeros at the others.
defop(
    "take",
    infer=_take_infer,
    vjp=lambda n, d: (apply("place", d),),
    rule=BatchRule.GRAPH,
    view=True,
    linear_in=(0,),
)
defop(
    "place",
    infer=_place_infer,
    vjp=lambda n, d: (apply("take", d, domain=n.inputs[0].type.domain),),
    rule=BatchRule.GRAPH,
    view=True,
    linear_in=(0,),
)


def _take_distinct_infer(types: Sequence[TensorType], attrs: dict[str, Any]) -> TensorType:
    domain = attrs["domain"]
    own = types[0].domain
    if own.base != "distinct" or domain.base != "vertex" or domain.structure != own.structure:
        raise ValueError("needs a value of the distinct indices of vertices")
    return TensorType(FLOAT, types[0].shape, domain)


# At each vertex the row of its index among the distinct ones; zeros where the index is absent.
defop("take_distinct", infer=_take_distinct_infer, rule=BatchRule.GRAPH, view=True, linear_in=(0,))
# A value that crosses the border of a structure, where specialisation by kind ends.
defop(
    "push",
    infer=lambda types, attrs: types[0],
    vjp=lambda n, d: (d,),
    evaluate=lambda n, x: x,
    cost=0,
    view=True,
    any_kind=True,
    same_row=True,
    linear_in=(0,),
)
# The value whose rows of each kind are those of one input. held: only rows of vertices with
# children ("inner") or without ("leaves") are read.
defop(
    "merge",
    infer=lambda types, attrs: TensorType(FLOAT, attrs["shape"], attrs["domain"]),
    rule=BatchRule.GRAPH,
    view=True,
    jointly_linear=True,
)


_NO_VERTICES = {
    "edge": "fold the children first, x.sum(); of what a cell pushes, ops.sum_rows(x) sums all",
    "graph": "it has one row per graph already",
    "one": "it is the same for all graphs: use it as it is, next to values of graphs",
}


def _of_vertices(value: Any, name: str, sums: bool = True) -> Node:
    """Return a value of all vertices; one of a type with zeros at others, if ``sums`` allows."""
    x = as_node(value)
    of = x.type.domain.vertex_type
    if of is not None and not sums:
        raise TraceError(
            f"[{name}] needs values of all vertices, not of those of the type {of!r}: {x.type}",
            where=user_line(),
            hint="push a value at every type, and read that",
        )
    x = at_all_types(x)
    if x.type.domain.base != "vertex":
        raise TraceError(
            f"[{name}] needs vertex values: {x.type}",
            where=user_line(),
            hint=_NO_VERTICES.get(x.type.domain.base, "give a row of every vertex"),
        )
    return x


def sum_graph(value: Any) -> Node:
    """Return the sum over the vertices of each graph: one row per graph, of the same shape.

    Here and below: TraceError for a value that is not of vertices.
    """
    return apply("sum_vertices", _of_vertices(value, "sum_graph"))


def mean_graph(value: Any) -> Node:
    """Return the mean over the vertices of each graph: one row per graph.

    A value of one type has the mean over the vertices of the type. It is 0 without any vertex.
    """
    x, domain = _of_vertices(value, "mean_graph"), as_node(value).type.domain
    number = sum_graph(apply("broadcast", 1.0, shape=(), domain=domain))
    may_be_none = domain.vertex_type or domain.structure
    return sum_graph(x) / (apply("maximum", number, 1.0) if may_be_none else number)


def max_graph(value: Any) -> Node:
    """Return the maximum over the vertices of each graph, a row per graph; ties share the
    gradient.
    """
    return apply("max_vertices", _of_vertices(value, "max_graph", sums=False))


def softmax_graph(value: Any) -> Node:
    """Return the softmax over the vertices of each graph: elements sum to one over a graph."""
    x = _of_vertices(value, "softmax_graph", sums=False)
    weight = apply("exp", x - apply("stop_gradient", max_graph(x)))
    return weight / sum_graph(weight)


def sum_roots(value: Any) -> Node:
    """Return the sum over the roots of each graph, the vertices without parents: one row per graph.

    For a tree this is the value at its root, for a chain the value at its last vertex.
    """
    return apply("sum_members", _of_vertices(value, "sum_roots"), members="roots")


def sum_leaves(value: Any) -> Node:
    """Return the sum over the leaves of each graph, vertices without children: a row per graph.

    For a chain this is the value at its first vertex, where a top-down cell ends.
    """
    return apply("sum_members", _of_vertices(value, "sum_leaves"), members="leaves")
