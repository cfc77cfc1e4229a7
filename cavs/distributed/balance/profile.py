"""The structure of graphs as the engine sees it: how many vertices are ready at each level."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
# Rows of a task are computed in tiles and handed to threads in chunks; what does not fill one still
# costs one.
TILES = (16, 96)
FEATURES = ("step", "levels", *(f"tiles of {tile}" for tile in TILES), "vertices", "edges")


def widths_of(graph: Any) -> NDArray[np.int64]:
    """Vertices at each level of a `cavs.Graph`; the level is the longest path below a vertex."""
    widths: NDArray[np.int64] = np.bincount(graph.topology.level)
    return widths


def features(widths: NDArray[Any], edges: NDArray[Any] | float) -> Floats:
    """Return the quantities that the time of a step depends on, by `FEATURES`.

    widths: (..., levels), vertices ready together at each level of one set of graphs, or of many;
    zeros where a set is not so deep. edges: (...,). The graphs of a set run level by level
    together, so the levels of a set are those of its deepest graph.
    """
    columns = [np.ones(widths.shape[:-1]), (widths > 0).sum(axis=-1)]
    columns += [np.ceil(widths / tile).sum(axis=-1) for tile in TILES]
    columns += [widths.sum(axis=-1), np.broadcast_to(edges, widths.shape[:-1])]
    return np.stack(columns, axis=-1).astype(np.float64)


def profiles(graphs: Sequence[Any]) -> tuple[Floats, Floats]:
    """Widths (graphs, levels of the deepest) and edges (graphs,) of `cavs.Graph` objects."""
    rows = [widths_of(graph) for graph in graphs]
    widths = np.zeros((len(rows), max(map(len, rows), default=0)))
    for i, row in enumerate(rows):
        widths[i, : len(row)] = row
    return widths, np.array([graph.num_edges for graph in graphs], np.float64)
