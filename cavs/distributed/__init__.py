"""Training one model on many ranks: strategies, communicators, and the trainer that uses them."""

import sys
from typing import TYPE_CHECKING, Any

from cavs.exports import on_first_use

if TYPE_CHECKING:
    from cavs.distributed.balance.shards import by_counts, contiguous
    from cavs.distributed.comm import world
    from cavs.distributed.step.report import StepReport
    from cavs.distributed.strategy import Strategy
    from cavs.distributed.trainer import Trainer

__all__ = ["StepReport", "Strategy", "Trainer", "by_counts", "contiguous", "world"]

_RENAMED = {
    "builders": "planning.builders",
    "communicator": "comm",
    "compressors": "compression",
    "cost": "planning.cost",
    "resources": "cluster.resources",
    "synchronisers": "sync",
}
_export = on_first_use(
    globals(),
    {
        **dict.fromkeys(("by_counts", "contiguous"), "balance.shards"),
        "world": "comm",
        "StepReport": "step.report",
        "Strategy": "strategy",
        "Trainer": "trainer",
    },
)


def __getattr__(name: str) -> Any:
    old = f"{__name__}.{name}"
    if name in _RENAMED:
        raise ModuleNotFoundError(f"{old} is now {__name__}.{_RENAMED[name]}", name=old)
    return _export(name)


class _Renamed:
    """Names the new path of a renamed module where the old one is imported."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """Raise `ModuleNotFoundError` for a renamed module of this package."""
        package, _, name = fullname.rpartition(".")
        if package == __name__ and name in _RENAMED:
            __getattr__(name)


sys.meta_path.append(_Renamed())
