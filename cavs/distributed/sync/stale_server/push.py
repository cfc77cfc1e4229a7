"""The exchange of stale parameters: gradients go to their owners, and no rank waits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.strategy.ranks import leader_of
from cavs.distributed.sync.part import (
    Array,
    Gradients,
    Member,
    Piece,
    buckets,
    send_rows,
    unpacked,
)
from cavs.distributed.sync.stale_server.owner import Unit
from cavs.distributed.sync.stale_server.servers import StaleServers
from cavs.distributed.sync.synchroniser import OwnerExchange, Runtime, Transfer

Pieces = list[tuple[Unit, Piece]]


class StalePush(OwnerExchange):
    """All stale units of some parameters, in one letter to each owner.

    Where the replicas of a host sum first, the leader for an owner writes the letter.
    """

    @staticmethod
    def lower(members: Sequence[Member]) -> list[Transfer]:
        """Group dense stale members in buckets, all of a parameter together."""
        whole = {m.parameter: m for m in reversed(members)}
        together = buckets(reversed(whole.values()), lambda member: member.variable.nbytes)
        of = [{m.parameter for m in bucket} for bucket in together]
        return [Transfer(StalePush, tuple(m for m in members if m.parameter in own)) for own in of]

    def __init__(self, members: Sequence[Member], runtime: Runtime) -> None:
        super().__init__(members, runtime)
        self.servers: StaleServers = runtime.servers
        units = self.servers.layout.units
        self.units = [u for p in self.parameters for u in units if u.part.parameter == p]
        self.own: list[Piece] = []  # gradients that this rank pushes, for its norm

    def reduce(self, gradients: Gradients, usable: bool, c: Communicator) -> list[Piece]:
        """See `Exchange`; nothing comes back that this rank would apply."""
        pieces = [
            (unit, _piece(unit, *gradients.gradient_view(unit.part.parameter)))
            for unit in (self.units if usable or self.roles.teamed else ())
        ]
        if self.roles.teamed:
            pieces = self._summed(pieces, usable)
        self.own = [piece for _, piece in pieces]
        letters: dict[int, tuple[list[int], list[Array]]] = {}
        for unit, piece in pieces:
            numbers, arrays = letters.setdefault(unit.owner, ([], []))
            numbers.append(unit.number)
            arrays += [piece.values] if piece.rows is None else [piece.rows, piece.values]
        for owner, (numbers, arrays) in letters.items():
            self.servers.push(owner, numbers, arrays)
        return []

    def _summed(self, pieces: Pieces, usable: bool) -> Pieces:
        """Return the sums over this host for the owners that this rank writes to."""
        local, team = self.roles.local, self.roles.team
        dense: list[Pieces] = [[] for _ in team]  # by the rank that writes to the owner
        for unit, piece in pieces:
            if piece.rows is None:
                dense[team.index(leader_of(unit.owner, team))].append((unit, piece))
        sums = Pieces()
        if any(dense):
            none = np.empty(0, self.values[0].dtype)
            received = local.all_to_all(
                [np.concatenate([none, *(p.values.reshape(-1) for _, p in part)]) for part in dense]
            )
            units = [unit for unit, _ in dense[local.rank]]
            total = unpacked([unit.part for unit in units], np.sum(received, axis=0))
            sums = [(u, part.piece(x)) for u, (part, x) in zip(units, total, strict=True)]
        for unit, piece in pieces:
            if piece.rows is None:
                continue
            to = team.index(leader_of(unit.owner, team))
            everything = np.full(len(piece.rows), to if usable else -1)
            rows, values = send_rows(local, piece.rows, piece.values, everything)
            if local.rank == to:
                sums.append((unit, Piece(unit.part.parameter, values, rows)))
        return sums


def _piece(unit: Unit, rows: Array | None, values: Array) -> Piece:
    """Return the gradient of a unit from that of its parameter in this program."""
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
