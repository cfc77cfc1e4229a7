"""`DataLoader`: graphs in, collated and scheduled batches out."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from types import MethodType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cavs.config import require, require_count, require_flag
from cavs.errors import CavsError, CheckpointError, ConfigError, DataError, raised_at
from cavs.train.batch_cache import BatchCache
from cavs.train.data_set import digest_of, edge_types, sizes_of, with_edge_types
from cavs.train.epoch import EpochOrder, Ids, Parts, changed, parts_of
from cavs.train.prefetch import prefetch

Collate = Callable[[Sequence[Any], NDArray[np.int64]], Any]
Prepare = Callable[[Any], object]
_IDENTITY = ("num_graphs", "batch_size", "shuffle", "seed", "bucket", "drop_last")
_NO_LIMIT = 1 << 62  # bytes


def _none() -> None:
    """Reference to no function."""


def _collate(graphs: Sequence[Any], ids: NDArray[np.int64]) -> Any:
    from cavs.data import batch

    return batch(graphs, ids)


class DataLoader:
    """Cuts `graphs` into batches, epoch by epoch.

    Args:
        graphs: The data set; ``graphs[i]`` is a `Graph`.
        batch_size: Graphs per batch; the last one of an epoch may be smaller.
        shuffle: Draw a new order every epoch, from ``(seed, epoch)``.
        seed: Seed of that order.
        bucket: ``"size"`` or ``"depth"`` puts graphs with a similar number of vertices or levels
            into one batch, which keeps frontiers wide; the batches themselves are shuffled.
        drop_last: Leave out a last batch that is smaller.
        prefetch: Number of batches that a background thread prepares ahead; with 0 the caller
            prepares them.
        cache: Keep batches and their schedules for the next epochs: True, or a limit in bytes.
            Needs ``shuffle=False``.
        collate: ``(graphs, ids) -> batch``; by default `cavs.data.batch`.

    `batch_size` may be set at any time. Within an epoch, the graphs that have not been yielded are
    cut into batches of the new size, so that every graph still comes once; batches that were
    prepared ahead are prepared again. Set it on the thread that iterates.

    Every ``iter(loader)`` runs the next epoch. An evaluation does not count as one, unless a
    subclass has an ``__iter__`` of its own, which an evaluation uses. `state_dict` holds the
    position in the running epoch; after `load_state_dict` the next ``iter`` continues from there
    with the identical batches.
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
        _check_leaves_some(graphs, batch_size, drop_last)
        self.graphs, self.shuffle, self.seed = graphs, shuffle, seed
        self._first_batch_size = batch_size  # the argument
        self._parts: Parts = ((0, batch_size),)  # the running epoch, or the next one
        self.bucket, self.drop_last, self.prefetch = bucket, drop_last, prefetch
        self._prepare: Callable[[], Prepare | None] = _none
        self.collate = collate or _collate
        self._bucket_sizes = self._sizes_in_buckets()
        self._sizes: dict[str, int] | None = None
        self._digest: int | None = None
        self._epoch, self._position = 0, 0  # in the running iteration, or at the next one
        self._running = False
        self._counted: tuple[Any, int] = None, 0  # epoch and parts, and their number of batches
        self._ahead: Generator[Any] | None = None  # batches of the running iteration
        self._cache = BatchCache(_NO_LIMIT if cache is True else int(cache)) if cache else None
        self._edge_types: Mapping[str, Any] | None = None  # edge features, without rows

    @property
    def batch_size(self) -> int:
        """Graphs per batch, from the next batch on; see `DataLoader`."""
        return self._parts[-1][1]

    @batch_size.setter
    def batch_size(self, size: int) -> None:
        require_count("batch_size", size)
        _check_leaves_some(self.graphs, size, self.drop_last)
        if size != self.batch_size:
            self._parts = changed(self._parts, self._position, size)
            if self._ahead is not None:
                self._ahead.close()

    def __len__(self) -> int:
        """Number of batches of the running epoch, or of the next one if none runs."""
        return self._count(self._epoch, self._parts)

    def _count(self, epoch: int, parts: Parts) -> int:
        if len(parts) > 1:
            if self._counted[0] != (epoch, parts):
                self._counted = (epoch, parts), len(self._order.batches(epoch, parts))
            return self._counted[1]
        whole, rest = divmod(len(self.graphs), parts[0][1])
        return whole + (1 if rest and not self.drop_last else 0)

    @property
    def _order(self) -> EpochOrder:
        count, sizes = len(self.graphs), self._bucket_sizes
        return EpochOrder(count, self.shuffle, self.seed, self.drop_last, sizes)

    @property
    def prepare(self) -> Prepare | None:
        """Function called with every batch; a trainer sets its session's unless there is one."""
        return self._prepare()

    @prepare.setter
    def prepare(self, prepare: Prepare | None) -> None:
        # A loader may outlive the trainers that used it and must not keep their sessions alive.
        if isinstance(prepare, MethodType):
            self._prepare = weakref.WeakMethod[Prepare](prepare)
        else:
            self._prepare = lambda: prepare

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without `prepare` and threads, which cannot be copied."""
        return vars(self) | {"_prepare": _none, "_ahead": None}

    @property
    def epoch(self) -> int:
        """The running epoch, or the next one if none runs."""
        return self._epoch

    @property
    def position(self) -> int:
        """Number of batches of that epoch already yielded."""
        return self._position

    @property
    def first(self) -> int:
        """Batch of its epoch with which the next iteration begins; 0 unless a state was loaded."""
        return 0 if self._running else self._position

    @property
    def caches(self) -> bool:
        """True if batches are kept for the next epochs."""
        return self._cache is not None

    def _sizes_in_buckets(self) -> NDArray[np.int64] | None:
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

    def epoch_ids(self, epoch: int) -> list[Ids]:
        """Return the indices of the graphs of every batch of `epoch`."""
        parts = self._parts if epoch == self._epoch else ((0, self.batch_size),)
        return self._order.batches(epoch, parts)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the next epoch, or the rest of one that `load_state_dict` set."""
        if self._running:  # an earlier iteration was left before its end
            self._begin_epoch(self._epoch + 1)
        self._running = True
        epoch, position, parts = self._epoch, self._position, None
        while parts is not self._parts:
            parts = self._parts
            with closing(self._rest_of(epoch, position)) as items:
                self._ahead = items
                for item in items:  # ends early if the batch size changes
                    position += 1
                    self._epoch, self._position = epoch, position
                    yield item
        self._begin_epoch(epoch + 1)
        self._running = False

    def _begin_epoch(self, epoch: int) -> None:
        self._epoch, self._position, self._parts = epoch, 0, ((0, self.batch_size),)

    def _rest_of(self, epoch: int, first: int) -> Generator[Any]:
        batches = self.epoch_ids(epoch)[first:]

        def make(i: int) -> Any:
            return self._make(batches[i], epoch, first + i)

        return prefetch(make, len(batches), self.prefetch)

    def whole_epoch(self) -> Iterator[Any]:
        """Return all global batches of the current epoch; the loader does not advance."""
        epoch, collate = self._epoch, self.undivided
        batches = self.epoch_ids(epoch)

        def make(i: int) -> Any:
            return self._make(batches[i], epoch, i, collate)

        return prefetch(make, len(batches), self.prefetch)

    def peek(self) -> Any:
        """Return the first batch of the current epoch; the loader does not advance."""
        return self._make(self.epoch_ids(self._epoch)[0], self._epoch, 0)

    @property
    def undivided(self) -> Collate:
        """`collate` of global batches, where `collate` makes shards of them for one rank."""
        whole: Collate = getattr(self.collate, "whole", self.collate)
        return whole

    def _make(
        self, ids: NDArray[np.int64], epoch: int, position: int, collate: Collate | None = None
    ) -> Any:
        collate, cache = collate or self.collate, self._cache
        if cache is not None and (item := cache.get(position, ids, collate)) is not None:
            return item
        try:
            item = self._collate_and_prepare(collate, ids)
        except MemoryError:
            raise
        except Exception as error:
            raise self._blame(error, ids, epoch, position) from error
        if cache is not None and collate is self.collate:
            cache.put(position, ids, collate, item)
        return item

    def _collate_and_prepare(self, collate: Collate, ids: NDArray[np.int64]) -> Any:
        graphs = [self.graphs[i] for i in ids.tolist()]
        if self._edge_types is None:
            found = edge_types(graphs)
            if found is None:  # no edge in this batch
                found = edge_types(self.graphs[i] for i in range(len(self.graphs)))
            self._edge_types = found or {}
        item = collate(with_edge_types(graphs, self._edge_types), ids)
        prepare = self.prepare
        if prepare is not None:
            prepare(item)
        return item

    def _blame(
        self, error: Exception, ids: NDArray[np.int64], epoch: int, position: int
    ) -> CavsError:
        """Return the error with the graphs that cause it, found by collating each one alone."""
        blamed = [int(i) for i in ids if not self._collates_alone(int(i))]
        listed = ", ".join(map(str, blamed or ids.tolist()))
        which = "graph" if len(blamed) == 1 else "graphs"
        where = f"{which} {listed} of the data set (batch {position} of epoch {epoch})"
        return _located(error, where)

    def _collates_alone(self, i: int) -> bool:
        try:
            self._collate_and_prepare(self.undivided, np.array([i], dtype=np.int64))
        except Exception:
            return False
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the loader and everything its order depends on, as JSON values."""
        state = {name: getattr(self, name) for name in _IDENTITY if name != "num_graphs"}
        state["batch_size"] = self._first_batch_size
        if self._parts != ((0, self._first_batch_size),):
            state["batch_sizes"] = [list(part) for part in self._parts]
        if self._sizes is None:
            self._sizes = sizes_of(self.graphs)
        return state | {
            "num_graphs": len(self.graphs),
            "contents": self._sizes,
            "epoch": self._epoch,
            "position": self._position,
        }

    def digest(self) -> int:
        """Return a digest of structure and integer features; 0 if graphs are built on access.

        It is not part of `state_dict`, since a run may continue after a graph was corrected.
        """
        if self._digest is None:
            self._digest = digest_of(self.graphs)
        return self._digest

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration continue from `state`.

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
        if kept and found and kept != found:  # older checkpoints have no contents
            raise CheckpointError(
                f"the loader was saved with graphs of {_listed(kept)}, but has {_listed(found)}",
                hint="resume with the same graphs in the same order",
            )
        epoch, position = state["epoch"], state["position"]
        whole = isinstance(epoch, int) and isinstance(position, int) and min(epoch, position) >= 0
        parts = parts_of(state, position) if whole else self._parts
        count = self._count(epoch, parts) if whole else len(self)
        if not whole or position > count:
            raise CheckpointError(
                f"the loader was saved at epoch {epoch!r}, batch {position!r} of {count}"
            )
        self._epoch, self._position, self._running = epoch, position, False
        self._parts = parts


def _check_leaves_some(graphs: Sequence[Any], batch_size: int, drop_last: bool) -> None:
    """Raise `ConfigError` if an epoch would have no batch."""
    if drop_last and len(graphs) < batch_size:
        raise ConfigError(
            f"drop_last=True leaves nothing of {len(graphs)} graphs at batch_size={batch_size}",
            hint="pass a smaller batch_size or drop_last=False",
        )


def _listed(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sizes.items())


def _located(error: Exception, where: str) -> CavsError:
    """Return the error as one of cavs that names the graphs."""
    if isinstance(error, CavsError) and type(error).__init__ is CavsError.__init__:
        return error.reworded(f"{error.what}\n  in {where}")
    what = f"cannot prepare {where}: {type(error).__name__}: {error}"
    return DataError(what, where=raised_at(error))


@contextmanager
def iterating(loader: Iterable[Any]) -> Iterator[Iterator[Any]]:
    """Yield ``iter(loader)``; its background thread ends with the block, even after an error."""
    iterator = iter(loader)
    try:
        yield iterator
    finally:
        close = getattr(iterator, "close", None)
        if close is not None:
            close()
