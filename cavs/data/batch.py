"""Batches: several graphs, with each feature in one array."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn, final

import numpy as np
from numpy.typing import NDArray

from cavs import _engine
from cavs.config import is_whole
from cavs.data.engine_batch import EngineBatch
from cavs.data.feature_table import FeatureTable
from cavs.data.features import (
    MAX_OPTIONAL,
    Array,
    FeatureDomain,
    FeatureSpec,
    feature_name,
    names_of,
)
from cavs.data.graph import Graph
from cavs.data.merge import MergedBatch
from cavs.data.vertex_types import TYPE, VertexTypes, number_of_bits, type_names
from cavs.errors import FeatureError, GraphError, NoAttributeError, user_line

Ids = Sequence[int] | NDArray[np.integer[Any]]
_Spec = tuple[str, str, tuple[int, ...]]  # domain, dtype and row shape of a feature
_Groups = tuple[Mapping[str, Array], ...]  # features of vertices, edges, graphs and types
_DOMAINS: tuple[FeatureDomain, ...] = ("vertex", "edge", "graph")
_OF_TYPE = "vertex of type "
_AS_FLOATS = "np.asarray(values, np.float32)"
_IDS = "ids are indices in the data set, as range(len(graphs)); without them graphs count from 0"


@final
class GraphBatch(EngineBatch):
    """Graphs that run together, as ``cavs.data.batch`` returns them.

    Vertices and edges of graph i come after those of graph i - 1. ``batch["token"]`` is the
    concatenated feature of vertices, edges or graphs. ``ids``: the index of every graph in its data
    set, if known. ``of``: the structure of samples that they are, for errors.
    """

    structures: None = None  # a sample is one graph

    def __init__(self, graphs: Iterable[Graph], ids: Ids | None = None, of: str = "") -> None:
        iterable = isinstance(graphs, list) or isinstance(graphs, Iterable)  # noqa: SIM101
        if not iterable or isinstance(graphs, Graph):
            raise FeatureError(
                f"a batch is made of several graphs, not of {graphs!r:.80}", hint="batch([graph])"
            )
        graphs = list(graphs)
        if not graphs:
            raise FeatureError(
                "an empty batch: it needs at least one graph",
                hint="leave it out; a DataLoader makes none without graphs",
            )
        self.graphs: tuple[Graph, ...] = tuple(graphs)
        self.ids: tuple[int, ...] | None = None if ids is None else ids_of(ids, len(graphs))
        self._structure = of
        topology, self._table = _collated(graphs, self.graph_label)
        super().__init__(topology)
        if not of:
            self._check_vertices()
        self._types = self._table.types
        #: The types of vertices that occur, sorted; None in a batch without types.
        self.type_names = None if self._types is None else self._types.names
        self._merged: dict[tuple[tuple[str, ...], int, bool], MergedBatch] = {}

    def _check_vertices(self) -> None:
        """GraphError for a graph without vertices, which only a structure of a sample may be."""
        if (empty := self.topology.first_empty) >= 0:
            raise GraphError(
                f"{self.graph_label(empty)} has no vertex; it needs at least one vertex",
                hint="leave it out; a sample that is one value is a graph of one vertex: "
                "cavs.Graph([[]])",
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the graphs, "" where one has none."""
        return tuple(graph.name for graph in self.graphs)

    @property
    def num_graphs(self) -> int:
        """Number of graphs, at least 1."""
        return int(self.topology.num_graphs)

    @property
    def num_vertices(self) -> int:
        """Number of vertices of all graphs."""
        return int(self.topology.num_vertices)

    @property
    def num_edges(self) -> int:
        """Number of edges of all graphs."""
        return int(self.topology.num_edges)

    @property
    def features(self) -> Mapping[str, Array]:
        """Vertex features: [num_vertices, ...], int32 or float32, read-only."""
        return self._table.vertex

    @property
    def edge_features(self) -> Mapping[str, Array]:
        """Edge features: [num_edges, ...], int32 or float32, read-only."""
        return self._table.edge

    @property
    def graph_features(self) -> Mapping[str, Array]:
        """Features of whole graphs: [num_graphs, ...], int32 or float32, read-only."""
        return self._table.graph

    @property
    def replaced(self) -> Mapping[str, Array]:
        """Rows of graph features that `with_graph_features` has given, by name."""
        return self._table.replaced

    @property
    def typed_features(self) -> Mapping[str, Mapping[str, Array]]:
        """Features of each type of vertices: a row for each vertex of the type, read-only."""
        return {} if self._types is None else self._types.features

    @property
    def types(self) -> tuple[str, ...] | None:
        """The type of every vertex; None in a batch without types."""
        return None if self._types is None else type_names(self._types.numbers)

    def __getitem__(self, name: str) -> Any:
        """Return the rows of a feature, or by the name of a type those of its features by name.

        A feature of a type is also ``batch["type.feature"]``, as programs read it.
        """
        types = self._types
        if types is not None and name in types.features:
            return types.features[name]
        return self._table[name]

    @property
    def graph(self) -> NoReturn:
        """NoAttributeError: models compute with symbolic batches, which sessions give them."""
        raise NoAttributeError(
            "a model was called with a batch of data; it computes with symbols",
            where=user_line(),
            hint="cavs.Session(model).evaluate(batch) or .predict(batch) runs the model on it",
        )

    def __contains__(self, name: object) -> bool:
        return name in self._table or name in self.typed_features

    def select(self, indices: Sequence[int]) -> GraphBatch:
        """Return a batch of the graphs at ``indices``; FeatureError for indices out of range."""
        chosen = chosen_of(indices, self.num_graphs, "graph")
        ids = None if self.ids is None else [self.ids[i] for i in chosen]
        replaced = {name: rows[chosen] for name, rows in self.replaced.items()}
        graphs = [self.graphs[i] for i in chosen]
        return _rebuilt(graphs, ids, replaced, self._structure)

    def with_graph_features(self, values: Mapping[str, Array]) -> GraphBatch:
        """Return this batch with other rows of graph features, such as states of the batch before.

        values: by the name of a float feature of graphs: finite floats, one row for each graph,
        which the new batch shares in their own precision, as it shares everything else with this
        one; its ``graphs`` hold the features that they bring. FeatureError for another feature, or
        rows of another number, shape or type, or that are not finite.
        """
        given = {name: np.asarray(rows) for name, rows in values.items()}
        for name, rows in given.items():
            if name not in self._table.graph:
                raise FeatureError(
                    f'no feature "{name}" of graphs in the batch; it has '
                    f"{', '.join(map(repr, self._table.graph)) or 'none'}",
                    hint=f'give it to every graph: graph_features={{"{name}": np.zeros(size)}}',
                )
            before = self._table.graph[name]
            if before.dtype.kind != "f" or rows.dtype.kind != "f" or rows.shape != before.shape:
                raise FeatureError(
                    f'new rows of the graph feature "{name}" are {rows.dtype}{list(rows.shape)}, '
                    f"those of the batch {before.dtype}{list(before.shape)}",
                    hint="both are floats, one row for each graph; only the values may differ",
                )
            if not np.isfinite(rows).all():
                graph = int(np.argwhere(~np.isfinite(rows))[0][0])
                raise FeatureError(
                    f'new rows of the graph feature "{name}" hold {rows[~np.isfinite(rows)][0]} at '
                    f"{self.graph_label(graph)}",
                    hint="a state that a model has computed is not finite: lower lr, or set "
                    "max_norm",
                )
        found = object.__new__(GraphBatch)
        vars(found).update(vars(self), _table=self._table.with_graph_rows(given), _merged={})
        found._enumerate()
        return found

    def graph_label(self, index: int) -> str:
        """Return the name of graph ``index`` in errors: its id in the data set and its name."""
        number = index if self.ids is None else self.ids[index]
        name = self.graphs[index].name
        what = f'"{self._structure}" of sample' if self._structure else "graph"
        return f'{what} {number} "{name}"' if name else f"{what} {number}"

    def graph_of_vertex(self, vertex: int) -> int:
        """Return the index of the graph that a vertex belongs to."""
        return int(np.searchsorted(self.topology.vertex_offsets, vertex, side="right")) - 1

    def feature_schema(self) -> dict[str, FeatureSpec]:
        """Return the `FeatureSpec` of every feature by name."""
        return self._table.schema()

    def presence(
        self, optional: tuple[str, ...], types: tuple[str, ...] = ()
    ) -> NDArray[np.uint32] | None:
        most = MAX_OPTIONAL - (number_of_bits(types) if types else 0)
        features = self._table.optional(optional, most)
        masks = _engine.presence_masks(features) if features else None
        return self.bits_of_types(types, masks) if types else masks

    def bits_of_types(
        self, types: Sequence[str], masks: NDArray[np.uint32] | None
    ) -> NDArray[np.uint32]:
        """Return presence masks after the number of each vertex's type, see `presence`.

        "" stands for a type of no vertex.
        """
        if not self.num_vertices:
            return np.zeros(0, np.uint32)
        self.check_types([name for name in types if name])
        assert self._types is not None
        return self._types.bits(types, masks)

    def by_type(self, values: Mapping[str, int], other: int) -> NDArray[np.intp]:
        """Return the value of the type of each vertex, ``other`` where it has none."""
        types, count = self._types, self.num_vertices
        return np.full(count, other) if types is None else types.values(values, other)

    def check_types(self, types: Sequence[str], where: str = "", owner: str = "the model") -> None:
        """GraphError for a vertex without type, or whose type is none of ``types``.

        where, owner: the user's line and the name of the cell with a function for each of them.
        """
        if self._types is None:
            raise GraphError(
                f"{self.graph_label(0)} has no types of vertices; {owner} has a vertex function "
                f"for each of {', '.join(types)}",
                where=where,
                hint="give every vertex a type: cavs.Graph(children, types=[...])",
            )
        wrong = np.flatnonzero(self._types.numbered_by(types) < 0)
        if not wrong.size:
            return
        vertex = int(wrong[0])
        graph = self.graph_of_vertex(vertex)
        number = vertex - int(self.topology.vertex_offsets[graph])
        name = self._types.name_of(vertex)
        error = GraphError(
            f'vertex {number} of {self.graph_label(graph)} has the type "{name}"; {owner} has '
            f"vertex functions for {', '.join(types) or 'no types, but one for all vertices'}",
            where=where,
            hint=f'define its function, decorated by @cavs.vertex("{name}"), or correct the type',
        )
        error.vertex = number
        raise error

    def optional(self, names: Sequence[str]) -> list[Array]:
        """Return int features of vertices that may be absent; FeatureError if one cannot."""
        return self._table.optional(names)

    def merged(
        self, names: tuple[str, ...], child_numbers: int = 0, components: bool = False
    ) -> MergedBatch:
        """Return the batch with vertices that agree in the features ``names`` merged; cached."""
        key = names, child_numbers, components
        found = self._merged.get(key)
        if found is None:
            found = MergedBatch(self.topology, self._table, names, child_numbers, components)
            self._merged[key] = found
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self.graphs, self.ids, dict(self.replaced), self._structure)

    def __repr__(self) -> str:
        return (
            f"GraphBatch({self.num_graphs} graphs, {self.num_vertices} vertices, "
            f"{self.num_edges} edges)"
        )


