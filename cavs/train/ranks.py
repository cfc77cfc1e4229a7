"""`RankGroup`: the ranks of a training, as policies see them."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cavs.config import require
from cavs.errors import ConfigError
from cavs.train.run_table import Setting

Array = NDArray[Any]
#: Names of the reductions of `RankGroup.all_reduce`.
REDUCTIONS = ("sum", "min", "max", "mean")


class RankGroup(Protocol):
    """The ranks of a training. All ranks make the same calls in the same order.

    Every call raises an error that another rank has met since the last one.
    """

    @property
    def rank(self) -> int:
        """Number of this process, in [0, size)."""
        ...

    @property
    def size(self) -> int:
        """Number of ranks."""
        ...

    def all_reduce(self, array: Array, op: str) -> Array:
        """Return the sum, minimum, maximum or mean over the ranks, equal on all of them."""
        ...

    def broadcast(self, array: Array, root: int) -> Array:
        """Return the array of rank `root`."""
        ...

    def all_gather(self, array: Array) -> list[Array]:
        """Return the arrays of all ranks, by rank; first axes may differ."""
        ...

    def same(self, data: bytes) -> bool:
        """Return True on all ranks if they have passed equal bytes, else False on all."""
        ...

    def settings(self) -> dict[str, Setting]:
        """Return the settings of the group that may change.

        They are ``"size"``, ``"tree"``, ``"backup"``, ``"strategy"`` and ``"exchange_budget"``.
        """
        ...

    def latency_tree(self, nbytes: int) -> list[int]:
        """Return the minimum spanning tree of the latencies measured now: the parent of each rank.

        The root is its own parent. nbytes: size of the messages.
        """
        ...

    def keep(self, tag: str, array: Array) -> None:
        """Keep a copy of an array for requests of other ranks; it replaces the one before.

        The first `keep` or `request` of a group is made on all ranks.
        """
        ...

    def request(self, rank: int, tag: str) -> Array:
        """Return the array that `rank` keeps last under `tag`, whatever that rank does meanwhile.

        Waits for the first one. Raises `CommunicationError` after the timeout.
        """
        ...

    @property
    def most(self) -> int:
        """Largest number of ranks that there can be: those that train and those that wait."""
        ...

    @property
    def detached(self) -> bool:
        """True if the group goes on without this rank, which makes no further call."""
        ...


class OneRank(RankGroup):
    """The group of a training on one process."""

    rank = 0
    size = most = 1
    detached = False

    def __init__(self) -> None:
        self._kept: dict[str, Array] = {}
        self._names: dict[str, Any] = {}

    def all_reduce(self, array: Array, op: str) -> Array:
        return np.array(array)

    def broadcast(self, array: Array, root: int) -> Array:
        require(root == 0, "root", root, "0 on one process")
        return np.array(array)

    def all_gather(self, array: Array) -> list[Array]:
        return [np.array(array)]

    def same(self, data: bytes) -> bool:
        return True

    def settings(self) -> dict[str, Setting]:
        return {
            "size": Setting(lambda: 1, lambda size: None, _check_one),
            **{name: self._ignored(name) for name in ("strategy", "exchange_budget")},
        }

    def _ignored(self, name: str) -> Setting:
        """Return a setting of the exchange with other ranks, of which there are none."""
        return Setting(lambda: self._names.get(name), partial(self._names.__setitem__, name), _any)

    def latency_tree(self, nbytes: int) -> list[int]:
        return [0]

    def keep(self, tag: str, array: Array) -> None:
        self._kept[tag] = np.array(array)

    def request(self, rank: int, tag: str) -> Array:
        require(rank == 0, "rank", rank, "0 on one process")
        require(tag in self._kept, "tag", tag, f"one of {list(self._kept)}, which are kept")
        return self._kept[tag].copy()


def _any(value: Any) -> None:
    """Accept a value that changes nothing."""


def _check_one(size: Any) -> None:
    if size != 1:
        raise ConfigError(
            f"resize to {size!r} ranks, but this training is one process",
            hint="start it with cavs launch -n N --spares M",
        )
