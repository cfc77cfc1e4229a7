"""`BatchCache`: batches that a loader keeps for its next epochs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavs.train.data_set import bytes_of


class BatchCache:
    """Batches by their position in the epoch and their graphs, up to `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._size = 0
        self._batches: dict[tuple[int, bytes], tuple[Callable[..., Any], Any]] = {}

    def get(self, position: int, ids: NDArray[np.int64], collate: Callable[..., Any]) -> Any:
        """Return the batch that `collate` made of the graphs `ids`, or None."""
        by, batch = self._batches.get((position, ids.tobytes()), (None, None))
        return batch if by is collate else None

    def put(
        self, position: int, ids: NDArray[np.int64], collate: Callable[..., Any], batch: Any
    ) -> None:
        """Keep a batch if it fits; drop that of another `collate`."""
        key = position, ids.tobytes()
        if (old := self._batches.pop(key, None)) is not None:
            self._size -= bytes_of(old[1])
        size = bytes_of(batch)
        if self._size + size <= self.limit:
            self._batches[key] = collate, batch
            self._size += size
