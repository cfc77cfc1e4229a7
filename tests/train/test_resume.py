"""Runs that go on in another trainer: where they stood, and with which best parameters."""

import os
import signal

import pytest

from cavs.errors import CheckpointError, ConfigError
from cavs.train import read_checkpoint
from tests.train.test_trainer import BATCHES, bits, dev_loader, make, train_loader


@pytest.mark.parametrize(
    ("mistake", "error"),
    [
        ({"train": train_loader(batch_size=4)}, CheckpointError),
        ({"patience": -1}, ConfigError),
        ({"checkpoint": "/proc/none/x"}, CheckpointError),
        ({"log": "/proc/none/x"}, ConfigError),
    ],
)
def test_a_refused_fit_leaves_the_resumed_run_where_it_stood(mistake, error, tmp_path):
    path = tmp_path / "run"
    options = {"dev": dev_loader(), "progress": False}
    make().fit(train_loader(), epochs=2, checkpoint=path, **options)
    trainer = make()
    trainer.resume(path)
    with pytest.raises(error):
        trainer.fit(**{"train": train_loader(), "epochs": 4} | options | mistake)
    result = trainer.fit(train_loader(), epochs=4, **options)
    assert [e["epoch"] for e in result.epochs] == [3, 4]
    assert trainer.steps == 4 * BATCHES
    whole = make()
    whole.fit(train_loader(), epochs=4, **options)
    assert bits(trainer) == bits(whole)


def after_a_fit(trainer, path):
    loader = train_loader()
    trainer.fit(loader, epochs=2, progress=False)
    trainer.evaluate(loader)  # which moves the loader on
    trainer.save(path)


def after_ctrl_c(trainer, path):
    trainer.session.on_step = lambda step: step == 11 and os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match="nothing was saved"):
        trainer.fit(train_loader(), epochs=4, progress=False)
    trainer.save(path)


def within_an_epoch_event(trainer, path):
    def save(event, record):
        if event == "epoch" and record["epoch"] == 2:
            trainer.save(path)

    trainer.fit(train_loader(), epochs=4, progress=False, on_event=save)


def after_it_was_resumed(trainer, path):
    trainer.fit(train_loader(), epochs=1, checkpoint=path, progress=False)
    again = make()
    again.resume(path)
    again.save(path)


@pytest.mark.parametrize(
    ("saved", "done"),
    [(after_a_fit, 2), (after_ctrl_c, 1), (within_an_epoch_event, 2), (after_it_was_resumed, 1)],
)
def test_what_save_writes_goes_on_with_the_epochs_of_the_fit(saved, done, tmp_path):
    saved(make(), tmp_path / "m")
    trainer = make()
    trainer.resume(tmp_path / "m")
    result = trainer.fit(train_loader(), epochs=4, progress=False)
    assert [e["epoch"] for e in result.epochs] == [*range(done + 1, 5)]
    whole = make()
    whole.fit(train_loader(), epochs=4, progress=False)
    assert bits(trainer) == bits(whole)


def test_what_save_writes_without_a_fit_has_no_epochs(tmp_path):
    trainer, loader = make(), train_loader()
    trainer._attach(loader)
    trainer.step(next(iter(loader)))
    trainer.save(tmp_path / "m", progress={"note": 3})
    again = make()
    assert again.resume(tmp_path / "m").progress["note"] == 3
    result = again.fit(train_loader(), epochs=1, progress=False)
    assert [e["epoch"] for e in result.epochs] == [1]
    assert again.steps == 1 + BATCHES


def test_a_standing_of_steps_that_are_lost_is_not_written(tmp_path):
    trainer = make()
    trainer.fit(train_loader(), epochs=1, progress=False)
    trainer.steps -= 2  # as where a device has failed
    trainer.save(tmp_path / "m")
    assert "fit" not in read_checkpoint(tmp_path / "m").progress
