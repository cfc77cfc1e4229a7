"""Ranks that take turns in the batches of an evaluation, and what they found, in order again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavs.distributed.comm.agreement import Agreement
from cavs.distributed.comm.interfaces import Communicator

Array = NDArray[Any]


def local_turns(batches: Iterable[Any], position: tuple[int, int]) -> Iterator[Any]:
    """Return the batches that a rank evaluates. position: the rank and the number of replicas."""
    rank, count = position
    return islice(batches, rank, None, count) if rank < count else iter(())


def whole_value(
    communicator: Communicator,
    agreement: Agreement,
    replicas: int,
    parts: Sequence[Array],
    value: Callable[[Sequence[Array]], float],
) -> float:
    """Return ``value(parts of all batches)`` on all ranks; rank 0 computes it.

    parts: float64 rows of the batches of this rank, [rows] or [rows, columns] each.
    """
    gathered = _in_order(communicator, replicas, parts)
    found = np.array([math.nan])
    with agreement.guard("evaluation"):
        if communicator.rank == 0:
            found[0] = value(gathered)
    communicator.broadcast(found, 0)
    return float(found[0])


def _in_order(communicator: Communicator, replicas: int, parts: Sequence[Array]) -> list[Array]:
    """Return the parts of all ranks in the order of the batches."""
    shapes = np.array([(*part.shape, -1)[:2] for part in parts], np.int64).reshape(-1, 2)
    flat = np.concatenate([np.empty(0), *(part.reshape(-1) for part in parts)])
    all_shapes = communicator.all_gather(shapes)[:replicas]
    all_values = communicator.all_gather(flat)[:replicas]
    by_rank = [
        [
            part.reshape(rows) if columns < 0 else part.reshape(rows, columns)
            for part, (rows, columns) in zip(_cut(values, of_rank), of_rank.tolist(), strict=True)
        ]
        for values, of_rank in zip(all_values, all_shapes, strict=True)
    ]
    # A rank may have one batch less than those before it, or fewer where it was stopped.
    return [part for turn in zip_longest(*by_rank) for part in turn if part is not None]


def _cut(values: Array, shapes: Array) -> list[Array]:
    """Return the values of each part."""
    sizes = shapes[:, 0] * np.where(shapes[:, 1] < 0, 1, shapes[:, 1])
    return np.split(values, np.cumsum(sizes)[:-1]) if len(shapes) else []
