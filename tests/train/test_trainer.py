"""Runs of a trainer on an engine in NumPy."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from cavs import data
from cavs.errors import CheckpointError, ConfigError, DeviceError, NumericsError
from cavs.train import DataLoader, Trainer, metrics, optim, read_checkpoint, schedules
from cavs.train.checkpoint import best_path
from cavs.train.progress import Progress
from tests.patience import patience
from tests.train.fake import FakeModel, FakeSession, make_graph, make_graphs

ROOT = Path(__file__).parents[2]
GRAPHS, DEV = make_graphs(60), make_graphs(20, seed=1)
BATCHES = 8


def make(optimizer=None, *, dtype=np.float32, **options):
    model = FakeModel(dtype)
    optimizer = optimizer or optim.Adam(schedules.WarmUp(0.05, 3), weight_decay=0.01)
    return Trainer(model, optimizer, session=FakeSession(model), **options)


def train_loader(graphs=GRAPHS, **options):
    defaults = {"batch_size": 8, "shuffle": True, "bucket": "size"}
    return DataLoader(graphs, **defaults | options)


def dev_loader(graphs=DEV):
    return DataLoader(graphs, 8, cache=True)


def bits(trainer):
    arrays = [p.value for p in trainer.model.parameters().values()]
    return [a.tobytes() for a in arrays + [a for s in trainer.states for a in s]]


def records(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_training_learns_and_reports(tmp_path):
    trainer = make(optim.Adagrad(0.5))
    log = tmp_path / "logs" / "log.jsonl"
    used = [metrics.accuracy(), metrics.root_accuracy(), metrics.perplexity()]
    before = trainer.evaluate(dev_loader(), used)
    result = trainer.fit(
        train_loader(), epochs=4, dev=dev_loader(), metrics=used, log=log, progress=False
    )
    last = result.epochs[-1]
    assert last["dev_accuracy"] > before["accuracy"] + 0.2
    assert last["dev_accuracy"] > 0.8
    assert last["train_loss"] < result.epochs[0]["train_loss"]
    assert last["dev_perplexity"] == pytest.approx(math.exp(last["dev_loss"]))
    assert last["step"] == trainer.steps == 4 * BATCHES
    assert result.monitor == "accuracy"
    assert result.best == max(e["dev_accuracy"] for e in result.epochs)
    assert result.epochs[result.best_epoch - 1]["dev_accuracy"] == result.best
    written = records(log)
    assert [r["event"] for r in written] == ["start", *["epoch"] * 4, "end"]
    assert written[0]["optimizer"].startswith("Adagrad(lr=0.5")
    assert written[4]["dev_root_accuracy"] == last["dev_root_accuracy"]


def test_same_seed_same_bits_other_seed_other_bits():
    trainers = [make(seed=s) for s in (0, 0, 1)]
    for trainer in trainers:
        trainer.fit(train_loader(), epochs=2, progress=False)
    assert bits(trainers[0]) == bits(trainers[1])
    assert bits(trainers[0]) != bits(trainers[2])


OPTIMIZERS = [
    lambda: optim.SGD(schedules.Cosine(0.5, 30)),
    lambda: optim.SGD(0.1, momentum=0.9, nesterov=True),
    lambda: optim.Adagrad(0.3),
    lambda: optim.AdamW(schedules.Plateau(0.5, patience=0)),
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("stop", [1, BATCHES - 1, BATCHES, BATCHES + 3, 2 * BATCHES])
def test_resuming_is_bit_identical(tmp_path, optimizer, stop):
    """Stop by Ctrl-C at any step, also the last of an epoch, and resume in a new trainer."""
    options = {"epochs": 3, "metrics": [metrics.accuracy()], "progress": False}
    whole = make(optimizer(), seed=3, max_norm=0.5)
    expected = whole.fit(train_loader(), dev=dev_loader(), **options)

    path = tmp_path / "run.safetensors"
    first = make(optimizer(), seed=3, max_norm=0.5)

    def interrupt(step):
        if step == stop - 1:
            os.kill(os.getpid(), signal.SIGINT)

    first.session.on_step = interrupt
    with pytest.raises(KeyboardInterrupt, match=f"step {stop}; saved {path}"):
        first.fit(train_loader(), dev=dev_loader(), checkpoint=path, **options)
    assert first.steps == stop

    second = make(optimizer(), seed=99, max_norm=0.5)
    second.resume(path)
    assert bits(second) == bits(first)
    assert second.session.changed == 1
    result = second.fit(train_loader(), dev=dev_loader(), checkpoint=path, **options)
    assert bits(second) == bits(whole)
    assert first.session.batches + second.session.batches == whole.session.batches
    assert (result.best, result.best_epoch) == (expected.best, expected.best_epoch)

    def pure(epochs):
        timed = ("seconds", "dev_seconds", "graphs_per_second")
        return [{k: v for k, v in e.items() if k not in timed} for e in epochs]

    assert pure(result.epochs) == pure(expected.epochs)[-len(result.epochs) :]


def test_ctrl_c_while_evaluating_resumes_with_the_evaluation(tmp_path):
    path = tmp_path / "run.safetensors"
    whole = make()
    whole.fit(train_loader(), epochs=2, dev=dev_loader(), progress=False)
    first = make()
    evaluate = first.session.evaluate

    def interrupted(batch):
        os.kill(os.getpid(), signal.SIGINT)
        return evaluate(batch)

    first.session.evaluate = interrupted
    with pytest.raises(KeyboardInterrupt):
        first.fit(train_loader(), epochs=2, dev=dev_loader(), checkpoint=path, progress=False)
    assert first.steps == BATCHES
    second = make()
    second.resume(path)
    result = second.fit(train_loader(), epochs=2, dev=dev_loader(), progress=False)
    assert [e["epoch"] for e in result.epochs] == [1, 2]
    assert bits(second) == bits(whole)


def test_ctrl_c_without_a_checkpoint_says_so_and_frees_signals_and_threads():
    trainer = make()
    trainer.session.on_step = lambda step: os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match="nothing was saved"):
        trainer.fit(train_loader(), epochs=1, progress=False)
    assert trainer.steps == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not [t for t in threading.enumerate() if t.name == "cavs-prefetch"]


def test_after_ctrl_c_the_next_fit_counts_from_the_first_batch(monkeypatch):
    begun = []

    class Counted(Progress):
        def __init__(self, *args, done, **options):
            begun.append(done)
            super().__init__(*args, done=done, **options)

    monkeypatch.setattr("cavs.train.fit.Progress", Counted)
    trainer, loader = make(), train_loader()
    trainer.session.on_step = lambda step: step == 2 and os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(loader, epochs=1, progress=False)
    assert loader.position == 3 and loader.first == 0
    trainer.session.on_step = lambda step: None
    trainer.fit(loader, epochs=1, progress=False)
    assert begun == [0, 0] and trainer.steps == 3 + BATCHES


def test_checkpoints_inside_an_epoch_survive_a_kill(tmp_path):
    path = tmp_path / "run.safetensors"
    code = f"""
