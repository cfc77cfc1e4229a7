"""The processes of `cavs launch` between the launcher and mpirun, and between mpirun and a rank.

The launcher starts ``python supervisor.py --contain mpirun...``, so that no process of any rank is
left when mpirun or the launcher has ended. mpirun starts ``python supervisor.py COMMAND...`` for
each rank: it knows how its children end, but does not report it where ranks may survive one
another. Only the standard library and the pipe to the launcher are imported.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
FORCE = 15  # seconds that mpirun has to end all ranks before it is killed


def die_with_parent(number: int) -> None:
    """Let Linux send this process signal `number` when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def contain(command: list[str]) -> int:
    """Run `command` and then kill all processes that it has left; return its status.

    The first signal, which also comes when the launcher has ended, ends the command; a second one
    kills it.
    """
    own = os.getpid()
    _adopt_orphans()
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    child = os.fork()
    if child == 0:
        die_with_parent(signal.SIGTERM)
        if os.getppid() != own:
            os._exit(1)
        _execute(command)
    signals = [signal.SIGTERM]

    def end(number: int, frame: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, signals.pop() if signals else signal.SIGKILL)
        signal.alarm(FORCE)

    for number in (*_PASSED_ON, signal.SIGALRM):
        signal.signal(number, end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    status = _outlive(child)
    signal.alarm(0)
    return status


def _adopt_orphans() -> None:
    """Let descendants whose parents have ended become children of this process, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _outlive(child: int) -> int:
    """Wait for `child`, kill all processes that it has left, and return its status."""
    ended, status = os.wait()
    while ended != child:
        ended, status = os.wait()
    while children := _children():
        for process in children:
            os.kill(process, signal.SIGKILL)
        for _ in children:
            os.wait()  # the children of those that have ended are children of this process now
    return os.waitstatus_to_exitcode(status)


def _children() -> list[int]:
    """Return the children of this process; none without Linux."""
    own, found = os.getpid(), []
    for name in os.listdir("/proc") if sys.platform == "linux" else ():
        if name.isdigit():
            with suppress(OSError):  # it has ended
                text = Path("/proc", name, "stat").read_text(errors="replace")
                if int(text.rpartition(")")[2].split()[1]) == own:
                    found.append(int(name))
    return found


def _execute(command: list[str]) -> NoReturn:
    """Become `command` in a forked child."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"cavs: cannot run {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(127)


def supervise(command: list[str], report: Callable[..., None]) -> int:
    """Run `command`, pass signals on to it, and `report` its start and its end; return its status.

    Processes that it has left are killed, for which mpirun would wait as long as they can write.
    This process kills itself if the command fails: MPI announces to the other ranks the death of a
    process, not its exit status, and mpirun might end them while they write.
    """
    own = os.getpid()
    die_with_parent(signal.SIGKILL)
    _adopt_orphans()
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)  # signals to the group of mpirun's child would come twice
        die_with_parent(signal.SIGKILL)
        if os.getppid() != own:
            os._exit(1)
        _execute(command)
    report("started", child)

    def pass_on(number: int, frame: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, number)

    for number in _PASSED_ON:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    status = _outlive(child)
    report("ended", status)
    if status != 0:
        os.kill(own, signal.SIGKILL)
    return status


if __name__ == "__main__":
    if sys.argv[1] == "--contain":
        code = contain(sys.argv[2:])
        if code < 0:  # by the signal that ended mpirun
            if -code != signal.SIGKILL:
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        sys.exit(code)
    sys.path.append(str(Path(__file__).parents[1] / "comm"))  # as a file, without its package
    pipe, words = importlib.import_module("launcher_pipe"), sys.argv[1:]
    if words[0] == "--number":
        pipe.number_from(int(words[1]))
        del words[:2]
    sys.exit(supervise(words, pipe.report))