def chosen_of(indices: Sequence[int], count: int, item: str) -> list[int]:
    """Return indices that are chosen of ``count`` items; FeatureError for others."""
    chosen = list(indices) if isinstance(indices, Iterable) else [indices]
    for i in chosen:
        if not is_whole(i) or not 0 <= i < count:
            raise FeatureError(
                f"no {item} {i!r:.80} in a batch of {count} {item}s",
                hint=f"select takes a list of numbers, 0 to {count - 1}; "
                "np.flatnonzero(mask) gives those of a mask",
            )
    return chosen


def _rebuilt(
    graphs: Iterable[Graph], ids: Ids | None, replaced: Mapping[str, Array], of: str
) -> GraphBatch:
    found = GraphBatch(graphs, ids, of)
    return found.with_graph_features(replaced) if replaced else found


def ids_of(ids: Ids, count: int) -> tuple[int, ...]:
    """Return the ids of ``count`` items as Python numbers; FeatureError for anything else."""
    if isinstance(ids, np.ndarray):
        ids = ids.tolist()  # Python numbers
    found = tuple(ids) if isinstance(ids, Iterable) else None
    if found is None or not all(map(is_whole, found)):
        raise FeatureError(f"ids are whole numbers, found {ids!r:.80}", hint=_IDS)
    if len(found) != count:
        raise FeatureError(f"{len(found)} ids for {count} graphs; give one for each", hint=_IDS)
    return tuple(int(i) for i in found)


