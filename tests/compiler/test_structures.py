"""Models over samples of several structures equal the float64 oracle on every path."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

import cavs
from cavs import nn, ops
from cavs.compiler.pipeline import Passes
from tests.compiled_once import programs_shared
from tests.draws import examples
from tests.oracle import (
    agrees,
    assert_close,
    numeric_slope,
    reference,
    slope_of,
    too_steep,
)
from tests.random_structures import cases

FLOAT64, FLOAT32 = 1e-9, 1e-4
AT = {"seed": 5, "step": 2}
ALL_ON = Passes(**dict.fromkeys(vars(Passes()), True))


def compare(model, batch, tolerance, *, serial=False, **options):
    """Compare loss, gradients and predictions of a session with the oracle."""
    graph, expected = reference(model, batch, **AT)
    _, forward = reference(model, batch, training=False)
    session = cavs.Session(model, **options)
    if serial:
        session.set_serial(True)
    try:
        loss, gradients = session.gradients(batch, **AT)
        assert_close(loss, expected["loss"], tolerance, "loss")
        for name, found in gradients.items():
            unused = np.zeros(found.shape)
            assert_close(found, expected.get(f"grad:{name}", unused), tolerance, name)
        for name, rows in session.evaluate(batch).outputs.items():
            assert_close(rows, forward[name], tolerance, name)
    except AssertionError:
        if session.dtype == np.float32 and too_steep(graph, batch, expected, tolerance, **AT):
            reject()
        raise


@examples(6)
@given(cases(smooth=True))
def test_random_models_equal_the_oracle(case):
    with programs_shared():
        compare(*case, FLOAT64, dtype=np.float64, passes=ALL_ON)
        compare(*case, FLOAT32, dtype=np.float32, passes=ALL_ON)


@examples(2)
@given(cases(), st.booleans())
def test_models_with_kinks_equal_the_oracle(case, serial):
    compare(*case, FLOAT64, serial=serial, dtype=np.float64, passes=ALL_ON)


@examples(4)
@given(cases(most=2), st.sampled_from(sorted(vars(Passes()))))
def test_each_pass_can_be_switched_off(case, name):
    compare(*case, FLOAT64, dtype=np.float64, passes=replace(ALL_ON, **{name: False}))


@examples(2)
@given(cases(most=2))
def test_all_passes_off(case):
    off = Passes(**dict.fromkeys(vars(Passes()), False))
    compare(*case, FLOAT64, dtype=np.float64, passes=off)


@examples(2)
@given(cases(smooth=True, most=2), st.integers(0, 2**31))
def test_gradients_equal_finite_differences(case, seed):
    model, batch = case
    _, expected = reference(model, batch)
    rng = np.random.default_rng(seed)
    direction = {k: rng.normal(size=p.shape) for k, p in model.parameters().items()}
    found = {k: expected[f"grad:{k}"] for k in direction if f"grad:{k}" in expected}
    numeric = numeric_slope(model, batch, direction, eps=1e-5)
    assert slope_of(found, direction) == pytest.approx(numeric, rel=1e-5, abs=1e-7)


class Tagger(cavs.Model):
    """Tags words, each from its embedding and the last state over its characters."""

    def __init__(self, width=4):
        self.char, self.word = nn.Embedding(7, 3), nn.Embedding(9, 3)
        self.spell, self.forth = nn.LSTM(3, width), nn.LSTM(3 + width, 5)
        self.output = nn.Linear(5, 3)

    def forward(self, batch):
        chars, words = batch.graphs["chars"], batch.graphs["words"]
        c = self.spell(chars, x=self.char(chars["char"]))
        x = ops.concat([self.word(words["token"]), ops.take(c, batch.link("spelling"))])
        return self.output(self.forth(words, x=x))

    def loss(self, batch):
        return ops.cross_entropy(self.forward(batch), batch.graphs["words"]["tag"])


def sentence(lengths, rng, last=None):
    """Return a sample of words with so many characters each; last: the vertices linked to."""
    n = len(lengths)
    return cavs.Sample(
        words=cavs.Graph.chain(n, {"token": rng.integers(-1, 9, n), "tag": rng.integers(-1, 3, n)}),
        chars=cavs.Graph.chains(lengths, {"char": rng.integers(0, 7, sum(lengths))}),
        links={
            "spelling": cavs.Link(
                "words", "chars", np.cumsum(lengths) - 1 if last is None else last
            )
        },
    )


@pytest.mark.parametrize(
    "of_words",
    [[[1]], [[2, 1, 3], [1], [4, 4]], [[1]] * 40, [[3] * 30, [1]]],
    ids=["one vertex", "unequal", "many", "long"],
)
def test_tagger_over_characters(of_words):
    rng = np.random.default_rng(0)
    batch = cavs.batch([sentence(lengths, rng) for lengths in of_words])
    agrees(Tagger(), batch, FLOAT64)


def test_no_vertex_reads_the_other_structure():
    rng = np.random.default_rng(1)
    batch = cavs.batch([sentence([2, 1], rng, [-1, -1]), sentence([1], rng, [-1])])
    _, gradients = agrees(Tagger(), batch, FLOAT64)
    assert not gradients["spell.W"].any()


def test_all_vertices_read_one_row():
    rng = np.random.default_rng(2)
    batch = cavs.batch([sentence([2, 1, 3], rng, [1, 1, 1]), sentence([1], rng)])
    agrees(Tagger(), batch, FLOAT64)


def test_links_follow_the_samples_of_a_batch():
    """A sample predicts the same alone and between others."""
    rng = np.random.default_rng(3)
    samples = [sentence(list(rng.integers(1, 5, n)), rng) for n in (3, 1, 4)]
    session = cavs.Session(Tagger(), dtype=np.float64)
    together = session.predict(cavs.batch(samples))["output"]
    alone = [session.predict(cavs.batch([s]))["output"] for s in samples]
    assert_close(together, np.concatenate(alone), 1e-12, "output")


def test_training_over_a_loader():
    rng = np.random.default_rng(4)
    samples = [sentence(list(rng.integers(1, 4, n)), rng) for n in rng.integers(1, 5, 24)]
    trainer = cavs.Trainer(Tagger(), cavs.optim.Adam(lr=0.02), seed=0)
    loader = cavs.DataLoader(samples, 8, shuffle=True, bucket="size")
    first = trainer.evaluate(loader)["loss"]
    trainer.fit(loader, epochs=20)
    assert trainer.evaluate(loader)["loss"] < 0.7 * first


class Attention(cavs.Model):
    """Each word attends to the words of another sentence, through vertices for pairs."""

    def __init__(self, size=3):
        self.word = nn.Embedding(9, size)
        self.key, self.output = nn.Linear(size, size), nn.Linear(2 * size, 2)
        self.read = nn.LSTM(size, size)

    def forward(self, batch):
        of, to = batch.link("of"), batch.link("to")
        source, target = batch.graphs["source"], batch.graphs["target"]
        h = self.read(source, x=self.word(source["token"]))
        q = self.read(target, x=self.word(target["token"]))
        score = (ops.take(q, of) * ops.take(self.key(h), to)).sum(-1, keepdims=True)
        context = ops.sum_readers(ops.softmax_readers(score, of) * ops.take(h, to), of)
        return self.output(ops.concat([q, context]))

    def loss(self, batch):
        return ops.mean_squared_error(self.forward(batch), 1.0)


def pair_of_sentences(source, target, rng):
    """Return a sample with a vertex for every pair of words, but for those of the last target."""
    pairs = np.array([(t, s) for t in range(max(target - 1, 1)) for s in range(source)])
    return cavs.Sample(
        source=cavs.Graph.chain(source, {"token": rng.integers(0, 9, source)}),
        target=cavs.Graph.chain(target, {"token": rng.integers(0, 9, target)}),
        pairs=cavs.Graph([[]] * len(pairs)),
        links={
            "of": cavs.Link("pairs", "target", pairs[:, 0]),
            "to": cavs.Link("pairs", "source", pairs[:, 1]),
        },
    )


def test_attention_over_pairs():
    rng = np.random.default_rng(5)
    sizes = [(3, 4), (1, 1), (5, 2)]
    agrees(Attention(), cavs.batch([pair_of_sentences(*s, rng) for s in sizes]), FLOAT64)


class Bags(cavs.Model):
    """Sums and means over lists of another structure, and the reverse."""

    def __init__(self):
        self.a, self.b = cavs.Parameter((2, 3)), cavs.Parameter((2, 3))

    def forward(self, batch):
        link, a, b = batch.link("many"), batch.graphs["a"]["x"], batch.graphs["b"]["x"]
        values = ops.tanh(b @ self.b)
        read = ops.sum_linked(values, link) * ops.mean_linked(values, link)
        return {"a": read + a @ self.a, "b": ops.sum_readers(ops.tanh(a @ self.a), link) * values}

    def loss(self, batch):
        found = self.forward(batch)
        return sum(ops.mean_rows(ops.square(x).sum(-1)) for x in found.values())


def bag(rows, rng):
    """Return a sample in which vertices read ``rows`` of a chain of 3."""
    a = cavs.Graph([[]] * len(rows), {"x": rng.normal(size=(len(rows), 2))})
    b = cavs.Graph.chain(3, {"x": rng.normal(size=(3, 2))})
    return cavs.Sample(a=a, b=b, links={"many": cavs.Link("a", "b", rows)})


def test_lists_are_folded():
    rng = np.random.default_rng(6)
    of_samples = ([[0, 2, 2], [], [1]], [[]], [[0], [0], [0, 0]])
    batch = cavs.batch([bag(rows, rng) for rows in of_samples])
    session, _ = agrees(Bags(), batch, FLOAT64)
    _, expected = reference(session.model, batch, training=False)
    for name, rows in session.predict(batch).items():
        assert_close(rows, expected[name], FLOAT64, name)


class Attending(cavs.VertexFunction):
    """A chain whose vertices attend to those they are linked to, with their state as the query."""

    def __init__(self, size):
        self.state = cavs.State(h=size)
        self.linear = nn.Linear(3 * size, size)

    def vertex(self, v):
        h, source = v.gather().h.sum(), v.link("source")
        weight = (source.key * h).sum(-1, keepdims=True).softmax()
        context = (weight * source.h).sum()
        h = ops.tanh(self.linear(ops.concat([v.pull("x"), h, context])))
        v.scatter(h=h)
        v.push(h)


class Translator(cavs.Model):
    """Encodes a source, and decodes a target that attends to it while it runs."""

    def __init__(self, size=3):
        self.word, self.key = nn.Embedding(9, size), nn.Linear(size, size)
        self.encode, self.decode = nn.LSTM(size, size), Attending(size)

    def forward(self, batch):
        source, target = batch.graphs["source"], batch.graphs["target"]
        h = self.encode(source, x=self.word(source["token"]))
        read = ops.linked(batch.link("to"), h=h, key=self.key(h))
        return self.decode(target, x=self.word(target["token"]), source=read)

    def loss(self, batch):
        return ops.mean_squared_error(self.forward(batch), 1.0)


def translation(source, target, rng, rows=None):
    """Return a sample in which each target word reads some source words, the last one none.

    rows: the source words of each target word.
    """
    if rows is None:
        rows = [rng.integers(0, source, rng.integers(0, 6)) for _ in range(target)]
        rows[-1] = []
    return cavs.Sample(
        source=cavs.Graph.chain(source, {"token": rng.integers(0, 9, source)}),
        target=cavs.Graph.chain(target, {"token": rng.integers(0, 9, target)}),
        links={"to": cavs.Link("target", "source", rows)},
    )


def test_attention_inside_of_a_cell():
    rng = np.random.default_rng(7)
    batch = cavs.batch([translation(*s, rng) for s in ((3, 4), (1, 1), (5, 2), (2, 7))])
    session, _ = agrees(Translator(), batch, FLOAT64)
    session.set_serial(True)
    _, expected = reference(session.model, batch)
    loss, _ = session.gradients(batch)
    assert_close(loss, expected["loss"], FLOAT64, "loss")


def test_vertices_with_many_linked_vertices():
    """More pairs than a chunk of rows holds scratch for."""
    rng = np.random.default_rng(8)
    rows = [rng.integers(0, 40, 400), [], rng.integers(0, 40, 3)]
    sample = cavs.Sample(
        source=cavs.Graph.chain(40, {"token": rng.integers(0, 9, 40)}),
        target=cavs.Graph.chain(3, {"token": rng.integers(0, 9, 3)}),
        links={"to": cavs.Link("target", "source", rows)},
    )
    agrees(Translator(), cavs.batch([sample, translation(3, 2, rng)]), FLOAT64)
