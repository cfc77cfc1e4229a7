"""Starting ranks: the command line, and no leftovers."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from cavs.cli import main
from cavs.distributed.launch import launcher
from cavs.errors import ConfigError, DeviceError
from tests.distributed.mpirun import needs_mpi
from tests.patience import patience

PROGRAM = """
import os, sys, time
from pathlib import Path
rank = os.environ["OMPI_COMM_WORLD_RANK"]
Path(sys.argv[1], rank).write_text(f"{os.getpid()} {os.environ['CAVS_NUM_THREADS']}")
try:
    time.sleep(60)
except KeyboardInterrupt:
    Path(sys.argv[1], rank).write_text("stopped")
    sys.exit(7)
"""


EARLY = """
import os, sys
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    sys.exit(3)
from cavs.distributed import world
world(300).barrier()
"""


def test_options_of_open_mpi_are_passed_to_open_mpi_only(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    cores = len(os.sched_getaffinity(0))
    ours = launcher.Launcher("/bin/mpirun", True, True)
    command = launcher.command_of(ours, cores + 1, ["train", "x"], elastic=True)
    assert command[:3] == ["/bin/mpirun", "-n", str(cores + 1)]
    assert command[-5:] == [sys.executable, "-m", "cavs.cli", "train", "x"]
    text = " ".join(command)
    for part in ("--allow-run-as-root", "--map-by :OVERSUBSCRIBE", "--with-ft ulfm"):
        assert part in text
    alone = launcher.command_of(ours, 1, ["a.py"], elastic=True, restore=True)
    assert ":OVERSUBSCRIBE" in alone  # Open MPI counts the dead, too
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    plain = launcher.command_of(ours, 1, ["a.py", "b"])
    assert "--allow-run-as-root" not in plain and ":OVERSUBSCRIBE" not in plain
    assert plain[-3:] == [sys.executable, "a.py", "b"]
    other = launcher.Launcher("/bin/mpirun", False, False)
    assert launcher.command_of(other, 9, ["a.py"]) == [
        "/bin/mpirun",
        "-n",
        "9",
        sys.executable,
        "a.py",
    ]
    with pytest.raises(DeviceError, match="is not Open MPI's"):
        launcher.command_of(other, 2, ["a.py"], elastic=True)
    with pytest.raises(ConfigError, match="nothing to launch"):
        launcher.command_of(ours, 2, [])


def test_no_mpirun_is_a_clear_error(monkeypatch, tmp_path):
    monkeypatch.setattr(launcher.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        DeviceError, match=r'there is no mpirun\n(.|\n)*  hint: pip install "cavs\[mpi'
    ):
        launcher.find_mpirun()
    broken = tmp_path / "mpirun"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(DeviceError, match=r"mpirun --version fails: .*exit status 3"):
        launcher.find_mpirun()


def test_the_words_of_mpirun_are_shown_where_it_fails(monkeypatch, tmp_path):
    monkeypatch.setattr(launcher.sysconfig, "get_path", lambda name: str(tmp_path))
    broken = tmp_path / "mpirun"
    broken.write_text("#!/bin/sh\nprintf 'Unable to get the us\\351r home\\n' >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(
        DeviceError, match=r"mpirun --version fails: Unable to get the us.r"
    ) as found:
        launcher.find_mpirun()
    assert found.value.hint == "remove the cause that mpirun names"


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("-- program.py --x 1", ["program.py", "--x", "1"]),
        ("program.py -- x", ["program.py", "--", "x"]),
        ("-m module -n 3", ["-m", "module", "-n", "3"]),
        ("-mmodule", ["-m", "module"]),
        ("--threads 2 -- -m module", ["-m", "module"]),
        ("--threads=2 --elastic python3 program.py", ["program.py"]),
        ("--thr 2 train tree-lstm --threads 4", ["train", "tree-lstm", "--threads", "4"]),
    ],
)
def test_where_the_launched_command_begins(words, command, monkeypatch):
    found = []
    monkeypatch.setattr(
        launcher, "launch", lambda n, launched, **_: found.append((n, launched)) or 0
    )
    assert main(["launch", "-n", "2", *words.split()]) == 0
    assert found == [(2, command)]


def test_the_mpirun_of_the_wheel_skips_the_search_for_fabrics(monkeypatch, tmp_path):
    """The user's own settings have precedence."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(launcher.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.delenv("OMPI_MCA_btl", raising=False)

    def setting(path=tmp_path / "mpirun"):
        found = launcher.environment_of(
            launcher.Launcher(str(path), True, True), 2, threads=1, elastic=False
        )
        return found.get("OMPI_MCA_btl")

    assert setting() == "^ofi"
    assert setting("/opt/mpi/bin/mpirun") is None
    monkeypatch.setenv("OMPI_MCA_btl", "self,tcp")
    assert setting() == "self,tcp"
    monkeypatch.delenv("OMPI_MCA_btl")
    (tmp_path / ".openmpi").mkdir()
    (tmp_path / ".openmpi" / "mca-params.conf").write_text("btl = self,tcp")
    assert setting() is None


