"""State of the ranks as the launcher sees it: which hang, which die, what was saved.

Ranks write to a pipe in the folder of the run, which is removed with it: by a later launcher if
this one was killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from cavs.distributed.comm.launcher_pipe import FINALIZE, INIT, SPAWN
from cavs.errors import ConfigError

STARTING = 30.0  # seconds that ranks have to come to MPI_Init in any case
# Seconds after which a start with all ranks in a call of MPI hangs; EACH: more for each rank, since
# ranks may share a core.
STANDING, EACH = 10.0, 2.0
_FIRST = 2  # calls that a rank leaves before it begins: MPI_Init, and a copy of its communicator
_PREFIX = "cavs-ranks-"  # names of folders begin with it
_NEW = 60.0  # seconds: a younger folder may not be locked yet


@contextmanager
def run_folder() -> Iterator[tuple[Path, int]]:
    """Yield a new folder and a file descriptor that keeps it, in processes that inherit it too.

    Folders of killed launchers are removed first. ConfigError if there can be no folder.
    """
    _sweep()
    with _writing():
        made = tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
    with made as name:
        lock = os.open(name, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with suppress(OSError):  # a file system without locks: then none is taken for left
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield Path(name), lock
        finally:
            os.close(lock)


@contextmanager
def _writing() -> Iterator[None]:
    """Explain an error of a launcher that cannot write to its temporary folder."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"no temporary file for what the ranks have to say: {error}",
            hint="free some space, or set TMPDIR to a folder of a disk of this machine",
        ) from error


