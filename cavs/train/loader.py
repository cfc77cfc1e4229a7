"""`DataLoader`: graphs in, collated and scheduled batches out."""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cavs.config import require, require_count, require_flag
from cavs.errors import CavsError, CheckpointError, ConfigError, DataError, raised_at
from cavs.train.prefetch import prefetch

Collate = Callable[[Sequence[Any], NDArray[np.int64]], Any]
Prepare = Callable[[Any], object]
_IDENTITY = ("num_graphs", "batch_size", "shuffle", "seed", "bucket", "drop_last")


def _none() -> None:
    """What does not prepare."""


def _collate(graphs: Sequence[Any], ids: NDArray[np.int64]) -> Any:
    from cavs.data import batch

    return batch(graphs, ids)


class DataLoader:
    """Cuts `graphs` into batches, epoch by epoch.

    Args:
        graphs: The data set; ``graphs[i]`` is a `Graph`.
        batch_size: Graphs a batch; the last one of an epoch may be smaller.
        shuffle: A new order every epoch, drawn from ``(seed, epoch)``.
        seed: Of the order.
        bucket: ``"size"`` or ``"depth"`` puts graphs with a similar number of vertices or levels
            into one batch, which keeps frontiers wide; the batches themselves are shuffled.
        drop_last: Leave out what does not fill a batch.
        prefetch: Batches made ahead by a background thread; 0 makes them in the caller.
        cache: Keep batches and their schedules for the next epochs: True, or a limit in bytes.
            Needs ``shuffle=False``.
        collate: ``(graphs, ids) -> batch``; `cavs.data.batch` unless given.

    Every ``iter(loader)`` runs the next epoch; an evaluation does not count, unless a subclass has
    an ``__iter__`` of its own, which it goes through. `state_dict` says where the
    running one stands; after `load_state_dict` the next ``iter`` goes on from there with the
    identical batches.
    `prepare`, if set, is called with every batch that `collate` made, in the background thread. A
    method is held weakly, and a copied or pickled loader has none.
    """

    def __init__(
        self,
        graphs: Sequence[Any],
        batch_size: int = 64,
        shuffle: bool = False,
        seed: int = 0,
        *,
        bucket: Literal["size", "depth"] | None = None,
        drop_last: bool = False,
        prefetch: int = 2,
        cache: bool | int = False,
        collate: Collate | None = None,
    ) -> None:
        require_count("batch_size", batch_size)
        require_count("seed", seed, 0)
        require_count("prefetch", prefetch, 0)
        require_flag("shuffle", shuffle)
        require_flag("drop_last", drop_last)
        require(bucket in (None, "size", "depth"), "bucket", bucket, "None, 'size' or 'depth'")
        if not isinstance(cache, bool):
            require_count("cache", cache, 0)
        counted = hasattr(graphs, "__len__") and hasattr(graphs, "__getitem__")
        listed = counted and not isinstance(graphs, Mapping)
        require(listed, "graphs", graphs, "a list of graphs")
        if cache and shuffle:
            raise ConfigError(
                "cache=True with shuffle=True: no batch comes twice",
                hint="pass shuffle=False or cache=False",
            )
        if len(graphs) == 0:
            raise ConfigError("DataLoader got no graphs", hint="pass at least one graph")
        if drop_last and len(graphs) < batch_size:
            raise ConfigError(
                f"drop_last=True leaves nothing of {len(graphs)} graphs at batch_size={batch_size}",
                hint="pass a smaller batch_size or drop_last=False",
            )
        self.graphs, self.batch_size, self.shuffle, self.seed = graphs, batch_size, shuffle, seed
        self.bucket, self.drop_last, self.prefetch = bucket, drop_last, prefetch
        self._prepare: Callable[[], Prepare | None] = _none
        self.collate = collate or _collate  # each batch in the cache says which one made it
        self._sizes = self._bucket_sizes()
        self._contents: dict[str, int] | None = None
        self._digest: int | None = None
        self._epoch, self._position = 0, 0  # of the running iteration, or of the next one
        self._running = False
        self._cache_limit = (1 << 62 if cache is True else int(cache)) if cache else 0
        # By place in the epoch, and its graphs: what collated a batch, and that.
        self._cache: dict[tuple[int, bytes], tuple[Collate, Any]] = {}
        self._cached_bytes = 0
        self._edge_features: Mapping[str, Any] | None = None  # of the data set, without rows

    def __len__(self) -> int:
        """Batches an epoch."""
        whole, rest = divmod(len(self.graphs), self.batch_size)
        return whole + (1 if rest and not self.drop_last else 0)

    @property
    def prepare(self) -> Prepare | None:
        """What is called with every batch; trainers set their session's, unless there is one."""
        return self._prepare()

    @prepare.setter
    def prepare(self, prepare: Prepare | None) -> None:
        # A loader may outlive the trainers that used it, and must not keep their sessions.
        if isinstance(prepare, MethodType):
            self._prepare = weakref.WeakMethod[Prepare](prepare)
        else:
            self._prepare = lambda: prepare

    def __getstate__(self) -> dict[str, Any]:
        """Without `prepare`: a session cannot be copied."""
        return vars(self) | {"_prepare": _none}

    @property
    def epoch(self) -> int:
        """The running epoch, or the next one if none runs."""
        return self._epoch

    @property
    def position(self) -> int:
        """Batches of that epoch already handed out."""
        return self._position

    @property
    def first(self) -> int:
        """The batch of its epoch that the next iteration begins with; 0 if no state was loaded."""
        return 0 if self._running else self._position

    @property
    def caches(self) -> bool:
        """Whether batches are kept for the next epochs."""
        return self._cache_limit > 0

    def _bucket_sizes(self) -> NDArray[np.int64] | None:
        if self.bucket is None:
            return None
        name = "num_vertices" if self.bucket == "size" else "depth"
        sizes = []
        for i in range(len(self.graphs)):
            try:
                size = getattr(self.graphs[i], name, None)
            except MemoryError:
                raise
            except Exception as error:
                raise _located(error, f"graph {i} of the data set") from error
            if size is None:
                raise ConfigError(
                    f"graphs[{i}] is {self.graphs[i]!r:.80}, but bucket={self.bucket!r} reads its "
                    f"{name}",
                    hint="pass cavs.Graph objects, or bucket=None",
                )
            sizes.append(size)
        return np.array(sizes, dtype=np.int64)

    def epoch_ids(self, epoch: int) -> list[NDArray[np.int64]]:
        """The indices of the graphs of every batch of `epoch`; depends on nothing else."""
        count, size = len(self.graphs), self.batch_size
        rng = np.random.default_rng((self.seed, epoch))
        order = rng.permutation(count) if self.shuffle else np.arange(count)
        order = order.astype(np.int64, copy=False)
        if self.drop_last:
            order = order[: count // size * size]
        if self._sizes is not None:
            order = order[np.argsort(self._sizes[order], kind="stable")]
        batches = [order[i : i + size] for i in range(0, len(order), size)]
        if self._sizes is not None and self.shuffle:
            batches = [batches[i] for i in rng.permutation(len(batches))]
        return batches

    def __iter__(self) -> Iterator[Any]:
        """The batches of the next epoch, or the rest of the one `load_state_dict` set."""
        if self._running:  # an earlier iteration was left before its end
            self._epoch, self._position = self._epoch + 1, 0
        self._running = True
        epoch, first = self._epoch, self._position
        batches = self.epoch_ids(epoch)[first:]

        def make(i: int) -> Any:
            return self._make(batches[i], epoch, first + i)

        for i, item in enumerate(prefetch(make, len(batches), self.prefetch)):
            self._epoch, self._position = epoch, first + i + 1
            yield item
        self._epoch, self._position, self._running = epoch + 1, 0, False

    def whole_epoch(self) -> Iterator[Any]:
        """All batches of the epoch at hand, undivided; the loader does not move."""
        epoch, whole = self._epoch, self.undivided
        batches = self.epoch_ids(epoch)

        def make(i: int) -> Any:
            return self._make(batches[i], epoch, i, whole)

        return prefetch(make, len(batches), self.prefetch)

    def peek(self) -> Any:
        """The first batch of the epoch at hand, made in the caller; the loader does not move."""
        return self._make(self.epoch_ids(self._epoch)[0], self._epoch, 0)

    @property
    def undivided(self) -> Collate:
        """`collate`, or what that makes parts of for a training on many ranks."""
        whole: Collate = getattr(self.collate, "whole", self.collate)
        return whole

    def _make(
        self, ids: NDArray[np.int64], epoch: int, position: int, collate: Collate | None = None
    ) -> Any:
        key, collate = (position, ids.tobytes()), collate or self.collate
        by, item = self._cache.get(key, (None, None))
        if by is collate:
            return item
        try:
            item = collate(self._typed([self.graphs[i] for i in ids.tolist()]), ids)
            self._prepared(item)
        except MemoryError:
            raise
        except Exception as error:
            raise self._named(error, ids, epoch, position) from error
        if self._cache_limit and collate is self.collate:
            if (old := self._cache.pop(key, None)) is not None:  # of another collate
                self._cached_bytes -= _bytes(old[1])
            size = _bytes(item)
            if self._cached_bytes + size <= self._cache_limit:
                self._cache[key] = collate, item
                self._cached_bytes += size
        return item

    def _prepared(self, item: Any) -> None:
        prepare = self.prepare
        if prepare is not None:
            prepare(item)

    def _typed(self, graphs: list[Any]) -> list[Any]:
        """`graphs`, of which those without edges have the edge features of the data set, empty."""
        if self._edge_features is None:
            found = edge_types(graphs)
            if found is None:  # no edge in this batch
                found = edge_types(self.graphs[i] for i in range(len(self.graphs)))
            self._edge_features = found or {}
        return typed(graphs, self._edge_features)

    def _named(
        self, error: Exception, ids: NDArray[np.int64], epoch: int, position: int
    ) -> CavsError:
        """The error with the graph to blame, found by trying the graphs one by one."""
        blamed = [int(i) for i in ids if not self._collates_alone(int(i))]
        listed = ", ".join(map(str, blamed or ids.tolist()))
        which = "graph" if len(blamed) == 1 else "graphs"
        where = f"{which} {listed} of the data set (batch {position} of epoch {epoch})"
        return _located(error, where)

    def _collates_alone(self, i: int) -> bool:
        try:
            item = self.undivided(self._typed([self.graphs[i]]), np.array([i], dtype=np.int64))
            self._prepared(item)
        except Exception:
            return False
        return True

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands, and what makes its order, as JSON values."""
        state = {name: getattr(self, name) for name in _IDENTITY if name != "num_graphs"}
        if self._contents is None:
            self._contents = _contents(self.graphs)
        return state | {
            "num_graphs": len(self.graphs),
            "contents": self._contents,
            "epoch": self._epoch,
            "position": self._position,
        }

    def digest(self) -> int:
        """Tells data sets apart by their structure and integer features; 0 if they are made anew.

        Floats are left out: ranks whose processors differ may compute them in other bits. It is
        not in `state_dict`: a run may go on once a graph has been mended.
        """
        if self._digest is None:
            self._digest = _digest(self.graphs)
        return self._digest

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on where `state` was taken.

        Raises `CheckpointError`, naming both values, if this loader would order its batches
        differently.
        """
        own = self.state_dict()
        for name in (*_IDENTITY, "epoch", "position"):
            if name not in state:
                raise CheckpointError(f"the state of the loader has no {name!r}")
        for name in _IDENTITY:
            if state[name] != own[name]:
                raise CheckpointError(
                    f"the loader was saved with {name}={state[name]!r}, but has {own[name]!r}",
                    hint=f"resume with the same data and {name}={state[name]!r}",
                )
        kept, found = state.get("contents"), own["contents"]
        if kept and found and kept != found:  # older checkpoints do not say
            raise CheckpointError(
                f"the loader was saved with graphs of {_told(kept)}, but has {_told(found)}",
                hint="resume with the same graphs in the same order",
            )
        epoch, position = state["epoch"], state["position"]
        if not (isinstance(epoch, int) and isinstance(position, int)) or not (
            epoch >= 0 and 0 <= position <= len(self)
        ):
            raise CheckpointError(
                f"the loader was saved at epoch {epoch!r}, batch {position!r} of {len(self)}"
            )
        self._epoch, self._position, self._running = epoch, position, False


def _contents(graphs: Sequence[Any]) -> dict[str, int]:
    """Tells data sets apart by the sizes of their graphs; empty if those are made on access."""
    if not isinstance(graphs, list | tuple):
        return {}
    try:
        sizes = np.array([(g.num_vertices, g.num_edges) for g in graphs], np.int64)
    except (AttributeError, TypeError, ValueError, OverflowError):  # no graphs of cavs
        return {}
    vertices, edges = sizes.sum(axis=0).tolist()
    return {"vertices": vertices, "edges": edges, "digest": zlib.crc32(sizes.tobytes())}


def _digest(graphs: Sequence[Any]) -> int:
    found = 0
    if not isinstance(graphs, list | tuple):
        return found
    for graph in graphs:
        if not hasattr(graph, "with_features"):  # no graph of cavs
            return 0
        arrays = [graph.topology.offsets, graph.topology.children]
        for group in (graph.features, graph.edge_features, graph.graph_features):
            arrays += [group[name] for name in sorted(group) if group[name].dtype == np.int32]
        for array in arrays:
            found = zlib.crc32(array.tobytes(), found)
    return found


def _told(contents: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in contents.items())


def _located(error: Exception, where: str) -> CavsError:
    """The error as one of cavs that says where in the data it was."""
    if isinstance(error, CavsError) and type(error).__init__ is CavsError.__init__:
        return error.reworded(f"{error.what}\n  in {where}")
    what = f"cannot prepare {where}: {type(error).__name__}: {error}"
    return DataError(what, where=raised_at(error))


def edge_types(graphs: Iterable[Any]) -> Mapping[str, Any] | None:
    """The edge features, without rows, of the first graph that has an edge; None if none has."""
    for graph in graphs:
        if not hasattr(graph, "with_features"):
            return {}
        if graph.num_edges:
            return {name: values[:0] for name, values in graph.edge_features.items()}
    return None


def typed(graphs: list[Any], types: Mapping[str, Any]) -> list[Any]:
    """`graphs`, of which those without edges have edge features of these `types`."""
    if not types:
        return graphs
    return [
        graph if getattr(graph, "num_edges", 1) else graph.with_features(edge_features=types)
        for graph in graphs
    ]


def _bytes(batch: Any) -> int:
    """Memory a batch holds: its features, and the topology and schedule at 4 bytes an index."""
    batch = getattr(batch, "local", batch)  # the part of it that this process computes
    if not hasattr(batch, "topology"):
        return 0  # no more than the graphs of the data set
    groups = (batch.features, batch.edge_features, batch.graph_features)
    features = sum(array.nbytes for group in groups for array in group.values())
    return int(features + 4 * (10 * batch.num_vertices + 7 * batch.num_edges))


@contextmanager
def iterating(loader: Iterable[Any]) -> Iterator[Iterator[Any]]:
    """``iter(loader)`` whose background thread ends with the block, also after an exception."""
    iterator = iter(loader)
    try:
        yield iterator
    finally:
        close = getattr(iterator, "close", None)
        if close is not None:
            close()
