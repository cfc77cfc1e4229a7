"""One model of replicas that differ: their mean, and what a checkpoint holds of each."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from cavs.distributed.step.context import Array, StepContext

_PREFIX = "@replica/"  # begins names of all replicas in a checkpoint, and of no parameter
States = Sequence[Sequence[Array]]


class Replicas:
    """The replicas of a training whose strategy lets them differ; nothing happens otherwise.

    saves: True if checkpoints hold every replica besides the mean. evaluated: the rank whose
    replica stands for all; None for the mean. merging: True while the ranks go over to the mean.
    """

    def __init__(self, context: StepContext) -> None:
        self.context = context
        self.saves = self.merging = False
        self.evaluated: int | None = None
        self._kept: dict[str, Array] = {}  # from a checkpoint, until the next step

    @property
    def differ(self) -> bool:
        """True if they may differ."""
        return self.context.is_divergent and self.context.roles.count > 1

    def average(self, states: States = ()) -> list[tuple[Array, Array]]:
        """Set parameters, and optimiser `states`, to their mean over the ranks where these differ.

        Returns the arrays that were changed, and copies of what they held. All ranks call it.
        """
        if not self.differ:
            return []
        c, arrays = self.context.communicator, self._unequal(list(self._arrays(states).values()))
        before = [array.copy() for array in arrays]
        means: list[tuple[Array, Array]] = []
        for dtype in sorted({array.dtype for array in arrays}, key=str):
            alike = [array for array in arrays if array.dtype == dtype]
            joined = np.concatenate([array.reshape(-1) for array in alike])
            if self.evaluated is None:
                c.all_reduce(joined, "mean")
            else:
                c.broadcast(joined, self.evaluated)
            ends = np.cumsum([array.size for array in alike])
            means += zip(alike, np.split(joined, ends[:-1]), strict=True)
        for array, mean in means:
            array[...] = mean.reshape(array.shape)
        self.context.session.invalidate()
        return list(zip(arrays, before, strict=True))

    @contextmanager
    def mean(self, states: States = ()) -> Iterator[None]:
        """Hold the mean of the replicas in the block, as `average` does, but not after it."""
        changed = self.average(states)
        try:
            yield
        finally:
            for array, own in changed:
                array[...] = own
            if changed:
                self.context.session.invalidate()

    def gather(self, states: States) -> dict[str, Array]:
        """Return parameters and optimiser states of all replicas, [ranks, ...], to be saved."""
        if not (self.saves and self.context.is_divergent):
            return {}
        c, arrays = self.context.communicator, self._arrays(states)
        return {
            _PREFIX + name: np.concatenate(c.all_gather(np.ascontiguousarray(array[None])))
            for name, array in arrays.items()
        }

    def keep(self, stored: Mapping[str, Array]) -> dict[str, Array]:
        """Keep the replicas in the arrays of a checkpoint for `restore`; return the others."""
        self._kept |= {
            name.removeprefix(_PREFIX): array
            for name, array in stored.items()
            if name.startswith(_PREFIX)
        }
        return {name: array for name, array in stored.items() if not name.startswith(_PREFIX)}

    def restore(self, states: States) -> None:
        """Go on with this rank's replica of a checkpoint that as many ranks have written."""
        if not (self._kept and self.context.is_divergent):
            return
        c, arrays = self.context.communicator, self._arrays(states)
        forms = {name: (c.size, *array.shape) for name, array in arrays.items()}
        if {name: kept.shape for name, kept in self._kept.items()} == forms:
            for name, array in arrays.items():
                array[...] = self._kept[name][c.rank]
            self.context.session.invalidate()

    def forget(self) -> None:
        """Forget the replicas of a checkpoint."""
        self._kept = {}

    def _arrays(self, states: States) -> dict[str, Array]:
        """Return parameters, and those of `states` that are floats, by name."""
        session = self.context.session
        session.keep_dtype()
        session.download()
        found = {name: p.current() for name, p in session.parameters.items()}
        for name, own in zip(session.parameters, states, strict=False):
            found |= {f"{name}/{i}": a for i, a in enumerate(own) if a.dtype.kind == "f"}
        return found

    def _unequal(self, arrays: Sequence[Array]) -> list[Array]:
        """Return those of `arrays` that are not the same on all ranks: means of others may round.

        All ranks get the same ones.
        """
        c = self.context.communicator
        least = np.array([zlib.crc32(np.ascontiguousarray(a).data) for a in arrays], np.float64)
        most = least.copy()
        c.all_reduce(least, "min")
        c.all_reduce(most, "max")
        return [array for array, a, b in zip(arrays, least, most, strict=True) if a != b]
