"""Several graphs joined to one sample: pairs of sentences, a document of its sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike

from cavs.data.features import Array, numbers
from cavs.data.graph import Graph
from cavs.data.vertex_types import split_features
from cavs.errors import FeatureError, GraphError

_NONE: Mapping[str, ArrayLike] = MappingProxyType({})


def join(
    graphs: Sequence[Graph],
    features: Mapping[str, ArrayLike | Mapping[str, ArrayLike]] = _NONE,
    edge_features: Mapping[str, ArrayLike] = _NONE,
    *,
    graph_features: Mapping[str, ArrayLike] = _NONE,
    type: str | None = None,
    name: str = "",
) -> Graph:
    """Return one graph of all, with a new last vertex whose children are their roots, in order.

    At the new vertex, ``v.gather(k).h`` of a cell is the state of the k-th root; ``ops.sum_roots``
    of its output is one row per sample.

    ``features``: of the new vertex, ``edge_features``: of its edges, one row each, by the names
    that the graphs have; by default integers are absent (-1) and floats 0. ``graph_features``: of
    the new graph; those of the joined graphs are left out. ``type``: of the new vertex, where
    vertices have types; a dict among ``features`` holds those of its type. GraphError without a
    graph or that type, FeatureError for names and rows that do not fit the graphs.
    """
    graphs = list(graphs) if isinstance(graphs, Iterable) else graphs
    if (
        not isinstance(graphs, list)
        or not graphs
        or not all(isinstance(graph, Graph) for graph in graphs)
    ):
        raise GraphError(
            f"graphs to join are needed, not {graphs!r:.80}",
            hint="Graph.join([graph, ...]) takes a list of one or more cavs.Graph",
        )
    for i, graph in enumerate(graphs):
        if not graph.num_vertices:
            raise GraphError(
                f"graph {i} of those to join has no vertex", hint="leave empty graphs out"
            )
    first = np.cumsum([0, *(graph.num_vertices for graph in graphs)])
    roots = [graph.roots + start for graph, start in zip(graphs, first[:-1], strict=True)]
    parts = [graph.topology.child_lists for graph in graphs]
    arity = [np.diff(offsets) for offsets, _ in parts]
    children = [
        np.where(part < 0, -1, part + start)
        for (_, part), start in zip(parts, first[:-1], strict=True)
    ]
    top = np.concatenate(roots)
    offsets = np.cumsum(np.concatenate([[0], *arity, [len(top)]])).astype(np.int32)
    types, typed = _types_of(graphs, type, name), {}
    whole, given = split_features(features)
    of_vertices = _stacked([graph.features for graph in graphs], whole, 1, "vertex", name)
    for key in dict.fromkeys([*given, *(t for graph in graphs for t in graph.typed_features)]):
        own, having = given.get(key, {}), [g for g in graphs if key in (g.type_names or ())]
        rows = [graph.typed_features.get(key, {}) for graph in having]
        typed[key] = _stacked(rows, own, int(key == type), f'"{key}" vertex', name) or own
    with_edges = [graph.edge_features for graph in graphs if graph.num_edges]
    if not with_edges:
        with_edges = [graph.edge_features for graph in graphs[:1]]
    of_edges = _stacked(with_edges, edge_features, len(top), "edge", name)
    return Graph(
        (offsets, np.concatenate([*children, top]).astype(np.int32)),
        {**of_vertices, **typed},
        of_edges,
        graph_features=graph_features,
        types=types,
        name=name,
    )


def _types_of(graphs: Sequence[Graph], last: str | None, name: str) -> list[str] | None:
    """Return the types of all vertices, with that of the new one ``last``; None without types."""
    with_types = [graph.types is not None for graph in graphs]
    if not any(with_types) and last is None:
        return None
    if not all(with_types) or last is None:
        label = f'graph "{name}"' if name else "the joined graph"
        found = "none is given" if last is None else f"it is {last!r}, but a part has no types"
        raise GraphError(
            f"{label}: types of the new vertex and of the parts go together; {found}",
            hint='Graph.join(graphs, type="document") where vertices have types, else without type',
        )
    return [*(t for graph in graphs for t in graph.types or ()), last]


def _stacked(
    parts: Sequence[Mapping[str, Array]],
    given: Mapping[str, ArrayLike],
    rows: int,
    owner: str,
    name: str,
) -> dict[str, Array]:
    """Return the rows of all parts in order, then ``rows`` more: those given, or absent."""
    if not parts:  # no part has vertices of the type
        return {}
    names = list(parts[0])
    label = f'graph "{name}"' if name else "the joined graph"
    for part in parts[1:]:
        if set(part) != set(names):
            raise FeatureError(
                f"{label}: a part has the {owner} features {sorted(part)}, another {sorted(names)}",
                hint="give all parts the same, -1 where an integer is absent",
            )
    for key in names:
        dtypes = list(dict.fromkeys(str(part[key].dtype) for part in parts))
        if len(dtypes) > 1:
            raise FeatureError(
                f"{label}: {owner} feature {key!r} is {dtypes[0]} in one part, "
                f"{dtypes[1]} in another",
                hint="a feature holds either integers or floats, in all parts",
            )
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise FeatureError(
            f"{label}: {owner} feature {unknown[0]!r} is given, but the parts have {sorted(names)}",
            hint="give it to the parts too",
        )
    found = {}
    for key in names:
        last = parts[0][key]
        shape = (rows, *last.shape[1:])
        more = np.full(shape, -1 if last.dtype == np.int32 else 0.0, last.dtype)
        if key in given:
            row = numbers(given[key], f"{label}: {owner} feature {key!r}")
            if row.shape not in (shape, shape[1:] if rows == 1 else shape):
                raise FeatureError(
                    f"{label}: {owner} feature {key!r} has the shape {row.shape}, the "
                    f"{rows} new {'row needs' if rows == 1 else 'rows need'} {shape}",
                    hint="the new vertex has one row, and an edge to every root of the parts",
                )
            if last.dtype == np.int32 and row.dtype.kind == "f":
                raise FeatureError(
                    f"{label}: {owner} feature {key!r} holds integers, and is given {row.dtype}",
                    hint="give its rows as integers, too: np.asarray(values, np.int32)",
                )
            if last.dtype == np.int32 and row.size and row.max() > np.iinfo(np.int32).max:
                raise FeatureError(
                    f"{label}: {owner} feature {key!r} is given {row.max()}",
                    hint="integers of features have 32 bits",
                )
            more = row.reshape(shape).astype(last.dtype)
        try:
            found[key] = np.concatenate([*(part[key] for part in parts), more])
        except ValueError as error:
            raise FeatureError(
                f"{label}: {owner} feature {key!r}: {error}",
                hint="rows of a feature have one shape in all parts",
            ) from None
    return found
