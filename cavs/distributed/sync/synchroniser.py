"""The interface of synchronisers, and the lowering of a strategy to exchanges.

A new synchroniser is one file: a subclass of `Synchroniser` with its options, made known by
`register`, and an `Exchange` that runs and prices it. `lower` groups the members of a strategy into
transfers; a run builds their exchanges, and the cost model reads the operations of the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from cavs.distributed.strategy import Synchroniser as Config
from cavs.distributed.sync.exchange import Exchange, SparseAllGather
from cavs.distributed.sync.member import Facts, Member, Pricing, tables
from cavs.distributed.sync.operation import Chain


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

    exchange: of a dense member that travels alone, unless `lower` is overridden.
    """

    exchange: ClassVar[type[Exchange]]

    def resolve(self, member: Member, facts: Facts) -> Synchroniser:
        """Return the synchroniser that reduces a member of this one in the program at hand."""
        return self

    @classmethod
    def lower(cls, members: Sequence[Member], facts: Facts) -> list[Transfer]:
        """Group members that this class reduces: each alone, and the rows of a table together."""
        rows, dense = tables(members)
        return [Transfer(SparseAllGather, table) for table in rows] + [
            Transfer(cls.exchange, (member,)) for member in dense
        ]


def lower(members: Iterable[Member], facts: Facts) -> list[Transfer]:
    """Lower the members of a strategy to transfers; all ranks get the same ones, in order."""
    groups: dict[type[Synchroniser], list[Member]] = {}
    rows, dense = tables(members)
    for together in [*rows, *((member,) for member in dense)]:
        sync = together[0].leaf.sync  # the first shard of a table decides for all rows
        assert isinstance(sync, Synchroniser)
        chosen = sync.resolve(together[0], facts)
        groups.setdefault(type(chosen), []).extend(
            m if chosen is sync else replace(m, leaf=replace(m.leaf, synchroniser=chosen))
            for m in together
        )
    found = [
        transfer
        for cls, own in groups.items()
        for transfer in cls.lower(sorted(own, key=lambda m: m.turn), facts)
    ]
    return sorted(found, key=lambda transfer: transfer.turn)
