"""Starts the ranks of a training on this machine: finds mpirun, and leaves nothing behind.

On a cluster, mpirun or srun of the site start ``cavs train`` just as well.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from cavs.errors import ConfigError, DeviceError

STOP_SIGNAL = signal.SIGUSR1  # what mpirun passes on to the ranks; SIGINT it keeps to itself
LAUNCHED = "CAVS_LAUNCHED"
ELASTIC = "CAVS_ELASTIC"  # set where ranks survive one another
_INSTALL = 'pip install "cavs[mpi]"'
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Launcher:
    """The program that starts ranks; open_mpi: whether it takes Open MPI's options."""

    path: str
    open_mpi: bool


def find_mpirun() -> Launcher:
    """The mpirun of this environment (the wheel's), else the one on PATH; DeviceError if none."""
    beside = Path(sysconfig.get_path("scripts")) / "mpirun"
    path = str(beside) if os.access(beside, os.X_OK) else shutil.which("mpirun")
    if path is None:
        raise DeviceError("there is no mpirun", hint=_INSTALL)
    try:
        version = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=60, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise DeviceError(f"{path} --version fails: {error}", hint=_INSTALL) from error
    return Launcher(path, "Open MPI" in version or "OpenRTE" in version)


def command_of(
    launcher: Launcher, ranks: int, arguments: Sequence[str], *, elastic: bool = False
) -> list[str]:
    """The command line that runs ``cavs ARGUMENTS`` on `ranks` ranks.

    Arguments that begin with a ``.py`` file or ``-m`` are a Python program instead.
    """
    if not arguments:
        raise ConfigError("nothing to launch", hint="cavs launch -n 2 train tree-lstm --data DIR")
    command = [launcher.path, "-n", str(ranks)]
    if launcher.open_mpi:
        if os.geteuid() == 0:
            command.append("--allow-run-as-root")
        if ranks > len(os.sched_getaffinity(0)):
            command += ["--map-by", ":OVERSUBSCRIBE"]
        command += ["--bind-to", "none"]  # the engine's threads go where there is room
        if elastic:
            # Its barrier in MPI_Finalize may wait for the dead for ever; Trainer.close meets.
            command += ["--with-ft", "ulfm", "--mca", "async_mpi_finalize", "1"]
    elif elastic:
        raise DeviceError(
            f"{launcher.path} is not Open MPI's; only that survives a lost rank", hint=_INSTALL
        )
    program = arguments[0] == "-m" or arguments[0].endswith(".py")
    run = [] if program else ["-m", "cavs.cli"]
    return [*command, sys.executable, *run, *arguments]


def launch(
    ranks: int,
    arguments: Sequence[str],
    *,
    threads: int = 1,
    elastic: bool = False,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
) -> int:
    """Run ``cavs ARGUMENTS`` on `ranks` ranks and wait; the exit status.

    threads: of each rank's engine, unless CAVS_NUM_THREADS is set. The first Ctrl-C or SIGTERM
    lets the ranks end their step and save; the second ends them. They end with this process, too.
    """
    launcher = find_mpirun()
    command = command_of(launcher, ranks, arguments, elastic=elastic)
    if "--allow-run-as-root" in command:
        say("cavs: running mpirun as root: ranks may do all that root may")
    if ":OVERSUBSCRIBE" in command:
        say(f"cavs: {ranks} ranks share {len(os.sched_getaffinity(0))} cores")
    environment = {"CAVS_NUM_THREADS": str(threads), **os.environ, LAUNCHED: str(ranks)}
    if elastic:
        environment[ELASTIC] = "1"
    # A session of its own: Ctrl-C in the terminal comes here first and alone.
    process = subprocess.Popen(
        command,
        env=environment,
        start_new_session=True,
        preexec_fn=_die_with_parent,  # noqa: PLW1509  (the launcher has one thread)
    )
    asked = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        process.send_signal(signal.SIGTERM if asked else STOP_SIGNAL)
        asked = True

    old = {n: signal.signal(n, stop) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        status = process.wait()
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
        if process.poll() is None:
            process.terminate()
            process.wait()
    return 128 - status if status < 0 else status


def _die_with_parent() -> None:
    """In the child, before mpirun starts: Linux ends it when its parent dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def take_stop_signal() -> None:
    """In a rank: what the launcher passes on acts as Ctrl-C."""
    if os.environ.get(LAUNCHED):
        signal.signal(STOP_SIGNAL, lambda number, frame: signal.raise_signal(signal.SIGINT))
