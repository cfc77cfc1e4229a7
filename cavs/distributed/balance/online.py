"""Balance by structure while training."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cavs.distributed.balance.balancer import Balancer, Reports
from cavs.distributed.balance.model import CostModel
from cavs.distributed.balance.split import split_batch
from cavs.errors import ConfigError


class StructureBalancer(Balancer[CostModel, NDArray[np.float64]]):
    """A `Balancer` by the structure of graphs: each rank is predicted to take equally long.

    model: of the times; a new one unless given.
    """

    needs_times = False  # the prior distinguishes deep graphs from flat ones

    def __init__(
        self,
        ranks: int | None = None,
        lag: int = 3,
        model: CostModel | None = None,
        timeout: float = 600.0,
    ) -> None:
        self.model = model or CostModel(1)
        if model is not None and ranks not in (None, len(model.slowness)):
            raise ConfigError(
                f"a balancer of {ranks} ranks with a model of {len(model.slowness)}",
                hint="leave ranks out: the model says how many they are",
            )
        super().__init__(ranks if model is None else len(model.slowness), lag, timeout)

    def fresh(self) -> Self:
        other = super().fresh()
        other.model = CostModel(1)
        return other

    def _begin(self, ranks: int) -> None:
        if len(self.model.slowness) != ranks:
            self.model = CostModel(ranks)

    def _now(self) -> CostModel:
        return copy.copy(self.model)

    def _deal(
        self, graphs: Sequence[Any], known: CostModel
    ) -> tuple[list[list[int]], NDArray[np.float64]]:
        split = split_batch(graphs, known)
        return split.parts, split.features

    def _learn(
        self, dealt: NDArray[np.float64], seconds: Sequence[float], reports: Reports
    ) -> None:
        self.model.update(dealt, seconds)
