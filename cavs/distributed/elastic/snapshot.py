"""Snapshots of a training, to which survivors return when an owner of parameters dies.

Only the owner of a parameter has its optimiser states. So every few steps all ranks send each other
theirs and keep a copy in memory, together with the batches since. When an owner dies, the others
restore the copy and repeat these steps. Asynchronous ranks settle before the copy is made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cavs.distributed.elastic.training import RankTraining
from cavs.errors import ConfigError

EVERY = 16  # steps between snapshots, hence the most that are repeated


class Snapshot(NamedTuple):
    """Copy of a training between two steps."""

    steps: int  # steps done
    writes: int  # number of writes to parameters from outside
    arrays: Sequence[NDArray[Any]]  # parameters and their optimiser states
    memory: dict[str, NDArray[Any]]  # residuals of the compressors of all ranks
    updates: int | None  # updates of stale parameters


class Snapshots:
    """The last two snapshots: if a rank dies during the newest one, some ranks do not have it."""

    def __init__(self, training: RankTraining) -> None:
        self.state, self.session = training.state, training.session
        self.kept: list[Snapshot] = []
        self.steps: dict[int, Callable[[], None]] = {}  # since the first of them, by number

    def before(self, step: Callable[[], object]) -> None:
        """Note a `step` that is about to be made; all ranks call it, and may exchange states."""
        state = self.state
        if self._is_outdated:
            self.kept, self.steps = [], {}
        if not self.kept or state.steps >= self.kept[-1].steps + EVERY:
            self.kept = [*self.kept[-1:], self._take()]
            first = self.kept[0].steps
            self.steps = {number: known for number, known in self.steps.items() if number >= first}
        self.steps[state.steps] = self._repeatable(step)

    def repeat(self, reached: int) -> None:
        """Repeat the steps from the restored snapshot up to `reached`, as they were made."""
        restore = self._repeatable(lambda: None)
        try:
            while self.state.steps < reached:
                self.steps[self.state.steps]()
        finally:
            restore()

    def _repeatable(self, step: Callable[[], object]) -> Callable[[], None]:
        """Return `step` with the present settings of the optimiser and of parameters."""
        optimizer, state = self.state.optimizer, self.state.optimizer.state_dict()
        parameters = self.session.session.parameters
        trainable = {name: p.trainable for name, p in parameters.items()}

        def run() -> None:
            optimizer.load_state_dict(state)
            for name, p in parameters.items():
                p.trainable = trainable[name]
            step()

        return run

    @property
    def _is_outdated(self) -> bool:
        return bool(self.kept) and self.kept[-1].writes != self.session.writes

    def _take(self) -> Snapshot:
        session, stale = self.session, self.session.stale.serves
        if stale:
            session.stale.settle()
        session.collect(self.state.states, "snapshot")
        taken = self._copy(session.memory() if session.roles.computes else {})
        if stale:  # no rank may go on while another one reads states
            session.agreement.consensus("snapshot")
        return taken

    def _copy(self, memory: dict[str, NDArray[Any]]) -> Snapshot:
        session, arrays = self.session, [array.copy() for array in self._arrays()]
        return Snapshot(self.state.steps, session.writes, arrays, memory, session.stale.updates)

    def _arrays(self) -> list[NDArray[Any]]:
        pairs = zip(self.state.parameters.values(), self.state.states, strict=True)
        return [array for p, states in pairs for array in (p.current(), *states)]

    def known(self) -> list[int]:
        """Return the steps of the snapshots that this rank has when another one has died.

        A rank without any, or whose parameters were written since, has made no step since then: it
        takes the snapshot here that others may have taken before they went on.
        """
        if not self.kept or self._is_outdated:
            self.kept, self.steps = [self._copy(self.session.kept_memory)], {}
        return [snapshot.steps for snapshot in self.kept]

    def restore(self, common: Collection[int]) -> None:
        """Restore the last snapshot in `common`, those that all ranks have.

        Raises `ConfigError` if there is none.
        """
        self.kept = [snapshot for snapshot in self.kept if snapshot.steps in common]
        if not self.kept:
            raise ConfigError(
                "a rank has died that owned parameters, and their optimiser states are lost",
                hint="resume from the last checkpoint",
            )
        last = self.kept[-1]
        for array, copy in zip(self._arrays(), last.arrays, strict=True):
            np.copyto(array, copy)
        self.session.take_memory(last.memory, last.updates)
        self.state.steps = last.steps
