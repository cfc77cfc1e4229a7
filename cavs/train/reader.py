"""`Reader`: the items of one epoch of a source, which can be put back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Reader:
    """The items of one epoch of a source, with their numbers.

    position: Number of batches that were yielded. ahead: items of the batches behind these that
    have been read.
    """

    def __init__(self, items: Iterator[tuple[int, Any]], epoch: int) -> None:
        self.items, self.epoch, self.position = items, epoch, 0
        self.ahead: deque[list[tuple[int, Any]]] = deque()
        self._back: deque[tuple[int, Any]] = deque()

    def take(self, count: int) -> list[tuple[int, Any]]:
        """Return the next items, fewer than `count` at the end."""
        found: list[tuple[int, Any]] = []
        while len(found) < count:
            item = self._back.popleft() if self._back else next(self.items, None)
            if item is None:
                break
            found.append(item)
        return found

    def put_back(self, items: list[tuple[int, Any]]) -> None:
        """Let `take` return the items again that it returned last."""
        self._back.extendleft(reversed(items))

    def put_back_ahead(self) -> None:
        """Let `take` return the items of batches that were read ahead again."""
        while self.ahead:
            self.put_back(self.ahead.pop())


def shuffled(
    items: Iterator[tuple[int, Any]], size: int, rng: np.random.Generator
) -> Iterator[tuple[int, Any]]:
    """Yield the items in an order drawn from a buffer of `size` of them."""
    buffer: list[tuple[int, Any]] = []
    for item in items:
        if len(buffer) < size:
            buffer.append(item)
            continue
        i = int(rng.integers(size))
        yield buffer[i]
        buffer[i] = item
    order: NDArray[np.int64] = rng.permutation(len(buffer))
    yield from (buffer[i] for i in order.tolist())
