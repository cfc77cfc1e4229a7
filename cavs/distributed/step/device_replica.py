"""A program on a device as the exchanges of a rank see it: as an executor of the CPU."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from cavs.distributed.sync.stale_server.owner import optimiser

Array = NDArray[Any]


class DeviceReplica:
    """Gradients leave it for the host; parameters that all ranks update alike never do.

    executor: of cavs._cuda. parameters: by name. served: those of which ranks own parts, by number.
    Owners update them here, on the host, where the values of other owners come, too; all go up
    together before the next run. Norms of gradients on the host, and products of what others sent,
    are made here as well.
    """

    def __init__(
        self, executor: Any, parameters: Mapping[str, Any], served: Collection[int]
    ) -> None:
        self.executor, self._served = executor, frozenset(served)
        self._host = optimiser([p.current().reshape(-1) for p in parameters.values()])
        self._host.set_serial(False)
        self.add_product = self._host.add_product
        self.run, self.arm_gradients = executor.run, executor.arm_gradients
        self.give_up_gradients = executor.give_up_gradients
        self.wait_gradient, self.gradient_slab = executor.wait_gradient, executor.gradient_slab
        self.gradient_view, self.gradient_block = executor.gradient_view, executor.gradient_block
        self.gradient_order = executor.gradient_order
        self.set_factored, self.factors = executor.set_factored, executor.factors
        self.keep_gradient, self.follow_gradient = executor.keep_gradient, executor.follow_gradient
        self.open_collective = executor.open_collective
        self.close_collective = executor.close_collective
        self.collective_stream = executor.collective_stream
        self.wait_collectives = executor.wait_collectives
        self.collective_seconds = executor.collective_seconds

    def squared_norm(self, pieces: Sequence[tuple[Any, ...]]) -> float:
        """As that of an executor, wherever the values are."""
        there = [piece for piece in pieces if isinstance(piece[1], int)]
        here = [piece for piece in pieces if not isinstance(piece[1], int)]
        squares = float(self._host.squared_norm(here))
        return squares + float(self.executor.squared_norm(there)) if there else squares

    def apply(
        self,
        pieces: Sequence[tuple[Any, ...]],
        hyper: Mapping[str, Any],
        states: Sequence[Sequence[Array]],
        trainable: Sequence[bool],
        scale: float,
    ) -> None:
        """As that of an executor."""
        here = [i in self._served for i in range(len(trainable))]
        owned = [piece for piece in pieces if here[piece[0]]]
        if owned:
            self._host.apply(owned, hyper, states, trainable, scale)
        # The device has states of what it updates alone: no copy of others may come back from it.
        there = [[] if own else list(s) for own, s in zip(here, states, strict=True)]
        moves = [t and not own for own, t in zip(here, trainable, strict=True)]
        rest = [piece for piece in pieces if not here[piece[0]]]
        if rest:
            self.executor.apply(rest, hyper, there, moves, scale)
