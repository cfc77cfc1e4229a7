"""Choose which batches run their LSTMs as a whole, by cuDNN, on a device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from cavs.cuda.engine import CudaEngine
from cavs.errors import DeviceError
from cavs.ir import Graph
from cavs.passes.match_recurrences import count_recurrences
from cavs.runtime.interface import BatchLike, Executor
from cavs.runtime.variant import Variant

CUDNN = ("never", "auto", "always")
TRIALS = 3  # timed runs of a class of batches on each kind of kernels, after one to warm up

# Training, with a loss, log2 of the sequences and vertices of the batch, rounded up.
_Class = tuple[bool, bool, int, int]


class Lstms:
    """Chooses for each batch between cuDNN and the engine's own kernels.

    choice: one of CUDNN. With "auto" batches of a class run on both in turns, until each was timed
    ``TRIALS`` times; then the faster one is chosen, by the median. A batch that is not of chains,
    and a model without an LSTM, always run on the engine's own kernels. So does everything where
    ``engine`` lacks cuDNN: with "always" that is a DeviceError.
    """

    def __init__(self, engine: CudaEngine | None, choice: str) -> None:
        self._engine, self._choice = engine, choice
        self._lacks = "" if engine is None or choice == "never" else engine.lacks_cudnn()
        if choice == "always" and self._lacks:
            raise DeviceError(
                f"cudnn is 'always', but {self._lacks}",
                hint="cudnn='auto' uses it where it can be used",
            )
        self._counted: tuple[Graph | None, int] = (None, 0)
        self._seconds: dict[_Class, tuple[list[float], list[float]]] = {}  # own, cuDNN
        self._decided: dict[_Class, bool] = {}
        self._trial: tuple[_Class, bool] | None = None  # for the next run
        self._clocked: tuple[_Class, bool, Executor] | None = None  # the last one

    def _may(self, variant: Variant, batch: BatchLike) -> bool:
        """True if ``batch``, which ``variant`` was traced for, can run by cuDNN."""
        if self._engine is None or self._choice == "never" or self._lacks:
            return False
        if variant.trace is None or not batch.topology.chains:
            return False
        graph = variant.trace.graph
        if self._counted[0] is not graph:
            self._counted = graph, count_recurrences(graph)
        return self._counted[1] > 0

    def take(self, variant: Variant, batch: BatchLike) -> bool:
        """True if the batch runs by cuDNN, as decided or for a trial."""
        self._read()
        found = self.settled(variant, batch)
        if found is None:
            key = _class_of(variant, batch)
            own, library = self._seconds.setdefault(key, ([], []))
            found = len(library) <= len(own)
            self._trial = key, found
        return found

    def settled(self, variant: Variant, batch: BatchLike) -> bool | None:
        """Return the decision for batches like ``batch``; None if there is none yet."""
        if not self._may(variant, batch):
            return False
        if self._choice == "always":
            return True
        return self._decided.get(_class_of(variant, batch))

    def clock(self, executor: Executor) -> None:
        """Time the run that ``take`` has decided about, if it is a trial."""
        trial, self._trial = self._trial, None
        if trial is not None:
            executor.clock()  # type: ignore[union-attr]
            self._clocked = (*trial, executor)

    def give_up(self, error: DeviceError) -> bool:
        """Note that cuDNN refused the model; True if the engine's own kernels run it instead."""
        if self._choice == "always":
            return False
        self._lacks, self._trial = error.what, None
        return True

    def _read(self) -> None:
        """Read the time of the last trial, and decide if it was the last one needed."""
        clocked, self._clocked, self._trial = self._clocked, None, None
        seconds = clocked and clocked[2].clocked()  # type: ignore[union-attr]
        if clocked is None or seconds is None:  # no trial, or it has failed
            return
        key, by_library, _ = clocked
        found = self._seconds[key]
        found[by_library].append(seconds)
        if all(len(s) > TRIALS for s in found):
            own, library = map(_median, found)
            self._decided[key] = library < own

    def report(self) -> dict[str, Any]:
        """Return decisions and times, for Session.report(); empty where there is no choice."""
        if self._engine is None or self._choice == "never":
            return {}
        classes = [
            {
                "training": key[0],
                "sequences": 2 ** key[2],
                "vertices": 2 ** key[3],
                "own_seconds": _median(own) if own[1:] else None,
                "cudnn_seconds": _median(library) if library[1:] else None,
                "cudnn": self._decided.get(key),
            }
            for key, (own, library) in self._seconds.items()
        ]
        return {"cudnn": {"choice": self._choice, "lacks": self._lacks, "classes": classes}}

    def to_json(self) -> list[list[Any]]:
        """Return the decisions, so that a resumed session runs the same kernels."""
        return [[*key, by_library] for key, by_library in self._decided.items()]

    def restore(self, decided: Iterable[Iterable[Any]]) -> None:
        """Restore `to_json`; TypeError or ValueError for anything else."""
        found = {}
        for training, with_loss, sequences, vertices, by_library in decided:
            key = bool(training), bool(with_loss), int(sequences), int(vertices)
            found[key] = bool(by_library)
        self._decided = found


def _class_of(variant: Variant, batch: BatchLike) -> _Class:
    vertices, edges = int(batch.topology.num_vertices), int(batch.topology.num_edges)
    sequences = vertices - edges
    return (
        variant.key.training,
        variant.key.with_loss,
        (sequences - 1).bit_length(),
        (vertices - 1).bit_length(),
    )


def _median(seconds: Sequence[float]) -> float:
    """Return the median of trials but the first, which warms up."""
    from statistics import median  # it imports fractions and decimal

    return median(seconds[1:])
