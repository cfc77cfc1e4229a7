"""Training one model on many ranks: strategies, communicators, and the trainer that uses them."""

import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NoReturn

from cavs.distributed.balance.shards import by_counts, contiguous
from cavs.distributed.comm import world
from cavs.distributed.step.run import StepReport
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


def _renamed(name: str) -> ImportError:
    new = f"{__name__}.{_RENAMED[name]}"
    return ModuleNotFoundError(f"{__name__}.{name} is now {new}", name=f"{__name__}.{name}")


class _Renamed(importlib.abc.MetaPathFinder):
    """Name the new path of a renamed module where the old one is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise `ModuleNotFoundError` for a renamed module of this package."""
        package, _, name = fullname.rpartition(".")
        if package == __name__ and name in _RENAMED:
            raise _renamed(name)
        return None


def __getattr__(name: str) -> NoReturn:
    if name in _RENAMED:
        raise _renamed(name)
    raise AttributeError(f"module {__name__} has no attribute {name}")


sys.meta_path.append(_Renamed())
