"""Facts about the graphs of a data set: fingerprints, types of edge features, memory."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from cavs.data.features import feature_name, link_parts, owner_of
from cavs.data.sample import Sample
from cavs.data.sample_batch import LinkType
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
        own = item.link_features if several else {}
        arrays += [own[name] for name in sorted(own) if own[name].dtype == np.int32]
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
    found: dict[str, int] = {}

    def add(key: str, data: bytes) -> None:
        found[key] = zlib.crc32(data, found.get(key, 0))

    for item in graphs:
        several = isinstance(item, Sample)
        for owner, graph in item.graphs.items() if several else [("", item)]:
            for array in graph.topology.child_lists:
                add(f"structure {owner!r}" if owner else "structure", array.tobytes())
            if graph.types is not None:
                add("types of vertices", "\n".join(graph.types).encode(errors="replace"))
            for group in _groups(graph):
                for name, array in group.items():
                    if array.dtype == np.int32:
                        whole = feature_name(owner, name) if owner else name
                        add(f"feature {whole!r}", array.tobytes())
        for name, link in item.links.items() if several else ():
            for array in (link.offsets, link.vertices):
                add(f"link {name!r}", b"" if array is None else array.tobytes())
        for name, array in item.link_features.items() if several else ():
            if array.dtype == np.int32:
                add(f"feature {name!r}", array.tobytes())
    return found


def _groups(graph: Any) -> list[Mapping[str, Any]]:
    """Return the features of a graph, or batch, by name: those of a type as ``type.name``."""
    typed = flat_features(graph.typed_features)
    return [graph.features, graph.edge_features, graph.graph_features, typed]


def edge_types(graphs: Iterable[Any]) -> Mapping[str, Any] | None:
    """Return the edge features, without rows; None if a structure has no edge in ``graphs``.

    They are those of the first graph with an edge; of samples, by "structure.feature".
    """
    found, complete = _edge_types(graphs)
    return found if complete else None


def known_edge_types(graphs: Iterable[Any]) -> Mapping[str, Any]:
    """Return the edge features, without rows, of the structures that have an edge."""
    return _edge_types(graphs)[0]


def _edge_types(graphs: Iterable[Any]) -> tuple[dict[str, Any], bool]:
    """Return edge features without rows, and whether every structure has an edge."""
    found: dict[str, Any] = {}
    unknown: set[str] | None = None
    for item in graphs:
        several = isinstance(item, Sample)
        if not several and not hasattr(item, "with_features"):  # no graph of cavs
            return {}, True
        parts: Mapping[str, Any] = item.graphs if several else {"": item}
        unknown = set(parts) if unknown is None else unknown
        for owner in unknown.intersection(parts):
            if parts[owner].num_edges:
                unknown.remove(owner)
                for name, values in parts[owner].edge_features.items():
                    found[feature_name(owner, name) if several else name] = values[:0]
        if not unknown:
            return found, True
    return found, False


def with_edge_types(graphs: list[Any], types: Mapping[str, Any]) -> list[Any]:
    """Return `graphs`; those without edges get empty edge features of these `types`.

    samples: the first gets them for structures without edges in all of them.
    """
    if not types:
        return graphs
    if isinstance(graphs[0], Sample):
        return [_with_edge_types(graphs, types), *graphs[1:]]
    return [
        graph if getattr(graph, "num_edges", 1) else graph.with_features(edge_features=types)
        for graph in graphs
    ]


def _with_edge_types(samples: list[Sample], types: Mapping[str, Any]) -> Sample:
    """Return the first sample, with ``types`` of structures that have no edge in any."""
    first = samples[0]
    replaced = {}
    for owner, graph in first.graphs.items():
        own = {owner_of(name)[1]: x for name, x in types.items() if owner_of(name)[0] == owner}
        if own and not any(sample.graphs[owner].num_edges for sample in samples):
            replaced[owner] = graph.with_features(edge_features=own)
    if not replaced:
        return first
    return Sample(links=first.links, name=first.name, **{**first.graphs, **replaced})


def pair_types(samples: Iterable[Any]) -> dict[str, Any]:
    """Return the features of the pairs of links that have a pair, without rows."""
    found: dict[str, Any] = {}
    for sample in samples:
        for name, rows in sample.link_features.items() if isinstance(sample, Sample) else ():
            _, link, _ = link_parts(name)
            if len(rows) and not sample.links[link].single:
                found.setdefault(name, rows[:0])
    return found


def vertex_types(samples: Iterable[Any]) -> dict[str, Any]:
    """Return the features of vertices of the structures that have a vertex, without rows.

    Features of a link to one vertex each are among them: their rows are of vertices too.
    """
    found: dict[str, Any] = {}
    unknown: set[str] | None = None
    for sample in samples:
        if not isinstance(sample, Sample):
            break
        unknown = set(sample.graphs) if unknown is None else unknown
        for owner in [name for name in unknown if sample.graphs[name].num_vertices]:
            unknown.remove(owner)
            for name, rows in sample.graphs[owner].features.items():
                found[feature_name(owner, name)] = rows[:0]
            for name, rows in sample.link_features.items():
                of, link, _ = link_parts(name)
                if of == owner and sample.links[link].single:
                    found[name] = rows[:0]
        if not unknown:
            break
    return found


def link_types(samples: Iterable[Any]) -> dict[str, LinkType]:
    """Return the type of the links that have rows in a sample."""
    found: dict[str, LinkType] = {}
    for sample in samples:
        if not isinstance(sample, Sample):
            break
        for name, *form in sample.schema[1]:
            link = LinkType(*form)
            if link.single is not None:
                found.setdefault(name, link)
        if len(found) == len(sample.links):
            break
    return found


def type_features(graphs: Iterable[Any]) -> dict[str, dict[str, Any]]:
    """Return the features of each type of vertices that occurs in graphs, without rows.

    Those of samples are called "structure.type".
    """
    found: dict[str, dict[str, Any]] = {}
    for item in graphs:
        several = isinstance(item, Sample)
        for owner, graph in item.graphs.items() if several else [("", item)]:
            for name in getattr(graph, "type_names", None) or ():
                whole = feature_name(owner, name) if several else name
                if whole not in found:
                    features = graph.typed_features.get(name, {})
                    found[whole] = {key: rows[:0] for key, rows in features.items()}
    return found


def with_missing_types(graphs: list[Any], known: Mapping[str, Mapping[str, Any]]) -> list[Any]:
    """Return ``graphs``, one of them with the features of the ``known`` types that none has.

    graphs: at least one, with types. Collation gives the features to the others, so that a batch
    has the features of all types.
    """
    missing = set(known).difference(*(graph.type_names or () for graph in graphs))
    if not missing:
        return graphs
    first, new = graphs[0], {name: known[name] for name in missing}
    if not isinstance(first, Sample):
        return [first.with_features(new), *graphs[1:]]
    replaced = {}
    for owner, graph in first.graphs.items():
        own = {owner_of(name)[1]: new[name] for name in new if owner_of(name)[0] == owner}
        replaced[owner] = graph.with_features(own) if own else graph
    return [Sample(links=first.links, name=first.name, **replaced), *graphs[1:]]


def bytes_of(batch: Any) -> int:
    """Return the memory of a batch: features, and topology and schedule at 4 bytes an index."""
    batch = getattr(batch, "local", batch)  # the shard that this process computes
    if not hasattr(batch, "topology"):
        return 0  # only graphs of the data set
    groups = [*_groups(batch), getattr(batch, "link_features", {})]
    features = sum(array.nbytes for group in groups for array in group.values())
    return int(features + 4 * (10 * batch.num_vertices + 7 * batch.num_edges))
