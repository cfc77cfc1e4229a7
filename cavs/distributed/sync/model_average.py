"""Model averaging: every rank updates its replica by its own gradients, and replicas are averaged.

A replica may differ from the others in between. The mean of the values is computed while backward
runs, as all-reduce of gradients is, or after the update (Lookahead); a step waits for no gradient
of another rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.comm.interfaces import Communicator, LostPeerError
from cavs.distributed.strategy import NodeConfig, Strategy, Variable, register
from cavs.distributed.strategy import Synchroniser as Config
from cavs.distributed.strategy.expression import Problem, check_number, check_whole
from cavs.distributed.sync.operation import Chain, Operation, Pricing
from cavs.distributed.sync.part import Array, Gradients, Member, Piece, Scope
from cavs.distributed.sync.synchroniser import Exchange, Facts, Runtime, Synchroniser, Transfer


class ValueExchange(Exchange):
    """All members together, each a whole parameter; their gradients stay on this rank.

    options: the synchroniser of the members, which is one for all. early: True if values are
    exchanged before the update, while gradients are computed; else after it.
    """

    early: ClassVar[bool] = True
    reduces = False
    mixes_values = True

    def __init__(self, members: Sequence[Member], runtime: Runtime) -> None:
        super().__init__(members, runtime)
        self.options = members[0].leaf.sync

    @classmethod
    def chains(cls, members: Sequence[Member], pricing: Pricing) -> list[tuple[int, Chain]]:
        chains = super().chains(members, pricing)
        return [
            (turn, replace(chain, sends_values=cls.early, follows_update=not cls.early))
            for turn, chain in chains
        ]

    def reduce(self, gradients: Gradients, usable: bool, c: Communicator) -> list[Piece]:
        return self.local_pieces(gradients, usable, Scope.OWN)

    def own_values(self) -> list[Array]:
        """Return the values of every member, flat: the memory of the parameters."""
        return [self.values[p].reshape(-1) for p in self.parameters]


class AverageEvery(ValueExchange):
    """The mean of the values over the ranks, in every n-th step.

    buffer: values of all members.
    """

    @staticmethod
    def period(options: Config) -> int:
        """Return n."""
        return int(getattr(options, "every", 1))

    @classmethod
    def operations(cls, members: Sequence[Member], pricing: Pricing) -> tuple[Operation, ...]:
        """See `Exchange`. The mean over the steps."""
        nbytes = sum(member.nbytes for member in members)
        return pricing.everywhere("all_reduce", nbytes / cls.period(members[0].leaf.sync))

    def __init__(self, members: Sequence[Member], runtime: Runtime) -> None:
        super().__init__(members, runtime)
        self.due, self.every = False, self.period(self.options)
        ends = np.cumsum([values.size for values in self.own_values()])
        self.buffer = np.empty(ends[-1], self.values[0].dtype)
        self._ends = ends[:-1]

    def begin(self, step: int) -> None:
        self.due = step % self.every == 0

    def exchange_values(self, c: Communicator) -> None:
        if self.due:
            self.read_values()
            c.all_reduce(self.buffer, "mean")

    def read_values(self) -> None:
        """Copy the values of all members to `buffer`."""
        np.concatenate(self.own_values(), out=self.buffer)

    def in_members(self, flat: Array) -> Iterator[tuple[Array, Array]]:
        """Yield the values of every member, and its part of a `flat` array of all members."""
        yield from zip(self.own_values(), np.split(flat, self._ends), strict=True)


class AverageValues(AverageEvery):
    """Synchronous model averaging: a step towards the mean, before the update."""

    def mix(self, lr: float) -> None:
        assert isinstance(self.options, SMA)
        if self.due:
            alpha = self.options.alpha
            for own, mean in self.in_members(self.buffer):
                own[...] = (1 - alpha) * own + alpha * mean


class CentralModel(AverageEvery):
    """A central model z, the same on all ranks, that replicas pull towards themselves.

    z, before: the central model, and that of the step before; None before the first step. lr: the
    learning rate at which replicas began from z last.
    """

    def __init__(self, members: Sequence[Member], runtime: Runtime) -> None:
        super().__init__(members, runtime)
        self.z: Array | None = None
        self.before: Array | None = None
        self.lr = 0.0
        self._coming: tuple[Array | None, Array | None, float] = None, None, 0.0

    def mix(self, lr: float) -> None:
        assert isinstance(self.options, Crossbow)
        mean, ranks = self.buffer, self.roles.count
        z = mean.copy() if self.z is None else self.z
        before = z if self.before is None else self.before
        alpha, least = self.options.alpha or 1 / ranks, self.options.restart
        change = max(lr, self.lr) / min(lr, self.lr) if min(lr, self.lr) > 0 else 1.0
        restarts = self.z is not None and change >= least > 0
        for own, central in self.in_members(z):
            own[...] = central if restarts else own - alpha * (own - central)
        if restarts:
            self._coming = z, z, lr
            return
        moved = z + alpha * ranks * (mean - z) + self.options.momentum * (z - before)
        self._coming = moved.astype(z.dtype, copy=False), z, self.lr or lr

    def commit(self) -> None:
        self.z, self.before, self.lr = self._coming

    def memory_of(self) -> dict[str, Array]:
        if self.z is None or self.before is None:
            return {}
        return {"center": self.z, "center_before": self.before, "center_lr": np.array([self.lr])}

    def remember(self, arrays: Mapping[str, Array]) -> None:
        names = ("center", "center_before", "center_lr")
        z, before, lr = (arrays.get(name) for name in names)
        if z is None or before is None or lr is None or z.shape != self.buffer.shape:
            return
        self.z, self.before, self.lr = z.copy(), before.copy(), float(lr[0])
        self._coming = self.z, self.before, self.lr

    def inherit(self, old: Sequence[Exchange]) -> None:
        for other in old:
            if isinstance(other, CentralModel) and other.parameters == self.parameters:
                self.z, self.before, self.lr = other.z, other.before, other.lr
                self._coming = other.z, other.before, other.lr

    def forget(self) -> None:
        self.z = self.before = None
        self._coming = None, None, self.lr

    def weigh(self, by: float) -> None:
        self.forget()  # the ranks that are left begin from their mean


class SlowValues(AverageEvery):
    """Slow values, which step towards the mean of the ranks' fast ones after every k updates."""

    early: ClassVar[bool] = False

    def __init__(self, members: Sequence[Member], runtime: Runtime) -> None:
        super().__init__(members, runtime)
        assert isinstance(self.options, Lookahead)
        self.slow: Array | None = None
        self._lost = False  # slow values begin from the next mean, since a rank has died

    def begin(self, step: int) -> None:
        self.due = (step + 1) % self.every == 0
        if self.slow is None and not self._lost:
            self.read_values()
            self.slow = self.buffer.copy()

    def exchange_values(self, c: Communicator) -> None:
        """See `Exchange`. The values of this step come with its update."""

    def mix_updated(self, c: Communicator) -> None:
        """See `Exchange`. If a rank dies meanwhile, the next step raises that: this one is made."""
        assert isinstance(self.options, Lookahead)
        if not self.due:
            return
        self.read_values()
        try:
            c.all_reduce(self.buffer, "mean")
        except LostPeerError:
            self.weigh(1.0)
            return
        if self.slow is None:
            self.slow, self._lost = self.buffer.copy(), False
        else:
            self.slow += self.options.alpha * (self.buffer - self.slow)
        for own, slow in self.in_members(self.slow):
            own[...] = slow

    def weigh(self, by: float) -> None:
        self.slow, self._lost = None, True

    def memory_of(self) -> dict[str, Array]:
        return {} if self.slow is None else {"slow": self.slow}

    def remember(self, arrays: Mapping[str, Array]) -> None:
        slow = arrays.get("slow")
        if slow is not None and slow.shape == self.buffer.shape:
            self.slow = slow.copy()

    def forget(self) -> None:
        self.slow = None

    def inherit(self, old: Sequence[Exchange]) -> None:
        for other in old:
            if isinstance(other, SlowValues) and other.parameters == self.parameters:
                self.slow, self._lost = other.slow, other._lost


