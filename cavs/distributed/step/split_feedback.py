"""`SplitFeedback`: passes the times of steps to a split that learns from them."""

from __future__ import annotations

import sys

from cavs.distributed.step.run import StepReport
from cavs.distributed.step.session import DistributedSession


class SplitFeedback:
    """Feedback to the split of `session`, which may change when ranks die."""

    def __init__(self, session: DistributedSession) -> None:
        self.session = session
        self._printed = 0  # number of warnings that were printed

    def update(self, outcome: StepReport) -> None:
        """Pass the times of a step to the split; rank 0 prints its new warnings."""
        split = self.session.split
        update = getattr(split, "update", None)
        if update is None or not self.session.roles.computes:
            return
        # Asynchronous ranks do not know each other's times.
        reports = (outcome.rank_reports,) if outcome.rank_reports else ()
        update(outcome.rank_seconds or None, *reports)
        warnings = getattr(split, "warnings", ())
        for text in warnings[self._printed :] if self.session.communicator.rank == 0 else ():
            print(f"cavs: {text}", file=sys.stderr, flush=True)
        self._printed = len(warnings)

    def reset(self) -> None:
        """Let the split forget batches that were sharded ahead and will not run."""
        reset = getattr(self.session.split, "reset", None)
        if reset is not None:
            reset()
