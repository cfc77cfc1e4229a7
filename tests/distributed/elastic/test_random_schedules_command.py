"""Random schedules of ``kill -9``, resizes and Ctrl-C over MPI ranks of ``cavs launch``.

CAVS_TEST_EXAMPLES raises the number of schedules.
"""

import contextlib
import json
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from cavs.train.checkpoint import read_checkpoint
from tests.distributed.elastic.schedules import CALM, STEPS, draw
from tests.distributed.mpirun import needs_mpi
from tests.distributed.test_train_command import TOY, cavs_command
from tests.draws import EXAMPLES
from tests.patience import patience

pytestmark = needs_mpi
DEFAULT = 1  # schedules that the suite draws
EVERY = 5  # steps between checkpoints
POLICY = """import os
import signal
import threading
import time

from tests.distributed.elastic import schedules


class Scheduled(schedules.Scheduled):
    # deaths: the step, and seconds after its begin, at which a process dies.
    def __init__(self, sizes, deaths):
        super().__init__(sizes)
        self.deaths = deaths

    def before_step(self, run):
        time.sleep(0.01)
        process = int(os.environ["OMPI_COMM_WORLD_RANK"])
        step, delay = self.deaths.get(process, (None, None))
        if run.step == step:
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
"""


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """Return the words of a training of 30 steps without dropout."""
    folder = tmp_path_factory.mktemp("schedules")
    model = folder / "model.py"
    text = Path(TOY).read_text().replace("Classifier()", "Classifier(dropout=0.0)")
    model.write_text(text)
    (folder / "scheduled.py").write_text(POLICY)
    options = ("--optimizer", "sgd", "--epochs", 3, "--batch-size", 4, "--quiet")
    return ("train", model, *options, "--save-every", EVERY)


@pytest.fixture(scope="module")
def expected(words):
    out = words[1].with_name("alone")
    process = cavs_command(*words, "--out", out)
    _, errors = process.communicate(timeout=patience(60))
    assert process.returncode == 0, errors
    return read_checkpoint(out / "checkpoint.safetensors").parameters


def steps_of(log):
    """Return the steps in the log of a run; it ends early if the first rank dies."""
    if not log.exists():
        return [0]
    records = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]
    return [0, *(r["step"] for r in records if r["event"] == "step")]


def launched(words, schedule, out, *, resume):
    """Run a schedule; return the exit status and what was written on stderr."""
    policy = f"{words[1].with_name('scheduled.py')}:Scheduled(sizes={schedule.sizes}, "
    policy += f"deaths={schedule.deaths})"
    options = ("-n", schedule.ranks, "--spares", schedule.spares, "--elastic")
    process = cavs_command(
        "launch", *options, *words, "--out", out, "--policy", policy, *resume * ("--resume",)
    )
    limit, before = time.monotonic() + patience(60), len(steps_of(out / "log.jsonl"))
    while schedule.stop is not None and process.poll() is None and time.monotonic() < limit:
        steps = steps_of(out / "log.jsonl")
        if len(steps) > before and steps[-1] >= schedule.stop:
            process.send_signal(signal.SIGINT)
            break
        time.sleep(0.005)
    with contextlib.ExitStack() as left:
        left.callback(process.kill)
        _, errors = process.communicate(timeout=patience(60))
    return process.returncode, errors


@pytest.mark.parametrize(
    "seed",
    [*range(DEFAULT), *(pytest.param(n, marks=pytest.mark.slow) for n in range(DEFAULT, EXAMPLES))],
)
def test_runs_over_mpi_end_as_one_process(seed, words, expected, tmp_path):
    rng, out, begun = random.Random(seed), tmp_path / "run", 0
    path = out / "checkpoint.safetensors"
    for attempt in range(CALM + 1):
        schedule = draw(
            rng,
            begun,
            lambda rng, begun=begun: (rng.randint(begun, STEPS), round(rng.uniform(0, 0.03), 4)),
            attempt,
        )
        status, errors = launched(words, schedule, out, resume=path.exists())
        told = f"seed {seed}: {schedule} ended with status {status}: {errors}"
        assert "Traceback" not in errors and "Error" not in errors, told
        saved = read_checkpoint(path).progress["step"] if path.exists() else 0
        if status == 0:
            break
        assert status in (1, 130, 137), told  # the death of all ranks that train, or Ctrl-C
        assert max(steps_of(out / "log.jsonl")) - EVERY <= saved, told
        begun = saved
    else:
        raise AssertionError(told)
    assert saved == STEPS, told
    stored = read_checkpoint(path)
    (_, state), *_ = stored.progress["policies"]
    assert sorted(map(int, state["ranks"])) == list(range(1, STEPS + 1)), told
    for name, value in expected.items():
        np.testing.assert_allclose(
            stored.parameters[name], value, rtol=0, atol=1e-6, err_msg=f"{name}, {told}"
        )
