"""The launcher's reaction to messages of its ranks, by a clock of the test."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cavs.distributed.comm import launcher_pipe
from cavs.distributed.launch import launcher, supervisor, watch
from cavs.distributed.launch.watch import Watch


class Told:
    """A watch, and ranks that send it messages."""

    def __init__(self, tmp_path, ranks):
        self.now = 0.0
        self.watch = Watch(ranks, tmp_path, clock=lambda: self.now)

    def __call__(self, rank, word, *values):
        with open(self.watch.path, "w") as pipe:
            pipe.write(json.dumps([rank, word, *values]) + "\n")
        self.watch.listen(0)


@pytest.fixture
def tell(tmp_path):
    told = Told(tmp_path, 3)
    yield told
    told.watch.close()


def test_a_rank_that_keeps_others_waiting_in_mpi_is_named(tell, monkeypatch):
    monkeypatch.setattr(watch, "STARTING", 6.0)  # whatever timeout a rank asks for
    tell(0, "in", "MPI_Init", 5)
    tell(1, "started", os.getpid())
    tell(0, "out")
    tell(2, "in", "MPI_Init", 7)
    tell.now = 7.0
    assert tell.watch.late() is None
    tell.now = 7.1
    assert tell.watch.late() == (
        "rank 2 waited 7 s in MPI_Init: rank 0 has not started; "
        f"rank 1 has not come (process {os.getpid()} runs)"
    )
    tell(0, "in", "MPI_Comm_dup", 5)
    tell(1, "ended", 3)
    assert tell.watch.late() == (
        "rank 2 waited 7 s in MPI_Init: rank 0 is in MPI_Comm_dup; "
        "rank 1 ended with status 3 before it came there"
    )
    tell(2, "out")
    assert tell.watch.late() is None


def test_a_process_that_never_comes_to_mpi_is_named_to_those_that_started_it(tell):
    tell(0, "in", "MPI_Comm_spawn", 300)
    tell(3, "started", os.getpid())
    tell(1, "ended", -9)  # the one that it replaces
    assert tell.watch.late() is None
    tell(3, "ended", 1)
    assert tell.watch.late() == "rank 0 started rank 3, which ended with status 1"
    tell(0, "out")
    assert tell.watch.late() is None


def test_a_start_with_all_ranks_inside_hangs(tell):
    tell.now = 30.0
    assert tell.watch.stuck() is None
    tell.now = 30.1
    assert tell.watch.stuck() == "no rank has started"
    for rank in range(3):
        tell(rank, "started", os.getpid())
    tell(0, "in", "MPI_Init", 5)
    tell(1, "in", "MPI_Init", 5)
    tell.now = 90.0
    assert tell.watch.stuck() is None  # rank 2 may be loading its data
    tell(2, "in", "MPI_Init", 5)
    tell.now = 106.0
    assert tell.watch.stuck() is None
    tell.now = 106.1
    assert tell.watch.stuck() == "all ranks hang in MPI_Init"
    for rank in range(3):
        tell(rank, "out")
        tell(rank, "in", "MPI_Comm_dup", 5)
    tell.now = 123.0
    assert tell.watch.stuck() == "all ranks hang in MPI_Comm_dup"
    tell(1, "out")
    assert tell.watch.stuck() is None  # it has begun
    tell(1, "in", "MPI_Comm_dup", 5)
    tell.now = 200.0
    assert tell.watch.stuck() is None


@pytest.mark.parametrize("word", ["ended", "in"])
def test_ended_ranks_do_not_hang(tell, word):
    for rank in range(3):
        tell(rank, "started", os.getpid())
        tell(rank, "in", "MPI_Init", 5)
    if word == "ended":
        tell(1, "ended", 3)
    for rank in range(3):
        tell(rank, "out")
        tell(rank, "in", "MPI_Finalize", 5)
    tell.now = 100.0
    assert tell.watch.stuck() is None


def test_a_long_wait_for_the_end_is_reported_once(tell):
    tell(0, "in", "MPI_Finalize", 2)
    tell(1, "in", "MPI_Finalize", 2)
    tell.now = 2.5
    assert tell.watch.late() is None
    assert tell.watch.still_running() == (
        "ranks 0, 1 waited 2 s in MPI_Finalize: rank 2 has not started"
    )
    assert tell.watch.still_running() is None


def test_a_rank_that_waits_for_one_at_its_end_is_late(tell):
    """The call of rank 0 needs rank 1, whatever timeout it has itself."""
    tell(1, "in", "MPI_Finalize", 4)
    tell.now = 1.0
    tell(0, "in", "MPI_Comm_dup", 300)
    tell.now = 4.5
    assert tell.watch.late() is None
    tell.now = 5.5
    late = "rank 0 waited 4 s in MPI_Comm_dup: rank 1 is in MPI_Finalize"
    assert tell.watch.late() == late + "; rank 2 has not started"


def test_the_first_death_is_reported_with_the_checkpoint(tell):
    for _ in ("MPI_Init", "MPI_Comm_dup"):
        tell(2, "out")
    tell(0, "saved", "a.safetensors", 12)
    tell(1, "ended", 0)
    assert tell.watch.death is None
    tell(2, "ended", -9)
    tell(0, "failed")  # it is about that death
    tell(0, "ended", -15)
    assert tell.watch.death == (2, -9)
    assert tell.watch.told(stopped=False) == (
        "rank 2 of 3 was killed by signal 9 (SIGKILL), and the others stopped; "
        "the checkpoint is a.safetensors, of step 12. With --elastic 2 ranks would have gone on."
    )
    assert tell.watch.told(stopped=False, elastic=True).endswith("of step 12.")


def test_no_rank_continues_without_one_that_never_began(tell):
    tell(1, "ended", 1)
    assert not tell.watch.starting  # the others load their data
    tell(0, "in", "MPI_Init", 300)
    assert tell.watch.starting
    assert "--elastic" not in tell.watch.told(stopped=True)
    tell(0, "out")
    tell(0, "in", "MPIX_Comm_shrink", 300)
    assert not tell.watch.starting


def test_a_rank_lost_with_its_supervisor_is_noticed(tell):
    gone = subprocess.Popen(["true"])
    gone.wait()
    tell(0, "started", os.getpid())
    tell(1, "started", gone.pid)
    tell(2, "started", gone.pid)
    tell.watch.miss()
    assert tell.watch.ends == {}  # the supervisor may be about to report
    tell(2, "ended", 0)
    tell.watch.miss()
    assert tell.watch.ends == {2: 0, 1: -9}


def test_ranks_that_report_their_own_error_are_not_repeated(tell):
    tell(0, "ended", 1)
    assert tell.watch.death == (0, 1) and tell.watch.told(stopped=False) is None
    assert "rank 0 of 3 ended with status 1, and the others stopped; there is no checkpoint" in (
        tell.watch.told(stopped=True)
    )


@pytest.mark.parametrize("first", ["in", "ended"])
def test_an_end_before_others_begin_is_a_failure(tell, first):
    """In any order of the reports: MPI_Init needs all ranks."""
    words = {"in": (0, "in", "MPI_Init", 300), "ended": (1, "ended", 0)}
    for word in sorted(words, key=lambda word: word != first):
        assert tell.watch.death is None
        tell(*words[word])
    assert tell.watch.death == (1, 0) and not tell.watch.alone
    tell(2, "in", "MPI_Init", 300)
    assert tell.watch.alone
    for rank in (0, 2):
        tell(rank, "ended", -15)
    text = "rank 1 of 3 ended with status 0 before it came to MPI_Init, and the others stopped."
    assert tell.watch.told(stopped=True) == text


def test_an_end_after_mpi_init_is_not_missing(tell):
    tell(1, "in", "MPI_Init", 300)
    tell(1, "out")
    tell(1, "ended", 0)
    tell(0, "in", "MPI_Init", 300)  # about to leave it
    assert tell.watch.death is None


def test_the_writer_of_checkpoints_is_named(tell):
    tell(1, "ended", -9)
    assert "no checkpoint yet; --save-every STEPS writes them" in tell.watch.told(stopped=True)
    tell.watch.saves = "checkpoint_every of Trainer.fit"
    words = "no checkpoint yet; checkpoint_every of Trainer.fit writes them within epochs."
    assert words in tell.watch.told(stopped=True)


def test_a_rank_that_ends_all_has_reported_why(tell):
    tell(1, "failed")
    tell(1, "ended", -9)
    assert tell.watch.death is None and tell.watch.told(stopped=True) is None


def test_ranks_that_cannot_continue_are_not_waited_for(tell):
    tell(1, "ended", -11)
    tell(0, "parted")
    assert not tell.watch.alone
    tell(2, "in", "MPI_Init", 300)
    assert tell.watch.alone


def test_a_rank_reports_when_it_is_inside_mpi(tell, monkeypatch):
    monkeypatch.setenv(launcher_pipe.PIPE, str(tell.watch.path))
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "2")
    with launcher_pipe.inside("MPI_Comm_split", 4.5):
        tell.watch.listen(1)
        assert tell.watch.waits[2].call == "MPI_Comm_split"
    tell.watch.listen(1)
    assert tell.watch.waits == {}
    tell.watch.path.unlink()
    launcher_pipe.report("out")  # without a launcher, messages are dropped


@pytest.mark.parametrize(
    ("code", "status"),
    [("pass", 0), ("import sys; sys.exit(5)", 5), ("import os; os.kill(os.getpid(), 15)", -15)],
)
def test_a_supervisor_reports_the_end_of_its_rank(tell, code, status):
    """mpirun informs the other ranks of a death only."""
    environment = {
        **os.environ,
        launcher_pipe.PIPE: str(tell.watch.path),
        "OMPI_COMM_WORLD_RANK": "1",
    }
    command = [sys.executable, "-I", "-S", supervisor.__file__, sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, check=False, timeout=60)
    assert done.returncode == (-9 if status else 0)
    tell.watch.listen(1)
    assert tell.watch.ends == {1: status}
    assert tell.watch.pids.keys() == {1}


def test_a_supervisor_without_a_program_reports_it(tell):
    command = [sys.executable, "-I", "-S", supervisor.__file__, "/nowhere/to/be/found"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == -9
    assert "cavs: cannot run /nowhere/to/be/found: No such file" in done.stderr


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no Linux")
def test_a_zombie_counts_as_gone(tell):
    """The first process of a container may adopt orphans and not reap them."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
    tell(1, "started", child)
    tell.watch.miss()
    tell.watch.miss()
    os.waitpid(child, 0)
    assert tell.watch.ends == {1: -9}


