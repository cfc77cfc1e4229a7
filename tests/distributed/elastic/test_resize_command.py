"""``cavs launch --spares`` and ``cavs train --policy``: MPI ranks leave a training and join it."""

import json
from pathlib import Path

import numpy as np

from cavs.train.checkpoint import read_checkpoint
from tests.distributed.mpirun import needs_mpi
from tests.distributed.test_train_command import TOY, cavs_command
from tests.patience import patience

pytestmark = needs_mpi
PLANNED = """from cavs.train import Policy


class Planned(Policy):
    sizes = {2: 1, 5: 3}  # number of ranks after a step

    def __init__(self, called=0):
        self.called = called

    def after_step(self, run):
        self.called += 1
        assert self.called == run.step  # also on a rank that joins
        if run.step in self.sizes:
            assert run.resize(self.sizes[run.step])

    def state_dict(self):
        return {"called": self.called}

    def load_state_dict(self, state):
        self.called = state["called"]
"""


def test_a_policy_resizes_from_two_ranks_to_one_and_to_three(tmp_path):
    out, policy = tmp_path / "run", tmp_path / "planned.py"
    policy.write_text(PLANNED)
    model = tmp_path / "model.py"
    model.write_text(Path(TOY).read_text().replace("Classifier()", "Classifier(dropout=0.0)"))
    words = ("train", model, "--optimizer", "sgd", "--quiet", "--out")
    planned = ("--policy", f"{policy}:Planned")
    process = cavs_command("launch", "-n", 2, "--spares", 1, *words, out, *planned)
    text, errors = process.communicate(timeout=patience(60))
    assert process.returncode == 0, errors
    assert text.count("best epoch") == 1
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    changes = [(r["step"], r["setting"], r["value"]) for r in log if r["event"] == "change"]
    assert changes == [(2, "size", 1), (5, "size", 3)]
    steps = [r for r in log if r["event"] == "step"]
    assert [r["step"] for r in steps] == list(range(1, 11))  # 40 graphs in batches of 8, twice
    assert [r["ranks"] for r in steps] == [2] * 2 + [1] * 3 + [3] * 5
    for epoch in (1, 2):
        assert sum(r["batch_size"] for r in steps if r["epoch"] == epoch) == 40
    progress = read_checkpoint(out / "checkpoint.safetensors").progress
    assert progress["policies"] == [["Planned", {"called": 10}]]

    alone = cavs_command(*words, tmp_path / "alone")
    text, errors = alone.communicate(timeout=patience(60))
    assert alone.returncode == 0, errors
    expected = read_checkpoint(tmp_path / "alone" / "checkpoint.safetensors").parameters
    found = read_checkpoint(out / "checkpoint.safetensors").parameters
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-6, err_msg=name)
