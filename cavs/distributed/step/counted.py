"""Which ranks a step counts, where it does not wait for all of them (Chen et al. 2016).

Ranks tell rank 0 when they have computed. Once no more than `backup` are missing, rank 0 decides:
those that are there are counted, the others abandon what they compute and add nothing. All ranks
go through the same collectives in any case, so that parameters stay equal in all bits, and errors
and deaths are noticed as in any step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from cavs.compiler.pipeline import Compiled
from cavs.distributed.balance.shards import num_row_counts
from cavs.distributed.comm.mailbox import Letter
from cavs.distributed.comm.service import Future, Ranks, Service
from cavs.errors import CommunicationError
from cavs.passes.scale_for_replicas import count_of_loss as divisor_of_loss


class Word(IntEnum):
    """Letters: a rank has computed; rank 0 says which ranks are counted."""

    COMPUTED = 0
    COUNTED = 1


@dataclass(frozen=True)
class Counted:
    """The ranks whose gradients a step counts.

    restriction: the factor that makes sums over their graphs, divided by a count of the whole
    batch, means over their graphs.
    """

    ranks: frozenset[int]
    restriction: float


@dataclass
class _Step:
    """A step, as far as this rank knows it. backup: -1 before it has come here itself."""

    backup: int = -1
    replicas: int = 0
    whole: float = 1.0  # count of the whole batch that the loss divides by
    computed: dict[int, tuple[float, float]] = field(default_factory=dict)  # on rank 0, by rank
    counted: Counted | None = None
    future: Future[Counted] | None = None
    abandon: Callable[[], None] | None = None  # while this rank computes


class CountedRanks(Service):
    """Decides on the ranks that each step counts. All ranks create it together."""

    def __init__(self, ranks: Ranks) -> None:
        self._number = 0
        self._steps: dict[int, _Step] = {}
        super().__init__(ranks)

    def begin(
        self, backup: int, replicas: int, whole: float, abandon: Callable[[], None] | None
    ) -> bool:
        """Begin a step; return False if it does not count this rank, which is too late already.

        backup: number of ranks that the step does not wait for. replicas: number that compute.
        whole: the count of the whole batch that the loss divides by. abandon: ends what this rank
        computes; called on another thread, before `end`.
        """
        with self._lock:
            self._check()
            self._number += 1
            for number in [n for n in self._steps if n < self._number]:
                del self._steps[number]
            step = self._step(self._number)
            step.backup, step.replicas, step.whole = backup, replicas, whole
            step.abandon = abandon
            step.future = Future(self, "ranks that a step counts")
            self._pending.add(step.future)
            if step.counted is not None:
                self._finish(step)
            self._decide(self._number)
            return step.counted is None or self.rank in step.counted.ranks

    def end(self, graphs: int, count: float, *, computed: bool) -> Counted:
        """Return the ranks that this step counts, once that is decided.

        graphs, count: of this rank's part, its graphs and the part of `whole`. computed: False if
        it was abandoned. CommunicationError if too few ranks compute within the timeout.
        """
        with self._lock:
            self._check()
            step = self._step(self._number)
            step.abandon = None
            future = step.future
        assert future is not None
        if computed and not future.done:
            own = np.array([graphs, count], np.float64)
            self._mailbox.post(0, [Word.COMPUTED, self._number], [own])
        return future.wait()

    # ---- letters -------------------------------------------------------------------------------

    def _step(self, number: int) -> _Step:
        return self._steps.setdefault(number, _Step())

    def _read(self, letter: Letter) -> None:
        word, number = letter.words
        with self._lock:
            if number < self._number:  # from a rank that was not counted
                return
            step = self._step(number)
            if word == Word.COMPUTED:
                graphs, count = letter.arrays[0].tolist()
                step.computed[letter.source] = graphs, count
                self._decide(number)
                return
            ranks = frozenset(letter.arrays[0].tolist())
            step.counted = Counted(ranks, float(letter.arrays[1][0]))
            self._finish(step)

    def _decide(self, number: int) -> None:
        """Let rank 0 decide on a step if enough ranks have computed, one of them some graphs."""
        step = self._steps[number]
        missing = step.replicas - len(step.computed)
        there = any(graphs > 0 for graphs, _ in step.computed.values())
        if step.backup < 0 or step.counted or missing > step.backup or (missing and not there):
            return
        ranks = sorted(step.computed)
        restriction = 1.0
        if missing:
            restriction = step.whole / max(sum(count for _, count in step.computed.values()), 1.0)
        step.counted = Counted(frozenset(ranks), restriction)
        arrays = np.array(ranks, np.int64), np.array([restriction])
        for rank in range(self.size):
            if rank != self.rank:
                self._mailbox.post(rank, [Word.COUNTED, number], arrays)
        self._finish(step)

    def _finish(self, step: _Step) -> None:
        assert step.counted is not None
        if step.abandon is not None and self.rank not in step.counted.ranks:
            step.abandon()
        if step.future is not None:
            self._pending.discard(step.future)
            step.future.finish(step.counted)

    # ---- errors --------------------------------------------------------------------------------

    def _peers(self, future: Future[Any]) -> list[int]:
        step = self._steps.get(self._number, _Step())
        missing = [r for r in range(step.replicas) if r not in step.computed]
        return missing if self.rank == 0 else [0]

    def _end(self, future: Future[Any], error: CommunicationError, *, late: bool) -> None:
        self.fail(error)


def count_of_loss(compiled: Compiled) -> int | None:
    """Return the index of the count that the loss divides by, None if it divides by none.

    Counts are those of `ShardedBatch.counts`. CompileError for a loss that is no single mean, see
    `cavs.passes.scale_for_replicas.count_of_loss`.
    """
    found = divisor_of_loss(compiled.traced)
    if found is None:
        return None
    program = compiled.program
    (count, name, structure), structures = found, program.structures.names
    if count == "count_present":
        return num_row_counts(len(structures)) + program.int_features.index(name)
    if name == "graph":
        return 0
    return num_row_counts(structures.index(structure)) + (name != "vertex")
