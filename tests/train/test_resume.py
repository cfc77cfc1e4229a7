"""A run resumed by another trainer has its progress and its best parameters."""

import os
import signal

import numpy as np
import pytest

from cavs.errors import CheckpointError, ConfigError
from cavs.train import read_checkpoint
from cavs.train.checkpoint import best_path
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
def test_a_refused_fit_keeps_the_resume_point(mistake, error, tmp_path):
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
    trainer.evaluate(loader)  # advances the loader
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
def test_a_saved_file_continues_the_epochs_of_the_fit(saved, done, tmp_path):
    saved(make(), tmp_path / "m")
    trainer = make()
    trainer.resume(tmp_path / "m")
    result = trainer.fit(train_loader(), epochs=4, progress=False)
    assert [e["epoch"] for e in result.epochs] == [*range(done + 1, 5)]
    whole = make()
    whole.fit(train_loader(), epochs=4, progress=False)
    assert bits(trainer) == bits(whole)


def test_a_file_saved_before_any_fit_has_no_epochs(tmp_path):
    trainer, loader = make(), train_loader()
    loader.prepare = trainer.session.prepare
    trainer.step(next(iter(loader)))
    trainer.save(tmp_path / "m", progress={"note": 3})
    again = make()
    assert again.resume(tmp_path / "m").progress["note"] == 3
    result = again.fit(train_loader(), epochs=1, progress=False)
    assert [e["epoch"] for e in result.epochs] == [1]
    assert again.steps == 1 + BATCHES


def test_the_progress_of_lost_steps_is_not_written(tmp_path):
    trainer = make()
    trainer.fit(train_loader(), epochs=1, progress=False)
    trainer.steps -= 2  # as after the failure of a device
    trainer.save(tmp_path / "m")
    assert "fit" not in read_checkpoint(tmp_path / "m").progress


def falling():
    """Return a metric that is best in the first epoch of a run and its continuations."""
    calls = iter(range(1000))
    return {"falling": lambda outputs, batch: (-float(next(calls)), 1.0)}


def options(metrics, **more):
    return {"dev": dev_loader(), "metrics": metrics, "progress": False} | more


def begun(path):
    """Return a trainer resumed from a run of two epochs, its metrics, and its best parameters."""
    used = falling()
    make().fit(train_loader(), epochs=2, checkpoint=path, **options(used))
    trainer = make()
    trainer.resume(path)
    return trainer, used, read_checkpoint(best_path(path)).parameters


@pytest.mark.parametrize("checkpoint", [None, "run", "new/run", "other/run"])
def test_the_best_of_a_resumed_run_is_restored(checkpoint, tmp_path):
    make(seed=7).save(best_path(tmp_path / "other/run"))  # a file of another run
    trainer, used, best = begun(tmp_path / "run")
    place = None if checkpoint is None else tmp_path / checkpoint
    result = trainer.fit(
        train_loader(), epochs=4, restore_best=True, checkpoint=place, **options(used)
    )
    assert (result.best_epoch, len(result.epochs)) == (1, 2)
    for name, parameter in trainer.parameters.items():
        assert np.array_equal(parameter.value, best[name])


@pytest.mark.parametrize("checkpoint", [None, "new/run"])
def test_a_better_epoch_after_resuming_is_restored_instead(checkpoint, tmp_path):
    trainer, _, _ = begun(tmp_path / "run")
    place = None if checkpoint is None else tmp_path / checkpoint
    used = {"falling": lambda outputs, batch: (float(trainer.steps), 1.0)}  # rises
    trainer.fit(train_loader(), epochs=4, restore_best=True, checkpoint=place, **options(used))
    whole = make()
    whole.fit(train_loader(), epochs=4, progress=False)
    assert bits(trainer) == bits(whole)


def no_file(path):
    path.unlink()


def of_another_run(path):
    make().fit(train_loader(), epochs=1, checkpoint=path.with_name("b"), **options(()))
    os.replace(path.with_name("b.best"), path)


