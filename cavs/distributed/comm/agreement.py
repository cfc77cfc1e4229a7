"""Consensus of ranks: an error on one of them is raised on all, and no rank is left waiting."""

from __future__ import annotations

import atexit
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.comm.launcher_pipe import is_stopping
from cavs.distributed.comm.mpi.communicator import MPICommunicator
from cavs.errors import CommunicationError, ConfigError
from cavs.train.coordination import leaves_state_valid

E = TypeVar("E", bound=BaseException)
# No rank has updated anything in these phases. Only a rank whose batch failed, while the others
# begin a step, comes to "batch".
_UNCHANGED = ("policy", "batch", "snapshot", "step", "end of step")
PHASES = (*_UNCHANGED, "start", "exchanges", "evaluation", "fit", "save", "load", "end", "settle")
_SPARED = ("step", "evaluation")  # an error there may leave intact what a checkpoint needs
_LEFT = "its program has ended, without Trainer.close()"
_SHOWN = 8  # differences, or ranks that differ in one, in an error


@dataclass
class Consensus:
    """Decisions of a phase: before it those of this rank, after it those of any rank."""

    new: bool = False  # a batch needs compiling
    stop: bool = False  # training is to stop


class Agreement:
    """Rounds of consensus among the ranks of one communicator."""

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator
        self.names = communicator.names

    @contextmanager
    def guard(self, phase: str, known: type[Exception] | tuple[()] = ()) -> Iterator[Consensus]:
        """Run a block on all ranks, then reach `consensus` on `phase`; an error is raised on all.

        known: errors that all ranks have learned of within the block; they are raised at once.
        """
        found, failed = Consensus(), None
        try:
            yield found
        except known:
            raise
        except Exception as error:
            failed = error
        self.consensus(phase, failed, found)

    def consensus(
        self,
        phase: str,
        error: BaseException | None = None,
        found: Consensus | None = None,
        *,
        excuse: str | None = None,
    ) -> Consensus:
        """Reach `phase` on all ranks; raise on all of them if one brings an error.

        The rank that failed raises its own error, the others a `CommunicationError` that quotes it;
        `is_agreed` is true of both. found: decisions of this rank, replaced by those of all ranks.
        excuse: what ranks in another phase quote of this one.
        """
        found = found or Consensus()
        code = PHASES.index(phase)
        size = self.communicator.size
        sums = np.array([error is not None, found.new, found.stop, code, code * code], np.float64)
        self.communicator.all_reduce(sums)
        same = sums[3] == size * code and sums[4] == size * code * code
        if sums[0] or not same:
            self._explain(phase, error, excuse)
        found.new, found.stop = bool(sums[1]), bool(sums[2])
        return found

    def announce(self, phase: str | None, error: BaseException, patience: float) -> None:
        """Let ranks that come within `patience` seconds learn of an error of this rank alone.

        phase: where they come next; None: to the comparison of settings (`same`).
        """
        c, timeout = self.communicator, self.communicator.timeout
        c.timeout = min(timeout, patience)
        try:
            # `error` is raised here as on the other ranks; the caller raises it itself.
            with suppress(type(error), CommunicationError):
                if phase is None:
                    self.same({}, error)
                else:
                    self.consensus(phase, error)
        finally:
            c.timeout = timeout

    def leave(self, begun: bool) -> None:
        """End the training of this rank with its program; raise on all ranks if others go on.

        begun: True if the ranks have begun to train.
        """
        if begun:
            self.consensus("end", excuse=_LEFT)
            return
        # Before training begins, ranks come to a comparison of settings: see `same`.
        texts = [text for _, text in self.communicator.share([None, _LEFT])]
        if any(text != _LEFT for text in texts):
            self._quote(texts)

    def _explain(self, phase: str, error: BaseException | None, excuse: str | None) -> None:
        own = [
            w
            for w in _SPARED
            if error is None
            or leaves_state_valid(error, evaluating=w == "evaluation" or phase == "policy")
        ]
        text = None if error is None else describe(error)
        if excuse is not None:  # a rank that leaves writes no checkpoint with the others
            own, text = [], text or excuse
        phases, texts, every = zip(*self.communicator.share([phase, text, own]), strict=True)
        saves = set.intersection(*map(set, every))
        if not set(phases) <= set(_UNCHANGED):
            saves.discard("step")
        if error is not None:
            raise agreed(error, saves)
        self._quote(texts, saves)
        where = ", ".join(f"rank {r} in {p}" for r, p in zip(self.names, phases, strict=True))
        raise agreed(
            CommunicationError(
                f"ranks are in different phases: {where}",
                hint="call step, evaluate, fit, save and load on all ranks, in the same order",
            )
        )

    def _quote(self, texts: Sequence[str | None], saves: Collection[str] = ()) -> None:
        """Raise the errors of other ranks, by their texts, if there are any."""
        failed = [f"rank {r}: {t}" for r, t in zip(self.names, texts, strict=True) if t is not None]
        if failed:
            raise agreed(failed_elsewhere(failed), saves)

    def same(
        self,
        facts: Mapping[str, str] | None,
        error: BaseException | None = None,
        *,
        found: str = "the ranks do not train the same",
        hint: str = "start all ranks with the same program, options, data and version of cavs",
    ) -> None:
        """Raise `ConfigError` on every rank unless all have the same facts, by name.

        facts: None on a rank that has nothing to compare. error: of this rank, raised as by
        `consensus`. found, hint: text of the error.
        """
        own = None if facts is None else dict(facts)
        shared = self.communicator.share([own, None if error is None else describe(error)])
        if error is not None:
            raise agreed(error)
        self._quote([text for _, text in shared])
        every = {r: other for r, (other, _) in zip(self.names, shared, strict=True) if other}
        differing = []
        for name in dict.fromkeys(name for other in every.values() for name in other):
            ranks: dict[str, list[int]] = {}
            for rank, other in every.items():
                ranks.setdefault(str(other.get(name)), []).append(rank)
            if len(ranks) > 1:
                has = [f"{_ranks(numbers)} {value}" for value, numbers in ranks.items()]
                differing.append(f"{name}: {_few(has, ', ')}")
        if differing:
            raised = ConfigError(f"{found}\n  " + _few(differing, "\n  "), hint=hint)
            raise agreed(raised)


