"""Graphs from other libraries' structures."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cavs.data.features import NO_FEATURES
from cavs.data.graph import Graph
from cavs.data.structure import graph_error, graph_label
from cavs.errors import FeatureError, GraphError


def _subclasses(base: type[ast.AST]) -> list[type[ast.AST]]:
    """All classes below ``base``; the deprecated ones below Constant are left out."""
    found, stack = [], [base]
    while stack:
        cls = stack.pop()
        if cls is not ast.Constant:
            stack += cls.__subclasses__()
        if cls.__module__ in ("ast", "_ast"):
            found.append(cls)
    return found


#: Names of the classes of ``ast``, sorted; the feature ``type`` of ``from_ast`` is an index here.
AST_TYPES: tuple[str, ...] = tuple(sorted({cls.__name__ for cls in _subclasses(ast.AST)}))
_TYPE_INDEX = {name: i for i, name in enumerate(AST_TYPES)}


def ast_children(node: ast.AST) -> list[ast.AST]:
    """The child nodes in the order of the fields; Load and Store, which say little, left out."""
    children: list[ast.AST] = []
    for field in node._fields:
        value = getattr(node, field, None)
        if type(value) is list:
            children += [item for item in value if isinstance(item, ast.AST)]
        elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
            children.append(value)
    return children


def ast_postorder(
    root: ast.AST, limit: int | None = None
) -> tuple[list[ast.AST], list[list[int]]] | None:
    """Nodes with children before parents, and each one's child indices; None beyond ``limit``.

    Without recursion: generated code nests deeper than Python's stack.
    """
    stack: list[tuple[ast.AST, int]] = [(root, -1)]  # node, place of its parent in `visited`
    visited: list[ast.AST] = []
    parents: list[int] = []
    while stack:
        node, parent = stack.pop()
        place = len(visited)
        visited.append(node)
        parents.append(parent)
        stack += [(child, place) for child in ast_children(node)]
        if limit is not None and len(visited) + len(stack) > limit:
            return None
    # Visited is root first and last child first, so its reverse is children first, in order.
    last = len(visited) - 1
    children: list[list[int]] = [[] for _ in visited]
    for place in range(last, 0, -1):
        children[last - parents[place]].append(last - place)
    return visited[::-1], children


def from_ast(
    source: ast.AST | str | bytes,
    *,
    graph_features: Mapping[str, ArrayLike] = NO_FEATURES,
    name: str = "",
) -> Graph:
    """The syntax tree of Python code, children first, with an int feature ``type``.

    ``type`` is an index into ``AST_TYPES``, which depends on the version of Python.
    ``graph_features`` are those of ``Graph``. GraphError if a string is no Python, or nests deeper
    than Python's own parser can follow.
    """
    if isinstance(source, str | bytes):
        try:
            source = ast.parse(source)
        except (SyntaxError, ValueError) as error:
            raise graph_error(
                name,
                f"the source is not Python: {error}",
                hint="give code that this version of Python can parse",
            ) from None
        except (RecursionError, MemoryError):
            raise graph_error(
                name, "the source nests too deep for Python's parser", hint="leave it out"
            ) from None
    if not isinstance(source, ast.AST):
        raise graph_error(
            name,
            f"from_ast takes Python code or a node of ast, not {source!r:.80}",
            hint='Graph.from_ast("x = 1"), or the result of ast.parse',
        )
    found = ast_postorder(source)
    assert found is not None  # no limit was given
    nodes, children = found
    try:
        types = [_TYPE_INDEX[type(node).__name__] for node in nodes]
    except KeyError as error:
        raise graph_error(
            name, f"{error} is no class of the module ast", hint="convert it to nodes of ast"
        ) from None
    features = {"type": np.array(types, np.int32)}
    return Graph(children, features, graph_features=graph_features, name=name)


def _attributes(
    rows: Sequence[dict[str, Any]], names: Sequence[str], kind: str, label: str
) -> dict[str, list[Any]]:
    features: dict[str, list[Any]] = {}
    if isinstance(names, str):
        raise FeatureError(
            f"{label}: names of {kind} features are a list, not the text {names!r}",
            hint=f"write [{names!r}]",
        )
    for key in names:
        values = [row.get(key) for row in rows]
        known = [value for value in values if value is not None]
        if rows and not known:
            found = sorted({str(name) for row in rows for name in row})
            raise FeatureError(
                f'{label}: no {kind} has an attribute "{key}"; they have '
                f"{', '.join(found) or 'none'}",
                hint="mend the name, or set the attribute: graph.nodes[node][name] = value, "
                "graph.edges[edge][name] = value, graph.graph[name] = value",
            )
        whole = all(isinstance(value, int | np.integer) for value in known)
        if len(known) < len(values) and not whole:
            raise FeatureError(
                f'{label}: {kind} {values.index(None)} has no attribute "{key}"',
                hint="only features of integers can be absent",
            )
        features[key] = [-1 if value is None else value for value in values]
    return features


def from_networkx(
    graph: Any,
    *,
    features: Sequence[str] = (),
    edge_features: Sequence[str] = (),
    graph_features: Sequence[str] = (),
    to_children: bool = False,
    name: str = "",
) -> Graph:
    """A networkx DiGraph or MultiDiGraph whose edges go from child to parent.

    ``to_children=True`` takes one whose edges go from parent to child, as networkx draws trees.
    Vertices are numbered, and the children of a vertex ordered, as networkx lists them.
    ``features``, ``edge_features`` and ``graph_features`` name attributes to take over; an integer
    attribute missing at a vertex or an edge becomes -1. GraphError for undirected graphs and
    cycles, FeatureError for missing attributes that are not integers.
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
                f"{label}: attributes to take over are a list of names, not {named!r:.80}",
                hint='features=["token"] takes one of every vertex',
            )
    nodes = list(graph.nodes(data=True))
    number = {node: i for i, (node, _) in enumerate(nodes)}
    # in_edges, not edges: it lists the children of a vertex in the order they were added to it.
    edges = list(graph.edges(data=True) if to_children else graph.in_edges(data=True))
    pairs = [(number[begin], number[end]) for begin, end, _ in edges]
    if to_children:
        pairs = [(child, parent) for parent, child in pairs]
    whole = _attributes([graph.graph], graph_features, "graph", label)
    try:
        return Graph.from_edges(
            len(nodes),
            pairs,
            features=_attributes([data for _, data in nodes], features, "vertex", label),
            edge_features=_attributes([data for *_, data in edges], edge_features, "edge", label),
            graph_features={key: values[0] for key, values in whole.items()},
            name=name,
        )
    except GraphError as error:
        if error.vertex >= 0:
            error.add_note(f"vertex {error.vertex} is node {nodes[error.vertex][0]!r}")
        raise
