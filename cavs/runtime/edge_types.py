"""Types of edge features for batches without an edge, whose empty arrays say nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cavs.runtime.variant import Array, BatchLike


class EdgeTypes:
    """What features of edges are, as learnt from batches that have some."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def schema(self, batch: BatchLike) -> Mapping[str, Any]:
        """Type of every feature of ``batch``; without edges, of theirs as it was before."""
        schema = batch.feature_schema()
        if batch.topology.num_edges == 0:
            return {**schema, **self._known}
        self._known.update({n: s for n, s in schema.items() if s.kind == "edge"})
        return schema

    def rows(self, source: Any, name: str, dtype: np.dtype[Any]) -> Array:
        """A feature as the engine takes it; of no edges also where ``source`` lacks it."""
        if name in self._known and source.topology.num_edges == 0:
            return np.zeros((0, *self._known[name].shape), dtype)
        return np.ascontiguousarray(source[name], dtype=dtype)
