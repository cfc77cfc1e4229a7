"""``cavs train`` on MPI ranks: equal to one process, and no hang, no orphan when a rank fails."""

import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import cavs
from cavs.distributed.launch import launcher, watch
from cavs.train.checkpoint import read_checkpoint
from tests.distributed.launch.test_launcher import alive, wait_for
from tests.distributed.mpirun import ROOT, needs_mpi, run_ranks
from tests.patience import patience

pytestmark = needs_mpi
TOY = str(ROOT / "tests" / "cli" / "tree_toy.py")
STEPS = 100


class Sentiment(cavs.Model):
    """A model for the treebank: embeddings, a binary Tree-LSTM, five classes."""

    def __init__(self):
        self.embedding = cavs.nn.Embedding(200, 24)
        self.tree = cavs.nn.BinaryTreeLSTM(24, 16)
        self.output = cavs.nn.Linear(16, 5)

    def loss(self, batch):
        h = self.tree(batch.graph, x=self.embedding(batch["token"]))
        return cavs.ops.cross_entropy(self.output(h), batch["label"])


def sentences(count):
    """Return random binary trees; every phrase has the sum of its words."""
    rng = np.random.default_rng(5)
    graphs = []
    for _ in range(count):
        words = int(rng.integers(1, 12))
        children = [[] for _ in range(words)]
        roots = list(range(words))
        while len(roots) > 1:
            i = int(rng.integers(0, len(roots) - 1))
            children.append(roots[i : i + 2])
            roots[i : i + 2] = [len(children) - 1]
        token = np.minimum(rng.geometric(0.05, words), 199)
        value = list(token)
        for left, right in children[words:]:
            value.append(value[left] + value[right])
        graphs.append(
            cavs.Graph(
                children,
                {
                    "token": np.concatenate([token, np.full(words - 1, -1)]),
                    "label": np.array(value) % 5,
                },
            )
        )
    return graphs


def trained(communicator, dtype, strategy):
    """Return parameters after STEPS global batches; with None, of one process."""
    model = Sentiment()
    rng = np.random.default_rng(0)
    for p in model.parameters().values():
        p.value[...] = rng.normal(size=p.shape) * 0.1
    optimizer = cavs.optim.SGD(lr=0.1, momentum=0.9)
    if communicator is None:
        session = cavs.Session(model, dtype=dtype, threads=1)
        trainer = cavs.Trainer(model, optimizer, session=session)
    else:
        trainer = cavs.distributed.Trainer(
            model, optimizer, communicator=communicator, dtype=dtype, strategy=strategy
        )
    loader = cavs.DataLoader(sentences(75), 13, shuffle=True)
    while trainer.steps < STEPS:
        for batch in loader:
            trainer.step(batch)
    return {name: p.value.ravel().tolist() for name, p in model.parameters().items()}


alone = functools.cache(lambda dtype: trained(None, dtype, None))


@pytest.mark.parametrize(
    ("size", "dtype", "strategy"),
    [
        (2, "float32", None),
        (3, "float64", "PartitionedPS"),
        (4, "float32", "Parallax"),
    ],
)
def test_ranks_equal_one_process_after_a_hundred_steps(size, dtype, strategy):
    found = run_ranks(size, __name__, "trained", dtype, strategy, timeout=120)
    limit = {"float32": 1e-6, "float64": 1e-12}[dtype]
    for name, values in alone(dtype).items():
        difference = np.linalg.norm(np.subtract(found[name], values))
        assert difference <= limit * np.linalg.norm(values), name


