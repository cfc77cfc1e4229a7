"""``cavs train --policy`` on one process."""

import json
from pathlib import Path

import pytest

from cavs.train import read_checkpoint
from tests.cli.test_cli import LAST, RUN, numpy_engine, own_folder, train

__all__ = ["numpy_engine", "own_folder"]  # fixtures of every test here

DOUBLING = """from cavs.train import Policy


class Doubling(Policy):
    def __init__(self, every=1, most=64):
        self.every, self.most, self.count = every, most, 0

    def after_epoch(self, run):
        if run.epoch % self.every == 0:
            assert run.set_batch_size(min(2 * run.batch_size, self.most))
            self.count += 1

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]
"""


@pytest.fixture(autouse=True)
def file_of_policy(tmp_path):
    (tmp_path / "mine.py").write_text(DOUBLING)


def log():
    return [json.loads(line) for line in (RUN / "log.jsonl").read_text().splitlines()]


def changes():
    return [(r["step"], r["setting"], r["value"]) for r in log() if r["event"] == "change"]


def policies():
    return read_checkpoint(LAST).progress["policies"]


def test_a_policy_of_a_file_changes_the_batch_size_and_every_graph_is_seen():
    assert train("--policy", "mine.py:Doubling(most=20)") == 0
    # 60 graphs in batches of 8, 16 and 20.
    assert changes() == [(8, "batch_size", 16), (12, "batch_size", 20)]
    for epoch in (1, 2, 3):
        sizes = [r["batch_size"] for r in log() if r["event"] == "step" and r["epoch"] == epoch]
        assert sum(sizes) == 60
    assert policies() == [["Doubling", {"count": 3}]]


def test_a_built_in_policy_takes_options_and_its_monitor_is_logged():
    assert train("--policy", "CostEffectiveSize(every=2, most=1)", "--epochs", 1) == 0
    assert log()[0]["policy"] == ["CostEffectiveSize(every=2, most=1)"]
    assert all(r["throughput"] > 0 for r in log() if r["event"] == "step")
    ((name, state),) = policies()
    assert name == "CostEffectiveSize" and state["settled"] is True and changes() == []


def test_policies_are_called_in_order_and_may_be_of_one_class():
    twice = ["--policy", "mine.py:Doubling", "--policy", "mine.py:Doubling(every=2)"]
    assert train("--policy", "NoiseLR", *twice, "--epochs", 2) == 0
    names = ["NoiseLR", "Doubling", "Doubling"]
    assert [name for name, _ in policies()] == names
    assert [state for _, state in policies()[1:]] == [{"count": 2}, {"count": 1}]
    assert [value for _, _, value in changes()] == [16, 32, 64]


def test_resume_keeps_policies_and_their_states():
    chosen = ["--policy", "mine.py:Doubling(most=20)"]
    assert train(*chosen, "--epochs", 1) == 0
    assert train("--resume", "--epochs", 2) == 0
    assert changes() == [(8, "batch_size", 16), (12, "batch_size", 20)]
    assert policies() == [["Doubling", {"count": 2}]]
    resumed = read_checkpoint(LAST)
    Path("whole").mkdir()
    assert train(*chosen, "--epochs", 2, "--out", "whole") == 0
    whole = read_checkpoint("whole/checkpoint.safetensors")
    assert whole.progress["step"] == resumed.progress["step"] == 12
    for name, value in whole.parameters.items():
        assert value.tobytes() == resumed.parameters[name].tobytes()


def test_other_policies_replace_those_of_a_resumed_run():
    assert train("--policy", "mine.py:Doubling", "--epochs", 1) == 0
    assert train("--resume", "--epochs", 2, "--policy", "NoiseLR") == 0
    assert [name for name, _ in policies()] == ["NoiseLR"]
    assert [value for _, _, value in changes()] == [16]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            "Gns",
            ["no policy is called 'Gns'", "GNSBatch, AdaptiveBatch, ElasticGNS", "FILE.py:CLASS"],
        ),
        ("GNSBatch(every=0)", ["every is 0"]),
        ("GNSBatch(size=1)", ["unexpected keyword argument 'size'", "it is GNSBatch(every"]),
        ("absent.py:Doubling", ["there is no file absent.py"]),
        ("mine.py:Halving", ["mine.py has no class Halving that is a Policy"]),
    ],
)
def test_policies_that_cannot_be_found_are_refused(text, parts, capsys):
    assert train("--policy", text) == 1
    said = capsys.readouterr().err
    assert all(part in said for part in parts), said
    assert not LAST.exists()


def test_an_error_of_a_hook_ends_the_command_after_a_checkpoint(capsys):
    failing = DOUBLING.replace("self.count += 1", "self.count += 1 / (run.epoch - 2)")
    Path("mine.py").write_text(failing)
    with pytest.raises(ZeroDivisionError):
        train("--policy", "mine.py:Doubling")
    assert read_checkpoint(LAST).progress["step"] == 12
