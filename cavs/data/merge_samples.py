"""Batches of samples in which equal vertices of some structures are merged."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, final

from cavs import _engine
from cavs.data.batch import GraphBatch
from cavs.data.batch_of_structures import BatchOfStructures
from cavs.data.features import Array, owner_of
from cavs.data.merge import MergedBatch
from cavs.data.structure import Indices


class MergedStructure(NamedTuple):
    """A structure of samples whose equal vertices are merged.

    features: in which its distinct vertices differ. components: vertices are merged only with all
    that are connected with them, see `cavs.data.merge.MergedBatch`.
    """

    structure: str
    features: tuple[str, ...]
    components: bool = False


@final
class MergedSampleBatch(BatchOfStructures[GraphBatch | MergedBatch]):
    """The distinct vertices of some structures of ``samples``, and all vertices of the others.

    Links lead to distinct vertices: copies are read as one vertex. ``graphs``: a `MergedBatch` for
    each structure of ``copies``, in place of its `GraphBatch`. ``rows``: rows converted for the
    engine, by name and type; see cavs.runtime.features.

    It has no reference to its `SampleBatch`: a cycle would keep both until the collector runs.
    """

    def __init__(
        self,
        samples: _engine.GraphBatch,
        graphs: Mapping[str, GraphBatch],
        copies: tuple[MergedStructure, ...],
        links: Mapping[str, Any],
        link_features: Mapping[str, Array],
    ) -> None:
        of = self._merged = {
            name: graphs[name].merged(features, components=components)
            for name, features, components in copies
        }
        self.graphs = MappingProxyType({**graphs, **of})
        self._links, self.link_features = links, link_features
        topology, distinct = _engine.merge_structures(
            samples,
            [
                (of[name].topology, of[name].vertex, of[name].distinct)
                if name in of
                else (own.topology, None, None)
                for name, own in graphs.items()
            ],
        )
        super().__init__(topology, (samples, distinct))
        self.rows: dict[tuple[str, str], Array] = {}
        # Vertices sorted by the distinct one that they equal; see cavs.runtime.results.
        self.sorted_copies: dict[str, tuple[Indices, Indices]] = {}

    def distinct_of(self, structure: str) -> Indices | None:
        """Return the distinct vertex that represents each vertex of a structure; None: itself."""
        found = self._merged.get(structure)
        return None if found is None else found.distinct

    def copies_in(self, structure: str) -> Indices:
        """Return the number of vertices that each of a merged structure represents."""
        return self._merged[structure].copies

    def copies_of(self, name: str) -> Array:
        """Return the number of rows that each row of a feature of a merged structure represents."""
        structure, feature = owner_of(name)
        return self._merged[structure].copies_of(feature)
