"""The symbolic batch that Model.loss is called with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, NoReturn

from cavs.data.features import feature_name, link_feature, link_parts, owner_of
from cavs.errors import FeatureError, NoAttributeError, TraceError, user_line
from cavs.frontend.typed import TypeFeatures
from cavs.ir import FLOAT, GRAPH, INT, Domain, Link, Node, Structures
from cavs.ops.leaves import feature

_ONE_STRUCTURE = Structures()


@dataclass(frozen=True)
class Feature:
    """Declared type of a feature.

    where: "vertex", "edge", "graph" or "pair"; dtype: "int" or "float"; shape: of one row;
    optional: an integer feature that may be -1, absent; type: of the vertices that have it, "" for
    all.
    """

    where: str
    dtype: str
    shape: tuple[int, ...] = ()
    optional: bool = False
    type: str = ""


Schema = Mapping[str, Feature]


def _lacks(what: str, name: str, hint: str) -> NoReturn:
    """Raise AttributeError, with the cure where a user may have written ``name``."""
    if name.startswith("_"):
        raise AttributeError(name)
    raise NoAttributeError(
        f"{what} has no {name!r} in a model, which is traced once for all batches",
        where=user_line(),
        hint=hint,
    )


class _Uncounted:
    """Base of objects without a length: a trace holds for batches of any size."""

    _called = ""

    def _refused(self) -> NoReturn:
        raise TraceError(
            f"{self._called} has no length and cannot be iterated in a model, which is traced once "
            "for all batches",
            where=user_line(),
            hint="ops.mean_rows and ops.mean_graph divide by the number of rows; batch[name] is "
            "the feature of every vertex, edge or graph at once",
        )

    __len__ = __iter__ = _refused

    def __bool__(self) -> bool:
        return True


@dataclass(frozen=True, eq=False)
class SymbolicGraph(_Uncounted):
    """Stands for the input graphs of a batch, or for those of one structure of its samples.

    ``graph["token"]`` is a feature of theirs.
    """

    batch: SymbolicBatch
    top_down: bool = False
    structure: str = ""

    @property
    def _called(self) -> str:  # type: ignore[override]
        return f"batch.graphs[{self.structure!r}]" if self.structure else "batch.graph"

    def __getitem__(self, name: str) -> Any:
        return self.batch.feature(name, self.structure)

    def reversed(self) -> SymbolicGraph:
        """Return the graphs with every edge reversed.

        A cell that is called with them gathers from the parents, and runs from the roots down.
        """
        others = self.batch.graphs_of if self.top_down else self.batch.reversed_graphs
        return others[self.structure]

    def __getattr__(self, name: str) -> Any:
        _lacks(
            self._called,
            name,
            f"{self._called}.reversed() runs a cell top-down, ops.sum_roots(h) reads the roots; "
            "give everything else that the model must know of the graphs as features",
        )


class SymbolicBatch(_Uncounted):
    """Stands for a batch: ``batch["token"]`` is a feature, ``batch.graph`` the structure.

    If samples have several structures, ``batch.graphs[name]`` is one of them, and
    ``batch.link(name)`` a link. edges: True if the batch that it is traced for has any.
    """

    _called = "batch"

    def __init__(
        self, schema: Schema, edges: bool = True, structures: Structures = _ONE_STRUCTURE
    ) -> None:
        self.schema, self.edges, self.structures = schema, edges, structures
        self._of_types: dict[str, dict[str, str]] = {}
        for flat, declared in schema.items():
            if declared.type:
                name = flat.removeprefix(feature_name(declared.type, ""))
                self._of_types.setdefault(declared.type, {})[name] = flat
        # Each graph is one object: calls of a cell with equal arguments are computed once.
        self.graphs_of = {n: SymbolicGraph(self, structure=n) for n in structures.names}
        self.reversed_graphs = {n: SymbolicGraph(self, True, n) for n in structures.names}

    @property
    def _several(self) -> bool:
        return self.structures.names != ("",)

    @property
    def graph(self) -> SymbolicGraph:
        """The input graphs; TraceError for samples with several structures."""
        if self._several:
            names = self.structures.names
            raise TraceError(
                f"samples of this batch have the structures {', '.join(names)}, not one graph",
                where=user_line(),
                hint=f"write batch.graphs[{names[0]!r}] for one of them",
            )
        return self.graphs_of[""]

    @property
    def graphs(self) -> Mapping[str, SymbolicGraph]:
        """The structures of samples by name; TraceError if a sample is one graph."""
        if not self._several:
            raise TraceError(
                "samples of this batch are one graph each, without named structures",
                where=user_line(),
                hint="write batch.graph; cavs.Sample(words=graph, ...) names structures",
            )
        return _Structures(self.graphs_of)

    def link(self, name: str) -> Link:
        """Return a link of the samples, for ``ops.take``; FeatureError for another name.

        ``batch.link(name)["weight"]`` is a feature of it, with a row for each pair of a vertex and
        one that it reads; for a link to one vertex each, a row for each vertex that it leads from.
        """
        for link in self.structures.links:
            if link.name == name:
                return SymbolicLink(link, self)
        known = ", ".join(link.name for link in self.structures.links) or "none"
        raise FeatureError(
            f"no link {name!r:.60} in the samples; there are {known}",
            where=user_line(),
            hint='correct the name, or give it to every sample: links={"name": cavs.Link(...)}',
        )

    def __getattr__(self, name: str) -> Any:
        _lacks(
            "batch",
            name,
            'it has batch.graph and features such as batch["token"]; ops.mean_rows and '
            "ops.mean_graph divide by the number of rows",
        )

    def __getitem__(self, name: str) -> Any:
        return self.feature(name)

    def feature(self, name: str, structure: str = "") -> Any:
        """Return a feature, of a structure of the samples if they have several."""
        own = feature_name(structure, name) if structure else name
        if own in self._of_types:
            nodes = {key: partial(self._feature, flat) for key, flat in self._of_types[own].items()}
            return TypeFeatures(name, nodes)
        if own not in self.schema and self._several:
            self._no_feature(name, structure)
        return self._feature(own)

    def _feature(self, name: str) -> Node:
        declared = self.schema.get(name)
        if declared is None:
            known = ", ".join(sorted(self.schema)) or "none"
            if self._of_types:
                cure = (
                    f"give it to cavs.Graph; a batch without vertices of the type {name!r} needs "
                    f"features of it without rows: {{{name!r}: {{...: np.zeros((0, size))}}}}"
                )
            elif self.edges:
                cure = "give it to cavs.Graph by features=, edge_features= or graph_features="
            else:
                cure = (
                    "give it to cavs.Graph; this batch has no edge, so a feature of edges needs a "
                    f"type: edge_features={{{name!r}: np.zeros(0, np.int32)}}"
                )
            raise FeatureError(
                f"no feature {name!r} in the data; there are {known}",
                where=user_line(),
                hint=f"correct the name, or {cure}",
            )
        if 0 in declared.shape:
            raise FeatureError(
                f"feature {name!r} has rows of shape {list(declared.shape)}: they are empty",
                where=user_line(),
                hint="give it at least one number per row, or leave it out of the model",
            )
        dtype = INT if declared.dtype == "int" else FLOAT
        domain = GRAPH
        if declared.where == "pair":
            _, link, _ = link_parts(name)
            domain = next(x for x in self.structures.links if x.name == link).pairs
        elif declared.where != "graph":
            structure = owner_of(name)[0] if self._several else ""
            of = owner_of(declared.type)[1] if structure else declared.type
            domain = Domain(declared.where, of or None, structure)
        return feature(name, domain, dtype, declared.shape, declared.optional)

    def _no_feature(self, name: str, structure: str) -> NoReturn:
        """Raise the error of a feature that samples with several structures lack."""
        own = [owner_of(n) for n in sorted(self.schema)]
        has = [of for of, feature in own if feature == name]
        known = ", ".join(n for of, n in own if of == structure) or "none"
        raise FeatureError(
            f"structure {structure!r} has no feature {name!r}; there are {known}"
            if structure
            else f"no feature {name!r} of the batch as a whole: features belong to structures",
            where=user_line(),
            hint=f"write batch.graphs[{has[0]!r}][{name!r}]"
            if has
            else "correct the name, or give it to the graph of the structure in every sample",
        )


class SymbolicLink(Link):
    """A link of the samples of a symbolic batch, with its features by name."""

    def __new__(cls, link: Link, batch: SymbolicBatch) -> SymbolicLink:
        found = super().__new__(cls, *link)
        found._batch = batch
        return found

    _batch: SymbolicBatch

    def __getitem__(self, name: Any) -> Any:
        if not isinstance(name, str):
            return super().__getitem__(name)
        own = link_feature(self.target, self.name, name)
        if own not in self._batch.schema:
            parts = [link_parts(n) for n in sorted(self._batch.schema)]
            known = ", ".join(feature for _, link, feature in parts if link == self.name)
            raise FeatureError(
                f"link {self.name!r} has no feature {name!r:.60}; there are {known or 'none'}",
                where=user_line(),
                hint="correct the name, or give it to the link in every sample: "
                f"cavs.Link(..., features={{{name!r:.60}: rows}})",
            )
        return self._batch.feature(own)


class _Structures(Mapping[str, SymbolicGraph]):
    """The structures of samples by name, with a clear error for another name."""

    def __init__(self, graphs: Mapping[str, SymbolicGraph]) -> None:
        self._graphs = MappingProxyType(graphs)

    def __getitem__(self, name: str) -> SymbolicGraph:
        if name not in self._graphs:
            raise TraceError(
                f"samples of this batch have no structure {name!r:.60}; there are "
                f"{', '.join(self._graphs)}",
                where=user_line(),
                hint="correct the name, or give the graph to every sample: "
                f"cavs.Sample({name}=graph)",
            )
        return self._graphs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._graphs)

    def __len__(self) -> int:
        return len(self._graphs)

    def __contains__(self, name: object) -> bool:
        return name in self._graphs

    def get(self, name: str, default: Any = None, /) -> Any:
        """Return the structure ``name``, or ``default`` where the samples have none."""
        return self._graphs.get(name, default)
