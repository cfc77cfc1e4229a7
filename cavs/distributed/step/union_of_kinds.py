"""What any rank needs of a program, so that all compile the same one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cavs.distributed.comm.interfaces import Communicator


class FailedElsewhereError(Exception):
    """Another rank cannot compile for its part of a batch."""


class Union:
    """The union of what the ranks of a group have; `Session.compile_for` asks for two in turn."""

    def __init__(self, group: Communicator) -> None:
        self.group, self.asked = group, 0

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        """Sorted. Raises `FailedElsewhereError` where a rank has given up."""
        self.asked += 1
        shared = self.group.share(list(values))
        if None in shared:
            raise FailedElsewhereError
        return sorted({v for other in shared for v in other})

    def give_up(self) -> None:
        """After an error on this rank: the others may be waiting for its next values."""
        if self.asked == 0 or self.asked % 2:
            self.group.share(None)
