"""`TrainingRanks`: the ranks of a training, as its policies see them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

from numpy.typing import NDArray

from cavs.config import require_count
from cavs.distributed.adaptation.strategy import strategy_settings
from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.comm.store import Store
from cavs.distributed.comm.topology import check_tree, minimum_spanning_tree
from cavs.distributed.elastic.resize import Resizer
from cavs.distributed.elastic.survivors import Survivors
from cavs.train.ranks import RankGroup
from cavs.train.run_table import Setting

Array = NDArray[Any]
T = TypeVar("T")
_PINGS = 2  # messages to each rank whose shortest latency counts


class TrainingRanks(RankGroup):
    """The present ranks of a training.

    Every call begins with a consensus: an error in a hook of another rank is raised here, and a
    rank that makes another call is named. If a rank dies, the others repeat the call as far as
    `Survivors` can.
    """

    def __init__(self, survivors: Survivors, resizer: Resizer) -> None:
        self._resizer = resizer
        self._survivors, self._session = survivors, survivors.session

    @property
    def rank(self) -> int:
        return self._session.communicator.rank

    @property
    def size(self) -> int:
        return self._session.communicator.size

    def all_reduce(self, array: Array, op: str) -> Array:
        def work(c: Communicator) -> Array:
            result = array.copy()
            c.all_reduce(result, op)
            return result

        return self._together(work)

    def broadcast(self, array: Array, root: int) -> Array:
        def work(c: Communicator) -> Array:
            result = array.copy()
            c.broadcast(result, root)
            return result

        return self._together(work)

    def all_gather(self, array: Array) -> list[Array]:
        return self._together(lambda c: [part.copy() for part in c.all_gather(array)])

    def same(self, data: bytes) -> bool:
        """See `RankGroup`.

        The ranks gather what each has: as one reduction of minima and one of maxima would, this
        gives all the same verdict, and it tells what they differ in.
        """
        every = self._together(lambda c: c.share(data.decode()))
        alike = len(set(every)) == 1
        if not alike and self.rank == 0:
            names = self._session.communicator.names
            texts = [f"rank {r} {text}" for r, text in zip(names, every, strict=True)]
            print(
                f"cavs: ranks ask for different changes, none is made: {', '.join(texts[:8])}",
                file=sys.stderr,
                flush=True,
            )
        return alike

    def settings(self) -> dict[str, Setting]:
        def read() -> list[int] | None:
            tree = self._session.communicator.tree
            return None if tree is None else list(tree)

        def write(tree: list[int] | None) -> None:
            self._session.communicator.tree = None if tree is None else tuple(tree)

        def check(tree: Any) -> None:
            if tree is not None:
                check_tree(tree, self._session.communicator.size)

        session = self._session

        def set_backup(backup: int) -> None:
            session.backup = backup

        def check_backup(backup: Any) -> None:
            require_count("backup", backup, 0)
            session.check_backup(backup)

        return {
            "size": self._resizer.setting(),
            "tree": Setting(read, write, check),
            "backup": Setting(lambda: session.backup, set_backup, check_backup),
            **strategy_settings(self._resizer),
        }

    def latency_tree(self, nbytes: int) -> list[int]:
        """See `RankGroup`. The rates of the ranks have a service thread from then on."""

        def work(c: Communicator) -> list[int]:
            return list(minimum_spanning_tree(c.rates().latency_matrix(_PINGS, nbytes)))

        return self._together(work)

    def keep(self, tag: str, array: Array) -> None:
        self._store().keep(array, tag)

    def request(self, rank: int, tag: str) -> Array:
        found: Array = self._store().request(rank, None, tag)
        return found

    def _store(self) -> Store:
        """Return the store of the present ranks; the first call is collective."""
        return self._session.communicator.store()

    @property
    def most(self) -> int:
        return self._resizer.most

    @property
    def detached(self) -> bool:
        return self._resizer.detached

    def _together(self, work: Callable[[Communicator], T]) -> T:
        def attempt() -> T:
            self._session.agreement.consensus("policy")
            return work(self._session.communicator)

        return self._survivors.run_resilient(attempt)