@dataclass(frozen=True, kw_only=True)
class ModelAverage(Synchroniser):
    """Base of synchronisers that average values; all parameters of one travel together."""

    joins_tables: ClassVar[bool] = True

    @property
    def diverges(self) -> bool:
        return True

    @property
    def reduces_gradients(self) -> bool:
        return False

    @property
    def mixes_values(self) -> bool:
        return True

    def problems(
        self, strategy: Strategy, leaf: NodeConfig, variable: Variable, cluster: ResourceSpec | None
    ) -> Iterator[Problem]:
        yield from super().problems(strategy, leaf, variable, cluster)
        if leaf.name != variable.name:
            yield Problem(
                f"{leaf.name}: {self.type} of a shard",
                "leave the parameter whole: every rank has all of it",
            )

    @classmethod
    def problems_together(
        cls, strategy: Strategy, variables: Mapping[str, Variable]
    ) -> Iterator[Problem]:
        """See `Synchroniser`. One set of options holds for all parameters."""
        leaves = [leaf for leaf in strategy.leaves if type(leaf.sync) is cls]
        other = next((leaf for leaf in leaves if leaf.sync != leaves[0].sync), None)
        if other is not None:
            yield Problem(
                f"{leaves[0].name} has {leaves[0].sync}, {other.name} has {other.sync}",
                f"give all parameters of {cls.type} the same options",
            )

    @classmethod
    def lower(cls, members: Sequence[Member], facts: Facts) -> list[Transfer]:
        """See `Synchroniser`. All travel together, in an order that no program changes."""
        ordered = tuple(sorted(members, key=lambda member: member.parameter))
        return [Transfer(cls.exchange, ordered)] if members else []


