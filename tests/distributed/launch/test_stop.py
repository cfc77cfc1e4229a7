"""Signals to the launcher: all ranks stop as one process does, at any time."""

import signal
import subprocess
import sys

import pytest

from tests.distributed.launch.test_launcher import alive, wait_for
from tests.distributed.mpirun import needs_mpi
from tests.patience import patience

pytestmark = needs_mpi

PROGRAM = """
import os, pathlib, sys, time
folder, mode = pathlib.Path(sys.argv[1]), sys.argv[2]
at = lambda name: (folder / (name + os.environ["OMPI_COMM_WORLD_RANK"])).touch()
at("top")
import cavs
import cavs.distributed
from tests.train.classifier import Classifier, trees
at("import")
c = cavs.distributed.world(20)
at("mpi")
graphs = trees(8)
options = {"strategy": "PSLoadBalancing(staleness=2)"} if mode == "stale" else {}
t = cavs.distributed.Trainer(Classifier(), cavs.optim.SGD(lr=0.1), communicator=c, **options)
try:
    if mode == "fit":
        loader = cavs.DataLoader(graphs, 4)
        on_event = lambda event, record: at(event)
        path = folder / "checkpoint"
        t.fit(loader, epochs=10**9, checkpoint=path, progress=False, on_event=on_event)
    while True:
        if mode == "evaluate" and t.steps == 2:
            t.evaluate(cavs.DataLoader(graphs, 2))
        else:
            t.advance(cavs.batch(graphs))
        if t.steps == 2:
            at("step")
except KeyboardInterrupt as error:
    t.settle()
    t.save(folder / "own")
    (folder / f"rank{c.rank}").write_text(str(t.steps))
    if mode == "raise":
        raise
finally:
    at("finally")
"""


def stopped(tmp_path, when, number, *words):
    """Send a signal to the launcher once `when` is there; return its status, output and folder."""
    program, folder = tmp_path / "program.py", tmp_path / "ranks"
    folder.mkdir()
    program.write_text(PROGRAM)
    words = words or (str(program), str(folder))
    process = subprocess.Popen(
        [sys.executable, "-m", "cavs", "launch", "-n", "2", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        # A shell that ignores SIGHUP, as nohup does, would pass that on to the launcher.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # noqa: PLW1509
    )
    try:
        wait_for(lambda: process.poll() is not None or when(folder), 60)
        process.send_signal(number)
        said, _ = process.communicate(timeout=patience(60))
    finally:
        process.kill()
    return process.returncode, said, folder


def there(name, *ranks):
    """Return a condition: these ranks, both by default, have come to `name`."""
    return lambda folder: all((folder / f"{name}{rank}").exists() for rank in ranks or (0, 1))


def names(folder):
    return {path.name for path in folder.iterdir()}


MODES = {"fit": signal.SIGTERM, "loop": signal.SIGINT, "evaluate": signal.SIGHUP}
MODES |= {"stale": signal.SIGINT, "raise": signal.SIGTERM}


@pytest.mark.parametrize(("mode", "number"), [*MODES.items(), ("raise", signal.SIGINT)])
def test_a_program_is_interrupted_on_every_rank_at_the_same_step(mode, number, tmp_path):
    program, folder = str(tmp_path / "program.py"), str(tmp_path / "ranks")
    when = there("epoch") if mode == "fit" else there("step")
    status, said, found = stopped(tmp_path, when, number, program, folder, mode)
    assert status == (128 + number if mode == "raise" else 0), said
    assert {"finally0", "finally1", "own"} <= names(found), said
    assert ("checkpoint" in names(found)) == (mode == "fit")
    assert "MPI_ABORT" not in said
    assert mode == "stale" or len({(found / f"rank{r}").read_text() for r in (0, 1)}) == 1


@pytest.mark.parametrize(("name", "rank"), [("top", 1), ("import", 0), ("import", 1), ("mpi", 0)])
def test_a_program_may_be_interrupted_while_it_starts(name, rank, tmp_path):
    """Ranks import, are in MPI_Init, or have begun: in time for `except` and `finally` or not."""
    program, folder = str(tmp_path / "program.py"), str(tmp_path / "ranks")
    when = there(name, rank)
    status, said, found = stopped(tmp_path, when, signal.SIGTERM, program, folder, "loop")
    assert status in (0, 143), said
    assert (status == 0) == ({"rank0", "rank1"} <= names(found)), said
    assert "MPI_ABORT" not in said


MODEL = """
import os, pathlib, time
from tests.cli import tree_toy
DEFAULTS = tree_toy.DEFAULTS
at = lambda name: pathlib.Path("ranks", name + os.environ.get("OMPI_COMM_WORLD_RANK", "")).touch()
at("import")

def build(args, assets=None):
    at("build")
    time.sleep(0.5)
    return tree_toy.build(args, assets)
"""


@pytest.mark.parametrize("name", ["import", "build"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_command_that_has_not_begun_says_that_it_is_stopped(name, rank, tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    words = ["train", "model.py", "--out", "run", "--epochs", "100000"]
    status, said, _ = stopped(tmp_path, there(name, rank), signal.SIGINT, *words)
    assert status == 130 and said.count("cavs: stopped") == 1, said
    assert "MPI_ABORT" not in said


CHILDREN = """
import multiprocessing, os, pathlib, subprocess, sys, time
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(300,), daemon=True)
child.start()
other = subprocess.Popen(["setsid", "sleep", "300"])
path = pathlib.Path(sys.argv[1], "pids" + os.environ["OMPI_COMM_WORLD_RANK"])
path.with_suffix(".new").write_text(f"{child.pid} {other.pid}")
path.with_suffix(".new").rename(path)
if sys.argv[2] == "0":
    os._exit(0)
time.sleep(300)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, 0])
def test_no_process_of_a_rank_is_left(number, tmp_path):
    """The launcher is stopped or killed, or the program ends; children have forked before."""
    program = tmp_path / "children.py"
    program.write_text(CHILDREN)
    words = str(program), str(tmp_path / "ranks"), str(int(number))
    _, _, folder = stopped(tmp_path, there("pids"), number, *words)
    pids = [int(pid) for r in (0, 1) for pid in (folder / f"pids{r}").read_text().split()]
    assert len(pids) == 4
    wait_for(lambda: not any(map(alive, pids)))
