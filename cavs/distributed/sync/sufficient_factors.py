"""Sufficient factors: the operands of a gradient's products go to all ranks, which multiply.

A gradient X^T dY of K rows is sent as K (M + N) numbers instead of M N (Xie et al. 2016; Poseidon,
USENIX ATC 2017).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.strategy import NodeConfig, Strategy, Variable, register
from cavs.distributed.strategy.expression import Problem
from cavs.distributed.sync.all_reduce import AllReduce
from cavs.distributed.sync.operation import Operation, Pricing
from cavs.distributed.sync.part import Gradients, Local, Member, Piece
from cavs.distributed.sync.synchroniser import Exchange, Facts, Runtime, Synchroniser


class FactorBroadcast(Exchange):
    """One whole matrix; the executor leaves the factors of its gradient (``set_factored``)."""

    @classmethod
    def operations(cls, members: Sequence[Member], pricing: Pricing) -> tuple[Operation, ...]:
        variable = members[0].variable
        factors = pricing.load.factors.get(members[0].leaf.name, variable.factors or 0.0)
        nbytes = np.asarray(factors, np.float64) * sum(variable.shape) * variable.itemsize
        each = np.broadcast_to(nbytes, len(pricing.replicas))
        return pricing.everywhere("all_gather", tuple(each.tolist()))

    def __init__(self, members: Sequence[Member], runtime: Runtime) -> None:
        super().__init__(members, runtime)
        (self.part,), self.executor = self.parts, runtime.executor
        self.total = np.empty(self.part.size, self.values[self.part.parameter].dtype)

    def local(self, gradients: Gradients) -> Iterator[Local]:
        product = np.zeros_like(self.total)
        self.executor.add_product(*self.executor.factors(self.part.parameter), product)
        yield self.part.parameter, None, None, product

    def reduce(self, gradients: Gradients, usable: bool, c: Communicator) -> list[Piece]:
        left, right = self.executor.factors(self.part.parameter)
        if not usable:
            left, right = left[:0], right[:0]
        self.total.fill(0)
        for x, y in zip(c.all_gather(left), c.all_gather(right), strict=True):
            self.executor.add_product(x, y, self.total)
        return [self.part.piece(self.total)]


@register
@dataclass(frozen=True, kw_only=True)
class SufficientFactors(Synchroniser):
    """Every replica keeps the parameter and broadcasts the factors U, V of its gradient UᵀV.

    Each parameter travels alone, as soon as its factors are there.
    """

    exchange: ClassVar[type[Exchange]] = FactorBroadcast
    type: ClassVar[str] = "sufficient_factors"

    def problems(
        self, strategy: Strategy, leaf: NodeConfig, variable: Variable, cluster: ResourceSpec | None
    ) -> Iterator[Problem]:
        yield from super().problems(strategy, leaf, variable, cluster)
        if variable.sparse or len(variable.shape) != 2 or variable.factors is None:
            form = "sparse" if variable.sparse else f"of shape {list(variable.shape)}"
            yield Problem(
                f"{leaf.name}: sufficient factors of a parameter {form}"
                + (", whose gradient is no matrix product" if variable.factors is None else ""),
                "use AllReduce or ParameterServer for it",
            )
        if leaf.name != variable.name:
            yield Problem(
                f"{leaf.name}: sufficient factors of a shard",
                "leave the parameter whole: every replica rebuilds all of it",
            )

    def resolve(self, member: Member, facts: Facts) -> Synchroniser:
        """See `Synchroniser`. A gradient without factors is all-reduced."""
        return self if facts.has_factors(member) else AllReduce(group=None)