class Mpirun:
    """A process that is told to end."""

    ended = 0

    def terminate(self):
        self.ended += 1


def stopping(tell, ranks=2):
    """Return a run that was told to stop, the ranks of which have started."""
    for rank in range(ranks):
        tell(rank, "started", os.getpid())
    options = {"elastic": False, "program": True, "again": False, "restore": False}
    run = launcher._Run(lambda: None, tell.watch, say=lambda text: None, **options)
    run.process, run.asked, run.told = Mpirun(), signal.SIGHUP, set(range(ranks))
    return run


def test_ranks_that_have_stopped_by_themselves_are_no_error_of_a_slow_mpirun(tell):
    run = stopping(tell, 3)
    run._pass_on(0.0)
    for rank in range(3):
        tell(rank, "in", "MPI_Finalize", 300)
    run._pass_on(1.0)
    for rank in range(3):
        tell(rank, "ended", 0)
    run._pass_on(2.9)
    run._pass_on(3.1)  # longer than ranks may take that wait for no other
    assert run.process.ended == 0
    run._pass_on(8.0)
    run.process.returncode = -signal.SIGTERM
    assert (run.process.ended, run._status()) == (1, 0)


def test_a_rank_has_time_to_end_after_another_one_has(tell):
    run = stopping(tell, 3)
    for rank in range(3):
        tell(rank, "in", "MPI_Finalize", 300)
    run._pass_on(0.0)
    tell(0, "ended", 0)
    run._pass_on(2.1)
    tell(1, "ended", 0)
    run._pass_on(4.1)
    assert run.process.ended == 0
    run._pass_on(6.2)
    run.process.returncode = -signal.SIGTERM
    assert (run.process.ended, run._status()) == (1, 128 + signal.SIGHUP)