def test_the_option_threads_sets_threads_of_ranks(monkeypatch):
    """The option overrides the environment, which overrides the default of one."""
    mpirun = launcher.Launcher("/bin/mpirun", True, True)

    def found(threads):
        environment = launcher.environment_of(mpirun, 2, threads=threads, elastic=False)
        return environment["CAVS_NUM_THREADS"]

    monkeypatch.setenv("CAVS_NUM_THREADS", "7")
    assert (found(3), found(1), found(None)) == ("3", "1", "7")
    monkeypatch.delenv("CAVS_NUM_THREADS")
    assert (found(3), found(None)) == ("3", "1")


def test_the_command_passes_its_options_on(monkeypatch):
    told = []
    monkeypatch.setattr(launcher, "launch", lambda *_, threads, **__: told.append(threads) or 0)
    for words in ([], ["--threads", "2"]):
        assert main(["launch", "-n", "2", *words, "train", "tree-lstm"]) == 0
    assert told == [None, 2]


FAKE = """#!/bin/sh
say() { printf '%s\\n' "$1" > "$CAVS_LAUNCH_PIPE"; }
"""


@pytest.fixture
def fake_mpirun(monkeypatch, tmp_path):
    """Install a shell script as mpirun; in it, `say` sends a message to the launcher as a rank
    would.
    """

    def make(text):
        path = tmp_path / "mpirun"
        path.write_text(FAKE + text)
        path.chmod(0o755)
        fake = launcher.Launcher(str(path), True, True)
        monkeypatch.setattr(launcher, "find_mpirun", lambda: fake)

    return make


def test_a_launch_without_a_command_is_an_error(fake_mpirun):
    fake_mpirun("exit 3")
    with pytest.raises(ConfigError, match="nothing to launch"):
        launcher.launch(2, [])


def test_no_rank_waits_for_one_that_died_at_the_start(fake_mpirun, monkeypatch):
    """The same holds with --elastic: ranks leave MPI_Init together or not at all."""
    monkeypatch.setattr(launcher, "_FAREWELL", 0.0)
    fake_mpirun("""say '[0, "in", "MPI_Init", 300]'; say '[1, "ended", 3]'; exec sleep 20""")
    said = []
    assert launcher.launch(2, ["train"], elastic=True, say=said.append) == 3
    early = "rank 1 of 2 ended with status 3 before it came to MPI_Init, and the others stopped"
    assert early in " ".join(said)


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["train", "tree-lstm", "--elastic"], True),
        (["train", "tree-lstm"], False),
        (["own.py", "--elastic"], False),  # whatever the status means there
    ],
)
def test_ranks_and_launcher_are_elastic_together(
    arguments, asked, fake_mpirun, tmp_path, monkeypatch
):
    """Otherwise the launcher would end the survivors."""
    monkeypatch.setenv("CAVS_ELASTIC", "1")  # left from another program
    told = tmp_path / "told"
    fake_mpirun(f'echo "$CAVS_ELASTIC" "$@" > {told}; say \'[1, "ended", -9]\'')
    said = []
    assert launcher.launch(2, arguments, say=said.append) == 128 + 9
    assert told.read_text().startswith("1 " if asked else " ")
    assert ("async_mpi_finalize" in told.read_text()) == asked


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition, seconds=30):
    limit = time.monotonic() + patience(seconds)
    while not condition():
        assert time.monotonic() < limit, "it did not happen"
        time.sleep(0.05)


class Started:
    """``cavs launch -n 2 program.py FOLDER``, running."""

    def __init__(self, tmp_path):
        program, self.folder = tmp_path / "program.py", tmp_path / "ranks"
        self.folder.mkdir()
        program.write_text(PROGRAM)
        environment = {k: v for k, v in os.environ.items() if k != "CAVS_NUM_THREADS"}
        command = [sys.executable, "-m", "cavs.cli", "launch", "-n", "2", str(program)]
        self.process = subprocess.Popen(
            [*command, str(self.folder)], env=environment, stderr=subprocess.PIPE, text=True
        )
        wait_for(lambda: len(self.texts()) == 2 and all(self.texts()))
        self.pids = [int(text.split()[0]) for text in self.texts()]

    def texts(self):
        return [f.read_text() for f in sorted(self.folder.iterdir())]


