"""The interfaces of synchronisers and of their exchanges, and the lowering of a strategy to these.

A new synchroniser is one file: a subclass of `Synchroniser` with its options, made known by
`register`, and an `Exchange` that runs and prices it. `lower` groups the members of a strategy into
transfers; a run builds their exchanges, and the cost model reads the operations of the same ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.comm.parts import Arrival
from cavs.distributed.strategy import Shard, Strategy
from cavs.distributed.strategy import Synchroniser as Config
from cavs.distributed.strategy.ranks import Roles
from cavs.distributed.sync.operation import Chain, Operation, Pricing, rooted, row_bytes
from cavs.distributed.sync.part import (
    Array,
    Gradients,
    Local,
    Member,
    Piece,
    Scope,
    sum_rows,
    tables,
    touched,
    values_of,
)
from cavs.errors import ConfigError, renamed


@dataclass(frozen=True)
class Runtime:
    """Facts of a run: the executor of a program, the parameters by name, and the ranks.

    servers: of the stale parameters, if the strategy has some. group: the devices that sum among
    themselves what they can. delays: True if a balancer learns how long gradients travel, for which
    each rank sends its own to their owners without waiting for other ranks.
    """

    strategy: Strategy | None
    executor: Any
    parameters: Mapping[str, Any]
    roles: Roles
    servers: Any = None
    group: Any = None
    delays: bool = False

    @cached_property
    def values(self) -> list[Array]:
        """The memory of all parameters, flat, by number."""
        return values_of(self.parameters)

    def slab(self, member: Member) -> int:
        """Return the number of elements of a parameter that become final together."""
        return int(self.executor.gradient_slab(member.parameter))

    def has_factors(self, member: Member) -> bool:
        """Let the executor leave sufficient factors from now on; return True if it can."""
        if member.variable.sparse:
            raise not_rows(member)
        return bool(self.executor.set_factored(member.parameter))

    def owner(self, member: Member) -> int:
        """Return the rank that owns a member."""
        assert self.strategy is not None and member.leaf.sync.owner is not None
        return self.strategy.graph.rank_of(member.leaf.sync.owner)


Facts = Pricing | Runtime  # facts about parameters on which a lowering depends


def not_rows(member: Member) -> ConfigError:
    """Return the error of a member whose gradient is rows where its exchange takes none."""
    return ConfigError(
        f"{member.leaf.name}: rows of a sparse gradient cannot be cut along axis "
        f"{member.shard.axis} or shared by {member.leaf.sync.type}",
        hint="cut axis 0 and use parameter servers or all-reduce for all shards",
    )


@renamed({"build": "__init__"})
class Exchange(ABC):
    """Reduces the gradients of some members in a run; `chains` prices it.

    parameters: numbers of those whose gradients are final when `reduce` is called. parts: of the
    members. values: memory of all parameters, flat, by number. everyone: True if servers take part,
    too. reduces: True if gradients are summed over ranks in this step. mixes_values: True if `mix`
    or `mix_updated` writes values of the parameters.
    """

    everyone: ClassVar[bool] = False
    reduces = True
    mixes_values = False

    def __init__(self, members: Sequence[Member], runtime: Runtime) -> None:
        self.parts = [member.part for member in members]
        self.parameters = tuple(dict.fromkeys(member.parameter for member in members))
        self.values, self.roles = runtime.values, runtime.roles

    @classmethod
    def operations(cls, members: Sequence[Member], pricing: Pricing) -> tuple[Operation, ...]:
        """Return the operations of a step on `members`, one after the other."""
        raise NotImplementedError(f"{cls.__name__} has no price")

    @classmethod
    def chains(cls, members: Sequence[Member], pricing: Pricing) -> list[tuple[int, Chain]]:
        """Return chains of operations on `members`, with the turns in which they begin."""
        names = tuple(member.leaf.name for member in members)
        turn = max(member.turn for member in members)
        return [(turn, Chain(names, cls.operations(members, pricing)))]

    def begin(self, step: int) -> None:  # noqa: B027  (a no-op for most)
        """Prepare for a step, before its gradients are computed. step: updates so far."""

    def exchange_values(self, c: Communicator) -> None:  # noqa: B027
        """Exchange values of the parameters with other ranks while gradients are computed."""

    def wait(self, gradients: Gradients) -> bool:
        """Wait until the gradients of all parts are final; return False if the run failed."""
        return all([gradients.wait_gradient(p) for p in self.parameters])

    def local(self, gradients: Gradients) -> Iterator[Local]:
        """Yield this rank's gradients of the members, before `reduce` begins."""
        for parameter in self.parameters:
            rows, values = gradients.gradient_view(parameter)
            if rows is not None:
                yield parameter, None, rows, values
                continue
            for part in self.parts:
                if part.parameter == parameter:
                    yield parameter, part, None, part.view(values.reshape(-1))

    def local_pieces(self, gradients: Gradients, usable: bool, scope: Scope) -> list[Piece]:
        """Return this rank's gradients of the members as pieces; none if the run failed."""
        found = []
        for parameter, part, rows, values in self.local(gradients) if usable else ():
            if rows is not None:
                found.append(Piece(parameter, values, rows, scope=scope))
            elif part is None:
                found.append(Piece(parameter, values.reshape(-1), None, 1, scope=scope))
            else:
                found.append(replace(part.piece(np.ascontiguousarray(values)), scope=scope))
        return found

    @abstractmethod
    def reduce(self, gradients: Gradients, usable: bool, c: Communicator) -> list[Piece]:
        """Return the sums over ranks that this rank is to apply.

        usable: True if the run that computed the gradients succeeded. If it failed, this rank still
        takes part, with any values, so that the others are not left waiting.
        """

    def mix(self, lr: float) -> None:  # noqa: B027
        """Mix the values of other ranks into those of this rank, before the update.

        lr: learning rate of the update, the same on all ranks.
        """

    def clip_shares(self, factor: float) -> None:  # noqa: B027
        """Note the factor, the same on all ranks, by which pieces of `Scope.SHARE` are clipped."""

    def mix_updated(self, c: Communicator) -> None:  # noqa: B027
        """Exchange and mix values after the update."""

    def distribute(self, c: Communicator) -> None:  # noqa: B027
        """Bring new values to ranks that did not apply the update."""

    def collect(self, states: Sequence[Sequence[Array]], c: Communicator) -> None:  # noqa: B027
        """Bring the optimiser states of owners to all ranks."""

    def commit(self) -> None:  # noqa: B027
        """Keep the state of the step that was applied."""

    def memory_of(self) -> dict[str, Array]:
        """Return the state of this rank from step to step, for a checkpoint."""
        return {}

    def remember(self, arrays: Mapping[str, Array]) -> None:  # noqa: B027
        """Restore a result of `memory_of`; a state of another form is ignored."""

    def forget(self) -> None:  # noqa: B027
        """Drop values that are kept from earlier steps: parameters were written from outside."""

    def settle(self) -> None:  # noqa: B027
        """Wait for requests that this rank has begun and not awaited, whatever comes of them."""

    def weigh(self, by: float) -> None:  # noqa: B027
        """Scale the residual, as gradients are means over another number of ranks."""

    def inherit(self, old: Sequence[Exchange]) -> None:  # noqa: B027
        """Take over the state of the exchanges of an earlier program."""


