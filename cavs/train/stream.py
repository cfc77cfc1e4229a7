"""`StreamLoader` and `BatchStream`: trainings over data that are read one after the other."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sized
from contextlib import closing
from itertools import islice
from typing import Any

import numpy as np

from cavs.config import require, require_count, require_flag
from cavs.errors import CheckpointError, ConfigError
from cavs.train.batches import Collate, Loader, located
from cavs.train.data_set import edge_types, type_features
from cavs.train.epoch import Parts, graphs_before
from cavs.train.prefetch import prefetch
from cavs.train.reader import Reader, shuffled

#: Begins again with every ``iter``; or a function of the epoch that returns what an epoch reads.
Source = Iterable[Any] | Callable[[int], Iterable[Any]]
_AGAIN = (
    "pass a list, an object whose __iter__ begins again, or a function of the epoch: "
    "lambda epoch: read(path)"
)


class _Stream(Loader):
    """A loader that reads `source` from its begin in every epoch.

    length: Number of batches of an epoch, at the end of which the source is left; None: as many as
    there are.
    """

    def __init__(
        self,
        source: Source,
        batch_size: int,
        length: int | None,
        prefetch: int,
        collate: Collate | None = None,
    ) -> None:
        super().__init__(batch_size, prefetch, collate)
        if length is not None:
            require_count("length", length)
        need = "an iterable, or a function of the epoch that returns one"
        named = not isinstance(source, str | bytes | type | Mapping)
        require(
            named and (isinstance(source, Iterable) or callable(source)), "source", source, need
        )
        if isinstance(source, Iterator):
            raise ConfigError(
                f"source is {source!r:.80}, which gives its items once, but every epoch, and a run "
                "that is resumed, begins it again",
                hint=_AGAIN,
            )
        self.source, self.length = source, length
        self._reader: Reader | None = None  # used by the running iteration
        self._at_end = False

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without what is being read."""
        return super().__getstate__() | {"_reader": None}

    @property
    def total(self) -> int:
        return self.length or 0

    @property
    def ahead(self) -> int:
        return super().ahead + 1

    @property
    def at_end(self) -> bool:
        return self._at_end

    def _open(self, epoch: int) -> Reader:
        return Reader(self._numbered(epoch), epoch)

    def items(self, epoch: int) -> Iterable[Any]:
        """Return what the source gives for an epoch."""
        return self.source if isinstance(self.source, Iterable) else self.source(epoch)

    def _numbered(self, epoch: int, first: int = 0) -> Iterator[tuple[int, Any]]:
        """Yield the items of an epoch and their numbers, from number `first` on."""
        number = first
        try:
            items: Any = self.items(epoch)
            for item in items.skip(first) if first else items:
                yield number, item
                number += 1
        except Exception as error:
            raise located(error, f"item {number} of the source (epoch {epoch})") from error

    def _rest_of(self, epoch: int, first: int) -> Generator[Any]:
        reader = self._reader
        if reader is None or (reader.epoch, reader.position) != (epoch, first):
            reader = self._reader = self._open(epoch)
            self._skip(reader, first)
        self._at_end, waiting = False, list[Any]()
        # The batch that is read ahead tells whether another one comes.
        try:
            with closing(prefetch(self._batches(reader, self.collate), self.prefetch)) as batches:
                for batch in batches:
                    if waiting:
                        reader.ahead.popleft()
                        reader.position += 1
                        yield waiting.pop()
                    waiting.append(batch)
                if not waiting and first == 0:
                    raise ConfigError(
                        f"the source has no {self._item} in epoch {epoch}", hint=_AGAIN
                    )
                self._at_end = True
                if waiting:
                    reader.ahead.popleft()
                    reader.position += 1
                    yield waiting.pop()
        finally:
            reader.put_back_ahead()

    def _begin_epoch(self, epoch: int) -> None:
        super()._begin_epoch(epoch)
        self._reader = None

    def whole_epoch(self) -> Iterator[Any]:
        reader = self._open(self._epoch)
        return prefetch(self._batches(reader, self.undivided, keep=False), self.prefetch)

    def peek(self) -> Any:
        reader = self._open(self._epoch)
        for batch in self._batches(reader, self.collate, keep=False):
            return batch
        raise ConfigError(f"the source has no {self._item} in epoch {self._epoch}", hint=_AGAIN)

    _item, _several = "item", "items"  # name of items in errors

    def _batches(self, reader: Reader, collate: Collate, *, keep: bool = True) -> Iterator[Any]:
        """Yield the batches from where `reader` is.

        keep: True if their items are to stay in its `ahead` until they are yielded.
        """
        position, size = reader.position, self._parts[-1][1]
        while self.length is None or position < self.length:
            items = reader.take(size)
            if not self._fills(items, size):
                reader.put_back(items)  # they may fill a batch of another size
                return
            if keep:
                reader.ahead.append(items)
            yield self._of(items, collate, f"batch {position} of epoch {reader.epoch}")
            position += 1

    def _fills(self, items: list[tuple[int, Any]], size: int) -> bool:
        """True if the items are a batch."""
        return bool(items)

    @abstractmethod
    def _of(self, items: list[tuple[int, Any]], collate: Collate, where: str) -> Any:
        """Return the batch of some items."""

    def _skip(self, reader: Reader, first: int) -> None:
        """Read what the batches before batch `first` were made of.

        A source that skips is read from the last of them on, which may have been the end of it.
        """
        count, found = graphs_before(self._parts, first), 0
        full = graphs_before(self._parts, max(first - 1, 0))
        if full and self._skips(reader.epoch):
            reader.items, found = self._numbered(reader.epoch, full), full
        while found < count and (item := reader.take(1)):
            found += 1
            self._skipped(item[0][1])
        if first and found <= full:
            raise CheckpointError(
                f"the source ends after {found} of the {count} {self._several} that the run had "
                f"read in epoch {reader.epoch}",
                hint="resume with the same data: the source must give the same items again",
            )
        reader.position = first

    def _skips(self, epoch: int) -> bool:
        """True if the items of an epoch can be read from any number on."""
        return hasattr(self.items(epoch), "skip")

    def _skipped(self, item: Any) -> None:
        """Note what later batches depend on in an item that is not used again."""

    def _count(self, epoch: int, parts: Parts) -> int:
        return self.total

    def _check_size(self, size: int) -> None:
        """Accept any size."""

    def _check_contents(self, state: Mapping[str, Any]) -> None:
        """See `Loader`. A source says nothing about its contents before it is read."""


