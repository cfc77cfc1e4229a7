"""Options that a trainer passes to its session."""

import numpy as np
import pytest

import cavs
from cavs import distributed, optim
from cavs.compiler.pipeline import Passes, default_passes
from cavs.errors import ConfigError
from tests.distributed.test_trainer import BATCHES, Tree

OFF = Passes(hoist_products_to_child=False, fuse=False)


def test_passes_reach_the_session():
    assert cavs.Trainer(Tree(), optim.SGD(0.1), passes=OFF).session.passes == OFF
    assert cavs.Trainer(Tree(), optim.SGD(0.1)).session.passes is default_passes("cpu")
    rank = distributed.Trainer(Tree(), optim.SGD(0.1), passes=OFF)
    assert rank.session.session.passes == OFF


def test_passes_train_like_those_of_a_session():
    def trained(make):
        model = Tree()
        trainer = make(model)
        losses = [trainer.step(cavs.batch(graphs)) for graphs in BATCHES]
        return losses, [p.value.tobytes() for p in model.parameters().values()]

    own = trained(lambda model: cavs.Trainer(model, optim.Adam(0.1), passes=OFF))
    given = trained(
        lambda model: cavs.Trainer(model, optim.Adam(0.1), session=cavs.Session(model, passes=OFF))
    )
    assert own == given
    assert np.isfinite(own[0]).all()


@pytest.mark.parametrize("passes", [Passes(), OFF, "none"])
def test_passes_are_refused_with_a_session(passes):
    model = Tree()
    found = "passes is .*, but must be None with a session, which has passes of its own"
    with pytest.raises(ConfigError, match=found):
        cavs.Trainer(model, optim.SGD(0.1), passes=passes, session=cavs.Session(model))


@pytest.mark.parametrize(
    ("option", "need"),
    [
        ({"threads": 2}, "threads is 2, but must be None with a session"),
        ({"deterministic": True}, "deterministic is True, but must be False with a session"),
    ],
)
def test_options_that_a_session_has_chosen_are_refused(option, need):
    model = Tree()
    with pytest.raises(ConfigError, match=need):
        cavs.Trainer(model, optim.SGD(0.1), session=cavs.Session(model), **option)


@pytest.mark.parametrize("make", [cavs.Trainer, distributed.Trainer])
def test_passes_of_another_type_are_refused(make):
    with pytest.raises(ConfigError, match=r"passes is 'none', but must be a cavs\.compiler Passes"):
        make(Tree(), optim.SGD(0.1), passes="none")


def test_cudnn_is_refused_on_many_ranks():
    with pytest.raises(ConfigError, match="cudnn is 'auto', but must be 'never' on many ranks"):
        distributed.Trainer(Tree(), optim.SGD(0.1), cudnn="auto")
    distributed.Trainer(Tree(), optim.SGD(0.1), cudnn="never")


def test_a_session_that_is_no_engine_is_refused():
    with pytest.raises(
        ConfigError, match=r"session is .*, but must be cavs\.Session, or an engine"
    ):
        cavs.Trainer(Tree(), optim.SGD(0.1), session=object())
