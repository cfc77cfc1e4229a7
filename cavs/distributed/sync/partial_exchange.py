"""Partial gradient exchange: each step reduces the gradients of one bin of parameters.

The other parameters are updated by the rank's own gradients meanwhile, so that replicas differ (Mai
et al.'s predecessor of KungFu, section 3.2; Ako, Watcharapichat et al., SoCC 2016).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.strategy import Strategy, Variable, register
from cavs.distributed.strategy import Synchroniser as Config
from cavs.distributed.strategy.expression import Problem, check_whole, refuse
from cavs.distributed.sync.all_reduce import AllReduce, CompressedAllReduce, DenseAllReduce
from cavs.distributed.sync.model_average import AverageEvery
from cavs.distributed.sync.operation import Operation, Pricing
from cavs.distributed.sync.part import Array, Gradients, Local, Member, Piece, Scope, buckets
from cavs.distributed.sync.synchroniser import (
    Exchange,
    Facts,
    Runtime,
    SparseAllGather,
    Synchroniser,
    Transfer,
)


class PartialExchange(Exchange):
    """Members of one bin, which another exchange reduces in the steps of the bin.

    inner: the class of the other exchange.
    """

    inner: ClassVar[type[Exchange]]

    @classmethod
    def operations(cls, members: Sequence[Member], pricing: Pricing) -> tuple[Operation, ...]:
        """See `Exchange`. The mean over the steps: one in as many as there are bins reduces."""
        bins = bins_of(members)
        found = cls.inner.operations(members, pricing)
        return tuple(
            replace(operation, nbytes=tuple((operation.bytes_of_ranks() / bins).tolist()))
            for operation in found
        )

    def __init__(self, members: Sequence[Member], runtime: Runtime) -> None:
        super().__init__(members, runtime)
        sync = members[0].leaf.sync
        assert isinstance(sync, PartialAllReduce)
        self.sync = sync
        self.inside = self.inner(members, runtime)
        self.parts = self.inside.parts

    def begin(self, step: int) -> None:
        self.reduces = step % self.sync.bins == self.sync.bin

    def wait(self, gradients: Gradients) -> bool:
        return self.inside.wait(gradients)

    def local(self, gradients: Gradients) -> Iterator[Local]:
        return self.inside.local(gradients)

    def reduce(self, gradients: Gradients, usable: bool, c: Communicator) -> list[Piece]:
        if self.reduces:
            return self.inside.reduce(gradients, usable, c)
        return self.local_pieces(gradients, usable, Scope.OWN)

    def commit(self) -> None:
        if self.reduces:
            self.inside.commit()

    def memory_of(self) -> dict[str, Array]:
        return self.inside.memory_of()

    def remember(self, arrays: Mapping[str, Array]) -> None:
        self.inside.remember(arrays)

    def weigh(self, by: float) -> None:
        self.inside.weigh(by)

    def inherit(self, old: Sequence[Exchange]) -> None:
        self.inside.inherit([x.inside for x in old if isinstance(x, PartialExchange)])


class PartialDense(PartialExchange):
    """Dense members in one buffer."""

    inner: ClassVar[type[Exchange]] = DenseAllReduce


class PartialCompressed(PartialExchange):
    """One dense member through a compressor."""

    inner: ClassVar[type[Exchange]] = CompressedAllReduce


class PartialRows(PartialExchange):
    """The touched rows of a table."""

    inner: ClassVar[type[Exchange]] = SparseAllGather


class AccumulatedExchange(Exchange):
    """A dense member whose gradients add up until a step of its bin reduces them.

    A rank applies its share of the mean at once, and the shares of the others when they come, so
    that every replica gets the same sum over `bins` steps (Ako). unsent: sum of what this rank has
    applied of its own gradients and others have not; fresh: its gradient of this step.

    A gradient is clipped once, in its step, by one factor on all ranks. A step of the bin applies
    `factor` of the sums, so that the rest of those of earlier steps stays unsent.
    """

    reduces = False  # no piece is the sum of the gradients of one step

    @classmethod
    def operations(cls, members: Sequence[Member], pricing: Pricing) -> tuple[Operation, ...]:
        """See `Exchange`. The mean over the steps."""
        return pricing.everywhere("all_reduce", members[0].nbytes / bins_of(members))

    def __init__(self, members: Sequence[Member], runtime: Runtime) -> None:
        super().__init__(members, runtime)
        (self.part,), sync = self.parts, members[0].leaf.sync
        assert isinstance(sync, PartialAllReduce)
        self.sync, self.due = sync, False
        self.unsent = self.coming = self.fresh = np.zeros(self.part.size, self.values[0].dtype)

    def begin(self, step: int) -> None:
        self.due = step % self.sync.bins == self.sync.bin

    def reduce(self, gradients: Gradients, usable: bool, c: Communicator) -> list[Piece]:
        own = self.local_pieces(gradients, usable, Scope.SHARE)
        self.fresh = sum((piece.values.reshape(-1) for piece in own), np.zeros_like(self.unsent))
        added = self.unsent + self.fresh
        if not self.due:
            self.coming = added
            return own
        c.all_reduce(added)
        self.coming = np.zeros_like(self.unsent)
        return [replace(self.part.piece(added - self.unsent), scope=Scope.SHARE)]

    def clip_shares(self, factor: float) -> None:
        if factor == 1.0:
            return
        self.coming = (1 - factor) * self.unsent if self.due else self.unsent + factor * self.fresh

    def commit(self) -> None:
        self.unsent = self.coming

    def memory_of(self) -> dict[str, Array]:
        return {f"{self.part.offset}.unsent": self.unsent}

    def remember(self, arrays: Mapping[str, Array]) -> None:
        kept = arrays.get(f"{self.part.offset}.unsent")
        if kept is not None and kept.size == self.part.size:
            self.unsent = kept.astype(self.unsent.dtype)

    def weigh(self, by: float) -> None:
        self.unsent = self.unsent * self.unsent.dtype.type(by)
        self.coming = self.coming * self.coming.dtype.type(by)

    def inherit(self, old: Sequence[Exchange]) -> None:
        for other in old:
            if isinstance(other, AccumulatedExchange) and other.part == self.part:
                self.unsent = other.unsent


class Resynchronisation(AverageEvery):
    """Sets the values of all members to their mean over the ranks, in every n-th step."""

    @staticmethod
    def period(options: Config) -> int:
        return int(getattr(options, "resync", 1))

    def wait(self, gradients: Gradients) -> bool:
        """See `Exchange`. Other exchanges wait for the gradients."""
        return True

    def local(self, gradients: Gradients) -> Iterator[Local]:
        """See `Exchange`. Other exchanges have the gradients."""
        return iter(())

    def reduce(self, gradients: Gradients, usable: bool, c: Communicator) -> list[Piece]:
        return []

    def mix(self, lr: float) -> None:
        if self.due:
            for own, mean in self.in_members(self.buffer):
                own[...] = mean


def bins_of(members: Sequence[Member]) -> int:
    """Return the number of bins of the members' synchroniser."""
    sync = members[0].leaf.sync
    assert isinstance(sync, PartialAllReduce)
    return sync.bins