class SparseAllGather(Exchange):
    """The touched rows of a table, from all ranks to all, however the table is cut."""

    @classmethod
    def operations(cls, members: Sequence[Member], pricing: Pricing) -> tuple[Operation, ...]:
        variable = members[0].variable
        rows, _ = pricing.rows(variable, Shard.whole(variable.shape), pricing.replicas)
        return pricing.everywhere("all_gather", tuple((rows * row_bytes(variable)).tolist()))

    def reduce(self, gradients: Gradients, usable: bool, c: Communicator) -> list[Piece]:
        (parameter,) = self.parameters
        rows, values = touched(gradients, parameter, usable)
        found, total = sum_rows(c.all_gather(rows), c.all_gather(values))
        return [Piece(parameter, total, found)]


class OwnerExchange(Exchange):
    """An exchange with the owners of its members: gradients go to them, values come from them.

    Each member is priced on its own. two_level: the replicas of a host sum among themselves first.
    replicated: an owner sends new values to the leader of every host, which passes them on.
    delivers: True if gradients go to their owners as in `_deliver`, False if by all-to-all.
    deliveries: at an owner, the arrivals of the messages of every other replica in this step.
    """

    def __init__(self, members: Sequence[Member], runtime: Runtime) -> None:
        super().__init__(members, runtime)
        many, syncs = len(self.roles.hosts) > 1, [member.leaf.sync for member in members]
        self.two_level = many and any(sync.sums_on_hosts for sync in syncs)
        self.replicated = many and any(sync.replicates_on_hosts for sync in syncs)
        self.owners = {runtime.owner(member) for member in members}
        self.delivers = runtime.delays and not self.two_level
        self.deliveries: dict[int, list[Arrival]] = {}

    def _deliver(
        self, parts: Mapping[int, Sequence[Array]], like: Sequence[Array], c: Communicator
    ) -> list[list[Array]]:
        """Send to every owner its parts; return those of all replicas, by rank, for this one.

        parts: of this rank by owner, also if empty; all replicas have the same owners. A rank that
        owns nothing waits for no other, so that it may be ahead of slower ones.
        """
        own, owns = parts.get(c.rank), c.rank in self.owners
        sources = [r for r in range(self.roles.count) if owns and r != c.rank]
        sends = [(arrays, owner) for owner, arrays in parts.items() if owner != c.rank]
        came, arrivals = c.send_parts(sends, sources, like)
        self.deliveries = dict(zip(sources, arrivals, strict=True))
        received = dict(zip(sources, came, strict=True))
        if own is not None:
            received[c.rank] = list(own)
        return [received[r] for r in sorted(received)]

    @classmethod
    def chains(cls, members: Sequence[Member], pricing: Pricing) -> list[tuple[int, Chain]]:
        found = []
        for member in members:
            lag = member.leaf.sync.lag
            operations = cls.operations([member], pricing)
            chain = Chain((member.leaf.name,), operations, lag == 0, lag is not None)
            found.append((member.turn, chain))
        return found

    @classmethod
    def operations(cls, members: Sequence[Member], pricing: Pricing) -> tuple[Operation, ...]:
        (member,) = members
        variable, shard, sync = member.variable, member.shard, member.leaf.sync
        assert sync.owner is not None
        root, replicas = pricing.strategy.graph.rank_of(sync.owner), pricing.replicas
        hosts = pricing.hosts
        push, pull = "reduce", "broadcast"
        sent, received = np.full(len(replicas), float(member.nbytes)), float(member.nbytes)
        if variable.sparse:
            push = "gather"
            rows, union = pricing.rows(variable, shard, replicas)
            sent, received = rows * row_bytes(variable), union * row_bytes(variable)
        leaders = [root if root in ranks else ranks[0] for ranks in hosts]
        many = len(hosts) > 1  # else no rank speaks for a host, as in the run
        found: list[Operation] = []
        senders: Mapping[int, float] = dict(zip(replicas, sent.tolist(), strict=True))
        if sync.sums_on_hosts and many:
            summed = {}
            for ranks, leader in zip(hosts, leaders, strict=True):
                found += rooted(push, {r: float(sent[r]) for r in ranks}, leader)
                summed[leader] = received
                if variable.sparse:
                    summed[leader] = pricing.rows(variable, shard, ranks)[1] * row_bytes(variable)
            senders = summed
        found += rooted(push, senders, root)
        if sync.replicates_on_hosts and many:
            found += rooted(pull, dict.fromkeys(leaders, received), root)
            for ranks, leader in zip(hosts, leaders, strict=True):
                found += rooted(pull, dict.fromkeys(ranks, received), leader)
        else:
            found += rooted(pull, dict.fromkeys(replicas, received), root)
        return tuple(found)


