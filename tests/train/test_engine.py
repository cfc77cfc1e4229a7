"""The training layer on the real engine: bit-identical resuming, every optimiser, sparse rows."""

import functools
import os
import signal

import numpy as np
import pytest

from cavs import ops
from cavs.data import Graph, batch
from cavs.errors import CheckpointError, NumericsError
from cavs.runtime import Session
from cavs.train import DataLoader, Trainer, metrics, optim, read_checkpoint, schedules
from tests.train.classifier import Classifier, trees
from tests.train.fake import update

TRAIN, DEV = trees(50), trees(16, seed=1)
BATCHES = 7


def make(optimizer, dropout=0.2, **options):
    model = Classifier(dropout)
    model.initialize(7)
    return Trainer(model, optimizer, **{"seed": 3, "max_norm": 1.0, "threads": 2} | options)


def loader():
    return DataLoader(TRAIN, 8, shuffle=True, bucket="depth")


def dev():
    return DataLoader(DEV, 8, cache=True)


def bits(trainer):
    arrays = [p.value for p in trainer.parameters.values()]
    return [a.tobytes() for a in arrays + [a for s in trainer.states for a in s]]


OPTIMIZERS = [
    lambda: optim.SGD(0.1),
    lambda: optim.SGD(schedules.Cosine(0.1, 40), momentum=0.9, nesterov=True, weight_decay=0.01),
    lambda: optim.Adagrad(0.1),
    lambda: optim.Adam(schedules.WarmUp(0.02, 5), weight_decay=0.01),
    lambda: optim.AdamW(schedules.Plateau(0.02, patience=0)),
]


def test_training_learns():
    trainer = make(optim.Adam(0.03), dropout=0.05)
    result = trainer.fit(
        DataLoader(TRAIN, 8, shuffle=True),
        epochs=15,
        dev=DataLoader(TRAIN, 8, cache=True),
        metrics=[metrics.accuracy(), metrics.root_accuracy(), metrics.perplexity()],
        progress=False,
    )
    first, last = result.epochs[0], result.epochs[-1]
    assert last["train_loss"] < 0.8 * first["train_loss"]
    assert last["dev_accuracy"] > first["dev_accuracy"] + 0.1


def three_epochs():
    return {"epochs": 3, "metrics": [metrics.accuracy()], "progress": False}


@functools.cache
def uninterrupted(optimizer):
    whole = make(optimizer())
    return whole.fit(loader(), dev=dev(), **three_epochs()), bits(whole)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("stop", [2, BATCHES, BATCHES + 4])
def test_resuming_is_bit_identical(tmp_path, optimizer, stop):
    path, options = tmp_path / "run.safetensors", three_epochs()
    expected, last = uninterrupted(optimizer)

    first = make(optimizer())
    advance = first.session.step

    def interrupted(*args, **kwargs):
        outcome = advance(*args, **kwargs)
        if kwargs["step"] == stop - 1:
            os.kill(os.getpid(), signal.SIGINT)
        return outcome

    first.session.step = interrupted
    with pytest.raises(KeyboardInterrupt, match=f"step {stop}; saved"):
        first.fit(loader(), dev=dev(), checkpoint=path, **options)

    second = make(optimizer(), seed=0)
    second.evaluate(dev())  # packs weights, which resuming must invalidate
    second.resume(path)
    assert bits(second) == bits(first)
    result = second.fit(loader(), dev=dev(), checkpoint=path, **options)
    assert bits(second) == last
    assert result.epochs[-1]["dev_loss"] == expected.epochs[-1]["dev_loss"]
    assert result.epochs[-1]["train_loss"] == expected.epochs[-1]["train_loss"]


def test_resuming_compiles_for_what_the_run_has_seen(tmp_path):
    """The rest of the run lacks kinds of vertices that were in its first batches."""
    words = np.array([4, 5, 6])
    plain = [Graph.chain(3, features={"token": words, "label": words % 3}) for _ in range(8)]
    graphs = TRAIN[:8] + plain

    def start(**options):
        return make(optim.Adagrad(0.1)), {"epochs": 1, "progress": False} | options

    whole, options = start()
    whole.fit(DataLoader(graphs, 2), **options)
    first, options = start(checkpoint=tmp_path / "m")
    step = first.session.step

    def interrupted(*args, **kwargs):
        if kwargs["step"] == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return step(*args, **kwargs)

    first.session.step = interrupted
    with pytest.raises(KeyboardInterrupt):
        first.fit(DataLoader(graphs, 2), **options)
    between, _ = start()  # interrupted again before its first batch
    between.resume(tmp_path / "m")
    between.save(tmp_path / "again")
    kept = [read_checkpoint(tmp_path / name).progress["session"] for name in ("m", "again")]
    assert kept[0] == kept[1] and kept[0]["variants"]
    second, options = start()
    second.resume(tmp_path / "again")
    second.fit(DataLoader(graphs, 2), **options)
    assert second.session.state_dict() == whole.session.state_dict()
    assert len(whole.session.state_dict()["variants"][0]["kinds"]) == 4
    assert bits(second) == bits(whole)


