"""Samples of several structures: named graphs, and links between their vertices."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, final

import numpy as np

from cavs.data.features import Array, feature_name, link_feature
from cavs.data.graph import Graph
from cavs.data.link import ROWS, Link
from cavs.data.structure import shared
from cavs.errors import GraphError

MAX_STRUCTURES = 64  # that the engine numbers
_NO_LINKS: Mapping[str, Link] = MappingProxyType({})
_NOTHING: tuple[Mapping[str, Array], frozenset[str]] = (MappingProxyType({}), frozenset())


@final
class Sample:
    """A sample of several structures: graphs by name, and links between their vertices.

    ``Sample(words=graph, chars=graph, links={"spelling": Link("words", "chars", rows)})``. Each
    graph has features of its own, and so may a link. ``name``: of the sample in errors. GraphError
    for a link that does not fit the graphs, FeatureError for features that do not fit the link.
    """

    __slots__ = ("_absent", "_graphs", "_link_features", "_links", "_name", "_schema", "parts")

    #: The graphs, then offsets and vertices of each link, in the order of their names. Collation
    #: reads them from one place, since each object is out of the cache when a batch is made.
    parts: tuple[Any, ...]

    def __init__(
        self, *, links: Mapping[str, Link] = _NO_LINKS, name: str = "", **graphs: Graph
    ) -> None:
        self._name = name
        if not isinstance(name, str):
            raise GraphError(
                f"the name of a sample is a text, found {name!r:.80}", hint=f"name={str(name)!r}"
            )
        if not 1 <= len(graphs) <= MAX_STRUCTURES:
            raise self._error(
                f"1 to {MAX_STRUCTURES} structures are needed, found {len(graphs)}",
                "give graphs by name: Sample(words=graph, chars=graph)",
            )
        for key, graph in graphs.items():
            if not isinstance(graph, Graph):
                raise self._error(
                    f'structure "{key}" is {graph!r:.80}, no graph',
                    f"a structure is a cavs.Graph: Sample({key}=cavs.Graph(...))",
                )
            if not key.isidentifier():
                raise self._error(
                    f"{key!r:.80} is no name of a structure",
                    "a name is a word such as words, of letters, digits and underscores",
                )
        if not isinstance(links, Mapping):
            raise self._error(
                f"links are a dict of cavs.Link by name, not {links!r:.80}",
                'links={"spelling": cavs.Link("words", "chars", rows)}',
            )
        if not any(graph.num_vertices for graph in graphs.values()):
            raise self._error(
                f"all structures are empty: {', '.join(graphs)}",
                "a sample has at least one vertex; leave it out, or give one of its graphs a "
                "vertex: cavs.Graph([[]])",
            )
        # Structures and links are numbered in the order of their names.
        self._graphs = MappingProxyType({key: graphs[key] for key in sorted(graphs)})
        for key, link in links.items():
            self._check(key, link)
        self._links = MappingProxyType({key: links[key] for key in sorted(links)})
        types = (
            (key, x.target, x.source, None if x.fits_both else x.single)
            for key, x in self._links.items()
        )
        self._schema: tuple[Any, ...] = shared((tuple(self._graphs), tuple(types)))
        self._link_features, self._absent = self._features_of_links()
        arrays = (array for x in self._links.values() for array in (x.offsets, x.vertices))
        self.parts = (*self._graphs.values(), *arrays)

    def _features_of_links(self) -> tuple[Mapping[str, Array], frozenset[str]]:
        """Return the features of links by name, and the names of those that hold -1."""
        found: dict[str, Array] = {}
        for key, link in self._links.items():
            if not link.features:
                continue
            if "." in key:
                raise self._error(
                    f"link {key!r:.60} has features, and a dot in its name",
                    "write the name with _ in place of the dot",
                )
            targets, sources = self._graphs[link.target], self._graphs[link.source]
            rows = link.rows_of_features(
                targets.num_vertices, sources.num_vertices, f'{self._label}: link "{key}"'
            )
            found |= {link_feature(link.target, key, name): x for name, x in rows.items()}
        absent = (n for n, x in found.items() if x.dtype == np.int32 and (x < 0).any())
        return (MappingProxyType(found), frozenset(absent)) if found else _NOTHING

    @property
    def _label(self) -> str:
        return f'sample "{self._name}"' if self._name else "sample"

    def _error(self, what: str, hint: str, vertex: int = -1) -> GraphError:
        error = GraphError(f"{self._label}: {what}", hint=hint)
        error.vertex = vertex
        return error

    def _check(self, key: object, link: object) -> None:
        """GraphError unless a link fits the graphs."""
        if not isinstance(key, str) or not isinstance(link, Link):
            raise self._error(
                f"links are cavs.Link by name, found {key!r:.60}: {link!r:.80}",
                'links={"spelling": cavs.Link("words", "chars", rows)}',
            )
        for end in (link.target, link.source):
            if end not in self._graphs:
                raise self._error(
                    f'link "{key}" is between "{link.target}" and "{link.source}", but there is no '
                    f'structure "{end}": {", ".join(self._graphs)}',
                    f"correct the name, or give the graph: Sample({end}=graph)",
                )
        if link.vertices is None:
            return
        rows, readers = link.num_rows, self._graphs[link.target].num_vertices
        if rows != readers:
            raise self._error(
                f'link "{key}" has {rows} rows, but structure "{link.target}" has {readers} '
                "vertices",
                ROWS.format(link.target),
            )
        count = self._graphs[link.source].num_vertices
        least = -1 if link.single else 0
        wrong = np.flatnonzero((link.vertices < least) | (link.vertices >= count))
        has = f"vertices are 0..{count - 1}" if count else "graph has no vertex"
        if len(wrong):
            at = int(wrong[0])
            vertex = at
            if link.offsets is not None:
                vertex = int(np.searchsorted(link.offsets, at, side="right")) - 1
            raise self._error(
                f'link "{key}" leads from vertex {vertex} of "{link.target}" to vertex '
                f'{int(link.vertices[at])} of "{link.source}", whose {has}',
                f'vertices of "{link.source}" are counted from 0 in each sample'
                + (", and -1 is none" if link.single else "; a vertex that reads none has []"),
                vertex,
            )

    @property
    def graphs(self) -> Mapping[str, Graph]:
        """The graphs by the name of their structure, in the order of the names."""
        return self._graphs

    @property
    def links(self) -> Mapping[str, Link]:
        """The links by name, in the order of the names."""
        return self._links

    @property
    def link_features(self) -> Mapping[str, Array]:
        """The features of links: a row for each pair, or for each vertex of a link to one vertex.

        They are called "structure.link name.feature", by the structure that the link leads from.
        """
        return self._link_features

    @property
    def absent(self) -> frozenset[str]:
        """The names of the features of links that hold -1."""
        return self._absent

    @property
    def name(self) -> str:
        """Name of the sample in errors."""
        return self._name

    @property
    def schema(self) -> tuple[Any, ...]:
        """Names of the structures, and of each link its name and type.

        A link without rows has None in place of the number of vertices that it leads to.
        """
        found: tuple[Any, ...] = self._schema
        return found

    @property
    def type_names(self) -> tuple[str, ...] | None:
        """The types of vertices that occur, as "structure.type"; None without any."""
        found = [
            feature_name(key, name)
            for key, graph in self._graphs.items()
            for name in graph.type_names or ()
        ]
        return tuple(found) or None

    @property
    def num_vertices(self) -> int:
        """Number of vertices of all structures."""
        return sum(graph.num_vertices for graph in self._graphs.values())

    @property
    def num_edges(self) -> int:
        """Number of edges of all structures."""
        return sum(graph.num_edges for graph in self._graphs.values())

    @property
    def depth(self) -> int:
        """Number of levels of the deepest structure."""
        return max(graph.depth for graph in self._graphs.values())

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (dict(self._links), self._name, dict(self._graphs))

    def __repr__(self) -> str:
        name = f'"{self._name}", ' if self._name else ""
        parts = [f"{key}: {graph.num_vertices} vertices" for key, graph in self._graphs.items()]
        links = [f"link {key}" for key in self._links]
        return f"Sample({name}{', '.join(parts + links)})"


def _rebuild(links: dict[str, Link], name: str, graphs: dict[str, Graph]) -> Sample:
    return Sample(links=links, name=name, **graphs)