import os, signal
from tests.train.test_trainer import make, train_loader
trainer = make()
trainer.session.on_step = lambda step: step == 12 and os.kill(os.getpid(), signal.SIGKILL)
trainer.fit(train_loader(), epochs=3, checkpoint={str(path)!r}, checkpoint_every=5, progress=False)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT, timeout=patience(30))
    assert done.returncode == -signal.SIGKILL
    # Step 5, the end of the epoch at 8; the next would have been step 13.
    assert read_checkpoint(path).progress["step"] == 8
    trainer = make()
    trainer.resume(path)
    trainer.fit(train_loader(), epochs=3, progress=False)
    whole = make()
    whole.fit(train_loader(), epochs=3, progress=False)
    assert bits(trainer) == bits(whole)


def test_sigterm_saves_too(tmp_path):
    path = tmp_path / "run.safetensors"
    trainer = make()
    trainer.session.on_step = lambda step: step == 2 and os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(train_loader(), epochs=1, checkpoint=path, progress=False)
    assert read_checkpoint(path).progress["step"] == 3


def test_nan_stops_with_step_graphs_and_last_good_checkpoint(tmp_path):
    path = tmp_path / "run.safetensors"
    trainer = make()
    trainer.fit(train_loader(), epochs=1, checkpoint=path, progress=False)
    kept, before = path.read_bytes(), bits(trainer)
    loader = train_loader(shuffle=False, bucket=None)
    trainer.session.poison = 17
    log = tmp_path / "log"
    with pytest.raises(NumericsError) as error:
        trainer.fit(loader, epochs=1, checkpoint=path, log=log, progress=False)
    text = str(error.value)
    assert f"step {BATCHES + 3}:" in text
    assert "loss is nan" in text
    assert "graphs 16, 17, 18" in text
    assert f"last good checkpoint: {path}" in text
    assert trainer.steps == BATCHES + 2
    assert path.read_bytes() != kept
    assert read_checkpoint(path).progress["step"] == trainer.steps
    assert bits(trainer) != before
    assert records(log)[-1]["event"] == "numerics"


