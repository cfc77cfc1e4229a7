"""An error inside a `fit` costs none of the steps before it."""

import itertools

import numpy as np
import pytest

from cavs.errors import CavsError, DataError, DeviceError, FeatureError, NumericsError
from cavs.runtime.check import check_loss
from cavs.train import read_checkpoint
from tests.train.test_trainer import BATCHES, GRAPHS, bits, dev_loader, make, records, train_loader


def whole(epochs):
    trainer = make()
    trainer.fit(train_loader(), epochs=epochs, dev=dev_loader(), progress=False)
    return bits(trainer)


def goes_on(path, epochs=2):
    """Return the parameters of a run resumed from `path`, and the number of steps it made."""
    trainer = make()
    trainer.resume(path)
    before = trainer.steps
    trainer.fit(train_loader(), epochs=epochs, dev=dev_loader(), progress=False)
    return bits(trainer), trainer.steps - before


def raising(error):
    calls = itertools.count()

    def metric(outputs, batch):
        if next(calls) == 1:
            raise error
        return 0.0, 1.0

    return {"m": metric}


@pytest.mark.parametrize("error", [ZeroDivisionError("of mine"), FeatureError("bad", hint="fix")])
def test_an_error_in_the_evaluation_costs_no_epoch(error, tmp_path):
    path, log = tmp_path / "run", tmp_path / "log"
    with pytest.raises(type(error)) as caught:
        make().fit(
            train_loader(),
            epochs=2,
            dev=dev_loader(),
            metrics=raising(error),
            monitor="loss",
            checkpoint=path,
            log=log,
            progress=False,
        )
    assert caught.value is error
    said = "".join([str(error), *getattr(error, "__notes__", ())])
    assert f"last good checkpoint: {path}, of step {BATCHES}" in said
    assert [r["event"] for r in records(log)] == ["start", "checkpoint", "error"]
    assert goes_on(path) == (whole(2), BATCHES)


def test_a_loss_that_is_not_finite_in_the_evaluation_names_step_and_checkpoint(tmp_path):
    path, log, trainer = tmp_path / "run", tmp_path / "log", make()
    trainer.session.evaluate = lambda batch: check_loss(np.inf, batch, {})
    with pytest.raises(NumericsError) as caught:
        trainer.fit(
            train_loader(), epochs=1, dev=dev_loader(), checkpoint=path, log=log, progress=False
        )
    text = str(caught.value)
    assert f"evaluation after step {BATCHES}: the loss is inf, on graphs 0, 1, 2" in text
    assert text.count("last good checkpoint") == 1
    assert f"last good checkpoint: {path}, of step {BATCHES}\n" in text
    assert "look for an operator" in caught.value.hint and "NaN" not in caught.value.hint
    assert (records(log)[-1]["event"], records(log)[-1]["step"]) == ("numerics", BATCHES)
    assert goes_on(path) == (whole(2), BATCHES)
    with pytest.raises(NumericsError, match=r"evaluation after step 0: (.|\n)*none was written"):
        trainer = make()
        trainer.session.evaluate = lambda batch: check_loss(np.inf, batch, {})
        trainer.evaluate(dev_loader())


def not_finite(trainer, loader):
    step = trainer.session.step

    def poisoned(batch, *args, **options):
        if options["step"] == BATCHES + 3:
            trainer.session.poison = int(batch.ids[0])
        return step(batch, *args, **options)

    trainer.session.step = poisoned


def bad_graph(trainer, loader):
    collate = loader.collate

    def failing(graphs, ids):
        if trainer.steps > BATCHES and loader.epoch == 1 and loader.position == 3:
            raise FeatureError("too short")
        return collate(graphs, ids)

    loader.collate = failing


def bad_batch(trainer, loader):
    step = trainer.session.step

    def refused(batch, *args, **options):
        if options["step"] == BATCHES + 3:
            raise DataError("beyond its table")
        return step(batch, *args, **options)

    trainer.session.step = refused