def _ranks(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"rank {numbers[0]} has"
    return f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]} have"


def _few(texts: Sequence[str], between: str) -> str:
    more = len(texts) - _SHOWN
    return between.join(texts[:_SHOWN]) + (f"{between}and {more} more" if more > 0 else "")


def describe(error: BaseException) -> str:
    """Return class and text of an error, as other ranks quote it."""
    return f"{type(error).__name__}: {error}"


def failed_elsewhere(texts: Sequence[str]) -> CommunicationError:
    """Return the error of a rank that is well while others fail with `texts`."""
    return CommunicationError(
        "another rank failed\n  " + "\n  ".join(texts),
        hint="fix the error quoted above; it did not occur on this rank",
    )


def agreed(error: E, saves: Collection[str] = ()) -> E:
    """Mark `error` as known to all ranks; saves: see `may_save`."""
    error.agreed, error.saves = True, frozenset(saves)  # type: ignore[attr-defined]
    return error


def is_agreed(error: BaseException) -> bool:
    """True if all ranks know of `error`, so that none waits for this one."""
    return bool(getattr(error, "agreed", False))


def may_save(error: BaseException, where: str) -> bool:
    """True if all ranks may write a checkpoint together after `error`, which they know of.

    where: "step", if no rank has updated anything; "stale", in a step whose parameters have
    owners that update at other times; "evaluation".
    """
    return is_agreed(error) and where in error.saves  # type: ignore[attr-defined]


# ---- exit hooks ---------------------------------------------------------------------------------
#
# Python calls no hook for ``sys.exit``, and MPI waits for all ranks when a process ends. So a rank
# whose training is not closed reaches a consensus with the others first, as `Trainer.close` does.

# Trainings that are not closed: True if all ranks train, False if they have not begun, None: see
# `mark_aborted`. Their communicators are kept here: a trainer may be gone by then.
_open: dict[Communicator, bool | None] = {}


def attend(c: Communicator, *, begun: bool = False, asynchronous: bool = False) -> None:
    """Register a training of these ranks, until `closed`; threads of one process end together
    anyway.

    begun: True if all ranks train it. asynchronous: servers tell the other ranks of errors.
    """
    if asynchronous:
        closed(c)
    elif isinstance(c, MPICommunicator) and c.size > 1:
        if not _open:
            atexit.unregister(_leave)
            atexit.register(_leave, os.getpid())
        _open[c] = begun


def closed(c: Communicator) -> None:
    """Note that no rank waits for this one in `c` any more."""
    _open.pop(c, None)


def mark_aborted(c: Communicator) -> None:
    """Note that this rank leaves a step in the middle, in which the others wait for it."""
    if c in _open:
        _open[c] = None


def _leave(process: int) -> None:
    """At the end of the program, abort all ranks if others go on training; this rank says why."""
    if os.getpid() != process or is_stopping():  # a child, which is no rank; all ranks end
        return
    for c, begun in reversed(_open.items()):
        try:
            if begun is None:
                c.abort("its program has ended in the middle of a step")
            Agreement(c).leave(bool(begun))
        except CommunicationError as error:
            if is_agreed(error):
                c.abort("its program has ended, without Trainer.close(), while others train")
            # Otherwise the others are gone themselves, or busy for long: this rank must not wait.