def _collated(
    graphs: list[Graph], label: Callable[[int], str]
) -> tuple[_engine.GraphBatch, FeatureTable]:
    """Return all graphs as one, and their features."""
    first = graphs[0]
    if len(graphs) == 1 and type(first) is Graph:  # shared, as it is read-only
        table = first.features, first.edge_features, _of_one(first.graph_features), first.absent
        return _engine.collate([first.topology]), FeatureTable(*table, first.of_types)
    like = first.columns() if type(first) is Graph else None
    found = None if like is None else _engine.collate_samples(graphs, _sorted(like))
    if found is None:
        _require_graphs(graphs)
        like, typed, columns = _agree(graphs, label)
        found = _engine.collate_samples(graphs, _sorted(like), columns)
    else:
        typed = {} if first.of_types is None else _typed_names(first)
    assert like is not None and found is not None
    topology, joined, flags = found
    names = [name for group in like for name in sorted(group)]
    named = dict(zip(names, joined, strict=True))
    absent = frozenset(name for name, flag in zip(names, flags, strict=True) if flag)
    numbers = named.pop(TYPE, None)
    of_vertices, of_edges, of_graphs = (
        MappingProxyType({name: named[name] for name in group if name != TYPE})
        for group in like[:3]
    )
    types = None
    if numbers is not None:
        of_types: dict[str, dict[str, Array]] = {}
        for flat, (vertex_type, name) in typed.items():
            of_types.setdefault(vertex_type, {})[name] = named[flat]
        types = VertexTypes(numbers, of_types, absent)
    return topology, FeatureTable(of_vertices, of_edges, of_graphs, absent, types)