def cavs_command(*arguments, **options):
    """Start ``cavs ARGUMENTS`` as a process."""
    return subprocess.Popen(
        [sys.executable, "-m", "cavs.cli", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | options,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_training_on_measured_resources(tmp_path):
    def launched(*words):
        process = cavs_command("launch", "-n", 2, *words)
        text, errors = process.communicate(timeout=patience(60))
        assert process.returncode == 0, errors
        return text

    file = tmp_path / "cluster.yaml"
    text = launched("strategy", "measure", "--out", file)
    assert file.read_text() == text and text.count("nodes:") == 1
    words = ("--strategy", "auto", "--resources", file, "--epochs", 1, "--quiet")
    assert "best epoch" in launched("train", TOY, "--out", tmp_path / "run", *words)


def test_cavs_train_writes_once_and_the_checkpoint_fits_one_process(tmp_path):
    out = tmp_path / "run"
    process = cavs_command("launch", "-n", 2, "train", TOY, "--out", out, "--quiet")
    text, errors = process.communicate(timeout=patience(60))
    assert process.returncode == 0, errors
    assert text.count("best epoch") == text.count("test  loss") == text.count("saved ") == 1
    assert (out / "log.jsonl").read_text().count('"epoch"') >= 2
    stored = read_checkpoint(out / "checkpoint.safetensors")
    more = cavs_command("train", TOY, "--out", out, "--resume", "--epochs", 3, "--quiet")
    text, errors = more.communicate(timeout=patience(60))
    assert more.returncode == 0, errors
    assert (
        read_checkpoint(out / "checkpoint.safetensors").progress["step"] > stored.progress["step"]
    )


FAILING = """
import os, resource, signal, time
import numpy as np
import cavs
from cavs.cli import Task
from tests.cli import tree_toy

DEFAULTS = tree_toy.DEFAULTS


def build(args, assets=None):
    task = tree_toy.build(args, assets)
    rank = os.environ["OMPI_COMM_WORLD_RANK"]
    (open(os.environ["FOLDER"] + "/" + rank, "w")).write(str(os.getpid()))
    if os.environ["HOW"] == "build" and rank == "1":
        raise ZeroDivisionError("while building")
    if os.environ["HOW"] == "die in build" and rank == "1":
        os.kill(os.getpid(), signal.SIGKILL)

    calls = []
    if os.environ["HOW"] == "no room" and rank != "0":
        hear(rank)

    def metric(outputs, batch):
        calls.append(batch)
        if os.environ["HOW"] == "no room" and rank == "0" and len(calls) == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
        if os.environ["HOW"] == "metric" and rank == "1":
            raise OSError("no space left on device")
        if os.environ["HOW"] == "die in epoch 1" and rank == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        if os.environ["HOW"] == "slow":
            time.sleep(0.02)
        return 0.0, 1.0

    task.metrics = [cavs.train.metrics.Metric("m", metric, "higher")]
    return task


def hear(rank):
    # What `fit` raises on this rank, which says nothing.
    fit = cavs.distributed.Trainer.fit

    def heard(self, *arguments, **options):
        try:
            return fit(self, *arguments, **options)
        except Exception as error:
            (open(os.environ["FOLDER"] + "/../heard" + rank, "w")).write(str(error))
            raise

    cavs.distributed.Trainer.fit = heard
"""


class Running:
    """``cavs launch -n 3 train failing.py``."""

    def __init__(self, tmp_path, how, *arguments, elastic=False, ranks=3):
        model, self.folder = tmp_path / "failing.py", tmp_path / "pids"
        self.folder.mkdir()
        model.write_text(FAILING)
        self.out = tmp_path / "out"
        self.process = cavs_command(
            *(
                "launch",
                "-n",
                ranks,
                *["--elastic"] * elastic,
                "train",
                model,
                "--out",
                self.out,
                "--quiet",
                *arguments,
            ),
            FOLDER=str(self.folder),
            HOW=how,
            PYTHONFAULTHANDLER="1",
        )

    def pids(self):
        return [int(f.read_text() or 0) for f in sorted(self.folder.iterdir())]

    def end(self, timeout=60):
        """Return exit status and errors; check that nothing remains."""
        try:
            _, errors = self.process.communicate(timeout=patience(timeout))
        except subprocess.TimeoutExpired:
            self._fail("it did not end")
        wait_for(lambda: not any(map(alive, self.pids())))
        return self.process.returncode, errors

    def wait_for_ranks(self, *files):
        """Wait until all ranks train, and `files` exist."""
        try:
            # This is long enough to start them twice.
            wait_for(lambda: len(self.pids()) == 3 and all(map(Path.exists, files)), 60)
        except AssertionError:
            self._fail("the ranks did not come so far")

    def _fail(self, what):
        """End all ranks, and show where they were."""
        train = ["-m", "cavs.cli", "train"]
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended already
                words = (process / "cmdline").read_text().split("\0")
                if words[1:4] == train and str(self.out) in words:
                    os.kill(int(process.name), signal.SIGABRT)
        try:
            _, errors = self.process.communicate(timeout=patience(20))
        except subprocess.TimeoutExpired:
            self.process.kill()
            _, errors = self.process.communicate()
        pytest.fail(f"{what}\n{errors}")


def test_a_rank_that_fails_while_it_builds_ends_all(tmp_path):
    status, errors = Running(tmp_path, "build").end()
    assert status != 0
    assert "ZeroDivisionError: while building" in errors


def test_a_rank_that_fails_in_fit_ends_all_with_one_message(tmp_path):
    run = Running(tmp_path, "metric")
    status, errors = run.end()
    assert status != 0
    assert "OSError: no space left on device" in errors


DEAD = r"cavs: rank 1 of 3 was killed by signal 9 \(SIGKILL\), and the others stopped; (.*)\.\n"


@pytest.mark.parametrize(
    ("how", "steps"), [("die in build", 1), ("die in epoch 1", 5), ("slow", None)]
)
def test_a_killed_rank_ends_all_with_one_line_and_a_checkpoint_of_the_last_step(
    tmp_path, how, steps
):
    """In `die in epoch 1` an epoch has been trained, and no checkpoint written."""
    run = Running(tmp_path, how, "--epochs", 1000)
    checkpoint = run.out / "checkpoint.safetensors"
    if steps is None:
        run.wait_for_ranks(checkpoint)
        os.kill(run.pids()[1], signal.SIGKILL)
    began = time.monotonic()
    status, errors = run.end()
    assert status == 128 + 9
    assert steps is not None or time.monotonic() - began < patience(15)
    stored = read_checkpoint(checkpoint)
    assert steps in (None, stored.progress["step"])
    where = f"the checkpoint is {checkpoint}, of step {stored.progress['step']}"
    assert f"and the others stopped; {where}. With --elastic 2 ranks would have gone on." in errors
    assert len(re.findall(DEAD, errors)) == errors.count("signal") == 1
    assert "Traceback" not in errors and "prterun" not in errors and "Error" not in errors
    last = [json.loads(line) for line in (run.out / "log.jsonl").read_text().splitlines()][-1]
    assert (last["event"], last["step"]) == ("interrupt", stored.progress["step"])
    if how == "die in epoch 1":
        more = cavs_command("train", TOY, "--out", run.out, "--resume", "--epochs", 2, "--quiet")
        _, errors = more.communicate(timeout=patience(60))
        assert more.returncode == 0, errors
        assert read_checkpoint(checkpoint).progress["step"] == 10


def test_after_the_death_of_an_owner_the_last_checkpoint_remains(tmp_path):
    run = Running(tmp_path, "slow", "--epochs", 1000, "--strategy", "PartitionedPS")
    checkpoint = run.out / "checkpoint.safetensors"
    run.wait_for_ranks(checkpoint)
    os.kill(run.pids()[1], signal.SIGKILL)
    status, errors = run.end()
    assert status == 128 + 9
    step = read_checkpoint(checkpoint).progress["step"]
    assert step % 5 == 0  # at the end of an epoch
    assert f"; the checkpoint is {checkpoint}, of step {step}. " in errors
    assert len(re.findall(DEAD, errors)) == errors.count("signal") == 1
    assert "Traceback" not in errors and "prterun" not in errors and "Error" not in errors


def test_a_stopped_rank_is_named_by_all_others_and_ended(tmp_path):
    run = Running(tmp_path, "slow", "--epochs", 1000, "--timeout", 5)
    run.wait_for_ranks(run.out / "checkpoint.safetensors")
    os.kill(run.pids()[1], signal.SIGSTOP)
    began = time.monotonic()
    status, errors = run.end()
    assert status != 0
    assert time.monotonic() - began < patience(30)
    for rank in (0, 2):
        (text,) = re.findall(f"cavs: rank {rank}: CommunicationError: (.*)", errors)
        assert re.search("rank 1 does not answer|rank 1 is still in", text)
    assert "cavs: rank 1" not in errors


MISSED = """
import os, time
from pathlib import Path
from cavs.distributed.comm.launcher_pipe import report
rank = os.environ["OMPI_COMM_WORLD_RANK"]
Path(os.environ["FOLDER"], rank).write_text(str(os.getpid()))
if rank == "1":
    report("failed")
    os._exit(1)
time.sleep(600)
"""


def test_ranks_that_mpirun_misses_are_ended(tmp_path, monkeypatch):
    """It may miss ranks that are about to enter MPI_Init."""
    program, folder = tmp_path / "missed.py", tmp_path / "pids"
    program.write_text(MISSED)
    folder.mkdir()
    monkeypatch.setenv("FOLDER", str(folder))
    monkeypatch.setattr(launcher, "_ABORTING", 0.5)
    began = time.monotonic()
    assert launcher.launch(3, [str(program)], say=lambda text: None) != 0
    assert time.monotonic() - began < patience(20)
    pids = [int(file.read_text()) for file in folder.iterdir()]
    wait_for(lambda: not any(map(alive, pids)))


STANDING = """
import os, runpy, sys, time
from pathlib import Path
runpy.run_path({startup!r})
rank = os.environ.get("OMPI_COMM_WORLD_RANK")
if rank is not None and "cavs.cli" in sys.orig_argv:
    here = Path({folder!r}, rank)
    times = len(here.read_text()) if here.exists() else 0
    here.write_text("x" * (times + 1))
    if times < {stuck}:
        from cavs.distributed.comm.launcher_pipe import report
        report("in", "MPI_Init", 300)
        time.sleep(600)
"""


@pytest.mark.parametrize("stuck", [1, 2, 3])
def test_a_hanging_start_is_retried(tmp_path, stuck, monkeypatch):
    """It is retried at most twice."""
    startup = str(ROOT / "tests" / "startup" / "sitecustomize.py")
    text = STANDING.format(startup=startup, folder=str(tmp_path), stuck=stuck)
    (tmp_path / "sitecustomize.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")
    monkeypatch.setattr(watch, "STANDING", 0.3)
    monkeypatch.setattr(watch, "EACH", 0.0)
    monkeypatch.setattr(watch, "STARTING", 300.0)
    said = []
    if stuck == 3:  # as Ctrl-C would, which is not retried
        look = launcher._Run._look

        def kill_the_last(run):
            return look(run) if run.again else run.process.kill()

        monkeypatch.setattr(launcher._Run, "_look", kill_the_last)
    status = launcher.launch(2, ["info"], say=said.append)
    again = "cavs: all ranks hang in MPI_Init; they are started again"
    assert said.count(again) == min(stuck, 2)
    assert (status == 0) == (stuck < 3)


LATE = """
import os, sys, time
from pathlib import Path
rank = os.environ["OMPI_COMM_WORLD_RANK"]
Path(os.environ["FOLDER"], rank).write_text(str(os.getpid()))
if rank == "2":
    time.sleep(600 if os.environ["STATUS"] == "None" else 0)
    sys.exit(int(os.environ["STATUS"]))
from cavs.distributed.comm import MPICommunicator
MPICommunicator(timeout=3)
"""


@pytest.mark.parametrize(("status", "elastic"), [(None, False), (4, False), (4, True), (0, False)])
def test_a_rank_that_never_joins_is_named(tmp_path, status, elastic, monkeypatch):
    """It hangs or ends before MPI_Init, in which the others wait."""
    program, folder, said = tmp_path / "late.py", tmp_path / "pids", []
    program.write_text(LATE)
    folder.mkdir()
    for name, value in (("FOLDER", str(folder)), ("STATUS", str(status))):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(watch, "STARTING", patience(3))
    monkeypatch.setattr(launcher, "_FAREWELL", 0.2)
    began = time.monotonic()
    assert launcher.launch(3, [str(program)], elastic=elastic, say=said.append) != 0
    assert time.monotonic() - began < patience(40)
    pids = [int((folder / str(rank)).read_text()) for rank in range(3)]
    wait_for(lambda: not any(map(alive, pids)))
    if status is None:
        last = f"waited {patience(3):g} s in MPI_Init: rank 2 has not come "
        last = f"cavs: ranks 0, 1 {last}(process {pids[2]} runs); all were ended"
    else:
        last = f"cavs: rank 2 of 3 ended with status {status} before it came to MPI_Init, and the "
        last += "others stopped."
    assert said[-1] == last


def test_a_second_training_may_not_write_to_the_same_folder(tmp_path):
    """This holds after the death of its first rank, too."""
    run = Running(tmp_path, "slow", "--epochs", 1000, elastic=True)
    log = run.out / "log.jsonl"
    run.wait_for_ranks(run.out / "checkpoint.safetensors")
    for how in ("--overwrite", "--resume"):
        late = cavs_command("train", TOY, "--out", run.out, how, "--quiet")
        _, errors = late.communicate(timeout=patience(60))
        assert late.returncode == 1
        found = f"cavs: ConfigError: another training that is still running writes to {run.out}\n"
        assert errors.startswith(found)
        if how == "--overwrite":
            os.kill(run.pids()[0], signal.SIGKILL)
            assert any("going on with 2" in line for line in run.process.stderr)
    assert log.read_text().count('"event": "options"') == 1
    run.process.send_signal(signal.SIGINT)
    status, errors = run.end()
    assert status == 130, errors


def test_ctrl_c_saves_and_reports_once(tmp_path):
    run = Running(tmp_path, "slow", "--epochs", 1000)
    run.wait_for_ranks(run.out / "checkpoint.safetensors")
    run.process.send_signal(signal.SIGINT)
    status, errors = run.end()
    assert status == 130, errors
    assert errors.count("stopped after step") == 1
    assert f"saved {run.out / 'checkpoint.safetensors'}" in errors


EXITS = """
import os, sys
from tests.cli.tree_toy import DEFAULTS, build as whole
def build(args, assets=None):
    if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
        sys.exit(STATUS)
    return whole(args, assets)
"""


@pytest.mark.parametrize(("status", "shown"), [("'no data here'", "no data here"), ("3", "3")])
def test_a_model_file_that_exits_on_one_rank_ends_all(tmp_path, status, shown):
    """The others would wait for it until their timeout."""
    model = tmp_path / "model.py"
    model.write_text(EXITS.replace("STATUS", status))
    began = time.monotonic()
    process = cavs_command(
        *("launch", "-n", 2, "train", model, "--out", tmp_path / "out"), PYTHONPATH=str(ROOT)
    )
    _, errors = process.communicate(timeout=patience(100))
    assert process.returncode != 0 and time.monotonic() - began < patience(60)
    assert f"rank 1: SystemExit: {shown}" in errors
