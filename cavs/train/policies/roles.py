"""A policy that gives ranks roles against stragglers."""

from __future__ import annotations

from cavs.config import require_count
from cavs.train.policy import Policy, TrainingRun


class StragglerRoles(Policy):
    """Lets every step go on without the `backup` ranks that are last.

    A step takes the gradients of the first ranks that have computed theirs, all but `backup`, and
    the mean over their graphs; the graphs of the others are not seen in that step (Chen et al.,
    Revisiting distributed synchronous SGD, 2016; Mai et al., KungFu, OSDI 2020, table 1). With no
    more ranks than `backup`, a step waits for the first.
    """

    def __init__(self, backup: int = 1) -> None:
        require_count("backup", backup)
        self.backup = backup

    def before_step(self, run: TrainingRun) -> None:
        """Set the number again where ranks have come or gone."""
        wanted = min(self.backup, run.size - 1)
        if run.size > 1 and run.table["backup"] != wanted:
            run.adapt("backup", wanted)

    def after_train(self, run: TrainingRun) -> None:
        """Let later steps wait for all ranks."""
        if run.size > 1:
            run.adapt("backup", 0)