@dataclass(frozen=True)
class Transfer:
    """Members whose gradients travel together, and the class of their exchange.

    nccl: the name of a member that asks NCCL to sum them, if one does.
    """

    exchange: type[Exchange]
    members: tuple[Member, ...]
    nccl: str = ""

    @property
    def turn(self) -> int:
        """When the last of its gradients is done."""
        return max(member.turn for member in self.members)

    def chains(self, pricing: Pricing) -> list[tuple[int, Chain]]:
        """Return the operations of the transfer, in chains with the turns in which they begin."""
        return self.exchange.chains(self.members, pricing)


class Synchroniser(Config):
    """A synchroniser that can be priced and run; subclasses are frozen dataclasses.

    exchange: of a dense member that travels alone, unless `lower` is overridden. joins_tables: True
    if `lower` groups tables together with dense members.
    """

    exchange: ClassVar[type[Exchange]]
    joins_tables: ClassVar[bool] = False

    @classmethod
    def lower_rows(cls, table: tuple[Member, ...]) -> list[Transfer]:
        """Group the shards of a table that this class reduces: all together."""
        return [Transfer(SparseAllGather, table)]

    def resolve(self, member: Member, facts: Facts) -> Synchroniser:
        """Return the synchroniser that reduces a member of this one in the program at hand."""
        return self

    @classmethod
    def lower(cls, members: Sequence[Member], facts: Facts) -> list[Transfer]:
        """Group dense members that this class reduces, in the order of turns: each alone.

        Also tables, if `joins_tables`.
        """
        return [Transfer(cls.exchange, (member,)) for member in members]


def lower(members: Iterable[Member], facts: Facts) -> list[Transfer]:
    """Lower the members of a strategy to transfers; all ranks get the same ones, in order."""
    found: list[Transfer] = []
    groups: dict[type[Synchroniser], list[Member]] = {}
    rows, dense = tables(members)
    for together in [*rows, *((member,) for member in dense)]:
        member = together[0]  # the first shard of a table decides for all rows
        sync = member.leaf.sync
        assert isinstance(sync, Synchroniser)
        chosen = sync.resolve(member, facts)
        own = groups.setdefault(type(chosen), [])
        if member.variable.sparse and not chosen.joins_tables:
            found += chosen.lower_rows(together)
        elif chosen is sync:
            own.append(member)
        else:
            own.append(replace(member, leaf=replace(member.leaf, synchroniser=chosen)))
    for cls, own in groups.items():
        found += cls.lower(sorted(own, key=lambda member: member.turn), facts)
    return sorted(found, key=lambda transfer: transfer.turn)
