"""Check that the strategy of a training gives monitors the gradients that they read."""

from __future__ import annotations

from collections.abc import Sequence

from cavs.distributed.strategy import Strategy
from cavs.errors import ConfigError
from cavs.train.monitors import Monitor


def check_monitors(monitors: Sequence[Monitor], strategy: Strategy | None) -> None:
    """Raise `ConfigError` if a monitor reads gradients that ranks do not sum."""
    reading = next((m for m in monitors if m.reads_norms or m.wants), None)
    if reading is None or strategy is None:
        return
    local = next((leaf for leaf in strategy.leaves if not leaf.sync.reduces_gradients), None)
    if local is not None:
        raise ConfigError(
            f"monitor {reading.name} compares the gradients of ranks, but they keep those of "
            f"{local.name}: {local.sync.type}",
            hint="use a strategy that reduces gradients, or no monitor of gradients",
        )
    if strategy.has_stale:
        stale = next(leaf.name for leaf in strategy.leaves if leaf.sync.is_stale)
        raise ConfigError(
            f"monitor {reading.name} compares the gradients of ranks, but {stale} is stale: "
            "its owner applies them one by one",
            hint="use a synchronous strategy, or no monitor of gradients",
        )