def _sweep() -> None:
    """Remove the folders of this user that no launcher keeps."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another launcher may be at it
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                found = os.fstat(lock)
                if found.st_uid == os.geteuid() and time.time() - found.st_mtime >= _NEW:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


@dataclass
class Wait:
    """A rank in a call of MPI that it cannot leave; since: on the clock of its `Watch`."""

    call: str
    timeout: float
    since: float


@dataclass
class Watch:
    """Watches `ranks` ranks, which write to a named pipe in `folder`. clock: returns seconds.

    ConfigError if that takes no pipe.
    """

    ranks: int
    folder: Path
    clock: Callable[[], float] = time.monotonic
    saves: str = "--save-every STEPS"  # the option that writes checkpoints within epochs
    pids: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)  # exit status, or -signal; in their order
    waits: dict[int, Wait] = field(default_factory=dict)
    parted: set[int] = field(default_factory=set)  # have done what can be done without the dead
    failed: set[int] = field(default_factory=set)  # have said themselves why they end all
    deferring: set[int] = field(default_factory=set)  # have put off a signal to stop
    left: Counter[int] = field(default_factory=Counter)  # calls of MPI that each rank came out of
    missing: set[int] = field(default_factory=set)  # ended while others waited in MPI_Init for them
    saved: tuple[str, int] | None = None  # the last checkpoint, and its step

    def __post_init__(self) -> None:
        self.path = self.folder / "ranks"
        with _writing():
            os.mkfifo(self.path, 0o600)
        # To write, too: else it would be at its end whenever no rank has it open.
        self._pipe = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)
        self._rest = b""
        self._said_running = False
        self._unheard = set[int]()
        self._begun = self.clock()

    def close(self) -> None:
        """Close the pipe, after which no rank reports."""
        os.close(self._pipe)

    def listen(self, seconds: float) -> None:
        """Take in the reports of ranks; wait for one up to `seconds`."""
        if select.select([self._pipe], [], [], seconds)[0]:
            *lines, self._rest = (self._rest + os.read(self._pipe, 1 << 16)).split(b"\n")
            for line in lines:
                rank, word, *values = json.loads(line)
                self._take(rank, word, values)

    def _take(self, rank: int, word: str, values: Sequence[object]) -> None:
        match word, values:
            case "started", [int(pid)]:
                self.pids[rank] = pid
            case "in", [str(call), float(timeout) | int(timeout)]:
                least = STARTING if call == INIT else 0.0
                self.waits[rank] = Wait(call, max(timeout, least), self.clock())
                self._note_missing()
            case "out", []:
                self.waits.pop(rank, None)
                self.left[rank] += 1
            case "saved", [str(path), int(step)]:
                self.saved = path, step
            case "defers", []:
                self.deferring.add(rank)
            case "stops", []:
                self.deferring.discard(rank)
            case "parted", []:
                self.parted.add(rank)
            case "failed", [] if self.death is None:
                self.failed.add(rank)
            case "ended", [int(status)]:
                self.ends[rank] = status
                self.deferring.discard(rank)
                self.waits.pop(rank, None)
                self._note_missing()

    def _note_missing(self) -> None:
        if self.starting:  # whatever their status: MPI_Init needs all ranks
            self.missing |= {r for r in self.ends if r not in self.left}

    def miss(self) -> None:
        """Note the ranks whose processes and supervisors are gone; to be called now and then.

        Twice: a supervisor that lives has reported the end by the second time.
        """
        gone = {r for r, pid in self.pids.items() if r not in self.ends and not _exists(pid)}
        for rank in sorted(gone & self._unheard):
            self._take(rank, "ended", [-signal.SIGKILL])
        self._unheard = gone

    # ---- hangs ---------------------------------------------------------------------------------

    def stuck(self) -> str | None:
        """Return why no rank begins, though none is missing; None if ranks begin.

        The start of Open MPI and of PMIx is known to hang now and then.
        """
        now = self.clock()
        if self.ends or any(calls >= _FIRST for calls in self.left.values()):
            return None
        if not self.pids:
            return "no rank has started" if now - self._begun > STARTING else None
        calls = {wait.call for wait in self.waits.values()}
        if len(self.waits) < self.ranks or len(calls) > 1 or FINALIZE in calls:
            return None
        seconds = now - max(wait.since for wait in self.waits.values())
        hangs = seconds > STANDING + EACH * self.ranks
        return f"all ranks hang in {calls.pop()}" if hangs else None

    def late(self) -> str | None:
        """Return which ranks others wait for inside MPI for too long; None if it can go on.

        A rank in MPI_Finalize comes to no other call, so that none waits for it for longer; nor
        does MPI_Comm_spawn return without a process that has ended before it came to MPI.
        """
        waiting = sorted(r for r, wait in self.waits.items() if wait.call == SPAWN)
        never = [r for r in self.ends if r >= self.ranks and r not in self.left]
        if waiting and never:
            return f"{_named(waiting)} started rank {never[0]}, which {_ended(self.ends[never[0]])}"
        if FINALIZE in self._over():
            limit = min(w.timeout for w in self.waits.values() if w.call == FINALIZE)
            for wait in self.waits.values():
                wait.timeout = min(wait.timeout, limit)
        return next((self._missing(call) for call in self._over() if call != FINALIZE), None)

    def still_running(self) -> str | None:
        """Return, once, which ranks others wait for at their end for too long."""
        if self._said_running or FINALIZE not in self._over():
            return None
        self._said_running = True
        return self._missing(FINALIZE)

    def _over(self) -> list[str]:
        """Return the calls in which ranks wait for longer than they allow."""
        now = self.clock()
        return list(dict.fromkeys(w.call for w in self.waits.values() if now - w.since > w.timeout))

    def _missing(self, call: str) -> str:
        here = {r: w.timeout for r, w in self.waits.items() if w.call == call}
        others = [r for r in range(self.ranks) if r not in here]
        whom = "; ".join(f"rank {r} {self._state(r)}" for r in others) or "and no rank is missing"
        return f"{_named(sorted(here))} waited {max(here.values()):g} s in {call}: {whom}"

    def _state(self, rank: int) -> str:
        if rank in self.ends:
            return f"{_ended(self.ends[rank])} before it came there"
        if rank in self.waits:
            return f"is in {self.waits[rank].call}"
        if rank not in self.pids:
            return "has not started"
        state = "is stopped" if _letter(self.pids[rank]) in ("T", "t") else "runs"
        return f"has not come (process {self.pids[rank]} {state})"

    # ---- deaths --------------------------------------------------------------------------------

    @property
    def death(self) -> tuple[int, int] | None:
        """The first rank that did not end well, and its status, if it has not said why itself.

        One that others need to begin has not, even with status 0.
        """
        bad = [(r, status) for r, status in self.ends.items() if status != 0 or r in self.missing]
        return bad[0] if bad and not self.failed else None

    @property
    def aborted(self) -> bool:
        """True if a rank that has said why it ends all has ended itself."""
        return any(self.ends.get(rank, 0) != 0 for rank in self.failed)

    @property
    def starting(self) -> bool:
        """True if ranks wait in MPI_Init, which needs all of them: none survives another there."""
        return any(wait.call == INIT for wait in self.waits.values())

    @property
    def begun(self) -> bool:
        """True if all ranks have started MPI."""
        return all(self.left[rank] >= _FIRST for rank in range(self.ranks))

    @property
    def over(self) -> bool:
        """True if all ranks that have started have ended."""
        return len(self.pids) >= self.ranks and self.pids.keys() <= self.ends.keys()

    @property
    def finishing(self) -> bool:
        """True if some rank has ended, or waits for the others to end."""
        return bool(self.ends) or any(wait.call == FINALIZE for wait in self.waits.values())

    @property
    def alone(self) -> bool:
        """True if all survivors have done what can be done without the dead."""
        idle = {r for r, wait in self.waits.items() if wait.call in (INIT, FINALIZE)}
        return self.parted | idle | set(self.ends) >= {*range(self.ranks), *self.pids}

    def told(self, *, stopped: bool, elastic: bool = False) -> str | None:
        """Return the message about the first death, once all have ended; None if ranks said it.

        stopped: whether the others had to be ended. elastic: they were to go on, and could not.
        """
        if self.death is None:
            return None
        rank, status = self.death
        if status > 0 and not stopped and not self.parted:  # all ended so, with an error of cavs
            return None
        where = f"there is no checkpoint yet; {self.saves} writes them within epochs"
        if self.saved is not None:
            where = f"the checkpoint is {self.saved[0]}, of step {self.saved[1]}"
        early = " before it came to MPI_Init" * (rank in self.missing)
        said = f"rank {rank} of {self.ranks} {_ended(status)}{early}, and the others stopped"
        said = f"{said}." if early else f"{said}; {where}."
        left = self.ranks - 1
        if elastic or left == 0 or self.left[rank] < _FIRST:
            return said
        return f"{said} With --elastic {left} rank{'s' * (left != 1)} would have gone on."


def _ended(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    known = {number.value: f" ({number.name})" for number in signal.Signals}  # real-time ones lack
    return f"was killed by signal {-status}{known.get(-status, '')}"


def _named(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def _exists(pid: int) -> bool:
    """True if a process runs; one that has ended may wait for long to be reaped."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return _letter(pid) not in ("Z", "X")


def _letter(pid: int) -> str:
    """Letter of the state of a process; empty if it has ended, or without Linux."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