def test_a_step_that_is_not_finite_updates_nothing():
    trainer = make()
    trainer.session.poison = 4
    before = bits(trainer)
    for ids, text in (([4], "on graphs 4; nothing was updated"), ([*range(80)], r"63, \.\.\.; ")):
        batch = data.batch(GRAPHS[:1] * len(ids), ids)
        trainer.session.prepare(batch)
        with pytest.raises(NumericsError, match=text) as error:
            trainer.step(batch)
        assert "last good checkpoint: none was written" in str(error.value)
    assert (bits(trainer), trainer.steps) == (before, 0)


def test_parameters_that_are_not_finite_never_replace_a_checkpoint(tmp_path):
    path = tmp_path / "m"
    trainer = make()
    trainer.save(path)
    kept = path.read_bytes()
    trainer.model.parameters()["output.b"].value[1] = np.inf
    with pytest.raises(NumericsError, match=r"'output.b' is not finite(.|\n)*checkpoint: .*m"):
        trainer.save(path)
    assert path.read_bytes() == kept


def test_early_stopping_keeps_the_best(tmp_path):
    path = tmp_path / "run.safetensors"
    options = {"epochs": 50, "dev": dev_loader(), "metrics": [metrics.accuracy()], "patience": 2}
    trainer = make(optim.SGD(schedules.StepDecay(30.0, every=BATCHES, factor=0.9)))
    result = trainer.fit(
        train_loader(), checkpoint=path, restore_best=True, progress=False, **options
    )
    assert result.stopped_early
    assert len(result.epochs) == result.best_epoch + 3 < 50
    assert trainer.evaluate(dev_loader(), [metrics.accuracy()])["accuracy"] == result.best
    last = make(optim.SGD(30.0))
    last.load(path)
    assert bits(last) != bits(trainer)
    last.load(best_path(path))
    assert bits(last) == bits(trainer)
    with pytest.raises(CheckpointError, match="has no optimiser states"):
        make().resume(_best_of_adam(tmp_path))
    memory = make(optim.SGD(schedules.StepDecay(30.0, every=BATCHES, factor=0.9)))
    memory.fit(train_loader(), restore_best=True, progress=False, **options)
    assert bits(memory) == bits(trainer)
    again = make(optim.SGD(schedules.StepDecay(30.0, every=BATCHES, factor=0.9)))
    again.resume(path)
    assert again.fit(train_loader(), progress=False, **options).epochs == []


def _best_of_adam(tmp_path):
    path = tmp_path / "adam.safetensors"
    make().fit(train_loader(), epochs=1, dev=dev_loader(), checkpoint=path, progress=False)
    return best_path(path)


def test_a_plateau_schedule_follows_the_metric():
    plateau = schedules.Plateau(1e-9, factor=0.5, patience=0)
    trainer = make(optim.SGD(plateau))
    used = [metrics.accuracy()]
    trainer.fit(train_loader(), epochs=3, dev=dev_loader(), metrics=used, progress=False)
    # The rate is too small to change anything: two epochs without improvement halve it twice.
    assert trainer.optimizer.rate(0) == 0.25e-9
    assert plateau(0) == 1e-9  # the trainer has its own


@pytest.mark.parametrize("wrap", [lambda p: p, lambda p: schedules.WarmUp(p, steps=1)])
def test_every_trainer_has_a_fresh_plateau(wrap):
    groups = {"*.b": {"lr": 0.5}}
    optimizer = optim.AdamW(wrap(schedules.Plateau(1e-9, patience=0)), beta1=0.5, groups=groups)
    folds = []
    for _ in range(3):
        trainer = make(optimizer)
        assert trainer.optimizer == optimizer
        result = trainer.fit(train_loader(), epochs=3, dev=dev_loader(), progress=False)
        folds.append([e["lr"] for e in result.epochs])
        assert trainer.optimizer.rate(1) < 1e-9
    assert folds[0] == folds[1] == folds[2]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"optimizer": optim.SGD(0.1)}, "'adam', not 'sgd'"),
        ({"dtype": np.float64}, r"float32\[6, 3\], but the model has float64"),
    ],
)
def test_resuming_with_another_setup_is_refused(tmp_path, change, text):
    make().save(tmp_path / "m")
    other = make(**change)
    before = bits(other)
    with pytest.raises(CheckpointError, match=text):
        other.resume(tmp_path / "m")
    assert bits(other) == before


