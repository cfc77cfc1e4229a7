"""The launcher and mpirun that hang, that are killed, or that have ranks which wait for others."""

import json
import os
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from cavs.distributed.launch import launcher
from cavs.distributed.launch.watch import Watch, run_folder
from cavs.errors import ConfigError
from tests.distributed.launch.test_launcher import alive, fake_mpirun  # noqa: F401
from tests.patience import patience


class StubbornMpirun:
    """mpirun, as a process that ends only when it is killed; it notes what it is told."""

    def __init__(self):
        self.told, self.returncode = [], None

    def terminate(self):
        self.told.append("terminate")

    def kill(self):
        self.told.append("kill")

    def poll(self):
        return self.returncode


class Clock:
    """The clock of a launcher and its watch."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(launcher, "time", SimpleNamespace(monotonic=self))

    def __call__(self):
        return self.now


class Running:
    """A launch in the middle: its watch hears what ranks say, and time is that of a clock."""

    def __init__(self, tmp_path, monkeypatch, ranks, **options):
        self.clock, self.said = Clock(monkeypatch), []
        self.watch = Watch(ranks, tmp_path, clock=self.clock)
        self.given = {"elastic": False, "program": True, "again": False, "restore": False} | options
        self.run = launcher._Run(lambda: None, self.watch, say=self.said.append, **self.given)
        self.run.process = self.mpirun = StubbornMpirun()
        for rank in range(ranks):
            self.tell(rank, "started", os.getpid())

    def tell(self, rank, word, *values):
        with open(self.watch.path, "w") as pipe:
            pipe.write(json.dumps([rank, word, *values]) + "\n")
        self.watch.listen(0)

    def look(self, later=0.0):
        self.clock.now += later
        self.run._look()


@pytest.fixture
def running(tmp_path, monkeypatch):
    made = []

    def make(ranks=2, **options):
        made.append(Running(tmp_path, monkeypatch, ranks, **options))
        return made[-1]

    yield make
    for one in made:
        one.watch.close()


@contextmanager
def sleeping(count):
    """Yield processes that end by a signal only."""
    processes = [
        # A shell in the background lets its children ignore the signal.
        subprocess.Popen(
            ["sleep", "300"],
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        )
        for _ in range(count)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_an_mpirun_that_does_not_end_is_killed(running):
    launch = running()
    launch.tell(1, "ended", -9)
    launch.look()
    launch.look(launcher._GRACE + 0.1)
    assert launch.mpirun.told == ["terminate"]
    launch.look(launcher._FORCE - 0.1)
    assert launch.mpirun.told == ["terminate"]
    launch.look(0.2)
    assert launch.mpirun.told == ["terminate", "kill"]


def test_mpirun_is_ended_once_all_restored_ranks_have(running):
    """It may wait for ever for processes that MPI has started later; that is no error."""
    launch = running(elastic=True, restore=True)
    for rank in (0, 1):
        launch.tell(rank, "ended", 0)
    launch.look()
    launch.look(launcher._ABORTING - 0.1)
    assert launch.mpirun.told == []
    launch.look(0.2)
    assert launch.mpirun.told == ["terminate"]
    launch.mpirun.returncode = -signal.SIGTERM
    assert (launch.run._status(), launch.said) == (0, [])


def test_a_rank_that_others_wait_for_at_their_end_is_named_once(running):
    launch = running()
    launch.tell(0, "in", "MPI_Finalize", 5)
    launch.look(4.9)
    assert launch.said == []
    launch.look(0.2)
    launch.look(1.0)
    where = f"rank 1 has not come (process {os.getpid()} runs)"
    assert launch.said == [f"cavs: rank 0 waited 5 s in MPI_Finalize: {where}"]
    assert launch.mpirun.told == []  # it may have work to do


def test_ranks_that_wait_for_one_that_has_not_stopped_are_told_again(running):
    """A rank that puts the signal off may wait for one that has stopped already."""
    launch = running()
    with sleeping(2) as processes:
        for rank, process in enumerate(processes):
            launch.tell(rank, "started", process.pid)
        launch.run._stop(signal.SIGTERM, None)
        launch.run.told = {0, 1}  # both have got the first one
        launch.tell(0, "defers")
        launch.tell(1, "in", "MPI_Finalize", 300)
        launch.look()
        launch.look(launcher._FAREWELL + 0.1)
        assert processes[0].wait(timeout=patience(10)) == -signal.SIGINT
        assert processes[1].poll() is None
    assert launch.mpirun.told == []


def test_a_signal_is_passed_on_to_every_rank_that_runs(running):
    launch = running()
    with sleeping(3) as processes:
        for rank, process in enumerate(processes[:2]):
            launch.tell(rank, "started", process.pid)
        launch.tell(1, "ended", 0)  # by itself; its number may be that of another process by now
        launch.run._stop(signal.SIGHUP, None)
        launch.look()
        assert processes[0].wait(timeout=patience(10)) == -signal.SIGINT
        assert [process.poll() for process in processes[1:]] == [None, None]
    assert launch.run.told == {0, 1} and launch.mpirun.told == []


def test_a_second_signal_ends_all(running):
    launch = running()
    launch.run._stop(signal.SIGINT, None)
    assert launch.mpirun.told == [] and (launch.watch.folder / "stop").exists()
    launch.run._stop(signal.SIGTERM, None)
    launch.run._stop(signal.SIGTERM, None)
    assert launch.mpirun.told == ["terminate"]
    launch.mpirun.returncode = -signal.SIGTERM
    assert launch.run._status() == 128 + signal.SIGINT  # as for the first one


# ---- whole launches -----------------------------------------------------------------------------


class UnreadableError(Exception):
    """An error of the launcher itself."""


def test_no_process_is_left_by_an_error_of_the_launcher(fake_mpirun, monkeypatch, tmp_path):  # noqa: F811
    """Such as one in a message of a rank."""
    noted = tmp_path / "pid"
    fake_mpirun(f"""echo $$ > {noted}; say '[0, "started", 1]'; exec sleep 300""")

    def fails(self, rank, word, values):
        raise UnreadableError

    monkeypatch.setattr(Watch, "_take", fails)
    old = signal.getsignal(signal.SIGTERM)
    with pytest.raises(UnreadableError):
        launcher.launch(2, ["train"], say=lambda text: None)
    assert not alive(int(noted.read_text()))
    assert signal.getsignal(signal.SIGTERM) is old


def test_without_room_for_temporary_files_the_error_says_where_to_find_some(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    with (
        pytest.raises(ConfigError, match="no temporary file for what the ranks have to say") as e,
        run_folder(),
    ):
        pass
    assert "absent" in e.value.what and "set TMPDIR" in e.value.hint
    with pytest.raises(ConfigError, match="no temporary file"):
        Watch(2, tmp_path / "absent")