def _of_one(group: Mapping[str, Array]) -> Mapping[str, Array]:
    return (
        MappingProxyType({name: array[None] for name, array in group.items()}) if group else group
    )


def _require_graphs(graphs: Sequence[Any]) -> None:
    for i, graph in enumerate(graphs):
        if not isinstance(graph, Graph):
            raise FeatureError(
                f"a batch is made of cavs.Graph, but item {i} is {graph!r:.80}",
                hint="make a graph of every sample: cavs.Graph(children, features)",
            )


def _sorted(groups: _Groups) -> tuple[list[Array], ...]:
    """Return the arrays of each group in the order of their names."""
    return tuple([group[name] for name in sorted(group)] for group in groups)


def _agree(
    graphs: Sequence[Graph], label: Callable[[int], str]
) -> tuple[_Groups, dict[str, tuple[str, str]], NDArray[np.int32]]:
    """Return all features of graphs whose schemas differ; FeatureError for two that disagree.

    A graph without edges takes dtype and shape of edge features from the others, and may leave them
    out; so does one without vertices, of a type or at all. The order of the names does not matter.
    The result has an array like each feature, in groups as `Graph.columns` has them; type and name
    of those of types; and the number of each feature among the columns of each graph, -1 where it
    has none.
    """
    # Few graphs differ in what is compared here: the first of each form stands for the others.
    forms: dict[tuple[Any, ...], int] = {}
    form_of = [
        forms.setdefault(
            (id(graph.schema), graph.num_vertices > 0, graph.num_edges > 0, graph.type_names),
            len(forms),
        )
        for graph in graphs
    ]
    first_of = [form_of.index(form) for form in range(len(forms))]
    brought, typed = _brought([(i, graphs[i]) for i in first_of], label)
    like: list[dict[str, Array]] = [dict(group) for group in graphs[0].columns()]
    for name, ((domain, dtype, shape), _) in brought.items():
        group = 3 if name in typed else _DOMAINS.index(domain)
        if name not in like[group] or not _has_rows(graphs[0], domain):
            like[group][name] = np.zeros((0, *shape), dtype)
    names = [name for group in like for name in sorted(group)]
    columns = np.full((len(forms), len(names)), -1, np.int32)
    for form, i in enumerate(first_of):
        own = {name: number for number, name in enumerate(names_of(graphs[i].schema))}
        columns[form] = [own.get(name, -1) for name in names]
    return tuple(like), typed, columns[form_of]


