"""One training at a time writes a checkpoint, and none replaces one of another model."""

import fcntl
import multiprocessing
import os
import re
import signal

import numpy as np
import pytest

from cavs.errors import CheckpointError, ConfigError
from cavs.train import read_checkpoint, safetensors, save_checkpoint
from cavs.train.checkpoint import best_path
from cavs.train.checkpoint_lock import CheckpointLock
from tests.train.fake import FakeModel, FakeParameter
from tests.train.test_trainer import bits, dev_loader, make, train_loader


def _hold(path, pipe):
    CheckpointLock(path).acquire()
    pipe.send("held")
    pipe.recv()


def test_another_process_holds_the_lock_until_it_ends(tmp_path):
    path = tmp_path / "run"
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    other = context.Process(target=_hold, args=(path, theirs))
    other.start()
    try:
        assert ours.recv() == "held"
        trainer = make()
        before = bits(trainer)
        expected = f"still running writes to {path}\n(.|\n)*checkpoint="
        with pytest.raises(ConfigError, match=expected):
            trainer.fit(train_loader(), epochs=1, checkpoint=path, progress=False)
        with pytest.raises(ConfigError, match=f"still running writes to {path}\n"):
            trainer.save(path)
        assert bits(trainer) == before and not path.exists()
        make().fit(train_loader(), epochs=1, checkpoint=tmp_path / "other", progress=False)
    finally:
        os.kill(other.pid, signal.SIGKILL)
        other.join()
    trainer.fit(train_loader(), epochs=1, checkpoint=path, progress=False)
    assert sorted(os.listdir(tmp_path)) == ["other", "run"]


def test_a_lock_whose_file_the_last_holder_has_removed_is_acquired_again(tmp_path, monkeypatch):
    """The holder ends between the moments at which the next one opens and locks its file."""
    path, flock, removed = tmp_path / "run", fcntl.flock, []
    file = tmp_path / ".run.lock"

    def late(descriptor, operation):
        if not removed:
            removed.append(os.fstat(descriptor).st_ino)
            file.rename(tmp_path / "removed")
        return flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    lock, other = CheckpointLock(path), CheckpointLock(path)
    lock.acquire()
    assert removed == [(tmp_path / "removed").stat().st_ino] != [file.stat().st_ino]
    with pytest.raises(ConfigError, match=f"still running writes to {path}\n"):
        other.acquire()
    lock.close()
    assert not file.exists()
    other.acquire()
    other.close()


def test_a_lock_file_that_is_gone_is_not_removed_twice(tmp_path):
    path, file = tmp_path / "run", tmp_path / ".run.lock"
    lock = CheckpointLock(path)
    lock.acquire()
    lock.acquire()  # it has it already
    file.unlink()
    lock.close()
    lock.acquire()
    file.unlink()
    file.write_text("of another program")
    lock.close()
    assert file.read_text() == "of another program"


def test_only_the_running_fit_may_save_to_its_checkpoint(tmp_path):
    path, trainer, other, refused = tmp_path / "run", make(), make(), []

    def saves(event, record):
        if event == "epoch":
            trainer.save(path)
            trainer.save(tmp_path / "copy")
            with pytest.raises(ConfigError, match="still running") as error:
                other.save(path)
            refused.append(str(error.value))

    trainer.fit(train_loader(), epochs=2, checkpoint=path, progress=False, on_event=saves)
    assert len(refused) == 2 and "save to another file" in refused[0]
    assert read_checkpoint(path).progress["step"] == trainer.steps
    other.save(path)
    assert sorted(os.listdir(tmp_path)) == ["copy", "run"]


def test_nested_fits_on_one_checkpoint_are_refused(tmp_path):
    path = tmp_path / "run"

    def another(event, record):
        if event == "epoch":
            make().fit(train_loader(), epochs=1, checkpoint=path, progress=False)

    for _ in range(2):  # a fit that an error ends releases the lock too
        with pytest.raises(ConfigError, match="still running"):
            make().fit(train_loader(), epochs=1, checkpoint=path, progress=False, on_event=another)
    trainer = make()
    for epochs in (1, 2):
        trainer.fit(train_loader(), epochs=epochs, checkpoint=path, progress=False)
    with pytest.raises(ConfigError, match="log"):
        trainer.fit(train_loader(), epochs=1, checkpoint=path, log=tmp_path, progress=False)
    trainer.fit(train_loader(), epochs=1, checkpoint=path, progress=False)


def test_processes_that_join_share_the_lock_of_a_training(tmp_path):
    first, second, other = (CheckpointLock(tmp_path / "run") for _ in range(3))
    first.acquire(shared=True)
    second.join()
    for lock in (first, second):
        with pytest.raises(ConfigError):
            other.acquire()
        lock.close()
    other.acquire()
    other.close()
    assert not list(tmp_path.iterdir())


def _of_others(tmp_path):
    model = FakeModel()
    model.parameters()["output.c"] = FakeParameter("output.c", np.zeros(2, np.float32))
    save_checkpoint(tmp_path / "more", model)
    wide = make()
    wide.parameters["output.b"].value = np.zeros(5, np.float32)
    wide.save(tmp_path / "wide")
    (tmp_path / "notes").write_text("no checkpoint at all")
    safetensors.write(tmp_path / "foreign", {"a": np.zeros(3)}, {})
    return {
        "more": "'output.c' is [2] there and absent in this model",
        "wide": "'output.b' is [5] there and [3] in this model",
        "notes": "no checkpoint of cavs: .*notes is not a whole safetensors file",
        "foreign": "no checkpoint of cavs: .*foreign",
    }


def test_a_file_that_is_no_checkpoint_of_this_model_is_not_replaced(tmp_path):
    for name, text in _of_others(tmp_path).items():
        path, kept = tmp_path / name, (tmp_path / name).read_bytes()
        pattern = text if ".*" in text else re.escape(text)
        with pytest.raises(CheckpointError, match=pattern) as caught:
            make().fit(train_loader(), epochs=1, checkpoint=path, progress=False)
        assert "move that file away" in caught.value.hint
        assert path.read_bytes() == kept
    (tmp_path / "run.best").write_text("mine")
    options = {"epochs": 1, "checkpoint": tmp_path / "run", "progress": False}
    make().fit(train_loader(), **options)
    with pytest.raises(CheckpointError, match=r"run\.best"):
        make().fit(train_loader(), dev=dev_loader(), **options)
    (tmp_path / "empty").touch()
    make().fit(train_loader(), epochs=1, checkpoint=tmp_path / "empty", progress=False)
    assert read_checkpoint(tmp_path / "empty").progress["fit"]["epoch"] == 1


def test_parameters_of_another_run_are_not_restored_as_the_best(tmp_path):
    path, trainer = tmp_path / "run", make()
    calls = iter(range(9))

    def replaced(event, record):
        if event == "epoch" and record["epoch"] == 2:  # a program that ignores the lock
            make(seed=3).save(best_path(path))

    with pytest.raises(CheckpointError, match=r"best epoch is 1, of value -1.0, but .* epoch None"):
        trainer.fit(
            train_loader(),
            epochs=2,
            dev=dev_loader(),
            metrics={"m": lambda outputs, batch: (-float(next(calls)), 1.0)},
            checkpoint=path,
            restore_best=True,
            on_event=replaced,
            progress=False,
        )
