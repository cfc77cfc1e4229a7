"""State of compressors on all ranks, as checkpoints keep it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.compression import is_alike, share_of
from cavs.distributed.sync.exchange import Exchange

Array = NDArray[Any]


class CompressorState:
    """State of the exchanges of the parameters called `names`.

    kept: arrays of a checkpoint, each of shape [ranks, ...].
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.kept: dict[str, Array] = {}

    def gather(self, exchanges: Sequence[Exchange], replicas: Communicator) -> dict[str, Array]:
        """Return the present state of all `replicas`; all of them call it."""
        found = dict[str, Array]()
        for exchange in exchanges:
            for name, array in exchange.memory_of().items():
                every = replicas.all_gather(array[None])
                found[f"{self.names[exchange.parameters[0]]}.{name}"] = np.concatenate(every)
        return found

    def give(self, exchange: Exchange, rank: int, ranks: int, *, average: bool) -> None:
        """Give an exchange its rank's share of what was kept of its parameters."""
        for parameter in exchange.parameters:
            prefix = f"{self.names[parameter]}."
            exchange.remember(
                {
                    name.removeprefix(prefix): share_of(
                        every, rank, ranks, average=average, alike=is_alike(name)
                    )
                    for name, every in self.kept.items()
                    if name.startswith(prefix)
                }
            )
