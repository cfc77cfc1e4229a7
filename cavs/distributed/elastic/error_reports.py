"""`ErrorReports`: an error on one rank is raised on all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cavs.distributed.comm.agreement import is_agreed
from cavs.distributed.elastic.training import RankTraining
from cavs.errors import CommunicationError

_PATIENCE = 30.0  # seconds that a failing rank waits for the others to hear of its error
_SHORT_PATIENCE = 3.0  # the same if it has also sent them a message


class ErrorReports:
    """Reports errors of this rank alone to the other ranks."""

    def __init__(self, training: RankTraining) -> None:
        self.training = training

    @contextmanager
    def guard(self, phase: str) -> Iterator[None]:
        """Report an error in the block to the other ranks, which are in `phase`."""
        try:
            yield
        except BaseException as error:
            stopped = isinstance(error, KeyboardInterrupt) and self.training.session.stopping
            if not (stopped or isinstance(error, CommunicationError)):
                self.report(phase, error)
            raise

    def report(self, phase: str, error: BaseException) -> None:
        """Report `error` to the other ranks, which are in `phase`; once, and if they lack it."""
        if is_agreed(error) or getattr(error, "reported", False):
            return
        error.reported = True  # type: ignore[attr-defined]  # even if no rank listens
        session, patience = self.training.session, _PATIENCE
        if session.asynchronous and session.servers is not None:
            session.servers.fail(error)  # ranks may be in any step, where none awaits a consensus
            if not session.servers.settled:
                return
            patience = _SHORT_PATIENCE
        # Ranks that have not begun are about to compare what they train.
        begun = self.training.begun or phase == "evaluation"
        session.agreement.announce(phase if begun else None, error, patience)
