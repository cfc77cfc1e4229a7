"""Runs that Ctrl-C or an error in a callback ends early."""

import os
import signal

import pytest

from cavs.train import read_checkpoint
from tests.train.test_trainer import BATCHES, bits, dev_loader, make, records, train_loader


def in_the_event(trainer, number):
    def event(name, record):
        if name == "epoch" and record["epoch"] == 2:
            os.kill(os.getpid(), number)

    return {"on_event": event}


def in_the_checkpoint(trainer, number):
    save, sent = trainer.save, []

    def saved(path, **options):
        if trainer.steps == 2 * BATCHES and not sent:  # a second Ctrl-C would act at once
            sent.append(number)
            os.kill(os.getpid(), number)
        save(path, **options)

    trainer.save = saved
    return {}


@pytest.fixture(autouse=True)
def no_nohup():
    """A signal ignored from the start stays ignored; the tests may run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("moment", [in_the_event, in_the_checkpoint])
def test_ctrl_c_after_the_last_evaluation_is_not_lost(moment, number, tmp_path):
    path, log, trainer = tmp_path / "run", tmp_path / "log", make()
    options = {"dev": dev_loader(), "checkpoint": path, "progress": False, "log": log}
    with pytest.raises(KeyboardInterrupt, match=f"step {2 * BATCHES}; saved {path}"):
        trainer.fit(train_loader(), epochs=2, **options, **moment(trainer, number))
    epoch = ["epoch", "checkpoint"]
    events = [r["event"] for r in records(log)]
    assert events == ["start", *epoch, *epoch, "checkpoint", "interrupt"]
    assert read_checkpoint(path).progress["fit"]["epoch"] == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    again = make()
    again.resume(path)
    again.fit(train_loader(), epochs=3, **options)
    whole = make()
    whole.fit(train_loader(), epochs=3, progress=False)
    assert bits(again) == bits(whole)


def test_an_error_in_a_callback_costs_no_epoch(tmp_path):
    path, trainer = tmp_path / "run", make()

    def event(name, record):
        if name == "epoch" and record["epoch"] == 2:
            raise OSError("mail server is gone")

    with pytest.raises(OSError, match="mail"):
        trainer.fit(train_loader(), epochs=3, checkpoint=path, progress=False, on_event=event)
    again = make()
    again.resume(path)
    result = again.fit(train_loader(), epochs=3, progress=False)
    assert [e["epoch"] for e in result.epochs] == [3]
