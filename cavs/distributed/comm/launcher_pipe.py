"""A rank's side of `cavs launch`: what it reports through the pipe that the launcher reads.

Only the standard library is imported here: the supervisor of every rank loads this file alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PIPE = "CAVS_LAUNCH_PIPE"  # environment variable: the path of the launcher's named pipe
ELASTIC = "CAVS_ELASTIC"  # environment variable: set if the launcher lets ranks survive a death
SPARES = "CAVS_SPARES"  # environment variable: the number of the last processes that wait at first
# Environment variables of processes that MPI may start later: the number of the launch's processes
# and the command by which one more is started, as JSON; and the number of such a process.
RESTORE, NUMBER = "CAVS_RESTORE", "CAVS_NUMBER"
_STOP = "stop"  # file next to the pipe: the launcher was told to stop
INIT, FINALIZE, SPAWN = "MPI_Init", "MPI_Finalize", "MPI_Comm_spawn"
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")


def rank_of_environment() -> str | None:
    """Return the rank that mpirun gave this process or the one that started it; None without.

    Processes that MPI starts later have numbers after those of the first ones.
    """
    return next((os.environ[name] for name in (NUMBER, *_RANKS) if name in os.environ), None)


def number_from(first: int) -> None:
    """Number this process, which MPI starts later, from `first` on."""
    os.environ.pop(NUMBER, None)
    os.environ[NUMBER] = str(first + int(rank_of_environment() or 0))


def report(word: str, *values: object) -> None:
    """Report something about this rank to the launcher; a no-op without a launcher."""
    path, rank = os.environ.get(PIPE), rank_of_environment()
    if path is None or rank is None:
        return
    line = json.dumps([int(rank), word, *values]) + "\n"
    with suppress(OSError):  # the launcher has ended, and its ranks end with it
        pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(pipe, line.encode())  # short enough to be written atomically
        finally:
            os.close(pipe)


@contextmanager
def inside(call: str, timeout: float) -> Iterator[None]:
    """Let the launcher watch `call`, an MPI call that waits for other ranks without a limit.

    timeout: seconds after which the launcher names the ranks that are missing, and ends all.
    """
    report("in", call, timeout)
    try:
        yield
    finally:
        report("out")


def is_watched() -> bool:
    """True in a rank whose launcher reports how ranks end."""
    return PIPE in os.environ


def request_stop(pipe: Path) -> None:
    """Let `is_stopping` be true in the ranks of the launcher that reads `pipe`."""
    pipe.with_name(_STOP).touch()


def is_stopping() -> bool:
    """True in a rank if its launcher was told to stop all ranks."""
    return is_watched() and Path(os.environ[PIPE]).with_name(_STOP).exists()


def ends_all() -> bool:
    """True in a rank whose launcher ends all ranks when one dies."""
    return is_watched() and not os.environ.get(ELASTIC)