@register
@dataclass(frozen=True, kw_only=True)
class SMA(ModelAverage):
    """Synchronous model averaging (Mai et al., KungFu, OSDI 2020; EA-SGD, Zhang et al. 2015).

    In every `every`-th step a rank moves its values V to ``(1 - alpha) V + alpha mean(V)``, and
    then applies its own gradient.
    """

    exchange: ClassVar[type[Exchange]] = AverageValues
    type: ClassVar[str] = "sma"
    alpha: float = 0.1
    every: int = 1

    def __post_init__(self) -> None:
        check_number("SMA", "alpha", self.alpha, least=0, most=1)
        check_whole("SMA", "every", self.every, least=1)


@register
@dataclass(frozen=True, kw_only=True)
class Crossbow(ModelAverage):
    """Replicas around a central model z with momentum (Koliousis et al., Crossbow, VLDB 2019).

    ``c_j = alpha (w_j - z)``; ``w_j`` becomes ``w_j - c_j`` and gets the rank's own gradient; z
    moves by ``sum_j c_j + momentum (z - z_before)``. alpha: 0 is one over the number of ranks.
    restart: replicas begin from z again when the learning rate has changed by this factor since the
    last time; 0 for never.
    """

    exchange: ClassVar[type[Exchange]] = CentralModel
    type: ClassVar[str] = "crossbow"
    alpha: float = 0.0
    momentum: float = 0.9
    restart: float = 2.0

    def __post_init__(self) -> None:
        check_number("Crossbow", "alpha", self.alpha, least=0, most=1)
        check_number("Crossbow", "momentum", self.momentum, least=0, most=1)
        check_number("Crossbow", "restart", self.restart, least=0)


@register
@dataclass(frozen=True, kw_only=True)
class Lookahead(ModelAverage):
    """Slow values and fast ones (Zhang et al., Lookahead optimizer, 2019), over the ranks.

    Every rank makes `every` updates by its own gradients; then slow values move by `alpha` towards
    the mean of the ranks' values, and all ranks go on from them.
    """

    exchange: ClassVar[type[Exchange]] = SlowValues
    type: ClassVar[str] = "lookahead"
    alpha: float = 0.5
    every: int = 5

    def __post_init__(self) -> None:
        check_number("Lookahead", "alpha", self.alpha, least=0, most=1)
        check_whole("Lookahead", "every", self.every, least=1)
