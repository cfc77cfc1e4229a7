"""Parameters that one rank owns: gradients go to it, it updates, values come from it.

With two levels the replicas of a host first sum among themselves, and one of them, the leader,
speaks to the owner. Ranks that only own parameters take part with nothing to send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.strategy.roles import Roles
from cavs.distributed.sync.all_reduce import touched
from cavs.distributed.sync.exchange import (
    Array,
    Exchange,
    Gradients,
    Memory,
    Part,
    Piece,
    pack,
    sum_rows,
    unpack,
    wait_parts,
)


class DenseServers(Exchange):
    """Dense parts with an owner each, in one message to every owner.

    replicated: an owner sends new values to the leader of every host, which passes them on.
    """

    everyone = True

    def __init__(
        self,
        owned: Sequence[tuple[Part, int]],
        values: Sequence[Array],
        gradients: Gradients,
        roles: Roles,
        *,
        two_level: bool = False,
        replicated: bool = False,
    ) -> None:
        super().__init__([part.parameter for part, _ in owned], values)
        self.memory: dict[int, Array] = {}
        if roles.computes:
            self.memory = {p: gradients.gradient_view(p)[1] for p in self.parameters}
        self.owned, self.roles = list(owned), roles
        self.owners = sorted({owner for _, owner in owned})
        many = len(roles.hosts) > 1
        self.two_level, self.replicated = two_level and many, replicated and many

    def of(self, rank: int) -> list[Part]:
        """The parts that `rank` owns."""
        return [part for part, owner in self.owned if owner == rank]

    def _size(self, owners: Sequence[int]) -> int:
        return sum(part.size for part, owner in self.owned if owner in owners)

    def _packed(self, owners: Sequence[int], memory: Memory) -> Array:
        """The parts of some owners, one owner after the other."""
        out, at = np.empty(self._size(owners), self.values[0].dtype), 0
        for owner in owners:
            end = at + self._size([owner])
            pack(self.of(owner), memory, out[at:end])
            at = end
        return out

    def wait(self, gradients: Gradients) -> bool:
        """See `Exchange`."""
        return wait_parts([part for part, _ in self.owned], gradients)

    def reduce(self, gradients: Gradients, usable: bool, c: Communicator) -> list[Piece]:
        """See `Exchange`."""
        nothing = np.empty(0, self.values[0].dtype)
        sends: Mapping[int, Array] = {}
        if self.roles.computes:
            sends = (
                self._within_host()
                if self.two_level
                else {owner: self._packed([owner], self.memory) for owner in self.owners}
            )
        received = c.all_to_all([sends.get(r, nothing) for r in range(c.size)])
        total = np.zeros(self._size([c.rank]), nothing.dtype)
        for gradient in received:
            if gradient.size:
                total += gradient
        pieces, at = [], 0
        for part in self.of(c.rank):
            pieces.append(part.piece(total[at : at + part.size], owned=True))
            at += part.size
        return pieces

    def _led(self, rank: int) -> list[int]:
        """The owners to which a replica of this host speaks for the host."""
        host = self.roles.host
        return [owner for owner in self.owners if self.roles.leader(owner, host) == rank]

    def _within_host(self) -> dict[int, Array]:
        """The sums of this host for the owners that this rank speaks to."""
        ranks = self.roles.hosts[self.roles.host]
        parts = self.roles.local.all_to_all(
            [self._packed(self._led(r), self.memory) for r in ranks]
        )
        total = np.zeros_like(parts[self.roles.local.rank])
        for gradient in parts:
            total += gradient
        sums, at = {}, 0
        for owner in self._led(self.roles.rank):
            sums[owner] = total[at : at + self._size([owner])]
            at += self._size([owner])
        return sums

    def distribute(self, c: Communicator) -> None:
        """See `Exchange`."""
        self._from_owners(self.values, c, self.replicated)

    def collect(self, states: Sequence[Sequence[Array]], c: Communicator) -> None:
        """See `Exchange`."""
        for i in range(max(len(states[p]) for p in self.parameters)):
            flat = [arrays[i].reshape(-1) if len(arrays) > i else np.empty(0) for arrays in states]
            self._from_owners(flat, c, False)

    def _from_owners(self, memory: Memory, c: Communicator, by_host: bool) -> None:
        roles = self.roles
        mine = self._packed([c.rank], memory)
        readers = set(range(roles.count))
        if by_host:
            readers = {roles.leader(c.rank, host) for host in range(len(roles.hosts))}
        every = c.all_to_all([mine if r in readers else mine[:0] for r in range(c.size)])
        for r, packed in enumerate(every):
            if r != c.rank and packed.size:
                unpack(self.of(r), packed, memory)
        if not (by_host and roles.computes):
            return
        told = self._packed(self._led(c.rank), memory)
        passed = roles.local.all_to_all([told] * roles.local.size)
        for r, packed in zip(roles.hosts[roles.host], passed, strict=True):
            at = 0
            for owner in self._led(r):
                end = at + self._size([owner])
                if c.rank not in (r, owner):
                    unpack(self.of(owner), packed[at:end], memory)
                at = end


class SparseServers(Exchange):
    """The touched rows of a table to the owners of its rows, and the new rows from them to all.

    ranges: the rows [start, stop) of each shard, and its owner.
    """

    everyone = True

    def __init__(
        self,
        parameter: int,
        values: Sequence[Array],
        ranges: Sequence[tuple[int, int, int]],
        roles: Roles,
        *,
        two_level: bool = False,
    ) -> None:
        super().__init__([parameter], values)
        self.parameter, self.ranges, self.roles = parameter, list(ranges), roles
        self.two_level = two_level and len(roles.hosts) > 1
        self.width = values[parameter].size // max(stop for _, stop, _ in ranges)
        self.moved: Array = np.empty(0, np.int32)
        self.written: Array = np.empty(0, np.int32)  # here, by the last step of all ranks
        self.ever: set[int] = set()

    def reduce(self, gradients: Gradients, usable: bool, c: Communicator) -> list[Piece]:
        """See `Exchange`."""
        rows = np.empty(0, np.int32)
        values = np.empty((0, self.width), self.values[self.parameter].dtype)
        if self.roles.computes:
            rows, values = touched(gradients, self.parameter, usable)
            if self.two_level:
                host = self.roles.host
                leaders = [self.roles.leader(owner, host) for owner in range(c.size)]
                places = [self.roles.hosts[host].index(leader) for leader in leaders]
                rows, values = self._summed(rows, values, self.roles.local, places)
        found, total = self._summed(rows, values, c, list(range(c.size)))
        self.moved = found
        return [Piece(self.parameter, total, found, owned=True)]

    def _summed(
        self, rows: Array, values: Array, c: Communicator, places: Sequence[int]
    ) -> tuple[Array, Array]:
        """Rows go to rank ``places[owner]`` of `c`, which adds those that came to it."""
        to = np.full(len(rows), -1)
        for start, stop, owner in self.ranges:
            to[(rows >= start) & (rows < stop)] = places[owner]
        chosen = [np.flatnonzero(to == r) for r in range(c.size)]
        return sum_rows(
            c.all_to_all([rows[i] for i in chosen]), c.all_to_all([values[i] for i in chosen])
        )

    def distribute(self, c: Communicator) -> None:
        """See `Exchange`."""
        self.written = self._from_owners(self.moved, self.values[self.parameter], c)

    def commit(self) -> None:
        """See `Exchange`."""
        self.ever.update(self.moved.tolist())

    def inherit(self, old: Sequence[Exchange]) -> None:
        """See `Exchange`."""
        for other in old:
            if isinstance(other, SparseServers) and other.parameter == self.parameter:
                self.ever = other.ever

    def collect(self, states: Sequence[Sequence[Array]], c: Communicator) -> None:
        """See `Exchange`."""
        rows = np.array(sorted(self.ever), np.int32)
        for state in states[self.parameter]:
            self._from_owners(rows, state.reshape(-1), c)

    def _from_owners(self, rows: Array, flat: Array, c: Communicator) -> Array:
        """The rows of all owners, into `flat`; which they are."""
        table = flat.reshape(-1, self.width)
        readers = [r < self.roles.count for r in range(c.size)]
        every = c.all_to_all([rows if reads else rows[:0] for reads in readers])
        values = c.all_to_all([table[rows] if reads else table[:0] for reads in readers])
        for r in range(c.size):
            if r != c.rank:
                table[every[r]] = values[r]
        return np.concatenate(every).astype(np.int32)