@pytest.mark.parametrize("spoil", [not_finite, bad_graph, bad_batch])
def test_an_error_inside_an_epoch_costs_no_earlier_step(spoil, tmp_path):
    path, log, trainer = tmp_path / "run", tmp_path / "log", make()
    loader = train_loader(prefetch=0)
    spoil(trainer, loader)
    options = {"epochs": 2, "dev": dev_loader(), "progress": False}
    with pytest.raises((NumericsError, FeatureError, DataError)) as caught:
        trainer.fit(loader, checkpoint=path, log=log, **options)
    assert f"last good checkpoint: {path}, of step {BATCHES + 3}" in str(caught.value)
    stored = read_checkpoint(path).progress
    assert (stored["step"], stored["loader"]["position"]) == (BATCHES + 3, 3)
    assert records(log)[-1]["event"] == ("numerics" if spoil is not_finite else "error")
    assert goes_on(path) == (whole(2), BATCHES - 3)
    trainer.save(tmp_path / "again")  # with the progress that the trainer itself has
    assert goes_on(tmp_path / "again") == (whole(2), BATCHES - 3)


def test_no_checkpoint_is_written_without_a_step(tmp_path):
    trainer = make()
    trainer.session.poison = 0
    with pytest.raises(NumericsError, match="none was written"):
        trainer.fit(train_loader(GRAPHS[:8]), epochs=1, checkpoint=tmp_path / "run", progress=False)
    assert not list(tmp_path.iterdir())


def test_an_error_reports_steps_that_could_not_be_saved(tmp_path):
    trainer, folder = make(), tmp_path / "run"
    loader = train_loader(prefetch=0)
    bad_batch(trainer, loader)

    def full(event, record):
        if event == "epoch":
            (folder / "c").unlink()
            (folder / "c").mkdir()

    with pytest.raises(DataError, match="beyond its table\n  the steps since are not saved: "):
        trainer.fit(loader, epochs=2, checkpoint=folder / "c", on_event=full, progress=False)


def in_epoch_2(trainer, act):
    """Return a metric that calls `act` once the second epoch is evaluated."""

    def metric(outputs, batch):
        if trainer.steps > BATCHES:
            act()
        return 0.0, 1.0

    return {"dev": dev_loader(), "metrics": {"m": metric}, "monitor": "loss", "progress": False}


def test_steps_whose_parameters_are_not_finite_are_not_saved(tmp_path):
    trainer, path = make(), tmp_path / "run"
    error = ZeroDivisionError("of mine")

    def act():
        trainer.parameters["output.b"].value[0] = np.nan
        raise error

    with pytest.raises(ZeroDivisionError) as caught:
        trainer.fit(train_loader(), epochs=3, checkpoint=path, **in_epoch_2(trainer, act))
    assert caught.value is error
    assert error.__notes__ == [f"last good checkpoint: {path}, of step {BATCHES}"]
    assert read_checkpoint(path).progress["step"] == BATCHES
    assert goes_on(path) == (whole(2), BATCHES)


def test_an_error_of_the_device_in_the_evaluation_is_raised_as_it_is():
    trainer = make()
    error = DeviceError("the device is gone", hint="start again")
    trainer.fit(train_loader(), epochs=1, progress=False)

    def failing(batch):
        raise error

    trainer.session.evaluate = failing
    with pytest.raises(DeviceError) as caught:
        trainer.evaluate(dev_loader())
    assert caught.value is error and trainer.steps == BATCHES


def test_an_error_with_arguments_of_its_own_keeps_its_text(tmp_path):
    class Refused(CavsError):
        def __init__(self, code):
            super().__init__(f"refused with code {code}")
            self.code = code

    trainer, path, error = make(), tmp_path / "run", Refused(7)

    def act():
        raise error

    with pytest.raises(Refused) as caught:
        trainer.fit(train_loader(), epochs=3, checkpoint=path, **in_epoch_2(trainer, act))
    assert caught.value is error and caught.value.code == 7
    assert caught.value.what == "refused with code 7"
    assert goes_on(path) == (whole(2), 0)


def test_no_epoch_is_the_best_of_those_without_a_number():
    trainer = make()
    result = trainer.fit(
        train_loader(),
        epochs=4,
        dev=dev_loader(),
        metrics={"m": lambda outputs, batch: (float("nan"), 1.0)},
        monitor="m",
        patience=1,
        restore_best=True,
        progress=False,
    )
    assert (result.best, result.best_epoch, result.stopped_early) == (None, None, True)
    assert len(result.epochs) == 2
    expected = make()
    expected.fit(train_loader(), epochs=2, progress=False)
    assert bits(trainer) == bits(expected)
