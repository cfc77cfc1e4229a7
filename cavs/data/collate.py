"""`batch`: collation of graphs, or of samples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, overload

from cavs.data.batch import GraphBatch, Ids
from cavs.data.graph import Graph
from cavs.data.sample import Sample
from cavs.data.sample_batch import SampleBatch


@overload
def batch(graphs: Iterable[Graph], ids: Ids | None = None) -> GraphBatch: ...


@overload
def batch(graphs: Iterable[Sample], ids: Ids | None = None) -> SampleBatch: ...


def batch(graphs: Iterable[Any], ids: Ids | None = None) -> GraphBatch | SampleBatch:
    """Collate graphs, or samples of several structures.

    FeatureError without any, or if their features disagree; GraphError if samples have other
    structures or links than the first.
    """
    if not isinstance(graphs, list) and isinstance(graphs, Iterable):
        graphs = graphs if isinstance(graphs, Graph) else list(graphs)
    if isinstance(graphs, list) and graphs and isinstance(graphs[0], Sample):
        return SampleBatch(graphs, ids)
    return GraphBatch(graphs, ids)
