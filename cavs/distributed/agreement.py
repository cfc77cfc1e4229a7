"""Points where all ranks meet: so that a failure on one of them is an error on all, and no hang."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cavs.distributed.communicator.protocol import Communicator
from cavs.errors import CommunicationError, ConfigError

PLACES = (
    "start",
    "step",
    "end of step",
    "evaluation",
    "fit",
    "save",
    "end",
    "settle",
    "snapshot",
)


@dataclass(frozen=True)
class Meeting:
    """What at least one rank brought: a batch that needs compiling, a wish to stop."""

    new: bool
    stop: bool


class Agreement:
    """Meetings of the ranks of one communicator. names: their numbers among all, for errors."""

    def __init__(self, communicator: Communicator, names: Sequence[int] | None = None) -> None:
        self.communicator = communicator
        self.names = range(communicator.size) if names is None else names

    def meet(
        self,
        place: str,
        error: BaseException | None = None,
        *,
        new: bool = False,
        stop: bool = False,
    ) -> Meeting:
        """All ranks come to `place`; raises on all of them if one brings an error.

        The rank that failed raises its own error, the others a `CommunicationError` that quotes it.
        Both have a true attribute ``agreed``: nobody is left waiting.
        """
        code = PLACES.index(place)
        size = self.communicator.size
        told = np.array([error is not None, new, stop, code, code * code], np.float64)
        self.communicator.all_reduce(told)
        same = told[3] == size * code and told[4] == size * code * code
        if told[0] or not same:
            self._explain(place, error)
        return Meeting(bool(told[1]), bool(told[2]))

    def _explain(self, place: str, error: BaseException | None) -> None:
        said = self.communicator.share([place, None if error is None else describe(error)])
        if error is not None:
            error.agreed = True  # type: ignore[attr-defined]
            raise error
        self._quote([text for _, text in said])
        where = ", ".join(f"rank {r} in {p}" for r, (p, _) in zip(self.names, said, strict=True))
        raised = CommunicationError(
            f"ranks are at different places: {where}",
            hint="call step, evaluate, fit and save on all ranks, in the same order",
        )
        raised.agreed = True  # type: ignore[attr-defined]
        raise raised

    def _quote(self, said: Sequence[str | None]) -> None:
        """Raises what other ranks say of their errors, if one does."""
        told = zip(self.names, said, strict=True)
        failed = [f"rank {r}: {text}" for r, text in told if text is not None]
        if failed:
            raised = CommunicationError(
                "another rank failed\n  " + "\n  ".join(failed),
                hint="mend what it says; this rank is well",
            )
            raised.agreed = True  # type: ignore[attr-defined]
            raise raised

    def same(self, facts: dict[str, str], error: BaseException | None = None) -> None:
        """Raises `ConfigError` on every rank unless all have the same facts, by name.

        error: what this rank brings instead, raised as by `meet`.
        """
        said = self.communicator.share([facts, None if error is None else describe(error)])
        if error is not None:
            error.agreed = True  # type: ignore[attr-defined]
            raise error
        every = [other for other, _ in said]
        self._quote([text for _, text in said])
        differing = []
        for name in facts:
            values = [str(other.get(name)) for other in every]
            if len(set(values)) > 1:
                first = next(r for r, v in enumerate(values) if v != values[0])
                differing.append(
                    f"{name}: rank 0 has {values[0]}, rank {first} has {values[first]}"
                )
        if differing:
            raised = ConfigError(
                "the ranks do not train the same\n  " + "\n  ".join(differing),
                hint="start all ranks with the same program, options, data and version of cavs",
            )
            raised.agreed = True  # type: ignore[attr-defined]
            raise raised


def describe(error: BaseException) -> str:
    """Class and text of an error, as other ranks quote it."""
    return f"{type(error).__name__}: {error}"


def is_agreed(error: BaseException) -> bool:
    """Whether all ranks know of `error`, so that none waits for this one."""
    return bool(getattr(error, "agreed", False))