@pytest.mark.parametrize("state", [{}, {"variants": 3}, {"variants": [{"training": True}]}])
def test_a_damaged_state_of_the_session_is_refused(state):
    with pytest.raises(CheckpointError, match="state of the session"):
        Session(Classifier()).load_state_dict(state)


def test_prefetched_batches_give_the_bits_of_plain_ones():
    plain, ahead = make(optim.Adagrad(0.1)), make(optim.Adagrad(0.1))
    plain.fit(DataLoader(TRAIN, 8, prefetch=0), epochs=2, progress=False)
    ahead.fit(DataLoader(TRAIN, 8, prefetch=3, cache=True), epochs=2, progress=False)
    assert bits(plain) == bits(ahead)


@pytest.mark.parametrize("max_norm", [None, 0.05])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_engine_updates_by_the_rules(optimizer, max_norm):
    """Dense parameters and the touched rows of the embedding change as NumPy computes."""
    optimizer = optimizer()
    model = Classifier(0.0)
    model.initialize(7)
    session = Session(model, dtype=np.float64)
    trainer = Trainer(model, optimizer, session=session, max_norm=max_norm)
    values = {name: p.value.copy() for name, p in trainer.parameters.items()}
    states = [[a.copy() for a in arrays] for arrays in trainer.states]
    for step in range(3):
        data = batch(TRAIN[8 * step : 8 * step + 8])
        _, gradients = session.gradients(data)
        norm = np.sqrt(sum((g**2).sum() for g in gradients.values()))
        scale = 1.0 if max_norm is None else min(1.0, max_norm / norm)
        token = data["token"]
        for (name, value), arrays in zip(values.items(), states, strict=True):
            sparse = trainer.parameters[name].sparse
            rows = np.unique(token[token >= 0]) if sparse else slice(None)
            parts = [value[rows].copy(), *(a[rows].copy() for a in arrays)]
            update(parts[0], gradients[name][rows] * scale, parts[1:], optimizer.hyper(step))
            for whole, part in zip([value, *arrays], parts, strict=True):
                whole[rows] = part
        outcome = trainer.advance(data)
        assert outcome.grad_norm == pytest.approx(norm, rel=1e-9)
        for (name, value), arrays, own in zip(values.items(), states, trainer.states, strict=True):
            found = [trainer.parameters[name].value, *own]
            for whole, array in zip([value, *arrays], found, strict=True):
                np.testing.assert_allclose(array, whole, rtol=1e-9, atol=1e-12, err_msg=name)


def test_a_loss_that_overflows_updates_nothing():
    trainer = make(optim.Adagrad(0.1), dropout=0.0)
    trainer.step(batch(TRAIN[:4], [0, 1, 2, 3]))
    trainer.parameters["output.weight"].value[:] = 3e38
    trainer.parameters["output.bias"].value[0] = 3e38
    trainer.session.invalidate()
    before = bits(trainer)
    with pytest.raises(NumericsError, match=r"step 2: .* on graphs 4, 5, 6, 7; nothing was"):
        trainer.step(batch(TRAIN[4:8], [4, 5, 6, 7]))
    assert bits(trainer) == before


def test_an_evaluation_that_is_not_finite_names_its_graphs(tmp_path):
    trainer = make(optim.Adagrad(0.1), dropout=0.0)
    data = batch(TRAIN[4:8], [4, 5, 6, 7])
    assert np.isfinite(trainer.session.evaluate(data).loss)
    trainer.parameters["output.bias"].value[0] = np.nan
    trainer.session.invalidate()
    told = r"the loss is nan, on graphs 4, 5, 6, 7(.|\n)*output.bias holds values"
    with pytest.raises(NumericsError, match=told) as caught:
        trainer.session.evaluate(data)
    assert caught.value.where.startswith("test_engine.py:")
    with pytest.raises(NumericsError, match=f"^evaluation after step 0: {told}") as caught:
        trainer.evaluate([data])
    assert "last good checkpoint: none was written" in str(caught.value)
    assert np.isnan(trainer.session.gradients(data)[0])  # gradients are for inspection


class Predicting(Classifier):
    """Has an output that its loss does not read."""

    def forward(self, data):
        return {"p": ops.log(self.output.bias - 1e9)}

    def loss(self, data):
        return ops.cross_entropy(super().forward(data), data["label"])


def test_a_predicted_nan_reaches_the_metrics():
    session = Session(Predicting(dropout=0.0))
    with pytest.raises(NumericsError, match="prediction 'p' is NaN at the batch as a whole"):
        session.evaluate(batch(TRAIN[:2]))
