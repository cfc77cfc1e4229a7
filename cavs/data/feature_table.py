"""All features of a batch by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from cavs.data.features import (
    MAX_OPTIONAL,
    Array,
    FeatureDomain,
    FeatureSpec,
    check_number_of_optional,
    spec_of,
)
from cavs.data.vertex_types import VertexTypes
from cavs.errors import FeatureError


class FeatureTable:
    """The features of a batch: a mapping for vertices, edges and graphs each; no name is twice.

    types: the features of types of vertices, None where there are no types.
    """

    def __init__(
        self,
        vertex: Mapping[str, Array],
        edge: Mapping[str, Array],
        graph: Mapping[str, Array],
        absent: frozenset[str],
        types: VertexTypes | None = None,
        replaced: Mapping[str, Array] = MappingProxyType({}),
    ) -> None:
        self.vertex, self.edge, self.graph, self.types = vertex, edge, graph, types
        self._absent = absent  # int features that hold -1
        self.replaced = replaced  # rows of graph features that no graph brings
        self._schema: dict[str, FeatureSpec] | None = None

    def with_graph_rows(self, rows: Mapping[str, Array]) -> FeatureTable:
        """Return a table with these rows of graph features, of the same shapes."""
        graph = MappingProxyType({**self.graph, **rows})
        new = {**self.replaced, **rows}
        return FeatureTable(self.vertex, self.edge, graph, self._absent, self.types, new)

    def __getitem__(self, name: str) -> Array:
        for group in (self.vertex, self.edge, self.graph):
            if name in group:
                return group[name]
        if self.types is not None and name in self.types:
            return self.types[name]
        raise self._unknown(name)

    def __contains__(self, name: object) -> bool:
        own = name in self.vertex or name in self.edge or name in self.graph
        return own or (self.types is not None and name in self.types)

    def schema(self) -> dict[str, FeatureSpec]:
        """Return the `FeatureSpec` of every feature."""
        if self._schema is None:
            groups: dict[FeatureDomain, Mapping[str, Array]] = {
                "vertex": self.vertex,
                "edge": self.edge,
                "graph": self.graph,
            }
            self._schema = {
                name: spec_of(domain, values, name in self._absent)
                for domain, group in groups.items()
                for name, values in group.items()
            }
            if self.types is not None:
                self._schema |= self.types.schema()
        return dict(self._schema)

    def optional(self, names: Sequence[str], most: int = MAX_OPTIONAL) -> list[Array]:
        """Return int features of vertices that may be absent; FeatureError if one cannot."""
        check_number_of_optional(names, most)
        found = []
        for name in names:
            if self.types is not None and self.types.lacks(name):
                found.append(np.full(len(self.types.numbers), -1, np.int32))
                continue
            if name not in self.vertex and (self.types is None or name not in self.types):
                raise self._unknown(name, "vertex ")
            values = self[name]
            if values.dtype != np.int32 or values.ndim != 1:
                raise FeatureError(
                    f'feature "{name}" cannot be absent: it is {values.dtype} with rows of shape '
                    f"{values.shape[1:]}; only int features with one number per vertex can",
                    hint="give each column as a feature of its own",
                )
            found.append(values)
        return found

    def _unknown(self, name: str, domain: str = "") -> FeatureError:
        known = ", ".join(f'"{k}" ({v.domain})' for k, v in self.schema().items())
        return FeatureError(
            f'no {domain}feature "{name}" in the batch; it has {known or "none"}',
            hint="correct the name, or give it to every graph: cavs.Graph(children, {name: rows})",
        )
