"""Monitors without anything to measure, and their states in checkpoints."""

import json
import math

import pytest

from cavs.errors import CheckpointError
from cavs.train import read_checkpoint, safetensors
from cavs.train.monitors import (
    GradientVariance,
    Monitors,
    NoiseScale,
    RankSpeed,
    StepFacts,
    Throughput,
)
from tests.train.test_trainer import make, train_loader

BUSY = {"seconds": 0.5, "graphs": 8, "grad_norm": 1.0}
BUSY |= {"rank_graphs": (6, 2), "rank_seconds": (0.5, 0.25), "rank_squares": (1.5, 1.5)}


@pytest.mark.parametrize(
    ("monitor", "idle", "value"),
    [
        (GradientVariance, {"rank_squares": ()}, 1.5 - 1.0),
        (NoiseScale, {"rank_squares": ()}, 4 / (1 - 4 / 8)),
        (Throughput, {"seconds": 0.0, "graphs": 0}, 8 / 0.5),
        (RankSpeed, {"rank_graphs": (0, 0)}, (2 / 0.25) / (6 / 0.5)),
    ],
)
def test_a_step_with_nothing_to_measure_keeps_the_value(monitor, idle, value):
    found = monitor()
    found.end_step(StepFacts(**BUSY | idle))
    assert math.isnan(found.value)
    for facts in (BUSY, BUSY | idle):
        found.end_step(StepFacts(**facts))
        assert found.value == pytest.approx(value)


@pytest.mark.parametrize(
    "state", [{}, {"noise": 1.0}, {"noise": "much", "signal": 1.0, "value": 1.0}, {"noise": [1]}]
)
def test_an_invalid_state_of_the_noise_scale_is_refused(state):
    with pytest.raises(CheckpointError, match="has an invalid state of a monitor: ") as caught:
        NoiseScale().load_state_dict(state)
    assert str(state) in str(caught.value) and "older checkpoint" in caught.value.hint


def test_a_state_goes_on_where_the_run_has_stopped():
    first, again = NoiseScale(alpha=0.5), NoiseScale(alpha=0.5)
    steps = [StepFacts(**BUSY | {"rank_squares": (x, 1.0)}) for x in (1.2, 1.4)]
    first.end_step(steps[0])
    again.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
    for monitor in (first, again):
        monitor.end_step(steps[1])
    assert first.state_dict() == again.state_dict()
    assert NoiseScale().state_dict() == {"noise": None, "signal": None, "value": None}


@pytest.mark.parametrize("stored", [None, 3, ["noise_scale"]])
def test_a_checkpoint_whose_monitors_are_no_dict_is_refused(stored, tmp_path):
    path = tmp_path / "run"
    trainer = make()
    trainer.fit(train_loader(), epochs=1, monitors=[NoiseScale()], checkpoint=path, progress=False)
    tensors, metadata = safetensors.read(path)
    progress = json.loads(metadata["progress"])
    assert read_checkpoint(path).progress["monitors"]["noise_scale"]["noise"] is None
    progress["monitors"] = stored
    safetensors.write(path, tensors, metadata | {"progress": json.dumps(progress)})
    again = make()
    again.resume(path)
    with pytest.raises(CheckpointError, match="invalid state of a monitor: "):
        again.fit(train_loader(), epochs=2, monitors=[NoiseScale()], progress=False)


def test_states_of_other_monitors_are_left_alone():
    monitors = Monitors([NoiseScale(), Throughput()])
    monitors.load_state_dict({"other": {"x": 1}, "throughput": {}})
    assert all(map(math.isnan, monitors.values().values()))
