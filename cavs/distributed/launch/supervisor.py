"""The process between mpirun and a rank: it reports to the launcher how the rank ends.

``python supervisor.py COMMAND...`` is what mpirun starts for `cavs launch`. mpirun knows how its
children end, but does not report it where ranks may survive one another. Only the standard library
and the pipe to the launcher are imported: one more process starts for every rank.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_PR_SET_PDEATHSIG = 1


def die_with_parent(number: int) -> None:
    """Let Linux send this process signal `number` when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def supervise(command: list[str], report: Callable[..., None]) -> int:
    """Run `command`, pass signals on to it, and `report` its start and its end; return its status.

    This process kills itself if the command fails: MPI announces to the other ranks the death of a
    process, not its exit status, and mpirun might end them while they write.
    """
    own = os.getpid()
    die_with_parent(signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)  # signals to the group of mpirun's child would come twice
        die_with_parent(signal.SIGKILL)
        if os.getppid() != own:
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        try:
            os.execvp(command[0], command)
        except OSError as error:
            print(f"cavs: cannot run {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
            os._exit(127)
    report("started", child)
    for number in _PASSED_ON:
        signal.signal(number, lambda number, frame: os.kill(child, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    report("ended", status)
    if status != 0:
        os.kill(own, signal.SIGKILL)
    return status


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[1] / "comm"))  # as a file, without its package
    sys.exit(supervise(sys.argv[1:], importlib.import_module("launcher_pipe").report))
