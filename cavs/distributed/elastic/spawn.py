"""Starts new processes in place of dead ones, where ``cavs launch --restore`` asks for it."""

from __future__ import annotations

import json
import os

from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.comm.launcher_pipe import RESTORE
from cavs.distributed.comm.mpi.communicator import MPICommunicator
from cavs.errors import CommunicationError

_FAILURES = 2  # starts in a row after which none is tried again


class Spawner:
    """Starts processes by MPI_Comm_spawn.

    count: number of processes started so far, which are numbered after those of the launch.
    failures: number of the last starts, in a row, after which no process has joined.
    """

    def __init__(self) -> None:
        found = json.loads(os.environ.get(RESTORE) or "[0, []]")
        self._launched: int = found[0]
        self._command: list[str] = found[1]
        self.count = self.failures = 0

    def most(self, c: Communicator) -> int:
        """Return up to how many processes there may be, alive; 0 if none can be started."""
        can = isinstance(c, MPICommunicator) and self.failures < _FAILURES
        return self._launched if can else 0

    def spawn(self, c: Communicator, count: int) -> tuple[Communicator | None, list[str]]:
        """Return the group of `c` and new processes, or None and the reasons; all ranks call it."""
        assert isinstance(c, MPICommunicator)
        made, why = None, ""
        first = str(self._launched + self.count)
        self.count += count
        try:
            made = c.spawn([first if word == "{}" else word for word in self._command], count)
        except CommunicationError as error:
            why = error.what
        return made, [reason for reason in c.share(why) if reason]
