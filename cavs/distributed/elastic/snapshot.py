"""What ranks go back to when one dies that owned what nobody else has.

Owners of parameters alone have the optimiser states of them. So every few steps all ranks bring
each other theirs and keep a copy, in memory, and the batches since; when an owner dies, the others
take the copy and do these steps again. Ranks that run freely settle before the copy is made.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cavs.errors import ConfigError

if TYPE_CHECKING:
    from cavs.distributed.trainer import Trainer

EVERY = 16  # steps: so many are done again at most, and once in so many states are exchanged

# What changes between steps: a schedule that has observed values, and what is trained.
Terms = tuple[dict[str, Any], list[bool]]


@dataclass(frozen=True)
class Snapshot:
    """steps: done before it. writes: how often parameters had been written from outside.

    arrays: parameters and their optimiser states. memory: what compressors held back on all ranks.
    updates: that stale parameters had.
    """

    steps: int
    writes: int
    arrays: Sequence[NDArray[Any]]
    memory: dict[str, NDArray[Any]]
    updates: int | None


class Snapshots:
    """The last two: when a rank dies while the newest is made, some ranks do not have it."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.kept: list[Snapshot] = []
        self.batches: dict[int, tuple[Any, Terms]] = {}  # by the number of the step

    def before(self, batch: Any) -> None:
        """All ranks call it before each step; it may exchange states."""
        trainer = self.trainer
        if self._outdated:
            self.kept, self.batches = [], {}
        if not self.kept or trainer.steps >= self.kept[-1].steps + EVERY:
            self.kept = [*self.kept[-1:], self._made()]
            first = self.kept[0].steps
            self.batches = {step: b for step, b in self.batches.items() if step >= first}
        self.batches[trainer.steps] = batch, self._terms()

    def again(self, reached: int) -> None:
        """Makes the steps from the last one on up to `reached`, as they were made first."""
        trainer, now = self.trainer, self._terms()
        try:
            while trainer.steps < reached:
                batch, then = self.batches[trainer.steps]
                self._take(then)
                trainer.advance_once(batch)
        finally:
            self._take(now)

    def _terms(self) -> Terms:
        parameters = self.trainer.session.session.parameters.values()
        return self.trainer.optimizer.state_dict(), [p.trainable for p in parameters]

    def _take(self, terms: Terms) -> None:
        state, trainable = terms
        self.trainer.optimizer.load_state_dict(state)
        parameters = self.trainer.session.session.parameters.values()
        for p, trains in zip(parameters, trainable, strict=True):
            p.trainable = trains

    @property
    def _outdated(self) -> bool:
        return bool(self.kept) and self.kept[-1].writes != self.trainer.session.writes

    def _made(self) -> Snapshot:
        session = self.trainer.session
        stale = session.stale.serves
        if stale:
            session.stale.settle()
        session.collect(self.trainer.states, "snapshot")
        made = self._copied(session.memory() if session.roles.computes else {})
        if stale:  # nobody goes on while states are being read
            session.agreement.meet("snapshot")
        return made

    def _copied(self, memory: dict[str, NDArray[Any]]) -> Snapshot:
        trainer, session = self.trainer, self.trainer.session
        arrays = [array.copy() for array in self._arrays()]
        return Snapshot(trainer.steps, session.writes, arrays, memory, session.stale.updates)

    def _arrays(self) -> list[NDArray[Any]]:
        trainer = self.trainer
        pairs = zip(trainer.parameters.values(), trainer.states, strict=True)
        return [array for p, states in pairs for array in (p.current(), *states)]

    def known(self) -> list[int]:
        """The steps at which there is one, when a rank is gone.

        A rank that has none, or whose parameters were written since, has made no step since then:
        it makes here what the others may have made before they went on.
        """
        if not self.kept or self._outdated:
            self.kept, self.batches = [self._copied(self.trainer.session.kept_memory)], {}
        return [snapshot.steps for snapshot in self.kept]

    def restore(self, common: Collection[int]) -> None:
        """Goes back to the last of those in `common`, which all ranks have. ConfigError if none."""
        self.kept = [snapshot for snapshot in self.kept if snapshot.steps in common]
        if not self.kept:
            raise ConfigError(
                "a rank is gone, and with it the optimiser states of parameters that it owned",
                hint="resume from the last checkpoint",
            )
        for array, copy in zip(self._arrays(), self.kept[-1].arrays, strict=True):
            np.copyto(array, copy)
        self.trainer.session.take_memory(self.kept[-1].memory, self.kept[-1].updates)
        self.trainer.steps = self.kept[-1].steps
