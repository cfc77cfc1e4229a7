"""Points where all ranks meet: so that a failure on one of them is an error on all, and no hang."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from cavs.distributed.comm.interfaces import Communicator
from cavs.errors import CommunicationError, ConfigError
from cavs.train.coordination import leaves_state_valid

E = TypeVar("E", bound=BaseException)
PLACES = (
    "start",
    "batch",  # where only a rank comes that has none, while the others begin a step
    "step",
    "exchanges",
    "end of step",
    "evaluation",
    "fit",
    "save",
    "end",
    "settle",
    "snapshot",
)
_UNCHANGED = ("batch", "snapshot", "step", "end of step")  # no rank has updated anything there
_SPARED = ("step", "evaluation")  # where an error may leave what a checkpoint is written from
_LEFT = "its program has ended, without Trainer.close()"
_SHOWN = 8  # differences, or ranks that differ in one, in an error


@dataclass(frozen=True)
class Meeting:
    """What at least one rank brought: a batch that needs compiling, a wish to stop."""

    new: bool
    stop: bool


class Agreement:
    """Meetings of the ranks of one communicator."""

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator
        self.names = communicator.names

    def meet(
        self,
        place: str,
        error: BaseException | None = None,
        *,
        new: bool = False,
        stop: bool = False,
        excuse: str | None = None,
    ) -> Meeting:
        """All ranks come to `place`; raises on all of them if one brings an error.

        The rank that failed raises its own error, the others a `CommunicationError` that quotes it.
        Of both `is_agreed` is true: nobody is left waiting.
        excuse: what ranks that come to another place quote of this one.
        """
        code = PLACES.index(place)
        size = self.communicator.size
        told = np.array([error is not None, new, stop, code, code * code], np.float64)
        self.communicator.all_reduce(told)
        same = told[3] == size * code and told[4] == size * code * code
        if told[0] or not same:
            self._explain(place, error, excuse)
        return Meeting(bool(told[1]), bool(told[2]))

    def tell(self, place: str | None, error: BaseException, patience: float) -> None:
        """Makes known what failed on this rank alone, to ranks that come within `patience` seconds.

        place: where this rank comes for it; None: where the others compare what they train.
        """
        c, timeout = self.communicator, self.communicator.timeout
        c.timeout = min(timeout, patience)
        try:
            # It raises `error` here, as on the other ranks; the caller does that.
            with suppress(type(error), CommunicationError):
                if place is None:
                    self.same({}, error)
                else:
                    self.meet(place, error)
        finally:
            c.timeout = timeout

    def leave(self, begun: bool) -> None:
        """The program of this rank ends, and with it its training, as on all ranks.

        Raises on all of them if others go on. begun: whether the ranks have begun to train.
        """
        if begun:
            self.meet("end", excuse=_LEFT)
            return
        # What is not known to be wanted here is a comparison: see `same`.
        said = [text for _, text in self.communicator.share([None, _LEFT])]
        if any(text != _LEFT for text in said):
            self._quote(said)

    def _explain(self, place: str, error: BaseException | None, excuse: str | None) -> None:
        own = [
            w
            for w in _SPARED
            if error is None or leaves_state_valid(error, evaluating=w == "evaluation")
        ]
        text = None if error is None else describe(error)
        if excuse is not None:  # who has left writes no checkpoint with the others
            own, text = [], text or excuse
        places, texts, every = zip(*self.communicator.share([place, text, own]), strict=True)
        saves = set.intersection(*map(set, every))
        if not set(places) <= set(_UNCHANGED):
            saves.discard("step")
        if error is not None:
            raise agreed(error, saves)
        self._quote(texts, saves)
        stood = ", ".join(f"rank {r} in {p}" for r, p in zip(self.names, places, strict=True))
        raise agreed(
            CommunicationError(
                f"ranks are at different places: {stood}",
                hint="call step, evaluate, fit and save on all ranks, in the same order",
            )
        )

    def _quote(self, said: Sequence[str | None], saves: Collection[str] = ()) -> None:
        """Raises what other ranks say of their errors, if one does."""
        told = zip(self.names, said, strict=True)
        failed = [f"rank {r}: {text}" for r, text in told if text is not None]
        if failed:
            raised = CommunicationError(
                "another rank failed\n  " + "\n  ".join(failed),
                hint="mend what it says; this rank is well",
            )
            raise agreed(raised, saves)

    def same(self, facts: Mapping[str, str] | None, error: BaseException | None = None) -> None:
        """Raises `ConfigError` on every rank unless all have the same facts, by name.

        facts: None of a rank that has nothing to compare. error: what this rank brings instead,
        raised as by `meet`.
        """
        told = None if facts is None else dict(facts)
        said = self.communicator.share([told, None if error is None else describe(error)])
        if error is not None:
            raise agreed(error)
        self._quote([text for _, text in said])
        every = {r: other for r, (other, _) in zip(self.names, said, strict=True) if other}
        differing = []
        for name in dict.fromkeys(name for other in every.values() for name in other):
            ranks: dict[str, list[int]] = {}
            for rank, other in every.items():
                ranks.setdefault(str(other.get(name)), []).append(rank)
            if len(ranks) > 1:
                has = [f"{_ranks(who)} {value}" for value, who in ranks.items()]
                differing.append(f"{name}: {_few(has, ', ')}")
        if differing:
            raised = ConfigError(
                "the ranks do not train the same\n  " + _few(differing, "\n  "),
                hint="start all ranks with the same program, options, data and version of cavs",
            )
            raise agreed(raised)


def _ranks(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"rank {numbers[0]} has"
    return f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]} have"


def _few(texts: Sequence[str], between: str) -> str:
    more = len(texts) - _SHOWN
    return between.join(texts[:_SHOWN]) + (f"{between}and {more} more" if more > 0 else "")


def describe(error: BaseException) -> str:
    """Class and text of an error, as other ranks quote it."""
    return f"{type(error).__name__}: {error}"


def agreed(error: E, saves: Collection[str] = ()) -> E:
    """`error`, now that all ranks know of it; saves: see `may_save`."""
    error.agreed, error.saves = True, frozenset(saves)  # type: ignore[attr-defined]
    return error


def is_agreed(error: BaseException) -> bool:
    """Whether all ranks know of `error`, so that none waits for this one."""
    return bool(getattr(error, "agreed", False))


def may_save(error: BaseException, where: str) -> bool:
    """Whether all ranks may write a checkpoint together after `error`, which they know of.

    where: "step", then none may have updated anything; "stale", in a step whose parameters have
    owners that update at other times; "evaluation".
    """
    return is_agreed(error) and where in error.saves  # type: ignore[attr-defined]
