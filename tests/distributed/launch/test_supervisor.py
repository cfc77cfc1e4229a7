"""The processes between launcher, mpirun and rank: signals, exit statuses, and no leftovers."""

import os
import select
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from cavs.distributed.comm import launcher_pipe
from cavs.distributed.launch import supervisor
from cavs.distributed.launch.watch import Watch
from tests.distributed.launch.test_launcher import alive, wait_for
from tests.patience import patience

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals of Linux")
SUPERVISOR = [sys.executable, "-I", "-S", supervisor.__file__]
CONTAIN = [*SUPERVISOR, "--contain"]
# A shell runs a trap only once its child has ended: it waits in the background for it.
FOREVER = "while :; do sleep 0.2 & wait; done"


def reset_signals():
    """Undo what a shell that runs tests in the background, or nohup, ignores."""
    for name in ("INT", "TERM", "HUP", "USR1", "USR2"):
        signal.signal(signal.Signals[f"SIG{name}"], signal.SIG_DFL)


@contextmanager
def started(*command):
    """Run a command in the background, whose output is a pipe; kill it at the end."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=reset_signals,  # noqa: PLW1509
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def line(process):
    """Return the next line of a command."""
    assert select.select([process.stdout], [], [], patience(30))[0], "it has said nothing"
    return process.stdout.readline().strip()


def status(process):
    return process.wait(timeout=patience(30))


def contained(script):
    return subprocess.run(
        [*CONTAIN, "sh", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=patience(30),
    )


@pytest.mark.parametrize("code", [0, 5])
def test_the_status_of_mpirun_is_that_of_its_container(code):
    done = contained(f"echo said; exit {code}")
    assert (done.returncode, done.stdout) == (code, "said\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_the_container_ends_by_the_signal_that_ended_mpirun(number):
    assert contained(f"ulimit -c 0; kill -{int(number)} $$").returncode == -number


def test_a_container_without_a_program_says_so():
    done = subprocess.run(
        [*CONTAIN, "/nowhere/to/be/found"],
        capture_output=True,
        text=True,
        check=False,
        timeout=patience(30),
    )
    assert done.returncode == 127
    assert done.stderr == "cavs: cannot run /nowhere/to/be/found: No such file or directory\n"


@pytest.mark.parametrize("sent", ["INT", "TERM", "HUP", "USR1", "USR2"])
def test_the_first_signal_ends_mpirun_as_sigterm_does(sent):
    script = f"trap 'exit 7' TERM; echo ready; {FOREVER}"
    with started(*CONTAIN, "sh", "-c", script) as process:
        assert line(process) == "ready"
        process.send_signal(signal.Signals[f"SIG{sent}"])
        assert status(process) == 7


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGALRM])
def test_the_second_signal_or_the_end_of_its_time_kills_mpirun(second):
    """An alarm comes once mpirun has had its time to end all ranks."""
    script = f"trap 'echo heard' TERM; echo ready; {FOREVER}"
    with started(*CONTAIN, "sh", "-c", script) as process:
        assert line(process) == "ready"
        process.send_signal(signal.SIGTERM)
        assert line(process) == "heard"
        process.send_signal(second)
        assert status(process) == -signal.SIGKILL


def test_mpirun_is_told_to_end_when_its_container_is_killed():
    script = f"trap 'echo told; exit 0' TERM; echo ready; {FOREVER}"
    with started(*CONTAIN, "sh", "-c", script) as process:
        assert line(process) == "ready"
        process.kill()
        assert line(process) == "told"


@pytest.mark.parametrize("code", [0, 3])
def test_no_process_outlives_a_container(code):
    """Not one of another session either, nor the child of a child that has ended."""
    script = "setsid sleep 300 & echo $!; (sleep 300 & echo $!); "
    done = contained(f"{script} exit {code}")
    pids = [int(word) for word in done.stdout.split()]
    assert done.returncode == code and len(pids) == 2
    assert not any(map(alive, pids))


def test_mpirun_outlives_children_that_it_has_left():
    """The container waits for the end of mpirun, not for that of the first process."""
    done = contained("(sh -c 'exit 9' &); sleep 0.05; echo end; exit 4")
    assert (done.returncode, done.stdout) == (4, "end\n")


# ---- between mpirun and a rank ------------------------------------------------------------------


@pytest.fixture
def watched(tmp_path, monkeypatch):
    """Yield a watch to which supervisors report as rank 1."""
    watch = Watch(3, tmp_path)
    monkeypatch.setenv(launcher_pipe.PIPE, str(watch.path))
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.delenv(launcher_pipe.NUMBER, raising=False)
    yield watch
    watch.close()


@pytest.mark.parametrize("sent", ["INT", "TERM", "HUP", "USR1", "USR2"])
def test_a_supervisor_passes_signals_on_as_they_are(sent, watched):
    script = f"trap 'echo {sent}; exit 0' {sent}; echo ready; {FOREVER}"
    with started(*SUPERVISOR, "sh", "-c", script) as process:
        assert line(process) == "ready"
        process.send_signal(signal.Signals[f"SIG{sent}"])
        assert line(process) == sent
        assert status(process) == 0
    watched.listen(0)
    assert watched.ends == {1: 0}


def test_the_process_of_a_rank_is_reported_while_it_runs(watched):
    with started(*SUPERVISOR, "sh", "-c", f"echo $$; {FOREVER}") as process:
        pid = int(line(process))
        wait_for(lambda: watched.listen(0) or watched.pids)
        assert watched.pids == {1: pid} and watched.ends == {}
        process.kill()
        wait_for(lambda: not alive(pid))  # a rank ends with its supervisor
    watched.listen(0)
    assert watched.ends == {}  # no process was left to report it


@pytest.mark.parametrize("code", [0, 3])
def test_processes_that_a_rank_has_left_are_killed(code, watched):
    script = f"setsid sleep 300 & echo $!; exit {code}"
    with started(*SUPERVISOR, "sh", "-c", script) as process:
        left = int(line(process))
        assert status(process) == (-signal.SIGKILL if code else 0)
        assert not alive(left)
    watched.listen(0)
    assert watched.ends == {1: code}


def test_a_rank_is_in_a_process_group_of_its_own(watched):
    """A signal to the group of mpirun's child comes to the rank once, from its supervisor."""
    with started(*SUPERVISOR, "sh", "-c", f"echo $$; {FOREVER}") as process:
        pid = int(line(process))
        assert os.getpgid(pid) == pid != os.getpgid(process.pid)


def test_processes_that_mpi_starts_later_are_numbered_after_the_others(watched):
    """The second of those that begin with number 4: it knows its number, and reports by it."""
    command = [*SUPERVISOR, "--number", "4", "sh", "-c", f"echo ${launcher_pipe.NUMBER}"]
    with started(*command) as process:
        assert line(process) == "5"
        assert status(process) == 0
    watched.listen(0)
    assert watched.ends == {5: 0} and watched.pids.keys() == {5}


def test_a_supervisor_needs_no_package(tmp_path):
    """It may run where cavs is not installed, in a folder that has no file of it."""
    done = subprocess.run(
        [*SUPERVISOR, "pwd"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
        timeout=patience(30),
    )
    assert (done.returncode, Path(done.stdout.strip())) == (0, tmp_path.resolve())