LEFT = """#!/bin/sh
here="${{TMPDIR:-/tmp}}/ompi.$$"
mkdir -p "$here"
touch "$here/pmix.vm.tool" "$here/pmix.vm.tool.$$"
exec {path} "$@"
"""


class TestRanks:
    pytestmark = needs_mpi

    def test_leftovers_of_a_killed_mpirun_do_no_harm(self, tmp_path, monkeypatch):
        """Process numbers recur: soon in a container, eventually everywhere."""
        found, left = launcher.find_mpirun(), tmp_path / "mpirun"
        left.write_text(LEFT.format(path=found.path))
        left.chmod(0o755)
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        monkeypatch.setattr(launcher, "find_mpirun", lambda: replace(found, path=str(left)))
        monkeypatch.setattr(launcher, "_STARTS", 1)
        assert launcher.launch(2, ["info"], say=lambda text: None) == 0
        assert list(tmp_path.glob("ompi.*/pmix.vm.tool"))

    def test_ctrl_c_reaches_the_ranks_and_their_status_is_returned(self, tmp_path):
        started = Started(tmp_path)
        assert [text.split()[1] for text in started.texts()] == ["1", "1"]
        started.process.send_signal(signal.SIGINT)
        _, errors = started.process.communicate(timeout=patience(30))
        assert started.texts() == ["stopped", "stopped"]
        assert started.process.returncode == 7
        if os.geteuid() == 0:
            assert "cavs: running mpirun as root" in errors

    def test_a_second_signal_ends_unresponsive_ranks(self, tmp_path):
        started = Started(tmp_path)
        for pid in started.pids:
            os.kill(pid, signal.SIGSTOP)
        started.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        started.process.send_signal(signal.SIGTERM)
        started.process.communicate(timeout=patience(30))
        assert started.process.returncode != 0
        wait_for(lambda: not any(map(alive, started.pids)))

    @pytest.mark.parametrize("elastic", [True, False])
    def test_no_rank_waits_for_one_that_ended_before_mpi_init(self, tmp_path, elastic, monkeypatch):
        """None of the three calls of MPI that wait for all may wait for the dead rank."""
        monkeypatch.setattr(launcher, "_FAREWELL", 0.2)
        program, said = tmp_path / "early.py", []
        program.write_text(EARLY)
        begun = time.monotonic()
        status = launcher.launch(2, [str(program)], elastic=elastic, say=said.append)
        assert status == 3 and time.monotonic() - begun < patience(60)  # it would wait 300 s
        early = "rank 1 of 2 ended with status 3 before it came to MPI_Init, and the others stopped"
        assert early in said[-1]
        assert "would have gone on" not in said[-1]

    def test_ranks_end_with_a_killed_launcher(self, tmp_path):
        started = Started(tmp_path)
        started.process.kill()
        started.process.communicate(timeout=patience(30))
        wait_for(lambda: not any(map(alive, started.pids)))

    @pytest.mark.parametrize("which", ["mpirun", "keeper"])
    def test_mpirun_and_supervisors_may_be_killed(self, which, tmp_path):
        """Ranks end with it, and an error says so."""
        started = Started(tmp_path)
        keepers = [parent_of(pid) for pid in started.pids]
        os.kill(keepers[1] if which == "keeper" else parent_of(keepers[1]), signal.SIGKILL)
        wait_for(lambda: not alive(started.pids[1]))
        if which == "keeper":
            time.sleep(2)  # its absence is noticed
            os.kill(started.pids[0], signal.SIGINT)  # the other one ends by itself
        _, errors = started.process.communicate(timeout=patience(60))
        assert started.process.returncode == 128 + 9
        wait_for(lambda: not any(map(alive, started.pids)))
        if which == "keeper":
            assert errors.count("cavs: rank 1 of 2 was killed by signal 9 (SIGKILL), and") == 1
        else:
            assert "cavs: mpirun was killed by signal 9, and all with it\n" in errors


def parent_of(pid):
    with open(f"/proc/{pid}/stat") as f:
        return int(f.read().rpartition(")")[2].split()[1])
