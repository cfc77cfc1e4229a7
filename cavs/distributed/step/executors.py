"""Executors of a rank that exchanges work with: a replica on a device, and a server without one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from cavs.distributed.sync.part import values_of
from cavs.distributed.sync.stale_server.owner import optimiser

Array = NDArray[Any]


class DeviceReplica:
    """An executor of `cavs._cuda` with the interface of one on the CPU.

    Gradients that others need leave the device for the host; parameters that all ranks update alike
    never do. parameters: by name. served: numbers of those that servers own. Their owners update
    them on the host, where the values of other owners arrive, too; all are uploaded together before
    the next run. Norms of gradients on the host, and products of factors that others sent, are
    computed on the host as well.
    """

    def __init__(
        self, executor: Any, parameters: Mapping[str, Any], served: Collection[int]
    ) -> None:
        self.executor, self._served = executor, frozenset(served)
        self._host = optimiser(values_of(parameters))
        self._host.set_serial(False)
        self.add_product = self._host.add_product

    def __getattr__(self, name: str) -> Any:
        return getattr(self.executor, name)  # all else takes place on the device

    def squared_norm(self, pieces: Sequence[tuple[Any, ...]]) -> float:
        """Return the sum of the squares of gradients, on the host or on the device."""
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
        """Apply gradients where their parameters are updated: on the host, or on the device."""
        here = [i in self._served for i in range(len(trainable))]
        owned = [piece for piece in pieces if here[piece[0]]]
        if owned:
            self._host.apply(owned, hyper, states, trainable, scale)
        # Served parameters have no states on the device: a stale copy could be downloaded.
        there = [[] if own else list(s) for own, s in zip(here, states, strict=True)]
        moves = [t and not own for own, t in zip(here, trainable, strict=True)]
        rest = [piece for piece in pieces if not here[piece[0]]]
        if rest:
            self.executor.apply(rest, hyper, there, moves, scale)


class ServerExecutor:
    """An executor of `parameters`, by name, without a program: it computes norms and updates.

    order: of the gradients on the replicas, by parameter.
    """

    def __init__(self, parameters: Mapping[str, Any], order: Sequence[int]) -> None:
        host = optimiser(values_of(parameters))
        self.squared_norm, self.apply = host.squared_norm, host.apply
        self.gradient_order = lambda: list(order)
