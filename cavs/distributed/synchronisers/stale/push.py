"""The exchange of stale parameters: gradients leave for their owners, and nobody waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from cavs.distributed.communicator.protocol import Communicator
from cavs.distributed.synchronisers.exchange import Array, Exchange, Gradients, Piece
from cavs.distributed.synchronisers.stale.layout import Unit

if TYPE_CHECKING:
    from cavs.distributed.synchronisers.stale.servers import StaleServers


class StalePush(Exchange):
    """All stale units of some parameters, in one letter to each owner."""

    def __init__(
        self, parameters: Sequence[int], values: Sequence[Array], servers: StaleServers
    ) -> None:
        super().__init__(parameters, values)
        self.servers = servers
        self.own: list[Piece] = []  # this rank's gradient, for its norm

    def reduce(self, gradients: Gradients, usable: bool, c: Communicator) -> list[Piece]:
        """See `Exchange`; nothing comes back that this rank would apply."""
        self.own = []
        letters: dict[int, tuple[list[int], list[Array]]] = {}
        for parameter in self.parameters if usable else ():
            for unit in self.servers.layout.of(parameter):
                piece = _piece(unit, *gradients.gradient_view(parameter))
                numbers, arrays = letters.setdefault(unit.owner, ([], []))
                numbers.append(unit.number)
                arrays += [piece.values] if piece.rows is None else [piece.rows, piece.values]
                self.own.append(piece)
        for owner, (numbers, arrays) in letters.items():
            self.servers.push(owner, numbers, arrays)
        return []


def _piece(unit: Unit, rows: Array | None, values: Array) -> Piece:
    """The gradient of a unit; `rows` and `values` are those of its parameter in this program."""
    if unit.rows is None:
        if rows is not None:  # a table that is not declared sparse
            table = np.zeros((unit.part.rows * unit.part.stride, 1), values.dtype)
            table.reshape(-1, values.shape[1])[rows] = values
            values = table.reshape(-1)
        return unit.part.piece(np.ascontiguousarray(unit.part.view(values)))
    begin, end = unit.rows
    if rows is None:  # the program uses the table as a whole, too
        rows = np.arange(begin, end, dtype=np.int32)
        table = values.reshape(-1, unit.width)[begin:end]
        return Piece(unit.part.parameter, np.ascontiguousarray(table), rows)
    inside = np.flatnonzero((rows >= begin) & (rows < end))
    return Piece(unit.part.parameter, values[inside], rows[inside])
