"""Several sequences as one graph: the words of a sentence as chains of characters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cavs.data.features import NO_FEATURES
from cavs.data.graph import Graph
from cavs.data.structure import as_indices, check_count, graph_error, graph_label


def chains(
    lengths: ArrayLike, features: Mapping[str, ArrayLike] = NO_FEATURES, **options: Any
) -> Graph:
    """Return several sequences, one after the other, as one graph with a root for each.

    The last vertices, ``np.cumsum(lengths) - 1``, are the roots. options: the other keywords of
    ``Graph``. GraphError for no sequence, or an empty one.
    """
    name = options.get("name", "")
    counts = as_indices(lengths, f"{graph_label(name)}: lengths of chains")
    empty = np.flatnonzero(counts < 1)
    if len(empty):
        raise graph_error(
            name,
            f"chain {empty[0]} has length {counts[empty[0]]}; it needs at least one vertex",
            hint="leave empty sequences out; links to them are -1, or the empty list",
        )
    vertices = int(counts.sum(dtype=np.int64))
    check_count(vertices, "chains", name)
    has_child = np.ones(vertices, np.int32)
    has_child[np.cumsum(counts) - counts] = 0
    offsets = np.concatenate([[0], np.cumsum(has_child)]).astype(np.int32)
    children = np.flatnonzero(has_child).astype(np.int32) - np.int32(1)
    return Graph((offsets, children), features, **options)
