"""Truncated backpropagation: states carried from batch to batch."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.errors import CheckpointError, ConfigError, FeatureError
from cavs.train import Policy, read_checkpoint
from tests.train.truncated import (
    CARRY,
    LENGTH,
    PARTS,
    SIZE,
    LanguageModel,
    bits,
    by_hand,
    loader,
    text_chains,
    trainer,
)

F64 = np.dtype(np.float64)


class _Cut(cavs.VertexFunction):
    """The LSTM of a language model on one long chain, whose gradient is cut where ``cut`` is 1."""

    def __init__(self, cell):
        self.cell, self.state = cell, cell.state

    def vertex(self, v):
        self.cell.vertex(_CutVertex(v))


class _CutVertex:
    def __init__(self, v):
        self._v = v

    def __getattr__(self, name):
        return getattr(self._v, name)

    def gather(self, k=None):
        child, cut = self._v.gather(k), self._v.pull("cut") > 0.5
        return _CutState(child, cut)


class _CutState:
    def __init__(self, child, cut):
        self._child, self._cut = child, cut

    def __getattr__(self, name):
        value = getattr(self._child, name)
        return ops.where(self._cut, ops.stop_gradient(value), value)


class _Whole(LanguageModel):
    def loss(self, batch):
        h = _Cut(self.cell)(batch.graph, x=self.word(batch["token"]), cut=batch["cut"])
        return ops.cross_entropy(self.output(h), batch["label"], reduction="sum")


def whole_text(graphs):
    """Return the parts of the text as one chain each."""
    found = []
    for part in range(PARTS):
        own = graphs[part::PARTS]
        features = {n: np.concatenate([g.features[n] for g in own]) for n in ("token", "label")}
        first = [np.arange(g.num_vertices) == 0 for g in own]
        features["cut"] = np.concatenate(first).astype(np.float32)
        found.append(cavs.Graph.chain(len(features["cut"]), features=features))
    return cavs.batch(found)


def test_gradients_are_those_of_a_long_chain_that_is_cut():
    graphs = text_chains()
    model = _Whole()
    whole_loss, expected = cavs.Session(model, dtype=F64).gradients(whole_text(graphs))
    session = cavs.Session(LanguageModel(), dtype=F64)
    rows, total, sums = {}, 0.0, {}
    for drawn in loader(graphs):
        batch = drawn.with_graph_features(rows)
        loss, found = session.gradients(batch)
        rows = {feature: session.aux(batch)[name] for feature, name in CARRY.items()}
        total += loss * batch.num_vertices
        for name, g in found.items():
            sums[name] = sums.get(name, 0.0) + g * batch.num_vertices
    assert rows["h0"].dtype == F64 and len(graphs) == 5 * PARTS
    np.testing.assert_allclose(total, whole_loss, rtol=1e-12)
    for name, g in expected.items():
        np.testing.assert_allclose(sums[name], g, rtol=1e-9, atol=1e-12, err_msg=name)


def test_fit_carries_as_a_loop_by_hand_does():
    made, again, without = trainer(), trainer(), trainer()
    result = made.fit(loader(), epochs=2, carry=CARRY, progress=False)
    losses = by_hand(again, list(loader()), 2)
    without.fit(loader(), epochs=2, progress=False)
    assert bits(made) == bits(again) != bits(without)
    means = np.mean(np.reshape(losses, (2, -1)), axis=1)
    np.testing.assert_allclose([e["train_loss"] for e in result.epochs], means, rtol=1e-12)


def test_an_epoch_begins_from_the_features_of_its_graphs():
    zeros, others = trainer(), trainer()
    zeros.fit(loader(), epochs=1, carry=CARRY, progress=False)
    others.fit(loader(text_chains(first=0.5)), epochs=1, carry=CARRY, progress=False)
    assert bits(zeros) != bits(others)
    ones = trainer()
    by_hand(ones, list(loader(text_chains(first=0.5))), 1)
    assert bits(ones) == bits(others)


def test_an_evaluation_carries_states_too():
    made = trainer()
    graphs = text_chains()
    result = made.fit(loader(), epochs=1, dev=loader(), carry=CARRY, progress=False)
    model = _Whole()
    session = cavs.Session(model, dtype=F64)
    for name, p in model.parameters().items():
        p.value[...] = made.parameters[name].value
    whole = whole_text(graphs)
    expected = session.evaluate(whole).loss / whole.num_vertices
    assert result.epochs[0]["dev_loss"] == pytest.approx(expected, rel=1e-12)
    found = made.evaluate(loader(), carry=CARRY)["loss"]
    assert found == result.epochs[0]["dev_loss"] != made.evaluate(loader())["loss"]


class _StopAt(Policy):
    def __init__(self, step):
        self.step = step

    def after_step(self, run):
        if run.step == self.step:
            run.stop()


@pytest.mark.parametrize("step", [2, 5, 8])
def test_a_resumed_run_has_the_same_bits(step, tmp_path):
    whole, stopped, resumed = trainer(), trainer(), trainer()
    whole.fit(loader(), epochs=3, carry=CARRY, progress=False)
    stopped.fit(loader(), epochs=3, carry=CARRY, progress=False, policies=[_StopAt(step)])
    stopped.save(tmp_path / "m")
    within = {name: rows.shape for name, rows in read_checkpoint(tmp_path / "m").extra.items()}
    assert within == ({"@carry/c0": (4, 5), "@carry/h0": (4, 5)} if step != 5 else {})
    resumed.resume(tmp_path / "m")
    resumed.save(tmp_path / "again")  # before its first step
    resumed = trainer()
    resumed.resume(tmp_path / "again")
    resumed.fit(loader(), epochs=3, carry=CARRY, progress=False)
    assert resumed.steps == 15 and bits(resumed) == bits(whole)


def test_checkpoints_within_an_epoch_hold_the_states(tmp_path):
    made = trainer()
    kept = []

    def advance(batch):
        if made.steps == 3:
            kept.append(read_checkpoint(tmp_path / "m").extra)
        return made._stepper.advance(batch)

    made.advance = advance
    made.fit(
        loader(),
        epochs=1,
        carry=CARRY,
        progress=False,
        checkpoint=tmp_path / "m",
        checkpoint_every=1,
    )
    assert kept[0]["@carry/h0"].shape == (PARTS, SIZE) and kept[0]["@carry/h0"].any()
    assert read_checkpoint(tmp_path / "m").extra == {}


def test_another_carry_does_not_continue_within_an_epoch(tmp_path):
    made = trainer()
    made.fit(loader(), epochs=1, carry=CARRY, progress=False, policies=[_StopAt(2)])
    made.save(tmp_path / "m")
    other = trainer()
    other.resume(tmp_path / "m")
    with pytest.raises(CheckpointError, match=r"carried c0, h0 into the next.*carries none"):
        other.fit(loader(), epochs=1, progress=False)
    with pytest.raises(CheckpointError, match=r"carried c0, h0 into the next.*carries h0"):
        other.fit(loader(), epochs=1, carry={"h0": "h"}, progress=False)
    other.fit(loader(), epochs=1, carry=CARRY, progress=False)


class _Returns(LanguageModel):
    """Returns other values with the loss."""

    def __init__(self, values):
        super().__init__()
        self.values = values

    def loss(self, batch):
        loss, _ = super().loss(batch)
        return loss, self.values(self, batch)


def fit(values, graphs=None, carry=None, **options):
    model = _Returns(values)
    made = cavs.Trainer(model, cavs.optim.SGD(lr=0.1))
    made.fit(loader(graphs, **options), epochs=1, carry=carry or {"h0": "h"}, progress=False)


@pytest.mark.parametrize(
    ("values", "options", "error", "message"),
    [
        (lambda m, b: {}, {}, ConfigError, "returns no value 'h' with the loss; it returns none"),
        (lambda m, b: {"x": b["h0"]}, {}, ConfigError, "no value 'h' .* it returns 'x'"),
        (lambda m, b: {"h": m.word(b["token"])}, {}, ConfigError, "12 rows .* 4 graphs"),
        (lambda m, b: {"h": b["h0"].sum(-1)}, {}, FeatureError, r"float32\[4\], those .*\[4, 5\]"),
        (
            lambda m, b: {"h": b["h0"]},
            {"batch_size": 3},
            FeatureError,
            "of 2 graphs follows one of 3",
        ),
        (
            lambda m, b: {"h": b["h0"]},
            {"carry": {"z": "h"}},
            FeatureError,
            'no feature "z" of graphs',
        ),
        (
            lambda m, b: {"h": b["h0"]},
            {"carry": {"token": "h"}},
            FeatureError,
            'no feature "token" of',
        ),
        (
            lambda m, b: {"h": b["h0"]},
            {"carry": ["h"]},
            ConfigError,
            "carry is .'h'., but must be a",
        ),
        (lambda m, b: {"h": b["h0"]}, {"carry": {"h0": 1}}, ConfigError, "carry is .'h0': 1., but"),
        (lambda m, b: {"h": b["h0"]}, {"shuffle": True}, ConfigError, "train has the graphs of an"),
        (lambda m, b: {"h": b["h0"]}, {"bucket": "size"}, ConfigError, "train has the graphs of"),
    ],
)
def test_bad_states_are_refused(values, options, error, message):
    with pytest.raises(error, match=message):
        fit(values, **options)


def test_a_trainer_returns_values_of_any_rows():
    class Model(LanguageModel):
        def __init__(self):
            super().__init__()
            self.more = nn.Embedding(9, 5)

        def loss(self, batch):
            loss, _ = super().loss(batch)
            return loss, {"vertex": self.more(batch["token"]), "one": ops.mean_rows(batch["h0"])}

    model = Model()
    weight = model.parameters()["more.weight"]
    weight.value[...] = np.arange(45.0).reshape(9, 5)
    batch = next(iter(loader()))
    expected = weight.value[batch["token"]].copy()
    found = cavs.Trainer(model, cavs.optim.SGD(lr=0.1)).advance(batch).aux
    assert {name: rows.shape for name, rows in found.items()} == {
        "vertex": (PARTS * LENGTH, 5),
        "one": (1, 5),
    }
    np.testing.assert_array_equal(found["vertex"], expected)
    result = cavs.Session(model).evaluate(batch)
    np.testing.assert_array_equal(result.aux["vertex"], weight.value[batch["token"]])
    assert result.outputs == {}


def test_merged_vertices_are_returned_one_by_one():
    """Equal vertices of a large batch run once; their values come back at each of them."""

    class Model(cavs.Model):
        def __init__(self):
            self.word, self.cell = nn.Embedding(4, 3), nn.LSTM(3, 3)
            self.output = nn.Linear(3, 2)

        def loss(self, batch):
            h = self.cell(batch.graph, x=self.word(batch["token"]))
            return ops.cross_entropy(self.output(h), batch["label"]), {"h": h}

    rng = np.random.default_rng(0)
    graphs = [
        cavs.Graph.chain(4, features={"token": rng.integers(0, 3, 4), "label": np.zeros(4, int)})
        for _ in range(100)
    ]
    model, batch = Model(), cavs.batch(graphs)
    session = cavs.Session(model, dtype=F64)
    session.gradients(batch)
    assert len(session.schedule(batch).order) < batch.num_vertices
    found = session.aux(batch)["h"]
    single = cavs.Session(model, dtype=F64)
    for i in (0, 57):
        one = cavs.batch([graphs[i]])
        single.gradients(one)
        np.testing.assert_allclose(found[4 * i : 4 * i + 4], single.aux(one)["h"], rtol=1e-12)
