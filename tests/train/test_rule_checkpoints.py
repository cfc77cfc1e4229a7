"""Checkpoints of trainings with traced rules."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cavs
from cavs import optim
from cavs.errors import CheckpointError
from cavs.train import read_checkpoint, safetensors, schedules
from tests.train.own_rules import AMSGrad, HeavyBall
from tests.train.test_frozen_parameters import Classifier, chains, values

GROUPS = {"*.b*": {"weight_decay": 0.0}, "embedding.*": {"lr": 0.5}}


def trainer(optimizer: optim.Optimizer) -> cavs.Trainer:
    model = Classifier()
    model.initialize(3)
    return cavs.Trainer(model, optimizer, max_norm=0.5, seed=1)


OPTIMIZERS = {
    "amsgrad": lambda: AMSGrad(schedules.Cosine(0.1, steps=9), weight_decay=0.01, groups=GROUPS),
    "lion": lambda: optim.Lion(schedules.WarmUp(0.01, steps=4), weight_decay=0.1),
    "adadelta": lambda: optim.Adadelta(schedules.Plateau(1.0)),
    "heavy ball": lambda: HeavyBall(0.1),
}


def state(of: cavs.Trainer) -> dict[str, bytes]:
    arrays = {name: value.tobytes() for name, value in values(of.model).items()}
    return arrays | {f"{i}": b"".join(s.tobytes() for s in x) for i, x in enumerate(of.states)}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_resumed_run_equals_an_uninterrupted_one(name: str, tmp_path: Path) -> None:
    whole, first, second = (trainer(OPTIMIZERS[name]()) for _ in range(3))
    for i in range(6):
        whole.step(chains(i))
    for i in range(3):
        first.step(chains(i))
    first.save(tmp_path / "m")
    second.resume(tmp_path / "m")
    for i in range(3, 6):
        second.step(chains(i))
    assert state(second) == state(whole)


def test_states_have_their_names_in_the_file(tmp_path: Path) -> None:
    t = trainer(AMSGrad(0.1))
    t.step(chains())
    t.save(tmp_path / "m")
    tensors, _ = safetensors.read(tmp_path / "m")
    names = {name.rpartition(".")[2] for name in tensors if name.startswith("optimizer.")}
    assert names == {"mean", "square", "largest"}
    stored = read_checkpoint(tmp_path / "m")
    for arrays, own in zip(stored.states.values(), t.states, strict=True):
        assert all((a == b).all() for a, b in zip(arrays, own, strict=True))


def test_numbered_states_of_an_older_file_are_read(tmp_path: Path) -> None:
    t, again = trainer(optim.Adam(0.1)), trainer(optim.Adam(0.1))
    t.step(chains())
    t.save(tmp_path / "m")
    tensors, metadata = safetensors.read(tmp_path / "m")
    numbers = {"mean": "0", "square": "1"}
    old = {
        f"{name.rpartition('.')[0]}.{numbers[name.rpartition('.')[2]]}"
        if name.startswith("optimizer.")
        else name: array
        for name, array in tensors.items()
    }
    metadata["progress"] = metadata["progress"].replace('"states": ["mean", "square"]', '"old": 1')
    safetensors.write(tmp_path / "old", old, metadata)
    again.resume(tmp_path / "old")
    assert state(again) == state(t)


@dataclass(frozen=True)
class Changed(optim.Optimizer):
    factor = 0.9
    states = ("mean",)

    def rule(self, value: Any, gradient: Any, state: Any, rate: Any, step: Any) -> Any:
        mean = self.factor * state.mean + gradient
        return value - rate * mean, {self.states[0]: mean}


@pytest.mark.parametrize(
    ("other", "found"),
    [
        (lambda: optim.Lion(0.1), "was trained with 'Changed', not 'Lion'"),
        (lambda: optim.SGD(0.1, momentum=0.9), "was trained with 'Changed', not 'momentum'"),
        (
            lambda: type("Changed", (Changed,), {"factor": 0.8})(0.1),
            r"another rule of Changed: '.*0.9.*', which is '.*0.8.*' now\n(.|\n)*strict=False",
        ),
        (
            lambda: type("Changed", (HeavyBall,), {})(0.1),
            r"has the states \['mean'\] of Changed, which has \['previous'\] now",
        ),
        (lambda: Changed(0.2), r"was trained with lr=0.1, but this trainer has lr=0.2"),
    ],
)
def test_another_rule_is_refused(other: Any, found: str, tmp_path: Path) -> None:
    first, second = trainer(Changed(0.1)), trainer(other())
    first.step(chains())
    first.save(tmp_path / "m")
    before = state(second)
    with pytest.raises(CheckpointError, match=found):
        second.resume(tmp_path / "m")
    assert state(second) == before


def test_a_changed_rule_may_go_on_with_the_states(tmp_path: Path) -> None:
    first, second = (
        trainer(Changed(0.1)),
        trainer(type("Changed", (Changed,), {"factor": 0.8})(0.1)),
    )
    first.step(chains())
    first.save(tmp_path / "m")
    second.resume(tmp_path / "m", strict=False)
    assert state(second) == state(first)
    second.step(chains())
    assert np.isfinite(second.states[0][0]).all()
