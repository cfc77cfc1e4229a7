"""AD-PSGD: pairs of ranks take the mean of their models, both of them (Lian et al., ICML 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from cavs.distributed.comm.store import Store
from cavs.distributed.strategy import register
from cavs.distributed.strategy.expression import check_whole
from cavs.distributed.sync.model_average import ModelAverage
from cavs.distributed.sync.operation import Operation, Pricing
from cavs.distributed.sync.part import Array, Member
from cavs.distributed.sync.peer_average import PeerExchange
from cavs.distributed.sync.peers import draw
from cavs.distributed.sync.synchroniser import Exchange, Runtime


class PairAverages(PeerExchange):
    """Means of the models of active ranks, which have even numbers, and passive ones.

    Active ranks send their models, passive ones answer: as none of them does both, no two ranks
    wait for each other. Each active rank knows the draws of the others, and hence how many come to
    the passive one before it: that is the version of the model that it combines with, so that
    results depend on no time. came: the mean of this rank, if it is active.
    """

    def __init__(self, members: Sequence[Member], runtime: Runtime) -> None:
        super().__init__(members, runtime)
        assert isinstance(self.options, ADPSGD)
        self.seed = self.options.seed
        self.came: list[Array] = []

    @classmethod
    def operations(cls, members: Sequence[Member], pricing: Pricing) -> tuple[Operation, ...]:
        """See `Exchange`. A passive rank answers each active rank that drew it."""
        nbytes, n = sum(member.nbytes for member in members), len(pricing.replicas)
        answers = ((n + 1) // 2) / max(n // 2, 1)
        sizes = [nbytes * answers if rank % 2 else float(nbytes) for rank in pricing.replicas]
        return pricing.everywhere("request", tuple(sizes))

    @property
    def is_active(self) -> bool:
        """True if this rank sends its model to another one."""
        return self.rank % 2 == 0

    def partner(self, rank: int) -> int:
        """Return the passive rank that an active one draws in this step."""
        return 1 + 2 * draw(self.seed, rank, self.step, self.size // 2)

    def exchange_models(self, store: Store, turn: int) -> None:
        first = turn * (self.size + 1)  # every combination counts as a version, too
        if not self.is_active:
            store.keep(self.own_values(), self.tag, first)
            return
        *earlier, own = (self.partner(rank) for rank in range(0, self.rank + 1, 2))
        version = first + earlier.count(own)
        self.came = store.combine(own, self.own_values(), self.tag, version=version).wait().value

    def mix(self, lr: float) -> None:
        if self.store is None:
            return
        model = self.came if self.is_active else self.store.kept(self.tag)
        for own, mean in zip(self.own_values(), model, strict=True):
            own[...] = mean


@register
@dataclass(frozen=True, kw_only=True)
class ADPSGD(ModelAverage):
    """Decentralised SGD of pairs of ranks (Lian et al., AD-PSGD, ICML 2018).

    In each step every rank of even number draws one of odd number, and both set their models to
    their mean; a rank that several drew does so with one after the other, by their numbers. Then
    all apply their own gradients, computed before. The mean over all ranks stays as it is. As in
    every synchronous step, ranks agree on loss and norm at the end. seed: of the draws.
    """

    exchange: ClassVar[type[Exchange]] = PairAverages
    type: ClassVar[str] = "adpsgd"
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole("ADPSGD", "seed", self.seed)

    def summary(self, compressor: str) -> str:
        return "mean of pairs of ranks"
