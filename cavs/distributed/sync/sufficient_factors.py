"""Sufficient factors: the operands of a gradient's products go to all ranks, which multiply.

A gradient X^T dY of K rows is sent as K (M + N) numbers instead of M N (Xie et al. 2016; Poseidon,
USENIX ATC 2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.sync.exchange import Array, Exchange, Gradients, Part, Piece


class FactorBroadcast(Exchange):
    """One whole matrix; `executor` leaves the factors of its gradient (``set_factored``)."""

    def __init__(self, part: Part, values: Sequence[Array], executor: Any) -> None:
        super().__init__([part.parameter], values)
        self.part, self.executor = part, executor
        self.total = np.empty(part.size, values[part.parameter].dtype)

    def reduce(self, gradients: Gradients, usable: bool, c: Communicator) -> list[Piece]:
        """See `Exchange`."""
        left, right = self.executor.factors(self.part.parameter)
        if not usable:
            left, right = left[:0], right[:0]
        self.total.fill(0)
        for x, y in zip(c.all_gather(left), c.all_gather(right), strict=True):
            self.executor.add_product(x, y, self.total)
        return [self.part.piece(self.total)]
