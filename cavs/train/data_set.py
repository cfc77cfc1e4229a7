"""Facts about the graphs of a data set: fingerprints, types of edge features, memory."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from cavs.data.sample import Sample
from cavs.data.vertex_types import flat_features


def sizes_of(graphs: Sequence[Any]) -> dict[str, int]:
    """Return a fingerprint of the sizes of graphs; empty if they are built on access."""
    if not isinstance(graphs, list | tuple):
        return {}
    try:
        sizes = np.array([(g.num_vertices, g.num_edges) for g in graphs], np.int64)
    except (AttributeError, TypeError, ValueError, OverflowError):  # no graphs of cavs
        return {}
    vertices, edges = sizes.sum(axis=0).tolist()
    return {"vertices": vertices, "edges": edges, "digest": zlib.crc32(sizes.tobytes())}


def digest_of(graphs: Sequence[Any]) -> int:
    """Return a digest of structure and integer features; 0 if graphs are built on access.

    graphs: or batches, which have other digests than their graphs. Floats are left out, since
    ranks with other processors may compute them in other bits.
    """
    found = 0
    if not isinstance(graphs, list | tuple):
        return found
    for item in (x for given in graphs for x in getattr(given, "samples", (given,))):
        several = isinstance(item, Sample)
        parts, links = (item.graphs.values(), item.links.values()) if several else ([item], [])
        if not all(hasattr(graph, "topology") for graph in parts):  # no graphs of cavs
            return 0
        arrays = [x for link in links for x in (link.offsets, link.vertices) if x is not None]
        for graph in parts:
            arrays += graph.topology.child_lists
            for group in _groups(graph):
                arrays += [group[name] for name in sorted(group) if group[name].dtype == np.int32]
            if graph.types is not None:
                found = zlib.crc32("\n".join(graph.types).encode(errors="replace"), found)
        for array in arrays:
            found = zlib.crc32(array.tobytes(), found)
    return found


def digests_of(graphs: Sequence[Any]) -> dict[str, int]:
    """Return digests of the structure and of each integer feature of graphs of cavs, by name."""
    found = {"structure": 0}
    for graph in graphs:
        for array in graph.topology.child_lists:
            found["structure"] = zlib.crc32(array.tobytes(), found["structure"])
        if graph.types is not None:
            text = "\n".join(graph.types).encode(errors="replace")
            found["types of vertices"] = zlib.crc32(text, found.get("types of vertices", 0))
        for group in _groups(graph):
            for name, array in group.items():
                if array.dtype == np.int32:
                    key = f"feature {name!r}"
                    found[key] = zlib.crc32(array.tobytes(), found.get(key, 0))
    return found


def _groups(graph: Any) -> list[Mapping[str, Any]]:
    """Return the features of a graph, or batch, by name: those of a type as ``type.name``."""
    typed = flat_features(graph.typed_features)
    return [graph.features, graph.edge_features, graph.graph_features, typed]


def edge_types(graphs: Iterable[Any]) -> Mapping[str, Any] | None:
    """Return the edge features of the first graph with an edge, without rows; None if no edge."""
    for graph in graphs:
        if not hasattr(graph, "with_features"):
            return {}
        if graph.num_edges:
            return {name: values[:0] for name, values in graph.edge_features.items()}
    return None


def with_edge_types(graphs: list[Any], types: Mapping[str, Any]) -> list[Any]:
    """Return `graphs`; those without edges get empty edge features of these `types`."""
    if not types:
        return graphs
    return [
        graph if getattr(graph, "num_edges", 1) else graph.with_features(edge_features=types)
        for graph in graphs
    ]


def type_features(graphs: Iterable[Any]) -> dict[str, dict[str, Any]]:
    """Return the features of each type of vertices that occurs in graphs, without rows."""
    found: dict[str, dict[str, Any]] = {}
    for graph in graphs:
        for name in getattr(graph, "type_names", None) or ():
            if name not in found:
                features = graph.typed_features.get(name, {})
                found[name] = {key: rows[:0] for key, rows in features.items()}
    return found


def with_missing_types(graphs: list[Any], known: Mapping[str, Mapping[str, Any]]) -> list[Any]:
    """Return ``graphs``, one of them with the features of the ``known`` types that none has.

    Collation gives them to the others, so that a batch has the features of all types.
    """
    if not graphs or getattr(graphs[0], "type_names", None) is None:
        return graphs
    missing = set(known).difference(*(graph.type_names or () for graph in graphs))
    if not missing:
        return graphs
    return [graphs[0].with_features({name: known[name] for name in missing}), *graphs[1:]]


def bytes_of(batch: Any) -> int:
    """Return the memory of a batch: features, and topology and schedule at 4 bytes an index."""
    batch = getattr(batch, "local", batch)  # the shard that this process computes
    if not hasattr(batch, "topology"):
        return 0  # only graphs of the data set
    features = sum(array.nbytes for group in _groups(batch) for array in group.values())
    return int(features + 4 * (10 * batch.num_vertices + 7 * batch.num_edges))
