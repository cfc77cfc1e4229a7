"""Graphs of networkx, in and out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from cavs.data.graph import Graph
from cavs.data.readers.attributes import NO_TYPE_FEATURES, attributes, typed_attributes
from cavs.data.structure import graph_error, graph_label
from cavs.errors import ConfigError, FeatureError, GraphError, user_line

_SET = "graph.nodes[node][name] = value, graph.edges[edge][name] = value, graph.graph[name] = value"


def from_networkx(
    graph: Any,
    *,
    features: Sequence[str] = (),
    edge_features: Sequence[str] = (),
    graph_features: Sequence[str] = (),
    types: str | None = None,
    type_features: Mapping[str, Sequence[str]] = NO_TYPE_FEATURES,
    to_children: bool = False,
    name: str = "",
) -> Graph:
    """Return the graph of a networkx DiGraph or MultiDiGraph whose edges go from child to parent.

    ``to_children=True`` takes one whose edges go from parent to child, as networkx draws trees.
    Vertices are numbered, and the children of a vertex ordered, as networkx lists them.
    ``features``, ``edge_features`` and ``graph_features`` name attributes that become features; an
    integer attribute missing at a vertex or an edge becomes -1. ``types`` names the attribute that
    is the type of a vertex; ``type_features``, by type, attributes that become features of the
    vertices of that type. GraphError for undirected graphs
    and cycles, FeatureError for missing attributes that are not integers.
    """
    if not hasattr(graph, "is_directed"):
        raise graph_error(
            name,
            f"a networkx graph is needed, not {graph!r:.80}",
            hint="Graph(children) takes lists, Graph.from_edges pairs",
        )
    if not graph.is_directed():
        raise graph_error(
            name,
            "an undirected networkx graph; edges must go from child to parent",
            hint="networkx.bfs_tree(graph, root) directs a tree away from its root, for "
            "to_children=True; networkx.DiGraph(edges) takes (child, parent) pairs",
        )
    label = graph_label(name)
    for named in (features, edge_features, graph_features):
        if not isinstance(named, Iterable):
            raise FeatureError(
                f"{label}: names of attributes are a list, not {named!r:.80}",
                hint='features=["token"] takes one of every vertex',
            )
    nodes = list(graph.nodes(data=True))
    number = {node: i for i, (node, _) in enumerate(nodes)}
    # in_edges, not edges: it lists the children of a vertex in the order they were added to it.
    edges = list(graph.edges(data=True) if to_children else graph.in_edges(data=True))
    pairs = [(number[begin], number[end]) for begin, end, _ in edges]
    if to_children:
        pairs = [(child, parent) for parent, child in pairs]
    whole = attributes([graph.graph], graph_features, "graph", label, _SET)
    data_of = [data for _, data in nodes]
    of_vertices = attributes(data_of, features, "vertex", label, _SET)
    of_each, typed = typed_attributes(data_of, types, type_features, features, label, _SET)
    try:
        return Graph.from_edges(
            len(nodes),
            pairs,
            features={**of_vertices, **typed},
            edge_features=attributes(
                [data for *_, data in edges], edge_features, "edge", label, _SET
            ),
            graph_features={key: values[0] for key, values in whole.items()},
            types=of_each,
            name=name,
        )
    except GraphError as error:
        if error.vertex >= 0:
            error.add_note(f"vertex {error.vertex} is node {nodes[error.vertex][0]!r}")
        raise


def to_networkx(graph: Graph) -> Any:
    """Return a networkx DiGraph of a graph, with edges from child to parent.

    `from_networkx` reads it: features become attributes of their names, left out where an index is
    -1, and a type of vertices the attribute ``type``. GraphError for what a DiGraph cannot express:
    a child that a vertex has twice, and empty positions. ConfigError without networkx.
    """
    try:
        import networkx as nx
    except ImportError as error:
        raise ConfigError(
            f"to_networkx needs networkx: {error}",
            where=user_line(),
            hint='pip install "cavs[graphs]"',
        ) from None
    made = nx.DiGraph(name=graph.name) if graph.name else nx.DiGraph()
    made.graph.update(_attributes_of(graph.graph_features, None))
    row_of_type: dict[str, int] = {}
    for v, of in enumerate(graph.types or [""] * graph.num_vertices):
        found = _attributes_of(graph.features, v)
        if of:
            row = row_of_type.setdefault(of, 0)
            row_of_type[of] += 1
            found |= {"type": of, **_attributes_of(graph.typed_features.get(of, {}), row)}
        made.add_node(v, **found)
    edge = 0
    for v in range(graph.num_vertices):
        for child in graph.children(v):
            if child < 0 or made.has_edge(child, v):
                what = f"has child {child} twice" if child >= 0 else "has an empty position"
                raise graph_error(
                    graph.name,
                    f"vertex {v} {what}, which a DiGraph of networkx cannot express",
                    v,
                    hint="graph.children(v) lists the children by position",
                )
            made.add_edge(child, v, **_attributes_of(graph.edge_features, edge))
            edge += 1
    return made


def _attributes_of(features: Mapping[str, Any], row: int | None) -> dict[str, Any]:
    """Return the values of a row, or of the only one, that are not absent."""
    rows = {key: x if row is None else x[row] for key, x in features.items()}
    return {
        key: x.tolist()
        for key, x in rows.items()
        if x.ndim or not (np.issubdtype(x.dtype, np.integer) and x < 0)
    }
