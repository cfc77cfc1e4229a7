"""Vertices of a batch that compute the same values, merged: what the engine runs instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from cavs._engine import collate, make_schedule, merge_copies

if TYPE_CHECKING:
    from cavs.data.batch import GraphBatch
    from cavs.data.features import Array


@final
class MergedBatch:
    """The distinct vertices of ``batch``, as one input graph whose vertices share children.

    Two vertices are copies of each other if the features ``names`` are equal there and at the
    edges below them, and their children are copies in the same order. Equal words, phrases and
    subexpressions of a batch are so computed once. ValueError if a name is no feature of vertices
    or edges.

    ``distinct``: int32 [vertices of batch], the distinct vertex that stands for each. ``copies``:
    int32 [distinct vertices], for how many it stands.
    """

    def __init__(self, batch: GraphBatch, names: tuple[str, ...]) -> None:
        self._batch = batch
        of_vertices = [batch.features[n] for n in names if n in batch.features]
        of_edges = [batch.edge_features[n] for n in names if n in batch.edge_features]
        if len(of_vertices) + len(of_edges) != len(names):
            raise ValueError(f"{names} are not all features of vertices or edges of {batch}")
        graph, self._vertex, self._edge, self.distinct, self.copies = merge_copies(
            batch.topology, of_vertices, of_edges
        )
        self.topology: Any = collate([graph])
        self._schedules: dict[tuple[str, ...], Any] = {}

    @property
    def num_vertices(self) -> int:
        """The number of distinct vertices."""
        return len(self.copies)

    def __getitem__(self, name: str) -> Array:
        """A feature of vertices or edges: the rows of the distinct ones."""
        rows = self._vertex if name in self._batch.features else self._edge
        found: Array = self._batch[name][rows]
        return found

    def schedule(self, optional: tuple[str, ...] = ()) -> Any:
        """The engine's schedule, as `GraphBatch.schedule` makes it."""
        found = self._schedules.get(optional)
        if found is None:
            presence = self._batch.presence(optional)
            masks = None if presence is None else presence[self._vertex]
            found = self._schedules[optional] = make_schedule(self.topology, masks)
        return found
