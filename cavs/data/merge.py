"""Batches in which vertices that compute equal values are merged, as the engine runs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray

from cavs import _engine
from cavs.data.engine_batch import EngineBatch
from cavs.data.features import MAX_OPTIONAL
from cavs.data.vertex_types import number_of_bits

if TYPE_CHECKING:
    from cavs.data.feature_table import FeatureTable
    from cavs.data.features import Array
    from cavs.data.structure import Indices


# + k: present at vertices without children that are the k-th child of another, and at vertices
# whose k-th child has no children.
LEAF = "#leaf child "


@final
class MergedBatch(EngineBatch):
    """The distinct vertices of ``batch``, as one input graph whose vertices share children.

    Two vertices are copies of each other if they have one type, if the features ``names`` are equal
    at them and at their edges to children, and if their children are copies in the same order.
    Equal words, phrases and subexpressions of a batch are thus computed once. ValueError if a name
    is no feature of vertices or edges; a batch without edges may lack edge features, one without
    vertices of a type those of the type.

    ``distinct``: int32 [vertices of batch], the distinct vertex that represents each. ``vertex``,
    ``copies``: int32 [distinct vertices], the first vertex that it represents, and their number.
    ``leaf``: uint32 [distinct vertices], bit k, k < ``child_numbers``, set at a vertex without
    children that is the k-th child of another, and at a vertex whose k-th child has no children;
    copies agree in that too.

    components: vertices are copies only if all vertices connected with them, upwards or downwards,
    are copies too, in the order of their numbers: so values that come from parents are equal. There
    are no ``child_numbers`` then.

    It has no reference to its `GraphBatch`: a cycle would keep both until the collector runs.
    """

    def __init__(
        self,
        batch: _engine.GraphBatch,
        features: FeatureTable,
        names: tuple[str, ...],
        child_numbers: int = 0,
        components: bool = False,
    ) -> None:
        self._features = features
        types = features.types
        of_vertices = [features.vertex[n] for n in names if n in features.vertex]
        of_edges = [features.edge[n] for n in names if n in features.edge]
        if types is not None:
            of_vertices += [types.column(n) for n in names if n in types]
        # Vertices do not differ in the features of a type that no vertex has.
        known_all = types is not None or len(of_vertices) + len(of_edges) == len(names)
        if batch.num_edges and not known_all:
            known = ", ".join((*features.vertex, *features.edge))
            raise ValueError(f"{names} are not all features of vertices or edges: {known}")
        topology, self.vertex, self._edge, self.distinct, self.copies, self.leaf = (
            _engine.merge_copies(
                batch,
                of_vertices if types is None else [types.numbers, *of_vertices],
                of_edges,
                child_numbers,
                components,
            )
        )
        super().__init__(topology, (batch, self.distinct))
        self._types = None if types is None else types.at(self.vertex)
        self._child_numbers = child_numbers
        # Rows converted for the engine, by name and type; see cavs.runtime.features.
        self.rows: dict[tuple[str, str], Array] = {}
        # Vertices sorted by the distinct one that they equal; see cavs.runtime.results.
        self.sorted_copies: dict[str, tuple[Indices, Indices]] = {}

    @property
    def num_vertices(self) -> int:
        """The number of distinct vertices."""
        return len(self.copies)

    @property
    def num_edges(self) -> int:
        """The number of edges of the distinct vertices."""
        return int(self.topology.num_edges)

    @property
    def type_names(self) -> tuple[str, ...] | None:
        """The types of vertices that occur, sorted; None in a batch without types."""
        return None if self._types is None else self._types.names

    def copies_of(self, name: str) -> Array:
        """Return the number of rows that each row of a feature represents.

        int32 [distinct vertices], also for a feature of a type, or int32 [their edges].
        """
        if name not in self._features.edge:
            return self.copies
        arity = np.diff(self.topology.offsets).astype(np.intp)
        found: Array = np.repeat(self.copies, arity)
        return found

    def __getitem__(self, name: str) -> Array:
        """Return a feature of graphs, or its rows at the distinct vertices or edges."""
        if name in self._features.graph:
            return self._features.graph[name]
        if self._types is not None and name in self._types:
            return self._types[name]
        rows = self.vertex if name in self._features.vertex else self._edge
        found: Array = self._features[name][rows]
        return found

    def presence(
        self, optional: tuple[str, ...], types: tuple[str, ...] = ()
    ) -> NDArray[np.uint32]:
        """See `EngineBatch`.

        ``"#leaf child k"``, first in ``optional``: present where bit k of ``leaf`` is set.
        """
        numbers = [int(name.removeprefix(LEAF)) for name in optional if name.startswith(LEAF)]
        most = MAX_OPTIONAL - number_of_bits(types) - len(numbers)
        features = self._features.optional(optional[len(numbers) :], most)
        masks = _engine.presence_masks(features, self.vertex, self.leaf, numbers)
        return self.bits_of_types(types, masks) if types else masks

    def bits_of_types(
        self, types: Sequence[str], masks: NDArray[np.uint32] | None
    ) -> NDArray[np.uint32]:
        """Return presence masks after the number of each vertex's type, see `presence`."""
        if not self.num_vertices:
            return np.zeros(0, np.uint32)
        assert self._types is not None
        return self._types.bits(types, masks)

    def optional(self, names: Sequence[str]) -> list[Array]:
        """Return int features of vertices that may be absent, at the distinct vertices."""
        return [rows[self.vertex] for rows in self._features.optional(names)]

    def distinct_of(self, structure: str) -> Indices | None:
        """Return ``distinct``: there is one structure."""
        return self.distinct

    def copies_in(self, structure: str) -> Indices:
        """Return ``copies``: there is one structure."""
        return self.copies

    @property
    def reads_per_product(self) -> float:
        """Reads per product of a k-th child, k < ``child_numbers``, if products of leaves are
        computed once for all parents."""
        arity = np.diff(self.topology.offsets)
        reads = int(np.minimum(arity, self._child_numbers).sum())
        bits = [self.leaf >> np.uint32(k) & np.uint32(1) for k in range(self._child_numbers)]
        of_leaves = sum(int(bit[arity > 0].sum()) for bit in bits)
        products = sum(int(bit[arity == 0].sum()) for bit in bits)
        return reads / max(reads - of_leaves + products, 1)