class StreamLoader(_Stream):
    """Cuts the graphs of a source that is read one after the other into batches.

    Args:
        source: An iterable of graphs that begins again with every ``iter``, or a function of the
            number of the epoch that returns the graphs of that epoch. It must give the same graphs
            whenever it is asked for an epoch: a resumed run, and each rank, reads them again. If
            the iterable has a method ``skip(n)``, which returns one of the items behind the first
            n, a resumed run reads one batch before its own, not all; with ``shuffle=0``.
        batch_size: Graphs per batch; the last one of an epoch may be smaller. It may be set at any
            time, see `DataLoader`.
        shuffle: Number of graphs in a buffer from which each next one is drawn; 0 keeps the order.
        seed: Seed of that order, which is drawn from ``(seed, epoch)``.
        length: Number of batches of an epoch; needed where the source has no end.
        drop_last: Leave out a last batch that is smaller.
        prefetch: Number of batches that a background thread prepares ahead; it also reads the
            source. With 0 the caller does.
        collate: ``(graphs, numbers) -> batch``; by default `cavs.data.batch`.
    """

    _item, _several = "graph", "graphs"

    def __init__(
        self,
        source: Source,
        batch_size: int = 64,
        *,
        shuffle: int = 0,
        seed: int = 0,
        length: int | None = None,
        drop_last: bool = False,
        prefetch: int = 2,
        collate: Collate | None = None,
    ) -> None:
        super().__init__(source, batch_size, length, prefetch, collate)
        require_count("shuffle", shuffle, 0)
        require_count("seed", seed, 0)
        require_flag("drop_last", drop_last)
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last

    def copied(self, batch_size: int, seed: int, limit: int | None) -> StreamLoader:
        """Return another stream of the first `limit` graphs of the source in every epoch, or all.

        It begins with epoch 0.
        """
        return StreamLoader(
            self.source if limit is None else lambda epoch: islice(self.items(epoch), limit),
            batch_size,
            shuffle=self.shuffle,
            seed=seed,
            length=self.length,
            drop_last=self.drop_last,
            prefetch=self.prefetch,
            collate=self.undivided,
        )

    @property
    def keeps_order(self) -> bool:
        """See `Loader`."""
        return not self.shuffle

    def _numbered(self, epoch: int, first: int = 0) -> Iterator[tuple[int, Any]]:
        items = super()._numbered(epoch, first)
        if not self.shuffle:
            return items
        return shuffled(items, self.shuffle, np.random.default_rng((self.seed, epoch)))

    def _fills(self, items: list[tuple[int, Any]], size: int) -> bool:
        return len(items) == size if self.drop_last else bool(items)

    def _of(self, items: list[tuple[int, Any]], collate: Collate, where: str) -> Any:
        numbers = np.array([number for number, _ in items], np.int64)
        return self._make(dict(items).__getitem__, numbers, collate, f"the source ({where})")

    def _skips(self, epoch: int) -> bool:
        if self.shuffle or not super()._skips(epoch):
            return False
        for _, graph in self._numbered(epoch):  # types of edge features, of the first with an edge
            if getattr(graph, "type_names", None) is not None:
                return False  # any graph may be the first with vertices of a type
            self._skipped(graph)
            if self._edge_types is not None:
                break
        return True

    def _skipped(self, item: Any) -> None:
        if self._edge_types is None:
            self._edge_types = edge_types([item])
        if getattr(item, "type_names", None) is not None:
            self._type_features = {**type_features([item]), **(self._type_features or {})}

    def _identity(self) -> dict[str, Any]:
        return {
            "stream": "graphs",
            "batch_size": self._first_batch_size,
            "shuffle": self.shuffle,
            "seed": self.seed,
            "length": self.length,
            "drop_last": self.drop_last,
        }


