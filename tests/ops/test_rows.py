"""Losses of one's own: sums and means over rows."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.errors import CompileError, DTypeError, ShapeError
from tests.oracle import assert_close, reference

CLASSES = 3


class Scored(cavs.Model):
    """`of` makes a loss of scores and the batch."""

    def __init__(self, of):
        self.of = of
        self.embedding = nn.Embedding(7, 4)
        self.cell = nn.ChildSumTreeLSTM(4, 4)
        self.output = nn.Linear(4, CLASSES)
        self.weights = cavs.Parameter((CLASSES, 1), init=[[1.0], [0.5], [3.0]], trainable=False)

    def forward(self, batch):
        return self.output(self.cell(batch.graph, x=self.embedding(batch["token"])))

    def loss(self, batch):
        return self.of(self, self.forward(batch), batch)


def hinge(model, scores, batch):
    return ops.mean_rows(ops.relu(1.0 - scores * batch["target"]).sum(-1))


def huber(model, scores, batch):
    error = ops.absolute(scores - batch["target"])
    small = ops.minimum(error, 1.0)
    return 0.5 * ops.sum_rows(small * (2.0 * error - small)).sum(-1)


def by_class(model, scores, batch):
    weight = ops.reshape(ops.lookup(model.weights, batch["label"]), ())
    rows = ops.cross_entropy(scores, batch["label"], reduction="none")
    return ops.mean_rows(rows * 1.0, weight=weight)


def vectors(model, scores, batch):
    return ops.square(ops.mean_rows(scores, weight=batch["mass"])).sum(-1)


def of_graphs(model, scores, batch):
    return ops.mean_rows(ops.square(ops.sum_graph(scores)).sum(-1))


def trees(count=6, seed=0):
    rng = np.random.default_rng(seed)
    graphs = []
    for n in rng.integers(1, 9, count):
        children = [[] for _ in range(n)]
        for v in range(n - 1):
            children[rng.integers(v + 1, n)].append(v)
        features = {
            "token": rng.integers(0, 7, n),
            "label": rng.integers(-1, CLASSES, n),
            "target": rng.choice([-1.0, 1.0], (n, CLASSES)),
            "mass": rng.random(n),
        }
        graphs.append(cavs.Graph(children, features))
    return [*graphs, *graphs[:2]]


LOSSES = [hinge, huber, by_class, vectors, of_graphs]


@pytest.mark.parametrize("of", LOSSES)
def test_against_the_oracle(of):
    model, batch = Scored(of), cavs.batch(trees())
    model.initialize(1, np.float64)
    _, expected = reference(model, batch)
    loss, gradients = cavs.Session(model, dtype=np.float64).gradients(batch)
    assert_close(loss, expected["loss"], 1e-12, "loss")
    for key, value in gradients.items():
        assert_close(value, expected[f"grad:{key}"], 1e-12, key)


def test_by_definition():
    batch = cavs.batch(trees())
    scores, losses = None, {}
    for of in LOSSES:
        model = Scored(of)
        model.initialize(1, np.float64)
        session = cavs.Session(model, dtype=np.float64)
        losses[of] = session.evaluate(batch)
        scores = losses[of].outputs["output"]
    target, mass, label = batch["target"], batch["mass"], batch["label"]
    error = np.abs(scores - target)
    assert losses[hinge].loss == pytest.approx(
        np.maximum(1 - scores * target, 0).sum(1).mean(), rel=1e-6
    )
    assert losses[huber].loss == pytest.approx(
        np.where(error < 1, 0.5 * error**2, error - 0.5).sum(), rel=1e-6
    )
    known = label >= 0
    weight = np.array([1.0, 0.5, 3.0])[label[known]]
    shifted = scores - scores.max(1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    rows = -logs[known, label[known]]
    assert losses[by_class].loss == pytest.approx((rows * weight).sum() / weight.sum(), rel=1e-6)
    assert losses[by_class].weight == pytest.approx(weight.sum(), rel=1e-6)
    assert losses[hinge].weight == len(label)
    mean = (scores * mass[:, None]).sum(0) / mass.sum()
    assert losses[vectors].loss == pytest.approx((mean**2).sum(), rel=1e-5)


def test_a_weighted_loss_over_batches_is_that_of_all_together():
    model, graphs = Scored(by_class), trees(20)
    trainer = cavs.Trainer(model, cavs.optim.SGD(lr=0.1))
    parts = trainer.evaluate([cavs.batch(graphs[i : i + 4]) for i in range(0, len(graphs), 4)])
    assert parts["loss"] == pytest.approx(trainer.evaluate([cavs.batch(graphs)])["loss"], rel=1e-5)


def test_without_weight_it_is_zero():
    graphs = [
        cavs.Graph([[]], {"token": [1], "label": [-1], "target": np.ones((1, 3)), "mass": [0.0]})
    ]
    for of in (by_class, vectors):
        loss, gradients = cavs.Session(Scored(of)).gradients(cavs.batch(graphs))
        assert loss == 0 and all(not np.asarray(g).any() for g in gradients.values())


def test_weights_that_are_no_numbers():
    def wrong(model, scores, batch):
        return ops.mean_rows(scores.sum(-1), weight=batch["target"])

    with pytest.raises(
        ShapeError, match=r"weights are one number per row, not f32\[3\]@vertex"
    ) as e:
        cavs.Session(Scored(wrong)).evaluate(cavs.batch(trees()))
    assert "test_rows.py" in str(e.value)


@pytest.mark.parametrize(
    ("value", "weight", "expected"),
    [
        ("x", "m", (2 * 3 + 9) / (2 * 2 + 3)),  # each graph's for all its vertices
        ("m", "x", (2 * 3 + 9) / 12),
        ("x", 2.0, 12 / 5),
        ("m", 0.5, 3 / 2),
        ("e", "m", (2 * 1 + 2 + 3) / (2 * 1 + 2)),
        ("e", "x", (2 * 1 + 2 * 2 + 6 * 3) / (2 + 2 + 6)),  # each vertex's for its edges
    ],
)
def test_weights_of_other_rows(value, weight, expected):
    class Of(cavs.Model):
        def __init__(self):
            self.scale = cavs.Parameter((1,), init="ones")

        def loss(self, batch):
            w = batch[weight] if isinstance(weight, str) else weight
            return ops.mean_rows(batch[value], weight=w) * self.scale

    graphs = [
        cavs.Graph([[], [0]], {"x": [1.0, 2.0]}, {"e": [1.0]}, graph_features={"m": 2.0}),
        cavs.Graph(
            [[], [0], [1]], {"x": [1.0, 2.0, 6.0]}, {"e": [2.0, 3.0]}, graph_features={"m": 1.0}
        ),
    ]
    batch = cavs.batch(graphs)
    session = cavs.Session(Of())
    loss, gradients = session.gradients(batch)
    assert loss == pytest.approx(expected, rel=1e-6)
    assert gradients["scale"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("of", [ops.sum_rows, ops.mean_rows], ids=lambda f: f.__name__)
def test_indices_are_not_summed(of):
    def wrong(model, scores, batch):
        return of(batch["label"])

    with pytest.raises(DTypeError, match=r"\[sum_rows\] needs floats, not i32") as caught:
        cavs.Session(Scored(wrong)).evaluate(cavs.batch(trees()))
    assert "test_rows.py" in str(caught.value) and "nn.Embedding" in str(caught.value)


def test_replicas_refuse_what_they_cannot_divide_by():
    session = cavs.Session(Scored(by_class), replicated=True)
    with pytest.raises(CompileError, match="no affine function of its sums"):
        session.gradients(cavs.batch(trees()))
    assert cavs.Session(Scored(hinge), replicated=True).gradients(cavs.batch(trees()))[0] > 0
