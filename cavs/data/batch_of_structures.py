"""Base of the batches of samples with several structures: all their vertices or distinct ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from cavs.data.engine_batch import EngineBatch
from cavs.data.features import (
    MAX_OPTIONAL,
    Array,
    check_number_of_optional,
    feature_name,
    owner_of,
    types_in,
)
from cavs.data.vertex_types import number_of_bits
from cavs.errors import FeatureError

if TYPE_CHECKING:
    from cavs.data.batch import GraphBatch
    from cavs.data.merge import MergedBatch

Vertices = TypeVar("Vertices", bound="GraphBatch | MergedBatch")


class BatchOfStructures(EngineBatch, Generic[Vertices]):
    """Vertices of several structures that run together.

    ``graphs``: those of each structure by name, in the order in which the engine numbers them.
    ``link_features``: rows of links by "structure.link name.feature".
    """

    graphs: Mapping[str, Vertices]
    link_features: Mapping[str, Array]
    _links: Mapping[str, Any]

    @property
    def structures(self) -> tuple[str, ...]:
        """The names of the structures, in the order in which the engine numbers them."""
        return tuple(self.graphs)

    @property
    def links(self) -> Mapping[str, Any]:
        """The links between the structures, by name."""
        return self._links

    @property
    def type_names(self) -> tuple[str, ...] | None:
        """The types of vertices that occur, as "structure.type"; None without types."""
        if all(graphs.type_names is None for graphs in self.graphs.values()):
            return None
        return tuple(
            feature_name(structure, name)
            for structure, graphs in self.graphs.items()
            for name in graphs.type_names or ()
        )

    @property
    def num_vertices(self) -> int:
        """Number of vertices of all structures."""
        return int(self.topology.num_vertices)

    @property
    def num_edges(self) -> int:
        """Number of edges of all structures."""
        return int(self.topology.num_edges)

    def __getitem__(self, name: str) -> Array:
        if name in self.link_features:
            return self.link_features[name]
        structure, feature = owner_of(name) if isinstance(name, str) else ("", "")
        if structure not in self.graphs:
            raise FeatureError(
                f"no feature {name!r:.80} in a batch of samples; its structures are "
                f"{', '.join(self.graphs)}",
                hint=f'batch.graphs["{next(iter(self.graphs))}"] is the batch of one structure',
            )
        found: Array = self.graphs[structure][feature]
        return found

    def has_pairs(self, name: str) -> bool:
        """See `EngineBatch`."""
        return name in self.link_features and len(self.link_features[name]) > 0

    def has_vertices(self, name: str) -> bool:
        """See `EngineBatch`."""
        graphs = self.graphs.get(owner_of(name)[0])
        return graphs is None or graphs.num_vertices > 0

    def has_edges(self, name: str) -> bool:
        """See `EngineBatch`."""
        graphs = self.graphs.get(owner_of(name)[0])
        return graphs is not None and graphs.num_edges > 0

    def presence(
        self, optional: tuple[str, ...], types: tuple[str, ...] = ()
    ) -> NDArray[np.uint32] | None:
        """See `EngineBatch`; features of other structures are absent.

        types: as "structure.type"; vertices of a structure without any of them have the number 0.
        """
        if not optional and not types:
            return None
        check_number_of_optional(optional, MAX_OPTIONAL - number_of_bits(types))
        masks = np.zeros(self.num_vertices, np.uint32)
        begin = 0
        for structure, graphs in self.graphs.items():
            end = begin + graphs.num_vertices
            for bit, name in enumerate(optional):
                of, feature = owner_of(name)
                if of == structure and graphs.num_vertices:
                    values = self.link_features.get(name)
                    if values is None:
                        (values,) = graphs.optional((feature,))
                    masks[begin:end] |= (values >= 0).astype(np.uint32) << np.uint32(bit)
            own = types_in(types, structure)
            if any(own):
                masks[begin:end] = graphs.bits_of_types(own, masks[begin:end])
            elif types:
                masks[begin:end] <<= np.uint32(number_of_bits(types))
            begin = end
        return masks
