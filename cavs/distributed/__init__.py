"""Training one model on many ranks: strategies, communicators, and the trainer that uses them."""

import sys
from importlib.abc import MetaPathFinder
from typing import NoReturn

from cavs.distributed.balance.shards import by_counts, contiguous
from cavs.distributed.comm import world
from cavs.distributed.step.steps import StepReport
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


def __getattr__(name: str) -> NoReturn:
    old = f"{__name__}.{name}"
    if name in _RENAMED:
        raise ModuleNotFoundError(f"{old} is now {__name__}.{_RENAMED[name]}", name=old)
    raise AttributeError(f"module {__name__} has no attribute {name}")


class _Renamed(MetaPathFinder):
    """Names the new path of a renamed module where the old one is imported."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """Raise `ModuleNotFoundError` for a renamed module of this package."""
        package, _, name = fullname.rpartition(".")
        if package == __name__ and name in _RENAMED:
            __getattr__(name)


sys.meta_path.append(_Renamed())