@register
@dataclass(frozen=True, kw_only=True)
class PartialAllReduce(Synchroniser):
    """All-reduce of a gradient in the steps of its bin; in other steps a rank applies its own.

    bins: number of bins, which take turns. bin: the parameter's, in [0, bins). accumulate: False
    forgets gradients of other steps, as the rank has applied them itself; True adds them up until
    the bin's next step, for dense parameters; a rank then applies its share of the mean at once.
    resync: replicas take their mean after so many steps; 0 for never.
    """

    type: ClassVar[str] = "partial_all_reduce"
    takes_compressor: ClassVar[bool] = True
    bins: int = 1
    bin: int = 0
    accumulate: bool = False
    resync: int = 0

    def __post_init__(self) -> None:
        check_whole("PartialAllReduce", "resync", self.resync)
        check_whole("PartialAllReduce", "bins", self.bins, least=1)
        check_whole("PartialAllReduce", "bin", self.bin)
        if self.bin >= self.bins:
            refuse("PartialAllReduce", "bin", self.bin, f"give one below {self.bins}")

    @property
    def diverges(self) -> bool:
        return self.bins > 1

    @property
    def reduces_gradients(self) -> bool:
        return not (self.accumulate and self.diverges)

    @property
    def mixes_values(self) -> bool:
        return self.diverges and self.resync > 0

    def summary(self, compressor: str) -> str:
        packed = "" if compressor == "none" else f", {compressor}"
        return f"all-reduce, bin {self.bin} of {self.bins}{packed}"

    @classmethod
    def problems_together(
        cls, strategy: Strategy, variables: Mapping[str, Variable]
    ) -> Iterator[Problem]:
        """See `Synchroniser`. All parameters have the same bins."""
        leaves = [leaf for leaf in strategy.leaves if isinstance(leaf.sync, cls)]
        for option in ("bins", "resync"):
            values = sorted({getattr(leaf.sync, option) for leaf in leaves})
            if len(values) > 1:
                yield Problem(
                    f"parameters of {cls.type} have {option} {' and '.join(map(str, values))}",
                    "give all of them the same number",
                )
        for leaf in leaves:
            sync = leaf.sync
            if isinstance(sync, cls) and sync.accumulate and leaf.compressor != "none":
                yield Problem(
                    f"{leaf.name}: compressor {leaf.compressor} of accumulated gradients",
                    "use accumulate=False, or no compressor",
                )

    def resolve(self, member: Member, facts: Facts) -> Synchroniser:
        """See `Synchroniser`. With one bin it is an all-reduce, to the bit."""
        return self if self.bins > 1 else AllReduce(group=None)

    @classmethod
    def lower_rows(cls, table: tuple[Member, ...]) -> list[Transfer]:
        return [Transfer(PartialRows, table), *_resynchronisation(table)]

    @classmethod
    def lower(cls, members: Sequence[Member], facts: Facts) -> list[Transfer]:
        """See `Synchroniser`. Each bin travels as all-reduced gradients would."""
        found: list[Transfer] = []
        by_bin: dict[int, list[Member]] = {}
        for member in members:
            sync = member.leaf.sync
            assert isinstance(sync, cls)
            if sync.accumulate:
                found.append(Transfer(AccumulatedExchange, (member,)))
            elif member.leaf.compressor != "none":
                found.append(Transfer(PartialCompressed, (member,)))
            else:
                by_bin.setdefault(sync.bin, []).append(member)
        for own in by_bin.values():
            found += [Transfer(PartialDense, bucket) for bucket in buckets(own)]
        return found + _resynchronisation(members)


def _resynchronisation(members: Sequence[Member]) -> list[Transfer]:
    """Return the transfer that averages the values of members, if their options ask for it."""
    if not members or not members[0].leaf.sync.mixes_values:
        return []
    return [Transfer(Resynchronisation, tuple(members))]
