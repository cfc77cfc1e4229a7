"""Input graphs: structure and features of one sample."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import ArrayLike

from cavs import _engine
from cavs._engine import Graph as EngineGraph
from cavs.config import is_whole
from cavs.data.features import (
    NO_FEATURES,
    Array,
    check_features,
    feature_name,
    names_of,
    names_where,
)
from cavs.data.structure import (
    Indices,
    as_indices,
    check_count,
    csr,
    graph_error,
    graph_label,
    make_topology,
    shared,
)
from cavs.data.vertex_types import (
    NO_TYPES,
    TYPE,
    VertexTypes,
    check_typed_features,
    flat_features,
    number_types,
    split_features,
    type_names,
)
from cavs.errors import FeatureError

if TYPE_CHECKING:  # parsers, which Graph is annotated with
    from cavs.data.readers.json_parser import JsonTree
    from cavs.data.readers.newick_parser import NewickTree
    from cavs.data.readers.parsed_tree import BracketTree
    from cavs.data.readers.sentence import Sentence

_PAIRS = "Graph.from_edges(3, [(0, 2), (1, 2)]): vertex 2 gathers from 0 and 1"


def _row_types(features: Mapping[str, Array]) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    return tuple(sorted((k, v.dtype.char, v.shape[1:]) for k, v in features.items()))


@final
class Graph(_engine.Sample):
    """An input graph: a DAG whose vertices gather from their children, in order.

    ``children``: for every vertex the indices of its children, or a pair of arrays
    ``(offsets, children)`` in CSR form: vertex v gathers from
    ``children[offsets[v]:offsets[v + 1]]``. Vertices without children are leaves; several roots,
    shared children and isolated vertices are fine. A child of -1 leaves its position empty: in
    ``[[-1, 1], []]`` vertex 0 has a right child and no left one, so that ``gather(0)`` is zeros
    there, and ``gather()`` has one row.

    ``types``: a name for every vertex, for models with a vertex function for each type.

    ``features``: arrays with a row for every vertex; ``edge_features``: with a row for every edge,
    ordered by (parent, position of the child), and none for an empty position; ``graph_features``:
    one row for the whole graph. A dict among ``features`` holds those of a type of vertices, with a
    row for every vertex of the type: ``features={"depth": rows, "join": {"cost": rows}}``.
    Integers and booleans become int32, where -1 stands for an absent value; floats become float32.
    A graph without edges may leave its edge features out, or give an empty list, which has no
    dtype.

    Raises GraphError for cycles and dangling indices, FeatureError for features of the wrong
    length, dtype or value. A graph cannot be changed afterwards.
    """

    __slots__ = (
        "_edge_features",
        "_features",
        "_graph_features",
        "_name",
        "_schema",
        "_topology",
        "_types",
    )

    def __init__(
        self,
        children: Sequence[Sequence[int]] | tuple[Array, Array] | Any,
        features: Mapping[str, ArrayLike | Mapping[str, ArrayLike]] = NO_FEATURES,
        edge_features: Mapping[str, ArrayLike] = NO_FEATURES,
        *,
        graph_features: Mapping[str, ArrayLike] = NO_FEATURES,
        types: Iterable[str] | None = None,
        name: str = "",
    ) -> None:
        if not isinstance(name, str):
            raise graph_error(
                "",
                f"the name of a graph is a text, found {name!r:.80}",
                hint=f"name={str(name)!r:.80}, or leave it out",
            )
        if hasattr(self, "_topology"):  # batches and the engine may already refer to it
            raise graph_error(
                name, "a graph cannot be changed", hint="make another one: Graph(...)"
            )
        self._name = name
        if isinstance(children, EngineGraph):
            self._topology = children
        else:
            self._topology = make_topology(children, name)
        label = graph_label(name)
        numbers = None if types is None else number_types(types, self.num_vertices, name)
        whole, of_types = split_features(features)
        typed = check_typed_features(of_types, numbers, label) if of_types else NO_TYPES
        given = (
            check_features(whole, "vertex", self.num_vertices, label),
            check_features(edge_features, "edge", self.num_edges, label),
            check_features(graph_features, "graph", None, label),
        )
        # Names share one space, so that batch["x"] means one thing.
        of_vertices, of_edges, of_graph = given
        columns = of_vertices if numbers is None else {**of_vertices, TYPE: numbers}
        flat = flat_features(typed)
        self._schema: tuple[Any, ...] = shared(
            (
                _row_types(columns),
                _row_types(of_edges),
                tuple(sorted((k, v.dtype.char, v.shape) for k, v in of_graph.items())),
                _row_types(flat),
            )
        )
        names = [*names_of(self._schema), *typed, *of_vertices.keys() & {TYPE}]
        if len(set(names)) != len(names):
            twice = next(n for n in names if names.count(n) > 1)
            raise FeatureError(
                f'{label}: "{twice}" names two features, of vertices, edges or the graph, or types',
                hint="rename one of them",
            )
        groups = columns, of_edges, of_graph, flat
        arrays = [group[name] for group in groups for name in sorted(group)]
        super().__init__(self._topology, arrays, self._schema)
        found = dict(zip(names_of(self._schema), self.views(arrays), strict=True))
        self._features, self._edge_features, self._graph_features = (
            MappingProxyType({name: found[name] for name in group}) for group in given
        )
        self._types: VertexTypes | None = None
        if numbers is not None:
            views = {t: {k: found[feature_name(t, k)] for k in of} for t, of in typed.items()}
            self._types = VertexTypes(found[TYPE], views, self.absent)

    @property
    def topology(self) -> EngineGraph:
        """Engine graph: offsets, children and level as read-only int32 views."""
        return self._topology

    @property
    def name(self) -> str:
        """Name of the graph in errors; readers give file:line."""
        return self._name

    @property
    def features(self) -> Mapping[str, Array]:
        """Vertex features: read-only arrays [num_vertices, ...], int32 or float32."""
        return self._features

    @property
    def typed_features(self) -> Mapping[str, Mapping[str, Array]]:
        """Features of each type: read-only arrays with a row for each of its vertices."""
        return NO_TYPES if self._types is None else self._types.features

    @property
    def types(self) -> tuple[str, ...] | None:
        """The type of every vertex; None in a graph without types."""
        return None if self._types is None else type_names(self._types.numbers)

    @property
    def type_names(self) -> tuple[str, ...] | None:
        """The types of vertices that occur, sorted; None in a graph without types."""
        return None if self._types is None else self._types.names

    @property
    def of_types(self) -> VertexTypes | None:
        """The types of the vertices, and what belongs to them; None in a graph without types."""
        return self._types

    def columns(self) -> tuple[Mapping[str, Array], ...]:
        """Return all features as the engine collates them: of vertices, edges, graph and types."""
        types = self._types
        if types is None:
            return self._features, self._edge_features, self._graph_features, {}
        whole = {**self._features, TYPE: types.numbers}
        return whole, self._edge_features, self._graph_features, flat_features(types.features)

    @property
    def edge_features(self) -> Mapping[str, Array]:
        """Edge features: read-only arrays [num_edges, ...], by (parent, position)."""
        return self._edge_features

    @property
    def graph_features(self) -> Mapping[str, Array]:
        """Features of the whole graph: read-only arrays of any shape."""
        return self._graph_features

    @property
    def schema(self) -> tuple[Any, ...]:
        """Names, dtypes and row shapes of all features; equal for graphs of one batch."""
        found: tuple[Any, ...] = self._schema
        return found

    @property
    def absent(self) -> frozenset[str]:
        """Int features that hold -1 somewhere."""
        return names_where(self._schema, self.absences)

    @property
    def num_vertices(self) -> int:
        """Number of vertices; 0 in a structure without content of a `cavs.Sample`."""
        return int(self._topology.num_vertices)

    @property
    def num_edges(self) -> int:
        """Number of (child, parent) pairs."""
        return int(self._topology.num_edges)

    @property
    def depth(self) -> int:
        """Number of levels: vertices on the longest path."""
        return int(self._topology.num_levels)

    @property
    def arity(self) -> int:
        """Largest number of children of a vertex, with empty positions before the last one."""
        return int(np.diff(self._topology.child_lists[0]).max(initial=0))

    @property
    def roots(self) -> Indices:
        """Vertices without parents, ascending: int32[n]."""
        is_root = np.ones(self.num_vertices, np.bool_)
        is_root[self._topology.children] = False
        return np.flatnonzero(is_root).astype(np.int32)

    def children(self, vertex: int) -> Indices:
        """Return the children of one vertex in order, -1 where a position before the last is empty.

        GraphError if there is no such vertex.
        """
        whole = is_whole(vertex)
        if not whole or not 0 <= vertex < self.num_vertices:
            raise graph_error(
                self._name,
                f"no vertex {vertex!r:.80}; vertices are 0..{self.num_vertices - 1}",
                int(vertex) if whole else -1,
                "vertices are whole numbers, counted from 0",
            )
        found: Indices = self._topology.children_of(vertex)
        found.setflags(write=False)
        return found

    def reversed(self) -> Graph:
        """Return the graph with every edge reversed, so that roots run first.

        Edge features follow their edges. The parents of a vertex fill its positions without a gap.
        """
        moved = np.argsort(self._topology.children, kind="stable")
        return Graph(
            self._topology.reversed(),
            {**self._features, **self.typed_features},
            {name: values[moved] for name, values in self._edge_features.items()},
            graph_features=self._graph_features,
            types=self.types,
            name=self._name,
        )

    def with_features(
        self,
        features: Mapping[str, ArrayLike | Mapping[str, ArrayLike]] | None = None,
        edge_features: Mapping[str, ArrayLike] | None = None,
        graph_features: Mapping[str, ArrayLike] | None = None,
    ) -> Graph:
        """Return the graph with features added, or replaced where the name is the same.

        They are checked as in the constructor. Features of a type are added to those that it has.
        """
        whole, typed = split_features(features or {})
        own = self.typed_features
        groups = {t: {**own.get(t, {}), **typed.get(t, {})} for t in (*own, *typed)}
        return Graph(
            self._topology,
            {**self._features, **groups, **whole},
            {**self._edge_features, **(edge_features or {})},
            graph_features={**self._graph_features, **(graph_features or {})},
            types=self.types,
            name=self._name,
        )

    @classmethod
    def from_children(cls, children: Sequence[Sequence[int]], **features: Any) -> Graph:
        """Return the graph of child lists; the keywords are those of ``Graph``."""
        return cls(children, **features)

    @classmethod
    def from_parents(cls, parents: ArrayLike, **features: Any) -> Graph:
        """Return the forest of parent indices, -1 for roots; siblings are sorted by their index."""
        name = features.get("name", "")
        up = as_indices(parents, f"{graph_label(name)}: parents")
        wrong = np.flatnonzero((up < -1) | (up >= len(up)))
        if len(wrong):
            v = int(wrong[0])
            raise graph_error(
                name,
                f"vertex {v} has parent {up[v]}, but vertices are 0..{len(up) - 1} (-1: none)",
                v,
                "parents are counted from 0; that of a root is -1",
            )
        child = np.flatnonzero(up >= 0).astype(np.int32)
        return cls(csr(len(up), child, up[child])[0], **features)

    @classmethod
    def chain(
        cls, length: int, features: Mapping[str, ArrayLike] = NO_FEATURES, **options: Any
    ) -> Graph:
        """Return a sequence: vertex i gathers from vertex i - 1, vertex 0 from no vertex.

        options: the other keywords of ``Graph``.
        """
        name = options.get("name", "")
        check_count(length, "a chain", name)
        offsets = np.arange(-1, length, dtype=np.int32)
        offsets[0] = 0
        return cls((offsets, np.arange(length - 1, dtype=np.int32)), features, **options)

    @classmethod
    def chains(
        cls, lengths: ArrayLike, features: Mapping[str, ArrayLike] = NO_FEATURES, **options: Any
    ) -> Graph:
        """Return several sequences as one graph, with a root for each; see ``cavs.data.sequences``.

        options: the other keywords of ``Graph``.
        """
        return _constructor("chains", "cavs.data.sequences")(lengths, features, **options)

    @classmethod
    def from_edges(
        cls, num_vertices: int, edges: Iterable[tuple[int, int]] | Array, **features: Any
    ) -> Graph:
        """Return the graph of (child, parent) pairs, a sequence or an array [num_edges, 2].

        Children keep the order of their pairs, and ``edge_features`` have that order too. In the
        graph, and in the edge outputs of a cell, edges are sorted by parent: row i is that of pair
        ``np.argsort(parents, kind="stable")[i]``.
        """
        name = features.get("name", "")
        try:
            pairs = np.asarray(edges if isinstance(edges, np.ndarray) else list(edges))
        except (TypeError, ValueError) as error:
            raise graph_error(
                name, f"edges must be (child, parent) pairs: {error}", hint=_PAIRS
            ) from None
        if pairs.size == 0:
            pairs = pairs.reshape(0, 2).astype(np.int32)
        if pairs.ndim != 2 or pairs.shape[1] != 2:
            raise graph_error(
                name,
                f"edges must be (child, parent) pairs, found an array of shape {pairs.shape}; "
                "for an array [2, num_edges] use Graph.from_edge_index",
                hint=_PAIRS,
            )
        return cls.from_edge_index(num_vertices, pairs.T, **features)

    @classmethod
    def from_edge_index(cls, num_vertices: int, edge_index: ArrayLike, **features: Any) -> Graph:
        """Return the graph of an array [2, num_edges]: children (sources) and their parents.

        ``edge_index`` of PyTorch Geometric and ``dgl.DGLGraph.edges()`` have this form. The order
        of children and of ``edge_features`` is that of ``from_edges``.
        """
        name = features.get("name", "")
        check_count(num_vertices, "a graph", name)
        try:
            index = np.asarray(edge_index)
        except ValueError as error:
            raise graph_error(
                name, f"edge_index must be [2, num_edges]: {error}", hint=_PAIRS
            ) from None
        if index.ndim != 2 or index.shape[0] != 2:
            raise graph_error(
                name, f"edge_index must be [2, num_edges], found {index.shape}", hint=_PAIRS
            )
        child = as_indices(index[0], f"{graph_label(name)}: edge_index[0]")
        parent = as_indices(index[1], f"{graph_label(name)}: edge_index[1]")
        ends = np.stack([child, parent])
        wrong = np.flatnonzero(((ends < 0) | (ends >= num_vertices)).any(0))
        if len(wrong):
            e = int(wrong[0])
            raise graph_error(
                name,
                f"edge {e} goes from vertex {child[e]} to {parent[e]}, "
                f"but vertices are 0..{num_vertices - 1}",
                int(child[e] if 0 <= child[e] < num_vertices else parent[e]),
                "both ends of an edge are vertices, counted from 0 to num_vertices - 1",
            )
        topology, order = csr(num_vertices, child, parent)
        given = features.pop("edge_features", {})
        checked = check_features(given, "edge", len(child), graph_label(name))
        moved = {key: values[order] for key, values in checked.items()}
        return cls(topology, edge_features=moved, **features)

    @classmethod
    def from_networkx(cls, graph: Any, **options: Any) -> Graph:
        """Return the graph of a networkx DiGraph; see ``cavs.data.from_networkx``."""
        return _constructor("from_networkx")(graph, **options)

    @classmethod
    def from_pyg(cls, data: Any, **options: Any) -> Graph:
        """Return the graph of a Data of PyTorch Geometric; see ``cavs.data.from_pyg``."""
        return _constructor("from_pyg")(data, **options)

    @classmethod
    def from_dgl(cls, graph: Any, **options: Any) -> Graph:
        """Return the graph of a DGLGraph; see ``cavs.data.from_dgl``."""
        return _constructor("from_dgl")(graph, **options)

    @classmethod
    def from_ast(cls, source: ast.AST | str | bytes, **options: Any) -> Graph:
        """Return the graph of Python code; see ``cavs.data.from_ast``."""
        return _constructor("from_ast")(source, **options)

    @classmethod
    def from_brackets(cls, source: BracketTree | str, **options: Any) -> Graph:
        """Return the graph of a bracketed tree; see ``cavs.data.from_brackets``."""
        return _constructor("from_brackets")(source, **options)

    @classmethod
    def from_conllu(cls, source: Sentence | str, **options: Any) -> Graph:
        """Return the graph of a sentence in CoNLL-U; see ``cavs.data.from_conllu``."""
        return _constructor("from_conllu")(source, **options)

    @classmethod
    def from_newick(cls, source: NewickTree | str, **options: Any) -> Graph:
        """Return the graph of a tree in Newick; see ``cavs.data.from_newick``."""
        return _constructor("from_newick")(source, **options)

    @classmethod
    def from_json(cls, source: JsonTree | Mapping[str, Any] | str, **options: Any) -> Graph:
        """Return the graph of a tree of JSON objects; see ``cavs.data.from_json``."""
        return _constructor("from_json")(source, **options)

    @classmethod
    def join(cls, graphs: Sequence[Graph], *features: Any, **options: Any) -> Graph:
        """Return several graphs as one, under a new root; see ``cavs.data.join.join``."""
        return _constructor("join", "cavs.data.join")(graphs, *features, **options)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (
            self._topology,
            {**self._features, **{t: dict(of) for t, of in self.typed_features.items()}},
            dict(self._edge_features),
            dict(self._graph_features),
            self._name,
            self.types,
        )

    def __repr__(self) -> str:
        name = f'"{self._name}", ' if self._name else ""
        names = [name for name in names_of(self._schema) if name != TYPE]
        features = f", features {', '.join(names)}" if names else ""
        return (
            f"Graph({name}{self.num_vertices} vertices, {self.num_edges} edges, "
            f"depth {self.depth}{features})"
        )


def _rebuild(
    topology: Any,
    features: Mapping[str, Array],
    edge_features: Mapping[str, Array],
    graph_features: Mapping[str, Array],
    name: str,
    types: tuple[str, ...] | None = None,  # left out by pickles of former versions
) -> Graph:
    return Graph(
        topology, features, edge_features, graph_features=graph_features, types=types, name=name
    )


def _constructor(name: str, module: str = "cavs.data") -> Callable[..., Graph]:
    """Return a constructor from a module that imports this one."""
    found: Callable[..., Graph] = getattr(import_module(module), name)
    return found