def test_resuming_with_another_loader_or_monitor_is_refused(tmp_path):
    path = tmp_path / "m"
    make().fit(train_loader(), epochs=1, dev=dev_loader(), checkpoint=path, progress=False)
    trainer = make()
    trainer.resume(path)
    with pytest.raises(CheckpointError, match="batch_size=8"):
        trainer.fit(train_loader(batch_size=4), epochs=2, dev=dev_loader(), progress=False)
    trainer.resume(path)
    with pytest.raises(CheckpointError, match="monitored 'loss', not 'accuracy'"):
        trainer.fit(
            train_loader(), epochs=2, dev=dev_loader(), metrics=[metrics.accuracy()], progress=False
        )


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"epochs": 0}, ConfigError, "epochs is 0"),
        ({"patience": 2}, ConfigError, "patience=2 without dev"),
        ({"restore_best": True}, ConfigError, "without dev"),
        ({"checkpoint_every": 5}, ConfigError, "without checkpoint"),
        ({"monitor": "f1"}, ConfigError, "monitor is 'f1'"),
        (
            {"monitor": "accuracy", "metrics": [metrics.accuracy()]},
            ConfigError,
            "monitor='accuracy' without dev",
        ),
        ({"metrics": [metrics.accuracy(), metrics.accuracy()]}, ConfigError, "several metrics"),
        ({"metrics": ["accuracy"]}, ConfigError, "must be a function"),
        ({"checkpoint": "/proc/none/x"}, CheckpointError, "cannot write the checkpoint"),
        ({"log": "/proc/none/x"}, ConfigError, "cannot write the log"),
    ],
)
def test_invalid_options_of_fit_are_refused_before_the_first_step(options, error, text):
    trainer = make()
    with pytest.raises(error, match=text):
        trainer.fit(train_loader(), **{"epochs": 1, "progress": False} | options)
    assert trainer.steps == 0


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"device": "cuda"}, DeviceError, "'cuda'"),
        ({"seed": -1}, ConfigError, "seed is -1"),
        ({"max_norm": 0}, ConfigError, "max_norm is 0"),
        ({"threads": 0}, ConfigError, "threads is 0"),
        ({"optimizer": "adam"}, ConfigError, "'adam'"),
    ],
)
def test_invalid_arguments_of_a_trainer_are_refused(options, error, text):
    with pytest.raises(error, match=text):
        make(**options)


def test_metrics():
    outputs = {
        "output": np.array([[1.0, 2, 0], [3, 2, 1], [0, 0, 9], [9, 0, 0]]),
        "loss": 2.0,
        "weight": 3.0,
    }
    graphs = [
        make_graph(np.zeros((n, 6)), np.array(label)) for n, label in ((2, [1, 1]), (2, [-1, 0]))
    ]
    batch = data.batch(graphs)
    assert metrics.accuracy()(outputs, batch) == (2, 3)
    assert metrics.root_accuracy()(outputs, batch) == (1, 2)
    assert metrics.perplexity()(outputs, batch) == (6, 3)
    with pytest.raises(Exception, match=r"reads the output 'tags', but the model has \['output'\]"):
        metrics.accuracy("tags")(outputs, batch)
    with pytest.raises(
        Exception, match=r"label 'label' has shape \(4,\), but the output has 3 rows"
    ):
        metrics.accuracy()({"output": np.zeros((3, 3))}, batch)


def test_a_plain_function_is_a_metric():
    def share_of_graphs(outputs, batch):
        return batch.num_graphs, 2 * batch.num_graphs

    values = make().evaluate(dev_loader(), [share_of_graphs])
    assert values["share_of_graphs"] == 0.5
    assert make().evaluate(dev_loader(), {"half": share_of_graphs})["half"] == 0.5


class Halved(DataLoader):
    """Yields every second batch."""

    def __iter__(self):
        return (b for i, b in enumerate(super().__iter__()) if i % 2)


def test_an_evaluation_uses_the_iter_of_a_subclass():
    trainer, seen = make(), []
    evaluate = trainer.session.evaluate

    def noted(batch):
        seen.append(list(batch.ids))
        return evaluate(batch)

    trainer.session.evaluate = noted
    loader = Halved(make_graphs(8), batch_size=2)
    trainer.evaluate(loader, progress=False)
    assert seen == [[2, 3], [6, 7]]


def test_a_fit_calls_the_methods_of_a_subclass(tmp_path):
    calls = []

    class Recording(Trainer):
        def advance(self, batch):
            calls.append("advance")
            return super().advance(batch)

        def evaluate(self, loader, metrics=(), **options):
            calls.append("evaluate")
            return super().evaluate(loader, metrics, **options)

        def save(self, path, **options):
            calls.append("save")
            super().save(path, **options)

        def load(self, path, **options):
            calls.append("load")
            return super().load(path, **options)

    model = FakeModel()
    trainer = Recording(model, optim.SGD(0.1), session=FakeSession(model))
    options = {"dev": dev_loader(), "checkpoint": tmp_path / "run", "restore_best": True}
    trainer.fit(train_loader(), epochs=1, progress=False, **options)
    assert calls == ["advance"] * BATCHES + ["evaluate", "save", "save", "load"]