def _brought(
    graphs: Sequence[tuple[int, Graph]], label: Callable[[int], str]
) -> tuple[dict[str, tuple[_Spec, int]], dict[str, tuple[str, str]]]:
    """Return the type of every feature, and the first graph that has it; type and name of those of
    types of vertices.
    """
    brought: dict[str, tuple[_Spec, int]] = {}
    idle = dict(brought)  # features without rows
    names: list[set[str]] = []
    typed: dict[str, tuple[str, str]] = {}
    for i, graph in graphs:
        names.append(set())
        typed |= _typed_names(graph)
        for name, here in _specs(graph):
            names[-1].add(name)
            if not _has_rows(graph, here[0]):
                idle.setdefault(name, (here, i))
                continue
            there, j = brought.setdefault(name, (here, i))
            if there != here:
                raise _differs(name, (there, j), (here, i), label)
    for name, empty in idle.items():  # no rows have no dtype, but belong to edges or a type
        found = brought.get(name, empty)
        if found[0][0] != empty[0][0]:
            raise _differs(name, found, empty, label)
        if not any(_has_rows(graph, empty[0][0]) for _, graph in graphs):
            brought[name] = empty
    for own, (i, graph) in zip(names, graphs, strict=True):
        own |= {name for name, ((domain, *_), _) in brought.items() if not _has_rows(graph, domain)}
        if own != names[0]:
            name = min(own ^ names[0], key=lambda n: (n != TYPE, n))
            has, lacks = (i, 0) if name in own else (0, i)
            if name == TYPE:
                raise FeatureError(
                    f"{label(has)} has types of vertices, {label(lacks)} has none",
                    hint="give a type to every vertex of all graphs: cavs.Graph(..., types=[...])",
                )
            raise FeatureError(
                f'feature "{name}" is in {label(has)}, but not in {label(lacks)}',
                hint="graphs of a batch need the same features; -1 says absent at a vertex",
            )
    return brought, typed


def _typed_names(graph: Graph) -> dict[str, tuple[str, str]]:
    """Return type and name of the features of types, by the name that programs read."""
    return {feature_name(t, n): (t, n) for t, of in graph.typed_features.items() for n in of}


def _specs(graph: Graph) -> Iterable[tuple[str, _Spec]]:
    """Iterate over the names and specs of all features of a graph."""
    for domain, group in zip(_DOMAINS, graph.schema, strict=False):  # those of types follow
        for name, dtype, shape in group:
            yield name, (domain, dtype, shape)
    for vertex_type, features in graph.typed_features.items():
        for name, rows in features.items():
            of = f'{_OF_TYPE}"{vertex_type}"'
            yield feature_name(vertex_type, name), (of, rows.dtype.char, rows.shape[1:])


def _has_rows(graph: Graph, domain: str) -> bool:
    """True if a graph has rows of a domain: vertices of a type, edges."""
    if domain.startswith(_OF_TYPE):
        return domain[len(_OF_TYPE) + 1 : -1] in (graph.type_names or ())
    if domain == "vertex":
        return graph.num_vertices > 0
    return domain != "edge" or graph.num_edges > 0


def _differs(
    name: str, one: tuple[_Spec, int], other: tuple[_Spec, int], label: Callable[[int], str]
) -> FeatureError:
    """Return the error of a feature whose type differs in two graphs, each with its number."""
    (there, j), (here, i) = one, other
    if there[0] != here[0]:
        cure = "of vertices, of edges or of graphs"
    else:
        cure = "rows of one shape" if there[:2] == here[:2] else _AS_FLOATS
    return FeatureError(
        f'feature "{name}" differs: {_words(there)} in {label(j)}, {_words(here)} in {label(i)}',
        hint=f"give it alike in all graphs: {cure}",
    )


def _words(spec: _Spec) -> str:
    domain, dtype, shape = spec
    return f"{np.dtype(dtype)} {domain} rows of shape {shape}"
