"""Metrics that are computed from the rows of a whole data set."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cavs
from cavs import nn, ops
from cavs.errors import ConfigError, FeatureError
from cavs.train import DataLoader, Trainer, metrics, optim
from tests.train.test_trainer import DEV, dev_loader, make, train_loader


def value_of(metric, scores, labels):
    """Return the value of a metric from one batch."""
    outputs, batch = {"output": np.asarray(scores)}, {"label": np.asarray(labels)}
    return metric.value([metric.rows(outputs, batch)])


numbers = st.lists(
    st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=2, max_size=20
).filter(lambda rows: all(len(set(column)) > 1 for column in zip(*rows, strict=True)))


@given(numbers, st.floats(0.1, 1e6), st.floats(-1e6, 1e6))
def test_pearson_is_the_correlation_of_numpy(rows, scale, shift):
    x, y = np.array(rows, float).T
    found = value_of(metrics.pearson(), x, y)
    assert found == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-12)
    assert value_of(metrics.pearson(), x[:, None] * scale + shift, y) == pytest.approx(
        found, 1e-6, 1e-6
    )
    assert value_of(metrics.pearson(), x, x) == 1 and value_of(metrics.pearson(), x, -x) == -1


@given(numbers)
def test_spearman_is_the_correlation_of_mean_ranks(rows):
    x, y = np.array(rows, float).T

    def ranks(values):
        return [
            sum(other < value for other in values)
            + (sum(other == value for other in values) + 1) / 2
            for value in values
        ]

    expected = np.corrcoef(ranks(x), ranks(y))[0, 1]
    assert value_of(metrics.spearman(), x, y) == pytest.approx(expected, abs=1e-12)
    assert value_of(metrics.spearman(), np.exp(x), y) == value_of(metrics.spearman(), x, y)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 3)), min_size=1, max_size=20))
def test_f1_by_its_definition(rows):
    found, labels = np.array(rows).T
    logits = np.eye(4)[found]
    known = labels >= 0
    pairs = [(f, t) for f, t in rows if t >= 0]

    def of_class(c):
        both = sum(f == c for f, t in pairs) + sum(t == c for f, t in pairs)
        return 2 * sum(f == t == c for f, t in pairs) / both if both else 0.0

    def f1(*args, **options):
        return value_of(metrics.f1(*args, **options), logits, labels)

    if not known.any():
        assert math.isnan(f1())
        return
    classes = {c for pair in pairs for c in pair}
    assert f1() == pytest.approx(np.mean([of_class(c) for c in classes]), abs=1e-12)
    assert f1("micro") == pytest.approx(np.mean(found[known] == labels[known]), abs=1e-12)
    for c in range(5):
        assert f1("binary", positive=c) == pytest.approx(of_class(c), abs=1e-12)


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-1, 1)), min_size=1, max_size=20))
def test_auc_is_the_share_of_pairs_in_order(rows):
    scores, labels = np.array(rows, float).T
    pairs = [(a, b) for a, t in rows for b, u in rows if (t, u) == (1, 0)]
    found = value_of(metrics.auc(), scores, labels.astype(int))
    two = value_of(metrics.auc(), np.stack([-scores, scores], axis=1), labels.astype(int))
    if not pairs:
        assert math.isnan(found) and math.isnan(two)
    else:
        expected = sum((a > b) + (a == b) / 2 for a, b in pairs) / len(pairs)
        assert found == two == pytest.approx(expected, abs=1e-12)


def test_values_that_are_not_defined():
    for metric in (metrics.pearson(), metrics.spearman()):
        assert math.isnan(value_of(metric, [0.1] * 3, [1.0, 2.0, 3.0]))
        assert math.isnan(value_of(metric, [1.0, 2.0], [3, -1]))
        assert math.isnan(value_of(metric, np.empty(0), np.empty(0)))
    assert value_of(metrics.f1("binary"), [0.5, -0.5, 0.5], [1, 0, 0]) == pytest.approx(2 / 3)


def test_inputs_that_do_not_fit():
    with pytest.raises(FeatureError, match=r"one number a row, but 'output' has shape \(2, 3\)"):
        value_of(metrics.pearson(), np.ones((2, 3)), [1, 2])
    with pytest.raises(FeatureError, match="label 'label' has shape"):
        value_of(metrics.auc(), [1.0, 2.0], [1])
    with pytest.raises(FeatureError, match="auc needs two classes, but 'output' has 3 columns"):
        value_of(metrics.auc(), np.ones((2, 3)), [1, 0])
    with pytest.raises(FeatureError, match="labels go up to 2"):
        value_of(metrics.auc(), np.ones(2), [2, 0])
    with pytest.raises(ConfigError, match="average is 'mean'"):
        metrics.f1("mean")


def spread(rows):
    return float(np.ptp(rows))


def seen(outputs, batch):
    return outputs["output"][batch["label"] >= 0]


def test_users_metrics_in_fit_and_evaluate():
    """The value is that of all rows in one array, for any batch size and next to other metrics."""
    own = metrics.DataSetMetric("spread", seen, spread, better="lower")
    used = {"first": metrics.accuracy(), "spread of all": own, "f1": metrics.f1()}
    trainer = make()
    result = trainer.fit(
        train_loader(), epochs=2, dev=dev_loader(), metrics=used, monitor="spread of all",
        progress=False,
    )  # fmt: skip
    found = [e["dev_spread of all"] for e in result.epochs]
    assert result.best == min(found)
    one = trainer.evaluate(DataLoader(DEV, len(DEV)), used)
    assert list(one) == ["loss", "first", "spread of all", "f1"]
    for size in (1, 7):
        values = trainer.evaluate(DataLoader(DEV, size), used)
        assert values == pytest.approx(one, rel=1e-6) and values["f1"] == one["f1"]
    assert trainer.evaluate(dev_loader(), used)["spread of all"] == found[-1]
    whole = trainer.session.predict
    batch = cavs.batch(DEV)
    trainer.session.prepare(batch)
    assert one["spread of all"] == spread(seen(whole(batch), batch).astype(np.float64))


@pytest.mark.parametrize(
    ("collect", "compute", "message"),
    [
        (lambda o, b: "x", spread, "'own' collected 'x', but must return an array"),
        (lambda o, b: np.ones((1, 1, 1)), spread, "'own' collected array"),
        (lambda o, b: [[1], [1, 2]], spread, "'own' collected"),
        (lambda o, b: [b.num_graphs] * 2, lambda rows: "x", "'own' computed 'x', but must return"),
        (lambda o, b: np.ones((1, b.num_graphs)), spread, r"rows of the shapes \(4,\), \(8,\)"),
    ],
)
def test_metrics_that_return_something_else(collect, compute, message):
    own = metrics.DataSetMetric("own", collect, compute)
    with pytest.raises(ConfigError, match=message):
        make().evaluate(dev_loader(), [own])


def test_a_data_set_without_known_rows_is_nan():
    own = metrics.DataSetMetric("own", lambda o, b: np.empty((0, 2)), spread)
    assert math.isnan(make().evaluate(dev_loader(), [own])["own"])


class Regression(cavs.Model):
    """One number per graph."""

    def __init__(self):
        self.embedding = nn.Embedding(5, 3)
        self.output = nn.Linear(3, 1)

    def forward(self, batch):
        return self.output(ops.mean_graph(self.embedding(batch["token"])))

    def loss(self, batch):
        return ops.mean_squared_error(self.forward(batch), 0.5)


def test_correlations_of_a_model():
    rng = np.random.default_rng(0)
    graphs = [
        cavs.Graph.chain(
            n, features={"token": rng.integers(0, 5, n)}, graph_features={"label": rng.normal()}
        )
        for n in (1, 3, 2, 5, 4, 2)
    ]
    trainer = Trainer(Regression(), optim.SGD(0.1))
    used = [metrics.pearson(), metrics.spearman()]
    found = trainer.evaluate(DataLoader(graphs, 4), used)
    outputs = trainer.session.predict(cavs.batch(graphs))["output"][:, 0].astype(np.float64)
    labels = np.array([g.graph_features["label"] for g in graphs], np.float64)
    assert found["pearson"] == pytest.approx(np.corrcoef(outputs, labels)[0, 1], rel=1e-6)
    assert -1 <= found["spearman"] <= 1
