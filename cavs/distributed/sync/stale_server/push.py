"""The exchange of stale parameters: gradients go to their owners, and no rank waits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.strategy.roles import Roles, leader_of
from cavs.distributed.sync.exchange import Exchange
from cavs.distributed.sync.member import Member, Runtime, buckets, tables
from cavs.distributed.sync.owner_exchange import OwnerExchange
from cavs.distributed.sync.part import Array, Gradients, Piece, sum_rows
from cavs.distributed.sync.stale_server.layout import Unit
from cavs.distributed.sync.stale_server.servers import StaleServers
from cavs.distributed.sync.synchroniser import Transfer

Pieces = list[tuple[Unit, Piece]]


class StalePush(OwnerExchange):
    """All stale units of some parameters, in one letter to each owner.

    Where the replicas of a host sum first, the one that speaks to an owner writes the letter.
    """

    @staticmethod
    def lower(members: Sequence[Member]) -> list[Transfer]:
        """Group stale members by parameter: tables alone, the others in buckets."""
        rows, dense = tables(members)
        whole = {m.parameter: m for m in reversed(dense)}
        together = buckets(reversed(whole.values()), lambda member: member.variable.nbytes)
        of = [{m.parameter for m in bucket} for bucket in together]
        return [Transfer(StalePush, table) for table in rows] + [
            Transfer(StalePush, tuple(m for m in dense if m.parameter in numbers)) for numbers in of
        ]

    @classmethod
    def build(cls, members: Sequence[Member], runtime: Runtime) -> Exchange:
        numbers = list(dict.fromkeys(member.parameter for member in members))
        return cls(numbers, runtime.values, runtime.servers, runtime.roles)

    def __init__(
        self,
        parameters: Sequence[int],
        values: Sequence[Array],
        servers: StaleServers,
        roles: Roles,
    ) -> None:
        super().__init__(parameters, values)
        self.servers, self.roles = servers, roles
        self.own: list[Piece] = []  # gradients that this rank pushes, for its norm

    def reduce(self, gradients: Gradients, usable: bool, c: Communicator) -> list[Piece]:
        """See `Exchange`; nothing comes back that this rank would apply."""
        pieces = [
            (unit, _piece(unit, *gradients.gradient_view(parameter)))
            for parameter in (self.parameters if usable or self.roles.teamed else ())
            for unit in self.servers.layout.of(parameter)
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
        """The sums over this host of what goes to the owners that this rank speaks to."""
        local, team = self.roles.local, self.roles.team

        def parts(pieces: Pieces) -> list[Pieces]:
            """By the rank of the host that speaks to the owner."""
            leaders = [leader_of(unit.owner, team) for unit, _ in pieces]
            return [
                [x for x, leader in zip(pieces, leaders, strict=True) if leader == r] for r in team
            ]

        dense = parts([x for x in pieces if x[1].rows is None])
        sums, at = Pieces(), 0
        if any(dense):
            none = np.empty(0, self.values[0].dtype)
            received = local.all_to_all(
                [np.concatenate([none, *(p.values.reshape(-1) for _, p in part)]) for part in dense]
            )
            total = np.sum(received, axis=0)
            for unit, _ in dense[local.rank]:
                sums.append((unit, unit.part.piece(total[at : at + unit.part.size])))
                at += unit.part.size
        for unit, piece in (x for x in pieces if x[1].rows is not None):
            assert piece.rows is not None
            to = team.index(leader_of(unit.owner, team))
            count = [len(piece.rows) if r == to and usable else 0 for r in range(local.size)]
            rows, values = sum_rows(
                local.all_to_all([piece.rows[:n] for n in count]),
                local.all_to_all([piece.values[:n] for n in count]),
            )
            if local.rank == to:
                sums.append((unit, Piece(unit.part.parameter, values, rows)))
        return sums


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
