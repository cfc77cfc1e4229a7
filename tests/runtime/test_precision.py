"""Products in precision "int16", "bfloat16x3" and "bfloat16", which some CPUs support."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

import cavs
from cavs import _engine, nn, ops
from cavs.errors import ConfigError, NumericsError
from tests.runtime.trees import Classifier, treebank

SPLIT = "bfloat16x3"
# Bounds on relative norms of differences: factors have 16, about 13 and 8 bits.
BOUNDS = {SPLIT: 1e-4, "int16": 1e-3, "bfloat16": 1e-2}
each_of_them = pytest.mark.parametrize("precision", BOUNDS)
each_here = pytest.mark.parametrize(
    "precision",
    [
        pytest.param(
            precision,
            marks=pytest.mark.skipif(
                _engine.isa(precision) == _engine.isa(),
                reason=f"this processor has no instructions for {precision}",
            ),
        )
        for precision in BOUNDS
    ],
)


class Chain(cavs.Model):
    def __init__(self, h=40):
        self.embedding = nn.Embedding(50, h)
        self.cell = nn.LSTM(h, h)
        self.output = nn.Linear(h, 3)

    def loss(self, batch):
        h = self.cell(batch.graph, x=self.embedding(batch["token"]))
        return ops.cross_entropy(self.output(h), batch["label"])


def chains(*lengths, seed=0):
    rng = np.random.default_rng(seed)
    return cavs.batch(
        [
            cavs.Graph.chain(
                n, features={"token": rng.integers(0, 50, n), "label": rng.integers(0, 3, n)}
            )
            for n in lengths
        ]
    )


def gradients(batch, precision="float32", dtype=np.float32, model=Chain):
    made = model()
    session = cavs.Session(made, precision=precision, dtype=dtype)
    loss, found = session.gradients(batch)
    return {"loss": np.asarray(loss), **found}


def difference(found, expected, precision):
    """Return the largest relative norm of a difference, with 8 bits that of all arrays together.

    A gradient of a bias may nearly cancel; with more bits even those are close.
    """
    distance = np.array([np.linalg.norm(found[name] - x) for name, x in expected.items()])
    size = np.array([np.linalg.norm(x) for x in expected.values()])
    if precision != "bfloat16":
        return (distance / np.maximum(size, 1e-30)).max()
    return np.linalg.norm(distance) / np.linalg.norm(size)


@pytest.mark.parametrize(
    ("options", "found", "need"),
    [
        ({"precision": "tf32"}, "'tf32'", "float32, int16, bfloat16x3, bfloat16 on the CPU"),
        ({"precision": SPLIT, "device": "cuda"}, "'bfloat16x3'", "tf32, bfloat16 on a device"),
        ({"precision": SPLIT, "dtype": np.float64}, "'bfloat16x3'", "'float32' for float64"),
        ({"precision": "half"}, "'half'", "one of float32, int16, bfloat16x3, bfloat16, tf32"),
        ({"precision": 3}, "is 3", "one of float32, int16, bfloat16x3, bfloat16, tf32"),
        (
            {"precision": ["float32"]},
            "float32",
            "one of float32, int16, bfloat16x3, bfloat16, tf32",
        ),
    ],
)
def test_an_unknown_precision(options, found, need):
    with pytest.raises(ConfigError, match="precision is") as caught:
        cavs.Session(Chain(), **options)
    assert found in str(caught.value) and need in str(caught.value)


@each_of_them
def test_without_instructions_products_are_float32(precision):
    batch = chains(3, 17, 40)
    with mock.patch.object(_engine, "isa", lambda *_: "avx2"):
        found = gradients(batch, precision)
    expected = gradients(batch)
    assert all((found[name] == expected[name]).all() for name in expected)


@each_here
@pytest.mark.parametrize("lengths", [(1,), (1, 1, 2), (5, 33, 64), (17,) * 40, (2000,)])
def test_close_to_float64_and_not_closer_than_its_factors(precision, lengths):
    batch = chains(*lengths)
    found, exact = gradients(batch, precision), gradients(batch, dtype=np.float64)
    bound = BOUNDS[precision]
    assert np.allclose(found.pop("loss"), exact.pop("loss"), rtol=bound, atol=0)
    assert bound / 300 < difference(found, exact, precision) < bound


@each_here
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_trees_in_training(precision, threads):
    before = _engine.num_threads()
    try:
        results = {}
        for run in ("float32", precision, "again"):
            model = Classifier()
            trainer = cavs.Trainer(
                model,
                cavs.optim.Adagrad(lr=0.05),
                threads=threads,
                precision=precision if run == "again" else run,
            )
            batches = [treebank(40, seed=s) for s in range(3)]
            losses = [trainer.step(b) for _ in range(10) for b in batches]
            results[run] = losses, {k: p.value for k, p in model.parameters().items()}
        losses, parameters = results["float32"]
        bound = BOUNDS[precision]
        assert losses[-1] < losses[0] and np.allclose(results[precision][0], losses, rtol=bound)
        # after 30 steps
        assert difference(results[precision][1], parameters, precision) < 10 * bound
        assert results["again"][0] == results[precision][0]
        assert all((results["again"][1][k] == results[precision][1][k]).all() for k in parameters)
    finally:
        _engine.set_num_threads(before)


@each_here
def test_a_nan_is_not_hidden(precision):
    batch, model = chains(3, 20), Chain()
    model.cell.parameters()["U"].value[5, 7] = np.nan
    session = cavs.Session(model, precision=precision)
    with pytest.raises(NumericsError, match=r"loss is nan, on the 2 graphs(.|\n)*cell.U holds"):
        session.evaluate(batch)
    assert np.isnan(session.gradients(batch)[0])


class Joined(cavs.VertexFunction):
    """A product of input and state; some kinds of vertices need only a part of it."""

    def __init__(self, x, h):
        self.state = cavs.State(h=h)
        self.W = cavs.Parameter((x + h, h))

    def vertex(self, v):
        h = ops.tanh(ops.concat([v.pull("x"), v.gather(0).h]) @ self.W)
        v.scatter(h=h)
        v.push(h)


@pytest.mark.parametrize("row", [0, 19, 20, 21, 32, 50, 59])
def test_a_nan_reaches_only_products_with_it(row):
    """Rows of the weight for the state follow those for the input in one unit of rows."""
    spoilt = {}
    for precision in ("float32", *BOUNDS):
        model = Chain()
        model.embedding, model.cell = nn.Embedding(50, 20), Joined(20, 40)
        model.cell.W.value[row] = np.nan
        session = cavs.Session(model, precision=precision)
        try:
            spoilt[precision] = not np.isfinite(session.evaluate(chains(1, 1)).loss)
        except NumericsError:
            spoilt[precision] = True
    assert set(spoilt.values()) == {row < 20}


def test_products_that_ranks_repeat_have_the_same_bits_everywhere():
    """A rank multiplies the factors of all ranks, whose processors may differ."""
    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal((70, n)).astype("f4") for n in (33, 90))
    outs = []
    for precision in ("float32", *BOUNDS):
        session = cavs.Session(Chain(), precision=precision)
        session.gradients(chains(4))
        (variant,) = session._variants.values()
        outs.append(np.zeros((33, 90), "f4"))
        variant.built.executor.add_product(left, right, outs[-1])
    assert all((outs[0] == out).all() for out in outs)


def test_a_session_has_its_own_precision():
    model = Chain()
    with pytest.raises(ConfigError, match="'float32' with a session, which has one of its own"):
        cavs.Trainer(model, cavs.optim.SGD(lr=0.1), session=cavs.Session(model), precision=SPLIT)


@each_here
def test_explain_names_the_precision(precision):
    said = str(cavs.explain(Chain(), chains(3), precision=precision))
    assert f"products: {precision}, by {_engine.isa(precision)}" in said
    assert "products: " not in str(cavs.explain(Chain(), chains(3)))