class BatchStream(_Stream):
    """Batches that the caller makes, such as those of a generator function.

    `Trainer.fit` makes one of any iterable of batches that it gets.

    Args:
        source: An iterable of batches that begins again with every ``iter``, or a function of the
            number of the epoch that returns its batches; see `StreamLoader`.
        length: Number of batches of an epoch; needed where the source has no end.
        prefetch: Number of batches that a background thread takes and prepares ahead.
    """

    _item, _several = "batch", "batches"

    def __init__(self, source: Source, *, length: int | None = None, prefetch: int = 2) -> None:
        super().__init__(source, 1, length, prefetch)
        self._graphs = 0  # number in the last batch

    @property
    def batch_size(self) -> int:
        """Number of graphs of the last batch; it cannot be set."""
        return self._graphs

    @batch_size.setter
    def batch_size(self, size: int) -> None:
        raise ConfigError(
            f"batch_size={size!r} of batches that the caller makes",
            hint="train on a cavs.DataLoader or a StreamLoader, which cut batches",
        )

    @property
    def smallest_batch(self) -> int:
        graphs: int = self.peek().num_graphs
        return graphs

    @property
    def total(self) -> int:
        known = len(self.source) if isinstance(self.source, Sized) else 0
        return min(known, self.length or known) or super().total

    def _of(self, items: list[tuple[int, Any]], collate: Collate, where: str) -> Any:
        ((number, batch),) = items
        if not hasattr(batch, "num_graphs"):
            raise ConfigError(
                f"item {number} of the source is {batch!r:.80}, not a batch",
                hint="cavs.batch(graphs) makes one; StreamLoader(source) takes graphs",
            )
        prepare = self.prepare
        if prepare is not None:
            try:
                prepare(batch)
            except MemoryError:
                raise
            except Exception as error:
                raise located(error, where) from error
        self._graphs = batch.num_graphs
        return batch

    def _begin_epoch(self, epoch: int) -> None:
        super()._begin_epoch(epoch)
        self._parts = ((0, 1),)

    def _identity(self) -> dict[str, Any]:
        return {"stream": "batches", "length": self.length}

    def _parts_of(self, state: Mapping[str, Any], position: int) -> Parts:
        return ((0, 1),)


def as_loader(train: Any) -> Loader:
    """Return the loader of a `fit`: `train`, or a `BatchStream` of the batches that it is."""
    if isinstance(train, Loader):
        return train
    holds = isinstance(train, Iterable) or callable(train)
    if isinstance(train, str | bytes | type | Mapping):
        holds = False
    elif isinstance(train, Collection):
        holds = all(hasattr(item, "num_graphs") for item in train)
    need = "a cavs.DataLoader, a StreamLoader, or batches: a list, or a function of the epoch"
    require(holds, "train", train, need)
    return BatchStream(train)
