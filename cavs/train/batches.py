"""`Loader`: yields the batches of a training, epoch by epoch, from any position."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from types import MethodType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavs.config import require_count
from cavs.errors import CavsError, CheckpointError, DataError, raised_at
from cavs.train.data_set import (
    edge_types,
    type_features,
    with_edge_types,
    with_missing_types,
)
from cavs.train.epoch import Parts, changed, parts_of

Collate = Callable[[Sequence[Any], NDArray[np.int64]], Any]
Prepare = Callable[[Any], object]


def _none() -> None:
    """Reference to no function."""


def _collate(graphs: Sequence[Any], ids: NDArray[np.int64]) -> Any:
    from cavs.data import batch

    return batch(graphs, ids)


class Loader(ABC):
    """Batches of a training, with a position at which it resumes.

    Every ``iter(loader)`` runs the next epoch. `state_dict` holds the position in the running
    epoch; after `load_state_dict` the next ``iter`` continues from there with the identical
    batches.

    Args:
        batch_size: Graphs per batch.
        prefetch: Number of batches that a background thread prepares ahead; with 0 the caller
            prepares them.
        collate: ``(graphs, ids) -> batch``; by default `cavs.data.batch`.
    """

    def __init__(self, batch_size: int, prefetch: int, collate: Collate | None = None) -> None:
        require_count("batch_size", batch_size)
        require_count("prefetch", prefetch, 0)
        self._first_batch_size = batch_size  # the argument
        self._parts: Parts = ((0, batch_size),)  # the running epoch, or the next one
        self.prefetch = prefetch
        self.collate = collate or _collate
        self._prepare: Callable[[], Prepare | None] = _none
        self._epoch, self._position = 0, 0  # in the running iteration, or at the next one
        self._running = False
        self._ahead: Generator[Any] | None = None  # batches of the running iteration
        self._edge_types: Mapping[str, Any] | None = None  # edge features, without rows
        self._type_features: dict[str, dict[str, Any]] | None = None  # without rows, too

    @property
    def caches(self) -> bool:
        """True if batches are kept for the next epochs."""
        return False

    @property
    def keeps_order(self) -> bool:
        """True if the batches of an epoch have the graphs in the order of the data."""
        return True

    @property
    def batch_size(self) -> int:
        """Graphs per batch, from the next batch on; see `DataLoader`."""
        return self._parts[-1][1]

    @batch_size.setter
    def batch_size(self, size: int) -> None:
        require_count("batch_size", size)
        self._check_size(size)
        if size != self.batch_size:
            self._parts = changed(self._parts, self._position, size)
            if self._ahead is not None:
                self._ahead.close()

    @property
    def smallest_batch(self) -> int:
        """Number of graphs of a batch, unless it is the last of an epoch."""
        return self.batch_size

    @property
    def ahead(self) -> int:
        """Largest number of batches that are made before the one in use ends."""
        return self.prefetch + 1

    @property
    @abstractmethod
    def total(self) -> int:
        """Number of batches of the running epoch, or of the next one; 0 if it is not known."""

    @property
    @abstractmethod
    def at_end(self) -> bool:
        """True if the running epoch has no further batch."""

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

    @abstractmethod
    def _rest_of(self, epoch: int, first: int) -> Generator[Any]:
        """Yield the batches of `epoch` from batch `first` on."""

    @abstractmethod
    def whole_epoch(self) -> Iterator[Any]:
        """Return all global batches of the current epoch; the loader does not advance."""

    @abstractmethod
    def peek(self) -> Any:
        """Return the first batch of the current epoch; the loader does not advance."""

    @property
    def undivided(self) -> Collate:
        """`collate` of global batches, where `collate` makes shards of them for one rank."""
        whole: Collate = getattr(self.collate, "whole", self.collate)
        return whole

    def digest(self) -> int:
        """Return a digest of structure and integer features; 0 if graphs are built on access."""
        return 0

    @abstractmethod
    def _check_size(self, size: int) -> None:
        """Raise `ConfigError` if the loader cannot make batches of `size` graphs."""

    # ---- one batch -----------------------------------------------------------------------------

    def _make(
        self, get: Callable[[int], Any], ids: NDArray[np.int64], collate: Collate, where: str
    ) -> Any:
        """Return the batch of the graphs ``get(i)`` of `ids`; where: for errors."""
        try:
            return self._collate_and_prepare(get, ids, collate)
        except MemoryError:
            raise
        except Exception as error:
            blamed = [i for i in ids.tolist() if not self._collates_alone(get, i)]
            listed = ", ".join(map(str, blamed or ids.tolist()))
            which = "graph" if len(blamed) == 1 else "graphs"
            raise located(error, f"{which} {listed} of {where}") from error

    def _collate_and_prepare(
        self, get: Callable[[int], Any], ids: NDArray[np.int64], collate: Collate
    ) -> Any:
        graphs = [get(i) for i in ids.tolist()]
        if self._edge_types is None:
            found = edge_types(graphs)
            self._edge_types = self._edge_types_of_all() if found is None else found
        if getattr(graphs[0], "type_names", None) is not None:
            if self._type_features is None:
                self._type_features = self._type_features_of_all()
            self._type_features |= type_features(graphs)
            graphs = with_missing_types(graphs, self._type_features)
        item = collate(with_edge_types(graphs, self._edge_types or {}), ids)
        prepare = self.prepare
        if prepare is not None:
            prepare(item)
        return item

    def _collates_alone(self, get: Callable[[int], Any], i: int) -> bool:
        try:
            self._collate_and_prepare(get, np.array([i], dtype=np.int64), self.undivided)
        except Exception:
            return False
        return True

    def _edge_types_of_all(self) -> Mapping[str, Any] | None:
        """Return the `edge_types` of the data set; None if they are not known yet."""
        return None

    def _type_features_of_all(self) -> dict[str, dict[str, Any]]:
        """Return the `type_features` of the data set, as far as they are known."""
        return {}

    # ---- resuming ------------------------------------------------------------------------------

    def _identity(self) -> dict[str, Any]:
        """Return everything the order of the batches depends on, as JSON values."""
        return {"batch_size": self._first_batch_size}

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the loader and everything its order depends on, as JSON values."""
        state = self._identity()
        if self._parts != ((0, self._first_batch_size),):
            state["batch_sizes"] = [list(part) for part in self._parts]
        return state | {"epoch": self._epoch, "position": self._position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration continue from `state`.

        Raises `CheckpointError`, naming both values, if this loader would order its batches
        differently.
        """
        own = self._identity()
        for name in (*own, "epoch", "position"):
            if name not in state:
                raise CheckpointError(
                    f"the state of the loader has no {name!r}",
                    hint="resume with a loader of the same type",
                )
        for name, value in own.items():
            if state[name] != value:
                raise CheckpointError(
                    f"the loader was saved with {name}={state[name]!r}, but has {value!r}",
                    hint=f"resume with the same data and {name}={state[name]!r}",
                )
        self._check_contents(state)
        epoch, position = state["epoch"], state["position"]
        whole = isinstance(epoch, int) and isinstance(position, int) and min(epoch, position) >= 0
        parts = self._parts_of(state, position) if whole else self._parts
        count = self._count(epoch if whole else self._epoch, parts)
        if not whole or (count and position > count):
            raise CheckpointError(
                f"the loader was saved at epoch {epoch!r}, batch {position!r} of {count}"
            )
        self._epoch, self._position, self._running = epoch, position, False
        self._parts = parts

    def _parts_of(self, state: Mapping[str, Any], position: int) -> Parts:
        return parts_of(state, position)

    @abstractmethod
    def _check_contents(self, state: Mapping[str, Any]) -> None:
        """Raise `CheckpointError` if the data are not those of `state`."""

    @abstractmethod
    def _count(self, epoch: int, parts: Parts) -> int:
        """Return the number of batches of an epoch; 0 if it is not known."""


def located(error: Exception, where: str) -> CavsError:
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
