"""Samples of several structures: named graphs, and links between their vertices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike

from cavs.data.graph import Graph
from cavs.data.structure import Indices, as_indices, shared
from cavs.errors import GraphError

MAX_STRUCTURES = 64  # that the engine numbers
_NO_LINKS: Mapping[str, Link] = MappingProxyType({})
_ROWS = "one vertex for each vertex of {0}, -1 for none; or a list of vertices for each"


@final
class Link:
    """Which vertices of ``source`` each vertex of ``target`` reads, by the names of structures.

    rows: for every vertex of ``target`` the index of a vertex of ``source``, or -1 for none; or for
    every vertex a list of such indices; or these lists as a pair of arrays ``(offsets, vertices)``.
    GraphError for anything else. A `Sample` checks the numbers against its graphs.
    """

    __slots__ = ("offsets", "source", "target", "vertices")

    #: Vertex v reads ``vertices[offsets[v]:offsets[v + 1]]``; None if it reads ``vertices[v]``.
    offsets: Indices | None
    #: None, and so are the offsets, if every vertex reads all of the source, see `all`.
    vertices: Indices | None

    def __init__(self, target: str, source: str, rows: ArrayLike | Sequence[Any]) -> None:
        self._begin(target, source)
        self.offsets, self.vertices = _lists(rows, self._label, target)
        for array in (self.offsets, self.vertices):
            if array is not None:
                array.flags.writeable = False

    @classmethod
    def all(cls, target: str, source: str) -> Link:
        """Return the link by which every vertex of ``target`` reads all vertices of ``source``.

        They are read in the order of their numbers. It has no list of pairs: a batch makes those of
        its samples, four bytes each.
        """
        link = object.__new__(cls)
        link._begin(target, source)
        link.offsets = link.vertices = None
        return link

    def _begin(self, target: str, source: str) -> None:
        for name in (target, source):
            if not isinstance(name, str):
                raise GraphError(
                    f"a link is between structures by name, found {name!r:.80}",
                    hint='Link("words", "chars", rows): rows has one entry for each word',
                )
        self.target, self.source = target, source

    @property
    def single(self) -> bool:
        """True if each vertex of the target reads one vertex, or none."""
        return self.offsets is None and self.vertices is not None

    @property
    def num_rows(self) -> int | None:
        """Number of vertices of the target that it has rows for; None for any number."""
        if self.vertices is None:
            return None
        return len(self.vertices if self.offsets is None else self.offsets[1:])

    @property
    def _label(self) -> str:
        return f'link from "{self.target}" to "{self.source}"'

    def __reduce__(self) -> tuple[Any, ...]:
        if self.vertices is None:
            return Link.all, (self.target, self.source)
        rows = self.vertices if self.offsets is None else (self.offsets, self.vertices)
        return Link, (self.target, self.source, rows)

    def __repr__(self) -> str:
        if self.vertices is None:
            return f"Link.all({self.target!r}, {self.source!r})"
        how = "" if self.single else ", lists"
        return f"Link({self.target!r}, {self.source!r}, {self.num_rows} rows{how})"


def _lists(rows: Any, label: str, target: str) -> tuple[Indices | None, Indices]:
    """Return (offsets, vertices) of a link; offsets are None if there is one vertex for each."""
    hint = _ROWS.format(target)
    if isinstance(rows, tuple) and len(rows) == 2 and all(isinstance(x, np.ndarray) for x in rows):
        offsets = as_indices(rows[0], f"{label}: offsets")
        vertices = as_indices(rows[1], f"{label}: vertices")
        if not len(offsets) or offsets[0] != 0 or offsets[-1] != len(vertices):
            ends = [int(x) for x in offsets[[0, -1]]] if len(offsets) else []
            raise GraphError(
                f"{label}: offsets run from 0 to the {len(vertices)} vertices, found {ends}",
                hint="vertex v reads vertices[offsets[v]:offsets[v + 1]]",
            )
        if (np.diff(offsets) < 0).any():
            v = int(np.flatnonzero(np.diff(offsets) < 0)[0])
            raise GraphError(
                f"{label}: offsets must not decrease: vertex {v} has {offsets[v]} and the next "
                f"{offsets[v + 1]}",
                hint="vertex v reads vertices[offsets[v]:offsets[v + 1]]",
            )
        return offsets, vertices
    nested = isinstance(rows, np.ndarray) and rows.ndim > 1
    if not isinstance(rows, np.ndarray):
        try:
            rows = list(rows)
        except TypeError:
            raise GraphError(f"{label} has the rows {rows!r:.80}", hint=hint) from None
        nested = any(isinstance(x, Sequence | np.ndarray) and np.ndim(x) for x in rows)
    if not nested:
        return None, as_indices(rows, label)
    try:
        counts = [len(row) for row in rows]
    except TypeError:
        raise GraphError(
            f"{label} has lists for some vertices and numbers for others: {rows!r:.80}", hint=hint
        ) from None
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return offsets, as_indices([v for row in rows for v in row], label)


@final
class Sample:
    """A sample of several structures: graphs by name, and links between their vertices.

    ``Sample(words=graph, chars=graph, links={"spelling": Link("words", "chars", rows)})``. Each
    graph has features of its own. ``name``: of the sample in errors. GraphError for a link that
    does not fit the graphs.
    """

    __slots__ = ("_graphs", "_links", "_name", "_schema")

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
            if graph.types is not None:
                raise self._error(
                    f'structure "{key}" has types of vertices',
                    "types are for samples that are one graph; make a structure of each type, or "
                    "an index feature of the type",
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
        # Structures and links are numbered in the order of their names.
        self._graphs = MappingProxyType({key: graphs[key] for key in sorted(graphs)})
        for key, link in links.items():
            self._check(key, link)
        self._links = MappingProxyType({key: links[key] for key in sorted(links)})
        types = ((key, x.target, x.source, x.single) for key, x in self._links.items())
        self._schema: tuple[Any, ...] = shared((tuple(self._graphs), tuple(types)))

    def _error(self, what: str, hint: str, vertex: int = -1) -> GraphError:
        label = f'sample "{self._name}"' if self._name else "sample"
        error = GraphError(f"{label}: {what}", hint=hint)
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
                _ROWS.format(link.target),
            )
        count = self._graphs[link.source].num_vertices
        least = -1 if link.single else 0
        wrong = np.flatnonzero((link.vertices < least) | (link.vertices >= count))
        if len(wrong):
            at = int(wrong[0])
            vertex = at
            if link.offsets is not None:
                vertex = int(np.searchsorted(link.offsets, at, side="right")) - 1
            raise self._error(
                f'link "{key}" leads from vertex {vertex} of "{link.target}" to vertex '
                f'{int(link.vertices[at])} of "{link.source}", whose vertices are 0..{count - 1}',
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
    def name(self) -> str:
        """Name of the sample in errors."""
        return self._name

    @property
    def schema(self) -> tuple[Any, ...]:
        """Names of the structures, and of each link its name and type."""
        found: tuple[Any, ...] = self._schema
        return found

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
