"""What stands for the engine on a rank that owns parameters and computes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cavs.distributed.sync.stale_server.owner import optimiser


class Idle:
    """An executor without a program: it knows norms and updates, and in which order others work."""

    def __init__(self, executor: Any, order: Sequence[int]) -> None:
        self.squared_norm, self.apply = executor.squared_norm, executor.apply
        self.order = list(order)

    def gradient_order(self) -> list[int]:
        """That of the ranks that compute."""
        return self.order


def idle_executor(parameters: Mapping[str, Any], order: Sequence[int]) -> Idle:
    """Of all parameters, by name; `order`: of their gradients, elsewhere."""
    return Idle(optimiser([p.current().reshape(-1) for p in parameters.values()]), order)
