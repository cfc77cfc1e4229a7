"""Schedules and optimisers."""

import math

import numpy as np
import pytest

from cavs.errors import CheckpointError, ConfigError
from cavs.train import optim, schedules
from tests.train.fake import FakeModel, update


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (schedules.Constant(0.5), {0: 0.5, 1000: 0.5}),
        (schedules.StepDecay(1.0, every=10, factor=0.5), {0: 1, 9: 1, 10: 0.5, 25: 0.25}),
        (schedules.Exponential(2.0, factor=0.25, every=4), {0: 2, 2: 1, 4: 0.5}),
        (schedules.Cosine(1.0, steps=10, floor=0.2), {0: 1, 5: 0.6, 10: 0.2, 99: 0.2}),
        (schedules.WarmUp(1.0, steps=4), {0: 0.25, 1: 0.5, 3: 1, 4: 1, 50: 1}),
        (
            schedules.WarmUp(schedules.StepDecay(1.0, every=2, factor=0.5), steps=2),
            {0: 0.5, 1: 1, 2: 1, 3: 1, 4: 0.5},
        ),
    ],
)
def test_schedules(schedule, expected):
    for step, lr in expected.items():
        assert schedule(step) == pytest.approx(lr)
    assert optim.SGD(schedule).hyper(0)["lr"] == pytest.approx(expected[0])


def test_plateau_halves_after_patience_and_continues_from_its_state():
    plateau = schedules.Plateau(1.0, factor=0.5, patience=1, floor=0.3)
    optimizer = optim.SGD(schedules.WarmUp(plateau, steps=1))
    rates = []
    for value in (3.0, 2.0, 2.0, 2.5, 2.1, 2.2, 5.0, 5.0):
        optimizer.observe(value)
        rates.append(optimizer.rate(10))
    assert rates == [1, 1, 1, 0.5, 0.5, 0.3, 0.3, 0.3]
    other = optim.SGD(schedules.Plateau(1.0, factor=0.5, patience=1, floor=0.3))
    other.load_state_dict(optimizer.state_dict())
    assert other.state_dict()["schedule"] == optimizer.state_dict()["schedule"]
    lower = optim.SGD(schedules.Plateau(0.4, patience=1))
    lower.load_state_dict(optimizer.state_dict())
    assert lower.rate(10) == 0.4  # a run resumed with another rate
    with pytest.raises(CheckpointError, match="plateau"):
        plateau.load_state_dict({"rate": "fast"})


@pytest.mark.parametrize(
    ("make", "found", "need"),
    [
        (lambda: optim.SGD(-1), "-1", "above 0"),
        (lambda: optim.SGD(math.nan), "nan", "above 0"),
        (lambda: optim.SGD("0.1"), "'0.1'", "schedule"),
        (lambda: optim.SGD(True), "True", "schedule"),
        (lambda: optim.SGD(0.1, momentum=1.0), "1.0", r"\[0, 1\)"),
        (lambda: optim.SGD(0.1, nesterov=True), "momentum=0", "momentum=0.9"),
        (lambda: optim.Adam(0.1, beta2=1.5), "1.5", r"\[0, 1\)"),
        (lambda: optim.Adagrad(0.1, eps=0), "0", "above 0"),
        (lambda: optim.AdamW(0.1, weight_decay=-0.1), "-0.1", ">= 0"),
        (lambda: schedules.StepDecay(0.1, every=0), "0", "at least 1"),
        (lambda: schedules.StepDecay(0.1, every=2.5), "2.5", "whole number"),
        (lambda: schedules.Cosine(0.1, 10, floor=0.2), "0.2", r"lr=0.1"),
        (lambda: schedules.Plateau(0.1, factor=1), "1", r"\(0, 1\)"),
        (lambda: schedules.WarmUp(0.1, steps=-3), "-3", "at least 1"),
    ],
)
def test_invalid_options_are_refused_with_value_and_cure(make, found, need):
    with pytest.raises(ConfigError, match=need) as error:
        make()
    assert found in str(error.value)
    assert "hint" in str(error.value)


def test_states_and_hyper():
    parameters = list(FakeModel().parameters().values())
    counts = {
        optim.SGD(0.1): ("sgd", 0),
        optim.SGD(0.1, 0.9, True): ("momentum", 1),
        optim.Adagrad(0.1, initial=0.5): ("adagrad", 1),
        optim.Adam(0.1): ("adam", 2),
        optim.AdamW(0.1): ("adamw", 2),
        optim.Adadelta(1.0): ("Adadelta", 2),
        optim.Lion(0.1): ("Lion", 1),
    }
    keys = set(optim.SGD(0.1).hyper(0))
    for optimizer, (kind, count) in counts.items():
        hyper = optimizer.hyper(3)
        assert hyper["kind"] == kind
        assert set(hyper) == keys
        states = optimizer.init_states(parameters)
        assert [len(s) for s in states] == [count, count, 0]
        for p, arrays in zip(parameters, states, strict=True):
            assert all(a.shape == p.value.shape and a.dtype == p.value.dtype for a in arrays)
    assert optim.Adagrad(0.1, initial=0.5).init_states(parameters)[0][0].min() == 0.5
    hyper = optim.Adam(0.1).hyper(0)
    assert hyper["bias1"] == pytest.approx(0.1)
    assert hyper["bias2"] == pytest.approx(0.001)
    assert optim.AdamW(0.1).weight_decay == 0.01


@pytest.mark.parametrize(
    "optimizer",
    [
        optim.SGD(0.1),
        optim.SGD(0.05, momentum=0.9),
        optim.SGD(0.05, momentum=0.9, nesterov=True),
        optim.Adagrad(0.5),
        optim.Adam(0.1),
        optim.AdamW(0.1, weight_decay=0.0),
        optim.RMSProp(0.02),
        optim.Lion(0.01, beta1=0.5, beta2=0.5),
        optim.Adadelta(1.0, eps=1e-3),
    ],
)
def test_optimizers_minimise_a_quadratic(optimizer):
    value = np.array([3.0, -2.0])
    states = [np.zeros(2) for _ in range(optimizer.num_states())]
    for step in range(300):
        update(value, value - np.array([1.0, 0.5]), states, optimizer.hyper(step))
    assert value == pytest.approx([1.0, 0.5], abs=0.02)


@pytest.mark.parametrize(
    ("old", "new"),
    [("kind", "name"), ("factors", "scales"), ("states_per_parameter", "states")],
)
def test_former_attributes_say_their_new_names(old, new):
    for owner in (optim.SGD(0.1), optim.Adam):
        with pytest.raises(AttributeError, match=f"Optimizer.{old} was renamed\n(.|\n)*use {new}"):
            getattr(owner, old)


@pytest.mark.parametrize(("old", "new"), [("kind", "name"), ("factors", "scales")])
def test_a_subclass_may_not_define_a_former_name(old, new):
    found = (
        f"Mine defines {old}, which Optimizer calls {new} now\n(.|\n)*rename Mine.{old} to {new}"
    )
    with pytest.raises(AttributeError, match=found):
        type("Mine", (optim.SGD,), {old: "sgd"})
    assert type("Mine", (optim.SGD,), {new: "sgd"}).__mro__[1] is optim.SGD


def test_a_subclass_may_have_a_base_that_takes_options():
    class Named:
        def __init_subclass__(cls, name, **options):
            super().__init_subclass__(**options)
            cls.name = name

    class Mine(optim.SGD, Named, name="mine"):
        pass

    assert Mine.name == "mine"
