"""Scales of learning rate and weight decay for groups of parameters."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import optim
from cavs.errors import ConfigError
from tests.train.test_frozen_parameters import Classifier, chains, values

GROUPS = {"*.b*": {"weight_decay": 0.0}, "embedding.*": {"lr": 0.25, "weight_decay": 2.0}}
RULES = {
    "sgd": lambda lr, decay, **more: optim.SGD(lr, weight_decay=decay, **more),
    "nesterov": lambda lr, decay, **more: optim.SGD(
        lr, momentum=0.9, nesterov=True, weight_decay=decay, **more
    ),
    "adagrad": lambda lr, decay, **more: optim.Adagrad(lr, weight_decay=decay, **more),
    "adam": lambda lr, decay, **more: optim.Adam(lr, weight_decay=decay, **more),
    "adamw": lambda lr, decay, **more: optim.AdamW(lr, weight_decay=decay, **more),
}


def scales(name):
    if name.startswith("embedding."):
        return 0.25, 2.0
    return 1.0, float(name not in ("cell.b", "output.bias"))


def step(rule, lr, decay, **more):
    """Return the parameters after one step from the same values, which are far from zero."""
    model = Classifier()
    model.initialize(2)
    for p in model.parameters().values():
        p.value += 0.5
    trainer = cavs.Trainer(model, RULES[rule](lr, decay, **more), max_norm=0.5)
    trainer.step(chains())
    return values(model)


@pytest.mark.parametrize("rule", RULES)
def test_a_group_updates_as_if_all_had_its_rate_and_decay(rule):
    found = step(rule, 0.1, 0.01, groups=GROUPS)
    for name, value in found.items():
        lr, decay = scales(name)
        expected = step(rule, 0.1 * lr, 0.01 * decay)[name]
        np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-8, err_msg=name)
        if decay == 0 and rule not in ("adagrad", "adam"):  # their first step is only a sign
            assert np.abs(value - step(rule, 0.1, 0.01)[name]).max() > 0


def test_a_scale_of_zero_freezes_a_group():
    model = Classifier()
    trainer = cavs.Trainer(model, optim.Adam(0.1, groups={"cell.*": {"lr": 0.0}}))
    before = values(model)
    trainer.step(chains())
    moved = {name for name, value in values(model).items() if (value != before[name]).any()}
    assert moved == {"embedding.weight", "output.weight", "output.bias"}


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        ({"tree.*": {"lr": 0.1}}, r"groups is 'tree.\*', but must be .*embedding.weight, cell.W"),
        ({"*.b": {"rate": 0.1}}, "scales of lr and weight_decay"),
        ({"*.b": 0.1}, "scales of lr and weight_decay"),
        ({"*.b": {"lr": -1.0}}, r"lr of group '\*.b' is -1.0"),
        ({"*.b": {"lr": float("nan")}}, "is nan"),
        (["*.b"], "scales of lr and weight_decay"),
    ],
)
def test_invalid_groups_are_refused(groups, says):
    with pytest.raises(ConfigError, match=says):
        cavs.Trainer(Classifier(), optim.SGD(0.1, groups=groups))
