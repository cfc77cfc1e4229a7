"""`DataLoader`: graphs in, collated and scheduled batches out."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cavs.config import require, require_count, require_flag
from cavs.errors import CheckpointError, ConfigError
from cavs.train.batch_cache import BatchCache
from cavs.train.batches import Collate, Loader, located
from cavs.train.data_set import digest_of, known_edge_types, sizes_of, type_features
from cavs.train.epoch import EpochOrder, Ids, Parts
from cavs.train.prefetch import prefetch
from cavs.train.sampling import Sampler, check_sampler, fingerprint

_NO_LIMIT = 1 << 62  # bytes


class DataLoader(Loader):
    """Cuts `graphs` into batches, epoch by epoch.

    Args:
        graphs: The data set; ``graphs[i]`` is a `Graph`.
        batch_size: Graphs per batch; the last one of an epoch may be smaller.
        shuffle: Draw a new order every epoch, from ``(seed, epoch)``.
        seed: Seed of that order.
        bucket: ``"size"`` or ``"depth"`` puts graphs with a similar number of vertices or levels
            into one batch, which keeps frontiers wide; the batches themselves are shuffled.
        sampler: Draws the graphs of every epoch instead, such as `WeightedSampler`.
        drop_last: Leave out a last batch that is smaller.
        prefetch: Number of batches that a background thread prepares ahead; with 0 the caller
            prepares them.
        cache: Keep batches and their schedules for the next epochs: True, or a limit in bytes.
            Needs ``shuffle=False`` and no sampler.
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
        sampler: Sampler | None = None,
        drop_last: bool = False,
        prefetch: int = 2,
        cache: bool | int = False,
        collate: Collate | None = None,
    ) -> None:
        super().__init__(batch_size, prefetch, collate)
        require_count("seed", seed, 0)
        require_flag("shuffle", shuffle)
        require_flag("drop_last", drop_last)
        require(bucket in (None, "size", "depth"), "bucket", bucket, "None, 'size' or 'depth'")
        if not isinstance(cache, bool):
            require_count("cache", cache, 0)
        counted = hasattr(graphs, "__len__") and hasattr(graphs, "__getitem__")
        listed = counted and not isinstance(graphs, Mapping)
        require(listed, "graphs", graphs, "a list of graphs")
        if cache and (shuffle or sampler is not None):
            other = "shuffle=True" if shuffle else "a sampler"
            raise ConfigError(
                f"cache=True with {other}: no batch comes twice",
                hint="pass cache=False, or neither shuffle nor sampler",
            )
        if len(graphs) == 0:
            raise ConfigError("DataLoader got no graphs", hint="pass at least one graph")
        if sampler is not None:
            check_sampler(sampler, len(graphs), shuffle=shuffle)
        self.graphs, self.shuffle, self.seed, self.sampler = graphs, shuffle, seed, sampler
        self.bucket, self.drop_last = bucket, drop_last
        self._check_size(batch_size)
        self._bucket_sizes = self._sizes_in_buckets()
        self._sizes: dict[str, int] | None = None
        self._digest: int | None = None
        self._counted: tuple[Any, int] = None, 0  # epoch and parts, and their number of batches
        self._cache = BatchCache(_NO_LIMIT if cache is True else int(cache)) if cache else None

    def __len__(self) -> int:
        """Number of batches of the running epoch, or of the next one if none runs."""
        return self._count(self._epoch, self._parts)

    def _count(self, epoch: int, parts: Parts) -> int:
        if len(parts) > 1:
            if self._counted[0] != (epoch, parts):
                self._counted = (epoch, parts), len(self._order.batches(epoch, parts))
            return self._counted[1]
        whole, rest = divmod(self._length, parts[0][1])
        return whole + (1 if rest and not self.drop_last else 0)

    @property
    def keeps_order(self) -> bool:
        """See `Loader`."""
        return not self.shuffle and self.bucket is None and self.sampler is None

    @property
    def _order(self) -> EpochOrder:
        count, sizes = len(self.graphs), self._bucket_sizes
        return EpochOrder(count, self.shuffle, self.seed, self.drop_last, sizes, self.sampler)

    @property
    def _length(self) -> int:
        """Number of graphs of an epoch."""
        return len(self.graphs) if self.sampler is None else len(self.sampler)

    @property
    def total(self) -> int:
        return len(self)

    @property
    def at_end(self) -> bool:
        return self._position >= len(self)

    @property
    def smallest_batch(self) -> int:
        return min(self.batch_size, self._length)

    @property
    def caches(self) -> bool:
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
                raise located(error, f"graph {i} of the data set") from error
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

    def _rest_of(self, epoch: int, first: int) -> Generator[Any]:
        batches = self.epoch_ids(epoch)[first:]

        def make(i: int) -> Any:
            return self._batch(batches[i], epoch, first + i)

        return prefetch(map(make, range(len(batches))), self.prefetch)

    def whole_epoch(self) -> Iterator[Any]:
        epoch, collate = self._epoch, self.undivided
        batches = self.epoch_ids(epoch)

        def make(i: int) -> Any:
            return self._batch(batches[i], epoch, i, collate)

        return prefetch(map(make, range(len(batches))), self.prefetch)

    def peek(self) -> Any:
        return self._batch(self.epoch_ids(self._epoch)[0], self._epoch, 0)

    def _batch(
        self, ids: NDArray[np.int64], epoch: int, position: int, collate: Collate | None = None
    ) -> Any:
        collate, cache = collate or self.collate, self._cache
        if cache is not None and (item := cache.get(position, ids, collate)) is not None:
            return item
        where = f"the data set (batch {position} of epoch {epoch})"
        item = self._make(self.graphs.__getitem__, ids, collate, where)
        if cache is not None and collate is self.collate:
            cache.put(position, ids, collate, item)
        return item

    def _edge_types_of_all(self) -> Mapping[str, Any]:
        return known_edge_types(self.graphs[i] for i in range(len(self.graphs)))

    def _type_features_of_all(self) -> dict[str, dict[str, Any]]:
        if not isinstance(self.graphs, list | tuple):  # built on access, perhaps slowly
            return {}
        return type_features(self.graphs)

    def _identity(self) -> dict[str, Any]:
        return {
            "num_graphs": len(self.graphs),
            "batch_size": self._first_batch_size,
            "shuffle": self.shuffle,
            "seed": self.seed,
            "bucket": self.bucket,
            "drop_last": self.drop_last,
        }

    def state_dict(self) -> dict[str, Any]:
        if self._sizes is None:
            self._sizes = sizes_of(self.graphs)
        drawn = {} if self.sampler is None else {"sampler": fingerprint(self.sampler)}
        return super().state_dict() | {"contents": self._sizes} | drawn

    def _check_contents(self, state: Mapping[str, Any]) -> None:
        own = self.state_dict()
        kept, found = state.get("contents"), own["contents"]
        if kept and found and kept != found:  # older checkpoints have no contents
            raise CheckpointError(
                f"the loader was saved with graphs of {_listed(kept)}, but has {_listed(found)}",
                hint="resume with the same graphs in the same order",
            )
        drawn, draws = state.get("sampler"), own.get("sampler")
        if drawn != draws:
            raise CheckpointError(
                f"the loader was saved with the sampler {drawn}, but has {draws}",
                hint="resume with the same sampler",
            )

    def digest(self) -> int:
        """Return a digest of structure and integer features; 0 if graphs are built on access.

        It is not part of `state_dict`, since a run may continue after a graph was corrected.
        """
        if self._digest is None:
            self._digest = digest_of(self.graphs)
        return self._digest

    def _check_size(self, size: int) -> None:
        count = self._length
        if self.drop_last and count < size:
            raise ConfigError(
                f"drop_last=True leaves nothing of {count} graphs at batch_size={size}",
                hint="pass a smaller batch_size or drop_last=False",
            )


def _listed(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sizes.items())
