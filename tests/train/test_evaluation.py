"""The loss of a data set does not depend on the batch size."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cavs
from cavs import nn, ops
from cavs.errors import TraceError
from cavs.ir import apply
from cavs.runtime import Session
from cavs.train import DataLoader, Trainer, optim

WIDTH, CLASSES = 4, 3


class Rows(cavs.Model):
    """A linear layer at every vertex with a loss that the test chooses."""

    def __init__(self, loss):
        self.output = nn.Linear(WIDTH, CLASSES)
        self.told = loss

    def forward(self, batch):
        return self.output(batch["x"])

    def loss(self, batch):
        return self.told(self, batch)


def cross_entropy(model, batch):
    return ops.cross_entropy(model.forward(batch), batch["label"])


def graphs(labels, seed=0):
    """Return a chain for each list of labels."""
    rng = np.random.default_rng(seed)
    return [
        cavs.Graph.chain(
            len(some),
            features={
                "x": rng.normal(size=(len(some), WIDTH)),
                "label": some,
                "other": np.zeros(len(some), np.int32),
            },
        )
        for some in labels
    ]


def trainer(loss):
    model = Rows(loss)
    model.initialize(3)
    return Trainer(model, optim.SGD(0.1), session=Session(model, dtype=np.float64))


def rows_of(own, data):
    """Return -log softmax of the labels, 0 for a row without one, in NumPy."""
    x = np.concatenate([g.features["x"] for g in data]).astype(np.float64)
    label = np.concatenate([g.features["label"] for g in data])
    values = [p.value for p in own.parameters.values()]
    weight, bias = sorted(values, key=lambda v: -v.ndim)
    logits = x @ weight + bias
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return -log_p[np.arange(len(x)), np.maximum(label, 0)] * (label >= 0), label


LABELS = st.lists(
    st.lists(st.integers(-1, CLASSES - 1), min_size=1, max_size=7), min_size=1, max_size=9
)


@settings(max_examples=40)
@given(LABELS, st.integers(1, 9))
def test_the_loss_is_the_mean_over_all_labels_for_any_batch_size(labels, batch_size):
    data = graphs(labels)
    own = trainer(cross_entropy)
    rows, label = rows_of(own, data)
    found = own.evaluate(DataLoader(data, batch_size))["loss"]
    known = np.count_nonzero(label >= 0)
    if known:
        assert found == pytest.approx(rows.sum() / known, rel=1e-12)
    else:
        assert math.isnan(found)


def test_a_loss_counts_its_labels():
    own = trainer(cross_entropy)
    seen = []

    def counted(outputs, batch):
        seen.append(outputs["weight"])
        return 1.0, 1.0

    own.evaluate(DataLoader(graphs([[0, 1, 2], [-1, -1], [-1, 2]]), 1), {"counted": counted})
    assert seen == [3, 0, 1]


def penalised(model, batch):
    weight = model.output.weight
    penalty = ops.square(apply("reshape", weight, shape=(WIDTH * CLASSES,))).sum()
    return 2 * cross_entropy(model, batch) / 4 + 0.01 * penalty


def squared(model, batch):
    return ops.mean_squared_error(model.forward(batch), 1.0)


def twice(model, batch):
    return cross_entropy(model, batch) - squared_label(model, batch)


def squared_label(model, batch):
    return 0.5 * ops.cross_entropy(-model.forward(batch), batch["label"])


@pytest.mark.parametrize(
    ("loss", "weight"), [(cross_entropy, 4), (penalised, 4), (twice, 4), (squared, 6 * CLASSES)]
)
def test_means(loss, weight):
    data = graphs([[0, 1, -1], [-1], [2, 2]])
    own = trainer(loss)
    assert own.session.evaluate(cavs.batch(data)).weight == weight
    whole = own.evaluate(DataLoader(data, 3))["loss"]
    assert math.isfinite(whole)
    for batch_size in (1, 2):
        assert own.evaluate(DataLoader(data, batch_size))["loss"] == pytest.approx(whole, rel=1e-12)


def total(model, batch):
    return ops.cross_entropy(model.forward(batch), batch["label"], reduction="sum")


def two_counts(model, batch):
    return cross_entropy(model, batch) + ops.cross_entropy(model.forward(batch), batch["other"])


def scaled_by_data(model, batch):
    return cross_entropy(model, batch) * total(model, batch)


def a_mean_of_means(model, batch):
    return ops.maximum(cross_entropy(model, batch), 0.1)


@pytest.mark.parametrize("loss", [total, two_counts, scaled_by_data, a_mean_of_means])
def test_any_other_loss_counts_its_graphs(loss):
    data = graphs([[0, 1, -1], [-1], [2, 2]])
    own = trainer(loss)
    found = [own.session.evaluate(cavs.batch(part)) for part in (data[:2], data[2:])]
    assert [r.weight for r in found] == [2, 1]
    mean = (2 * found[0].loss + found[1].loss) / 3
    assert own.evaluate(DataLoader(data, 2))["loss"] == pytest.approx(mean, rel=1e-12)


@pytest.mark.parametrize("name", ["loss", "weight", "grad:x", 3])
def test_reserved_names_of_outputs_are_refused(name):
    class Named(Rows):
        def forward(self, batch):
            return {name: self.output(batch["x"])}

        def loss(self, batch):
            return ops.cross_entropy(self.output(batch["x"]), batch["label"])

    with pytest.raises(TraceError, match=f"{name!r}, which is taken"):
        Session(Named(None)).evaluate(cavs.batch(graphs([[0]])))
