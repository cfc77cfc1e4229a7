"""A training loop asks its coordinator, in the same order on every process."""

import inspect
from contextlib import contextmanager

import pytest

from cavs.distributed.coordinator import RankCoordinator
from cavs.errors import (
    CheckpointError,
    CommunicationError,
    ConfigError,
    DataError,
    DeviceError,
    NumericsError,
)
from cavs.train.coordination import Coordinator, SingleProcess, leaves_state_valid
from cavs.train.trainer import Trainer
from tests.train.test_trainer import BATCHES, bits, dev_loader, make, train_loader

METHODS = [name for name in vars(Coordinator) if not name.startswith("_")]


def recording(trainer):
    """Let `trainer` record the calls of its coordinator."""
    calls = []

    class Recording(SingleProcess):
        def __getattribute__(self, name):
            if name in METHODS:
                calls.append(name)
            return super().__getattribute__(name)

        @contextmanager
        def fitting(self, train, options):
            yield
            calls.append("end of fitting")

    trainer._compose(trainer.state, trainer.session, Recording())
    return calls


@pytest.mark.parametrize("coordinator", [SingleProcess, RankCoordinator])
def test_a_coordinator_has_every_method_of_the_protocol(coordinator):
    for name in METHODS:
        asked, given = getattr(Coordinator, name), getattr(coordinator, name)
        if callable(asked):
            assert list(inspect.signature(given).parameters) == list(
                inspect.signature(asked).parameters
            )


def test_a_fit_asks_its_coordinator(tmp_path):
    trainer = make()
    calls = recording(trainer)
    options = {"dev": dev_loader(), "checkpoint": tmp_path / "run", "progress": False}
    trainer.fit(train_loader(), epochs=1, **options)
    order = [name for name in dict.fromkeys(calls) if name != "writes_files"]
    assert order == [
        "fitting",
        "shard_loader",
        "carry",
        "group",
        "agreed_size",
        "detached",
        "wants_regroup",
        "restart_clock",
        "guard_batches",
        "run_step",
        "should_stop",
        "sum_losses",
        "run_evaluation",
        "local_batches",
        "should_end_evaluation",
        "reduce_metrics",
        "save",
        "release",
        "should_stop_at_end",
        "end of fitting",
    ]
    assert calls.count("run_step") == BATCHES
    assert calls.count("save") == 2  # the best parameters and the run


def test_a_trainer_asks_its_coordinator_for_files(tmp_path):
    trainer = make()
    calls = recording(trainer)
    trainer.save(tmp_path / "run")
    trainer.load(tmp_path / "run")
    trainer.resume(tmp_path / "run")
    assert calls == ["save", "load", "resume"]


def test_a_coordinator_may_stop_a_fit(tmp_path):
    class Stopping(SingleProcess):
        def should_stop(self, requested):
            return trainer.steps == 3

    trainer = make()
    trainer._compose(trainer.state, trainer.session, Stopping())
    with pytest.raises(KeyboardInterrupt, match="stopped after step 3; saved"):
        trainer.fit(train_loader(), epochs=2, checkpoint=tmp_path / "run", progress=False)
    again, whole = make(), make()
    again.resume(tmp_path / "run")
    for resumed in (again, whole):
        resumed.fit(train_loader(), epochs=2, progress=False)
    assert bits(again) == bits(whole)


def test_an_evaluation_by_several_ranks_cannot_carry_states():
    class Two(SingleProcess):
        def agreed_size(self):
            return 2

    trainer = make()
    trainer._compose(trainer.state, trainer.session, Two())
    told = r"carry=\{'h0': 'h'\} in an evaluation by 2 ranks, each of which evaluates other"
    with pytest.raises(ConfigError, match=told) as caught:
        trainer.evaluate(dev_loader(), carry={"h0": "h"})
    assert "evaluate on one process" in caught.value.hint
    assert trainer.evaluate(dev_loader())["loss"] > 0


def test_only_the_process_that_writes_files_writes_log_and_progress(tmp_path, capsys):
    class Silent(SingleProcess):
        writes_files = False

    trainer = make()
    trainer._compose(trainer.state, trainer.session, Silent())
    trainer.fit(train_loader(), epochs=1, log=tmp_path / "log", progress=True)
    assert not (tmp_path / "log").exists() and capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("error", "in_step", "in_evaluation"),
    [
        (NumericsError("x"), True, True),
        (DataError("x"), True, True),
        (RuntimeError("x"), False, True),
        (DeviceError("x"), False, False),
        (CommunicationError("x"), False, False),
        (CheckpointError("x"), False, False),
    ],
)
def test_errors_after_which_a_checkpoint_can_be_written(error, in_step, in_evaluation):
    assert leaves_state_valid(error, evaluating=False) == in_step
    assert leaves_state_valid(error, evaluating=True) == in_evaluation


def test_a_trainer_shows_the_attributes_of_its_state():
    trainer = make()
    trainer.steps, trainer.max_norm = 4, 2.0
    assert (trainer.state.steps, trainer.state.max_norm) == (4, 2.0)
    for name in ("model", "optimizer", "parameters", "states", "seed", "config"):
        assert getattr(trainer, name) is getattr(trainer.state, name)
    assert isinstance(vars(Trainer)["steps"], type(vars(Trainer)["seed"]))


@pytest.mark.parametrize("name", ["claim", "stops", "stops_at_end"])
def test_former_attributes_say_their_new_names(name):
    trainer = make()
    with pytest.raises(AttributeError, match=f"Trainer.{name} was renamed\n(.|\n)*hint: use "):
        getattr(trainer, name)
    with pytest.raises(AttributeError, match=f"Trainer.{name} was renamed"):
        setattr(trainer, name, None)
    assert not hasattr(trainer, name)
