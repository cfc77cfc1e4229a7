"""A rank's part of a global batch."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavs.data import Graph, GraphBatch, Sample, SampleBatch, batch
from cavs.data.features import Array, link_parts, owner_of, split_name
from cavs.distributed.comm.agreement import Agreement
from cavs.distributed.strategy.partition import shard_ranges
from cavs.errors import ConfigError
from cavs.runtime.features import BatchTypes
from cavs.train.data_set import (
    digest_of,
    digests_of,
    edge_types,
    known_edge_types,
    link_types,
    pair_types,
    type_features,
    vertex_types,
    with_edge_types,
    with_missing_types,
)

Make = Callable[[Sequence[Any], Any], Any]  # (graphs, ids) -> their batch
# (graphs of the global batch, ranks) -> the positions of each rank's graphs in it. Called on every
# rank, where it must give the same.
Split = Callable[[Sequence[Any], int], Sequence[Sequence[int]]]

_SAMPLE = 4  # graphs of a batch that is not collated as a whole; a digest of each takes 30 us


def contiguous(graphs: Sequence[Any], ranks: int) -> list[range]:
    """Split in order, equal numbers of graphs; the first ranks have one more."""
    return [range(a, b) for a, b in shard_ranges(len(graphs), ranks)]


@dataclass(frozen=True)
class Counts:
    """A split by counts. present: the entries of `counts` whose ranks are alive; None: all."""

    counts: tuple[int, ...]
    present: tuple[int, ...] | None = None

    def __call__(self, graphs: Sequence[Any], ranks: int) -> list[range]:
        counts = list(self.counts)
        if self.present is not None:  # the last of them may only own parameters now
            counts = [self.counts[r] for r in self.present[:ranks]]
        if len(counts) != ranks or min(counts) < 0 or sum(self.counts) == 0:
            what = f"counts {list(self.counts)} for {ranks} ranks"
            raise ConfigError(what, hint="give one for each")
        if sum(counts) == 0:  # all ranks that had graphs are gone
            return contiguous(graphs, ranks)
        ends = [round(c * len(graphs) / sum(counts)) for c in np.cumsum(counts)]
        return [range(a, b) for a, b in pairwise([0, *ends])]

    def of(self, ranks: Sequence[int]) -> Counts:
        """Return the split for those of the first ranks that are left."""
        return replace(self, present=tuple(r for r in ranks if r < len(self.counts)))


def by_counts(counts: Sequence[int]) -> Split:
    """Split in order, `counts[r]` graphs to rank r; scaled where a batch has another size.

    When ranks die, those that are left keep theirs.
    """
    return Counts(tuple(counts))


def left(split: Split, ranks: Sequence[int]) -> Split:
    """Return the split of survivors. ranks: the numbers that they had at first."""
    if hasattr(split, "update"):  # it has timing history of ranks that are gone
        return getattr(split, "fresh", lambda: contiguous)()
    return split.of(ranks) if isinstance(split, Counts) else split


@dataclass(frozen=True)
class WholeBatch:
    """A global batch to be divided when its step begins. make: collates parts of it.

    compared: True if ranks have compared the data set that it is from.
    """

    graphs: tuple[Graph | Sample, ...]
    ids: tuple[int, ...] | None = None
    make: Make = batch
    compared: bool = False

    @property
    def num_graphs(self) -> int:
        """Number of graphs of the global batch."""
        return len(self.graphs)


def num_row_counts(structures: int) -> int:
    """Return the number of `ShardedBatch.counts` before those of features: graphs, then vertices
    and edges of each structure."""
    return 1 + 2 * structures


GlobalBatch = GraphBatch | SampleBatch | WholeBatch


@dataclass(frozen=True, kw_only=True)
class ShardedBatch(WholeBatch):
    """A global batch and the part of it that a rank computes.

    local: its graphs; where it has none, one that stands in and counts for nothing (`empty`).
    position: rank and number of ranks that it was divided for. split: function that divided it.
    mark: checksum of the graphs of each rank, by their ids, or without these their sizes; equal on
    ranks that divided alike. content: digest of structure and integers of the global batch, equal
    on ranks that got the same batch (a sample of its graphs where they are built on access); 0 if
    the data set was compared, or this rank computes nothing.
    """

    local: GraphBatch | SampleBatch
    empty: bool
    position: tuple[int, int]
    split: Split
    mark: int
    content: int

    @property
    def positions(self) -> NDArray[np.int64]:
        """Positions in the global batch of the graphs that this rank computes."""
        rank, ranks = self.position
        own = self.split(self.graphs, ranks)[rank] if rank < ranks else ()
        return np.array(list(own), np.int64)

    @property
    def computed(self) -> int:
        """Graphs of the global batch that this rank computes."""
        return 0 if self.empty else self.local.num_graphs

    @property
    def batch_types(self) -> BatchTypes:
        """Types of the global batch; this rank may have no row of them."""
        graphs = self.graphs
        return BatchTypes(
            edges=known_edge_types(graphs),
            vertices=vertex_types(graphs),
            pairs=pair_types(graphs),
            of_types=type_features(graphs),
            links=link_types(graphs),
        )

    def counts(self, features: Sequence[str]) -> NDArray[np.float64]:
        """Return the counts of this rank's part, as the engine takes them.

        They are graphs, vertices and edges of each structure, and values present of `features`.
        """
        local = self.local
        counts = [local.num_graphs, *_size(local)]
        # A program may know of features of edges that a batch without any leaves out.
        for name in features:
            whole, column = split_name(name)
            counts.append(_present(local[whole], column) if whole in local else 0)
        return np.array(counts, np.float64)

    def global_counts(self, features: Sequence[str]) -> NDArray[np.float64]:
        """Return the `counts` of the global batch, found without the other ranks."""
        counts = [len(self.graphs), *map(sum, zip(*map(_size, self.graphs), strict=True))]
        edges, schema = known_edge_types(self.graphs), self.local.feature_schema()
        for name in features:
            whole, column = split_name(name)
            if link_parts(whole)[1]:
                rows = (g.link_features.get(whole) for g in self.graphs if isinstance(g, Sample))
                counts.append(sum(_present(x, column) for x in rows if x is not None))
                continue
            left_out = whole in edges or whole not in self.local
            owned = [_owner_of(graph, whole) for graph in self.graphs]
            owned = [(graph, own) for graph, own in owned if graph.num_edges or not left_out]
            owned = [(g, own) for g, own in owned if g.num_vertices or own in g.graph_features]
            if whole in schema and schema[whole].type:  # graphs without the type may leave it out
                of = schema[whole].type
                of = owner_of(of)[1] if self.local.structures else of
                owned = [(g, own) for g, own in owned if of in (g.type_names or ())]
            counts.append(sum(_present(_feature(graph, own), column) for graph, own in owned))
        return np.array(counts, np.float64)

    def divided_differently(self, ways: Sequence[Sequence[int]]) -> ConfigError:
        """Return the error of ranks with different marks. ways: `mark` and `computed` of each."""
        alike: dict[int, list[str]] = {}
        for rank, (mark, _) in enumerate(ways):
            alike.setdefault(mark, []).append(str(rank))
        groups = [f"rank{'s' * (len(r) > 1)} {', '.join(r)}" for r in alike.values()]
        return ConfigError(
            f"the ranks split a batch in {len(groups)} ways: {groups[0]} in one, "
            f"{' in another, '.join(groups[1:])} in another; they computed "
            f"{sum(n for _, n in ways)} graphs of a batch of {self.num_graphs}",
            hint="give all ranks the same batches, and a split that gives the same on all of them",
        )


def shard(whole: GlobalBatch, position: tuple[int, int], split: Split) -> ShardedBatch:
    """Return the part of a rank. ConfigError if `split` does not give every graph to one rank.

    position: the rank and the number of ranks that compute; other ranks ask for no split.
    """
    (rank, ranks), graphs, ids = position, _items(whole), whole.ids
    make: Make = whole.make if isinstance(whole, WholeBatch) else batch
    part, mark, content = list[int](), 0, 0
    compared = isinstance(whole, WholeBatch) and whole.compared
    if rank < ranks:
        parts = [list(part) for part in split(graphs, ranks)]
        given = sorted(i for part in parts for i in part)
        if len(parts) != ranks or given != list(range(len(graphs))):
            raise ConfigError(
                f"the split of {len(graphs)} graphs over {ranks} ranks gives {parts}",
                hint="give the position of every graph to exactly one rank",
            )
        part, mark = parts[rank], _mark(parts, graphs, ids)
        if not compared:  # a collated batch has each feature in one array
            few = isinstance(whole, WholeBatch)
            content = digest_of(list(graphs[:_SAMPLE]) if few else [whole])
    positions = part or [0]
    own = positions if ids is None else [ids[i] for i in positions]  # errors name them alike
    taken = [graphs[i] for i in positions]
    if edge_types(taken) is None:  # a structure has no edge here
        taken = with_edge_types(taken, known_edge_types(graphs))
    if taken and getattr(taken[0], "type_names", None) is not None:
        taken = with_missing_types(taken, type_features(graphs))
    local = make(taken, own)
    return ShardedBatch(
        graphs,
        ids,
        make,
        compared,
        local=local,
        empty=not part,
        position=position,
        split=split,
        mark=mark,
        content=content,
    )


def compare_batches(agreement: Agreement, batch: GlobalBatch | None, step: int) -> None:
    """Raise `ConfigError` on all ranks if structure or integer features of their batches differ.

    batch: the global batch of a rank; None if it has none to compare.
    """
    digests = {} if batch is None else digests_of(_items(batch))
    agreement.same(
        {name: f"crc32 {digest:08x}" for name, digest in digests.items()} or None,
        found=f"the ranks got different batches in step {step}",
        hint="give all ranks the same batches; number words and labels in an order that is the "
        "same in every process, as that of sorted(set(...)) is",
    )


def _items(whole: GlobalBatch) -> tuple[Graph | Sample, ...]:
    """Return the graphs, or samples of several structures, of a batch."""
    return whole.samples if isinstance(whole, SampleBatch) else whole.graphs


def _mark(
    parts: Sequence[Sequence[int]],
    graphs: Sequence[Graph | Sample],
    ids: Sequence[int] | None,
) -> int:
    numbers = [n for part in parts for n in (len(part), *part)]
    numbers += [n for g in graphs for n in _size(g)] if ids is None else ids
    return zlib.crc32(np.array(numbers, np.int64).tobytes())


def _size(of: Graph | Sample | GraphBatch | SampleBatch) -> list[int]:
    """Return vertices and edges of each structure."""
    parts = of.graphs.values() if isinstance(of, Sample | SampleBatch) else (of,)
    return [n for part in parts for n in (part.num_vertices, part.num_edges)]


def _owner_of(item: Graph | Sample, name: str) -> tuple[Graph, str]:
    """Return the graph of a sample that has a feature, and its name there."""
    if not isinstance(item, Sample):
        return item, name
    owner, own = owner_of(name)
    return item.graphs[owner], own


def _present(rows: Array, column: int | None) -> int:
    """Return the number of values present in an index feature, or in a column of it."""
    return int(np.count_nonzero((rows if column is None else rows[..., column]) >= 0))


def _feature(graph: Graph, name: str) -> Array:
    for group in (graph.features, graph.edge_features, graph.graph_features):
        if name in group:
            return group[name]
    if graph.of_types is not None and name in graph.of_types:
        return graph.of_types[name]
    raise ConfigError(
        f"the batch has the feature {name!r}, its graphs do not: ranks cannot count it alone",
        hint="give it to the graphs, or use a strategy with a synchronous parameter",
    )


@dataclass(frozen=True)
class LoaderSplit:
    """How a loader makes this rank's part of its batches.

    ahead: number of batches that it makes before the current step ends.
    """

    position: tuple[int, int]
    split: Split
    ahead: float

    @property
    def waits(self) -> bool:
        """True if batches are divided when their steps begin, as the split learns until then."""
        rank, ranks = self.position
        return rank < ranks and getattr(self.split, "lag", math.inf) < self.ahead


@dataclass
class Collate:
    """The ``collate`` of a DataLoader whose batches are global: makes this rank's part alone."""

    whole: Callable[..., Any]
    division: LoaderSplit  # may be replaced by another while the loader's thread calls it
    compared: bool  # see `WholeBatch`

    def __call__(self, graphs: Sequence[Any], ids: NDArray[np.int64]) -> WholeBatch:
        """Return this rank's part of ``whole(graphs, ids)``."""
        division = self.division
        whole = WholeBatch(tuple(graphs), tuple(ids.tolist()), self._make, self.compared)
        return whole if division.waits else shard(whole, division.position, division.split)

    def _make(self, graphs: Sequence[Any], ids: Any) -> Any:
        return self.whole(graphs, np.array(ids, np.int64))
