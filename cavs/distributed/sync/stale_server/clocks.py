"""Clocks of the workers: who may begin which step.

A worker's clock is the number of steps whose gradients its server has applied. Under staleness s
(stale synchronous parallel, Ho et al. 2013; Zhang 2020, section 2.4.1) a worker may begin step c,
counted from 0, once every other one has finished step c - s - 1. s = 0 is bulk-synchronous; without
a bound training is asynchronous.
"""

from __future__ import annotations

from collections.abc import Iterable


class Clocks:
    """Clocks of one group of parameters. staleness: None sets no limit."""

    def __init__(self, workers: Iterable[int], staleness: int | None) -> None:
        self.staleness = staleness
        self.of = dict.fromkeys(workers, 0)
        self.away: set[int] = set()  # have settled; no rank waits for them

    def finish(self, worker: int) -> None:
        """One more step of `worker` is applied."""
        self.of[worker] += 1

    def may_begin(self, step: int) -> bool:
        """Return True if a worker may begin `step`."""
        if self.staleness is None:
            return True
        return all(
            clock >= step - self.staleness for w, clock in self.of.items() if w not in self.away
        )

    def leave(self, worker: int) -> None:
        """`worker` makes no more steps until all have come to the same place."""
        self.away.add(worker)

    @property
    def all_away(self) -> bool:
        """True if every worker has left."""
        return len(self.away) == len(self.of)

    def synchronise(self) -> int:
        """Let all go on from the clock of the furthest, after all have left."""
        furthest = max(self.of.values())
        self.of = dict.fromkeys(self.of, furthest)
        self.away.clear()
        return furthest
