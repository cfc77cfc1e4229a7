"""Parameter servers: one rank owns a parameter, applies its gradients, and sends its values.

With two levels the replicas of a host first sum among themselves, and one of them, the leader,
exchanges messages with the owner. Ranks that only own parameters take part with nothing to send.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.strategy import NodeConfig, Strategy, Variable, register
from cavs.distributed.strategy.expression import Problem, absent, check_names, check_whole
from cavs.distributed.strategy.ranks import leader_of
from cavs.distributed.sync.part import (
    Array,
    Gradients,
    Member,
    Memory,
    Part,
    Piece,
    buckets,
    chosen_rows,
    pack,
    send_rows,
    size_of,
    sum_rows,
    touched,
    unpack,
    unpacked,
    wait_parts,
)
from cavs.distributed.sync.stale_server.push import StalePush
from cavs.distributed.sync.synchroniser import (
    Exchange,
    Facts,
    OwnerExchange,
    Runtime,
    Synchroniser,
    Transfer,
    not_rows,
)
from cavs.errors import ConfigError


@register
@dataclass(frozen=True, kw_only=True)
class ParameterServer(Synchroniser):
    """One device owns the parameter: gradients are reduced to it, values broadcast from it.

    destination: the owning device. two_level: the replicas of one node first reduce among
    themselves and one of them speaks to the destination. local_replication: each node keeps a copy
    of the values that its replicas read. sync: the owner waits for the gradients of all replicas;
    otherwise it applies each as it comes (asynchronous). staleness: by how many steps the fastest
    replica, or with two_level node, may be ahead of the slowest; 0 is bulk-synchronous. It needs
    ``sync``.
    """

    type: ClassVar[str] = "parameter_server"
    destination: str
    two_level: bool = False
    local_replication: bool = False
    sync: bool = True
    staleness: int = 0

    def __post_init__(self) -> None:
        check_names("ParameterServer", "destination", [self.destination])
        check_whole("ParameterServer", "staleness", self.staleness)
        for field in ("two_level", "local_replication", "sync"):
            if type(getattr(self, field)) is not bool:
                raise ConfigError(
                    f"ParameterServer: {field} is {getattr(self, field)!r}",
                    hint="give true or false",
                )
        if self.staleness and not self.sync:
            raise ConfigError(
                f"ParameterServer: staleness {self.staleness} with sync=False",
                hint="asynchronous servers have no bound: leave staleness at 0, or set sync=True",
            )

    @property
    def owner(self) -> str:
        return self.destination

    def moved_to(self, owner: str) -> ParameterServer:
        return replace(self, destination=owner)

    @property
    def lag(self) -> int | None:
        return self.staleness if self.sync else None

    @property
    def sums_on_hosts(self) -> bool:
        return self.two_level

    @property
    def replicates_on_hosts(self) -> bool:
        return self.local_replication

    def summary(self, compressor: str) -> str:
        words = [f"server {self.destination}"]
        words += [n for n in ("two_level", "local_replication") if getattr(self, n)]
        words += ["asynchronous"] * (not self.sync)
        words += [f"staleness {self.staleness}"] * (self.staleness > 0)
        return ", ".join(words)

    def problems(
        self, strategy: Strategy, leaf: NodeConfig, variable: Variable, cluster: ResourceSpec | None
    ) -> Iterator[Problem]:
        if leaf.placement and leaf.placement != (self.destination,):
            yield Problem(
                f"{leaf.name}: its gradients go to {self.destination}, its value is kept on "
                f"{', '.join(leaf.placement)}: they would never meet",
                "leave placement empty, or name the destination alone",
            )
        if cluster is not None and self.destination not in cluster.devices:
            yield absent(f"{leaf.name}: destination", self.destination, cluster.devices)
        else:
            try:
                strategy.graph.rank_of(self.destination)
            except ConfigError as error:
                yield Problem(f"{leaf.name}: {error.what}", error.hint)
        if self.local_replication and self.is_stale:
            yield Problem(
                f"{leaf.name}: local_replication with "
                + (f"staleness {self.staleness}" if self.sync else "sync=False"),
                "an owner answers each replica when it may go on: set local_replication=False, or "
                "sync=True and staleness=0",
            )
        if self.local_replication and variable.sparse:
            yield Problem(
                f"{leaf.name}: local_replication of a sparse parameter",
                "set local_replication=False: replicas fetch the rows they touch",
            )

    @classmethod
    def problems_together(
        cls, strategy: Strategy, variables: Mapping[str, Variable]
    ) -> Iterator[Problem]:
        """See `Synchroniser`. Replicas of a node make stale steps together, or each alone."""
        stale = [x for x in strategy.leaves if isinstance(x.sync, cls) and x.sync.is_stale]
        levels = {leaf.sync.sums_on_hosts: leaf.name for leaf in stale}
        if len(levels) > 1:
            yield Problem(
                f"{levels[True]} is stale with two_level=True, {levels[False]} with "
                "two_level=False",
                "give all stale parameters the same: replicas of a node are at one step or at "
                "several",
            )

    @classmethod
    def lower_rows(cls, table: tuple[Member, ...]) -> list[Transfer]:
        stale = tuple(member for member in table if member.leaf.sync.is_stale)
        rest = tuple(member for member in table if not member.leaf.sync.is_stale)
        found = [Transfer(StalePush, stale), Transfer(SparseServers, rest)]
        return [transfer for transfer in found if transfer.members]

    @classmethod
    def lower(cls, members: Sequence[Member], facts: Facts) -> list[Transfer]:
        """See `Synchroniser`. Stale members are pushed; the others travel in buckets, by form."""
        stale, forms = list[Member](), dict[tuple[bool, bool], list[Member]]()
        for member in members:
            sync = member.leaf.sync
            form = sync.sums_on_hosts, sync.replicates_on_hosts
            (stale if sync.is_stale else forms.setdefault(form, [])).append(member)
        return StalePush.lower(stale) + [
            Transfer(DenseServers, together) for own in forms.values() for together in buckets(own)
        ]


class DenseServers(OwnerExchange):
    """Dense parts with an owner each, in one message to every owner."""

    everyone = True

    def __init__(self, members: Sequence[Member], runtime: Runtime) -> None:
        super().__init__(members, runtime)
        self.memory: dict[int, Array] = {}
        if self.roles.computes:
            view = runtime.executor.gradient_view
            self.memory = {p: view(p)[1] for p in self.parameters}
        self.owned: dict[int, list[Part]] = {}  # by owner
        for member in members:
            self.owned.setdefault(runtime.owner(member), []).append(member.part)

    def _packed(self, owners: Sequence[int], memory: Memory) -> Array:
        """Return the parts of some owners, one owner after the other."""
        parts = [part for owner in owners for part in self.owned.get(owner, ())]
        return pack(parts, memory, self.values[0].dtype)

    def _by_owner(self, owners: Sequence[int], packed: Array) -> dict[int, Array]:
        """Undo `_packed`: return the values of each owner."""
        ends = np.cumsum([size_of(self.owned[owner]) for owner in owners], dtype=int)
        return dict(zip(owners, np.split(packed, ends), strict=False))

    def _led(self, rank: int) -> list[int]:
        """Return the owners with which a replica exchanges messages for its host, ascending."""
        roles = self.roles
        return [owner for owner in sorted(self.owned) if roles.leader(owner, roles.host) == rank]

    def wait(self, gradients: Gradients) -> bool:
        return wait_parts(self.parts, gradients)

    def reduce(self, gradients: Gradients, usable: bool, c: Communicator) -> list[Piece]:
        nothing = np.empty(0, self.values[0].dtype)
        own = self.owned.get(c.rank, [])
        owners = self.owned if self.roles.computes else ()
        received: Sequence[Array]
        if self.delivers:
            parts = {owner: [self._packed([owner], self.memory)] for owner in owners}
            received = [gradient for (gradient,) in self._deliver(parts, [nothing], c)]
        else:
            sends = {}
            if self.roles.computes and self.two_level:
                sends = self._within_host()
            elif self.roles.computes:
                sends = {owner: self._packed([owner], self.memory) for owner in owners}
            received = c.all_to_all([sends.get(r, nothing) for r in range(c.size)])
        total = np.zeros(size_of(own), nothing.dtype)
        for gradient in received:
            if gradient.size:
                total += gradient
        return [part.piece(values, owned=True) for part, values in unpacked(own, total)]

    def _within_host(self) -> dict[int, Array]:
        """Return the sums of this host for the owners that this rank is the leader for."""
        roles = self.roles
        parts = roles.local.all_to_all(
            [self._packed(self._led(r), self.memory) for r in roles.hosts[roles.host]]
        )
        total = np.zeros_like(parts[roles.local.rank])
        for gradient in parts:
            total += gradient
        return self._by_owner(self._led(roles.rank), total)

    def distribute(self, c: Communicator) -> None:
        self._from_owners(self.values, c, self.replicated)

    def collect(self, states: Sequence[Sequence[Array]], c: Communicator) -> None:
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
                unpack(self.owned[r], packed, memory)
        if not (by_host and roles.computes):
            return
        led = self._packed(self._led(c.rank), memory)
        passed = roles.local.all_to_all([led] * roles.local.size)
        for r, packed in zip(roles.hosts[roles.host], passed, strict=True):
            for owner, values in self._by_owner(self._led(r), packed).items():
                if c.rank not in (r, owner):
                    unpack(self.owned[owner], values, memory)


class SparseServers(OwnerExchange):
    """The touched rows of a table go to the owners of its rows, and new rows from them to all."""

    everyone = True

    def __init__(self, members: Sequence[Member], runtime: Runtime) -> None:
        super().__init__(members, runtime)
        for member in members:
            if member.shard.axis != 0 or member.leaf.sync.owner is None:
                raise not_rows(member)
        (self.parameter,) = self.parameters
        self.ranges = [(m.shard.start, m.shard.stop, runtime.owner(m)) for m in members]
        self.width = math.prod(members[0].variable.shape[1:])
        self.moved: Array = np.empty(0, np.int32)
        self.written: Array = np.empty(0, np.int32)  # by the last step of all ranks
        self.ever: set[int] = set()

    def reduce(self, gradients: Gradients, usable: bool, c: Communicator) -> list[Piece]:
        rows = np.empty(0, np.int32)
        values = np.empty((0, self.width), self.values[self.parameter].dtype)
        nothing = [rows, values]
        if self.roles.computes:
            rows, values = touched(gradients, self.parameter, usable)
        if not self.delivers:
            if self.two_level and self.roles.computes:
                host = self.roles.hosts[self.roles.host]
                leaders = [host.index(leader_of(owner, host)) for owner in range(c.size)]
                to = np.array([*leaders, -1])[self._owners_of(rows)]
                rows, values = send_rows(self.roles.local, rows, values, to)
            self.moved, total = send_rows(c, rows, values, self._owners_of(rows))
        else:
            owners = sorted(self.owners) if self.roles.computes else []
            chosen = chosen_rows(self._owners_of(rows), owners)
            parts = {r: [rows[i], values[i]] for r, i in zip(owners, chosen, strict=True)}
            received = self._deliver(parts, nothing, c) or [nothing]
            self.moved, total = sum_rows(*zip(*received, strict=True))
        return [Piece(self.parameter, total, self.moved, owned=True)]

    def _owners_of(self, rows: Array) -> Array:
        """Return the owner of each row, -1 for those of stale shards."""
        owners = np.full(len(rows), -1)
        for start, stop, owner in self.ranges:
            owners[(rows >= start) & (rows < stop)] = owner
        return owners

    def distribute(self, c: Communicator) -> None:
        self.written = self._from_owners(self.moved, self.values[self.parameter], c)

    def commit(self) -> None:
        self.ever.update(self.moved.tolist())

    def inherit(self, old: Sequence[Exchange]) -> None:
        for other in old:
            if isinstance(other, SparseServers) and other.parameter == self.parameter:
                self.ever = other.ever

    def collect(self, states: Sequence[Sequence[Array]], c: Communicator) -> None:
        rows = np.array(sorted(self.ever), np.int32)
        for state in states[self.parameter]:
            self._from_owners(rows, state.reshape(-1), c)

    def _from_owners(self, rows: Array, flat: Array, c: Communicator) -> Array:
        """Copy the rows of all owners into `flat`; return their numbers."""
        table = flat.reshape(-1, self.width)
        sizes = [len(rows) if r < self.roles.count else 0 for r in range(c.size)]
        every = c.all_to_all([rows[:size] for size in sizes])
        values = c.all_to_all([table[rows[:size]] for size in sizes])
        for r in range(c.size):
            if r != c.rank:
                table[every[r]] = values[r]
        return np.concatenate(every).astype(np.int32)
