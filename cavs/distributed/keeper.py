"""Runs a rank as a child of its own, so that somebody learns how it ends, and tells the launcher.

``python keeper.py COMMAND...`` is what mpirun starts for `cavs launch`. mpirun knows how its
children end, but keeps that to itself where ranks may survive one another. Nothing but the standard
library is imported here: it is started once more for every rank.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys

PIPE = "CAVS_LAUNCH_PIPE"  # the launcher's, where there is one
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_PR_SET_PDEATHSIG = 1


def tell(word: str, *values: object) -> None:
    """Tells the launcher something about this rank; nobody, where there is no launcher."""
    path = os.environ.get(PIPE)
    rank = next((os.environ[name] for name in _RANKS if name in os.environ), None)
    if path is None or rank is None:
        return
    line = json.dumps([int(rank), word, *values]) + "\n"
    with contextlib.suppress(OSError):  # it has ended, and its ranks with it
        pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(pipe, line.encode())  # short enough to be one piece
        finally:
            os.close(pipe)


def die_with_parent(number: int) -> None:
    """Linux sends this process signal `number` when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def keep(command: list[str]) -> int:
    """Runs `command`, passes signals on to it; 0, or for mpirun this process is killed."""
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
    tell("started", child)
    for number in _PASSED_ON:
        signal.signal(number, lambda number, frame: os.kill(child, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    tell("ended", status)
    if status != 0:
        # Of a mere status MPI does not tell the others, and mpirun may end them in mid-word.
        os.kill(own, signal.SIGKILL)
    return status


if __name__ == "__main__":
    sys.exit(keep(sys.argv[1:]))