def without_a_run(path):
    make().save(path)


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (no_file, "epoch of the resumed run is 1, but .*run.best"),
        (of_another_run, r"is 1, of value -1.0, but .*run.best holds epoch 1, of value "),
        (without_a_run, r"is 1, of value -1.0, but .*run.best holds epoch None"),
    ],
)
def test_resuming_without_the_best_parameters_is_refused_at_the_start(spoil, text, tmp_path):
    trainer, used, _ = begun(tmp_path / "run")
    spoil(tmp_path / "run.best")
    with pytest.raises(CheckpointError, match=text) as error:
        trainer.fit(train_loader(), epochs=4, restore_best=True, **options(used))
    assert "restore_best=False" in error.value.hint
    result = trainer.fit(train_loader(), epochs=4, **options(used))
    assert [e["epoch"] for e in result.epochs] == [3, 4]


def test_a_run_killed_between_its_two_files_resumes(tmp_path):
    path, rising = tmp_path / "run", {"rising": lambda outputs, batch: (float(trainer.steps), 1.0)}
    trainer = make()
    trainer.fit(train_loader(), epochs=1, checkpoint=path, **options(rising))
    last = path.read_bytes()
    trainer = make()
    trainer.resume(path)
    trainer.fit(train_loader(), epochs=2, checkpoint=path, **options(rising))
    path.write_bytes(last)  # as if only the best of epoch 2 had been written
    trainer = make()
    trainer.resume(path)
    result = trainer.fit(train_loader(), epochs=3, restore_best=True, **options(rising))
    assert [e["epoch"] for e in result.epochs] == [2, 3]
    assert result.best_epoch == 3


def test_the_best_file_of_a_run_killed_between_its_two_files_keeps_its_epoch(tmp_path):
    """The resumed run takes another course and is never better than the parameters in the file."""
    path, rising = tmp_path / "run", {"rising": lambda outputs, batch: (float(trainer.steps), 1.0)}
    trainer = make()
    trainer.fit(train_loader(), epochs=1, checkpoint=path, **options(rising))
    last = path.read_bytes()
    trainer.fit(train_loader(), epochs=1, checkpoint=path, **options(rising))
    trainer = make()
    trainer.resume(path)
    trainer.fit(train_loader(), epochs=2, checkpoint=path, **options(rising))
    best = read_checkpoint(best_path(path))
    path.write_bytes(last)
    trainer = make()
    trainer.resume(path)
    falling = {"rising": lambda outputs, batch: (-float(trainer.steps), 1.0)}
    result = trainer.fit(train_loader(), epochs=3, restore_best=True, **options(falling))
    assert (result.best_epoch, result.best) == (
        best.progress["fit"]["best_epoch"],
        best.progress["fit"]["best"],
    )
    for name, p in trainer.parameters.items():
        assert np.array_equal(p.value, best.parameters[name])


def test_an_evaluation_on_the_training_loader_does_not_advance_it(tmp_path):
    seen = []

    def metric(outputs, batch):
        seen.append(batch.num_graphs)
        if stop and len(seen) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return 0.0, 1.0

    def fit(trainer, checkpoint=None):
        loader, used = train_loader(), {"m": metric}
        more = {"dev": loader, "metrics": used, "checkpoint": checkpoint, "progress": False}
        return [e["dev_loss"] for e in trainer.fit(loader, epochs=2, **more).epochs]

    stop, whole = False, make()
    losses = fit(whole)
    assert len(seen) == 2 * BATCHES
    stop, stopped = True, make()
    seen.clear()
    with pytest.raises(KeyboardInterrupt):
        fit(stopped, tmp_path / "run")
    assert len(seen) == 3
    stop = False
    for trainer in (make(), stopped):  # resumed from the file, and the trainer itself
        if trainer is stopped:
            trainer.save(tmp_path / "run")
        seen.clear()
        trainer.resume(tmp_path / "run")
        assert fit(trainer) == losses
        assert len(seen) == 2 * BATCHES
        assert bits(trainer) == bits(whole)


def test_the_best_training_loss_is_not_compared_with_a_dev_loss(tmp_path):
    path = tmp_path / "run"
    make().fit(train_loader(), epochs=2, checkpoint=path, progress=False)
    trainer = make()
    trainer.resume(path)
    result = trainer.fit(
        train_loader(), epochs=3, dev=dev_loader(), restore_best=True, progress=False
    )
    assert (result.best, result.best_epoch) == (result.epochs[0]["dev_loss"], 3)
