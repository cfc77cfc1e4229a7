"""A synchroniser of one file: all ranks gather all gradients, and add them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cavs.distributed.comm import Communicator
from cavs.distributed.strategy import register
from cavs.distributed.sync import Exchange, Member, Piece, Pricing, Synchroniser
from cavs.distributed.sync.operation import Operation


class GatherAndAdd(Exchange):
    """One dense part, by all-gather."""

    @classmethod
    def operations(cls, members: Sequence[Member], pricing: Pricing) -> tuple[Operation, ...]:
        return pricing.everywhere("all_gather", float(members[0].nbytes))

    def reduce(self, gradients, usable: bool, c: Communicator) -> list[Piece]:
        (part,) = self.parts
        own = part.view(gradients.gradient_view(part.parameter)[1])
        return [part.piece(np.add.reduce(c.all_gather(np.ascontiguousarray(own))))]


@register
@dataclass(frozen=True, kw_only=True)
class MeanOfAll(Synchroniser):
    """Every replica keeps the parameter and gathers the gradients of all."""

    exchange: ClassVar = GatherAndAdd
    type: ClassVar[str] = "mean_of_all"
