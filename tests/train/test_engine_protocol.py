"""An engine that only makes steps gets the rest of its interface from `Engine`."""

from types import MappingProxyType

import pytest

from cavs.errors import ConfigError
from cavs.train.engine import Engine, EvalOutcome, StepOutcome
from tests.train.fake import FakeSession
from tests.train.test_trainer import BATCHES, bits, dev_loader, make, train_loader


class Least(FakeSession, Engine):
    """The NumPy engine, without the attributes that `Engine` has."""

    overlaps = Engine.overlaps


class Numbers(StepOutcome):
    loss, grad_norm = 0.5, 2.0


class Rows(EvalOutcome):
    loss, weight, outputs = 0.5, 2.0, MappingProxyType({"y": [1.0]})


def test_an_engine_overlaps_nothing_and_loses_no_step():
    trainer, plain = make(), make()
    trainer.session.__class__ = Least
    assert trainer.session.overlaps is False and trainer.session.lost_steps() == 0
    for each in (trainer, plain):
        each.fit(train_loader(), epochs=1, dev=dev_loader(), progress=False)
    assert bits(trainer) == bits(plain) and len(trainer.session.batches) == BATCHES


def test_a_step_that_ends_before_it_returns_cannot_be_launched():
    trainer = make()
    trainer.session.__class__ = Least
    arguments = trainer.state.step_arguments(trainer.session, 0)
    with pytest.raises(ConfigError, match="a step ends before it returns") as caught:
        trainer.session.launch(next(iter(train_loader())), **arguments)
    assert caught.value.hint == "call step()" and trainer.session.batches == []


def test_outcomes_without_further_values_have_none():
    assert Numbers().aux == {} and Rows().aux == {}
