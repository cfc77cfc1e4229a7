"""``cavs launch --spares`` and ``cavs train --policy``: MPI ranks leave a training and join it."""

import json
from pathlib import Path

import numpy as np
import pytest

from cavs.train.checkpoint import read_checkpoint
from cavs.train.configuration import FileStore
from tests.distributed.mpirun import needs_mpi
from tests.distributed.test_train_command import TOY, cavs_command
from tests.patience import patience

pytestmark = needs_mpi
PLANNED = """import os
import signal

from cavs.train import Policy


class Planned(Policy):
    # sizes: number of ranks after a step. killed: rank and step at which its process dies.
    def __init__(self, sizes, killed=None):
        self.sizes, self.killed, self.called = sizes, killed, 0

    def after_step(self, run):
        self.called += 1
        assert self.called == run.step  # also on a rank that joins
        if self.killed == (run.rank, run.step):
            os.kill(os.getpid(), signal.SIGKILL)
        if run.step in self.sizes:
            assert run.resize(self.sizes[run.step])

    def state_dict(self):
        return {"called": self.called}

    def load_state_dict(self, state):
        self.called = state["called"]
"""


def launched(folder, options, policy, *more, end="", added=()):
    """Return the ranks of the steps, and changes, of 40 graphs in two epochs, and what was said.

    more: further words of the training. end: further lines of the model. added: policies that the
    launcher adds.
    """
    out, file, model = folder / "run", folder / "planned.py", folder / "model.py"
    file.write_text(PLANNED)
    text = Path(TOY).read_text().replace("Classifier()", "Classifier(dropout=0.0)")
    model.write_text(text + end)
    words = ("train", model, "--optimizer", "sgd", "--quiet", "--out")
    process = cavs_command(
        "launch", "-n", 2, *options, *words, out, "--policy", f"{file}:Planned({policy})", *more
    )
    text, said = process.communicate(timeout=patience(60))
    assert process.returncode == 0, said
    assert text.count("best epoch") == 1
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    changes = [(r["step"], r["setting"], r["value"]) for r in log if r["event"] == "change"]
    steps = [r for r in log if r["event"] == "step"]
    assert [r["step"] for r in steps] == list(range(1, 11))  # batches of 8
    for epoch in (1, 2):  # every graph is seen once
        assert sum(r["batch_size"] for r in steps if r["epoch"] == epoch) == 40
    stored = read_checkpoint(out / "checkpoint.safetensors")
    (planned, *others) = stored.progress["policies"]
    assert planned == ["Planned", {"called": 10}]
    assert [name for name, _ in others] == list(added)

    alone = cavs_command(*words, folder / "alone")
    text, errors = alone.communicate(timeout=patience(60))
    assert alone.returncode == 0, errors
    expected = read_checkpoint(folder / "alone" / "checkpoint.safetensors").parameters
    for name, value in expected.items():
        found = stored.parameters[name]
        np.testing.assert_allclose(found, value, rtol=0, atol=1e-6, err_msg=name)
    return [r["ranks"] for r in steps], changes, said


def test_a_policy_resizes_from_two_ranks_to_one_and_to_three(tmp_path):
    ranks, changes, _ = launched(tmp_path, ("--spares", 1), "sizes={2: 1, 5: 3}")
    assert ranks == [2] * 2 + [1] * 3 + [3] * 5
    assert changes == [(2, "size", 1), (5, "size", 3)]


def test_ranks_leave_after_another_one_has_died(tmp_path):
    """The process of rank 1 dies; the two first of the other three stay."""
    options = ("--spares", 2, "--elastic")
    ranks, changes, _ = launched(tmp_path, options, "sizes={1: 4, 6: 2}, killed=(1, 3)")
    assert ranks[:3] == [2, 4, 4] and ranks[4:] == [3] * 2 + [2] * 4
    assert changes == [(1, "size", 4), (6, "size", 2)]


def test_a_training_begins_with_the_size_in_the_store(tmp_path):
    store = FileStore(tmp_path / "cluster.json")
    assert store.write({"size": 3}, 0)
    options = ("--spares", 1, "--config-store", store.path)
    ranks, changes, _ = launched(tmp_path, options, "sizes={}", added=["FollowStore"])
    assert ranks == [3] * 10 and changes == [(0, "size", 3)]
    assert store.read().value == {"size": 3, "committed": 3}


def test_a_new_process_replaces_a_dead_one(tmp_path):
    killed = "sizes={}, killed=(1, 3)"
    ranks, changes, said = launched(tmp_path, ("--restore",), killed, added=["KeepSize"])
    died = ranks.index(1)
    assert died in (2, 3) and ranks == [2] * died + [1] + [2] * (9 - died)
    assert changes == [(died + 1, "size", 2)]
    assert said.count("starting 1 in place of processes that have died") == 1


END = """
import os, signal

if "CAVS_NUMBER" in os.environ:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_all_ranks_start_again_from_a_checkpoint_if_the_new_process_cannot(tmp_path):
    """It dies before it comes to MPI, where the others wait for it."""
    more = ("--save-every", 1)
    options, killed = ("--restore",), "sizes={}, killed=(1, 3)"
    ranks, _, said = launched(tmp_path, options, killed, *more, end=END, added=["KeepSize"])
    assert ranks.count(1) == 1 and ranks[-5:] == [2] * 5
    assert "rank 0 started rank 2, which was killed by signal 9 (SIGKILL)" in said
    assert "cavs: all ranks are started again, from step" in said
