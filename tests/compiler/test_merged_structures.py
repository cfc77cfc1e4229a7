"""Samples in which equal vertices of a structure run once equal the float64 oracle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

import cavs
from cavs import nn, ops
from cavs.compiler.pipeline import Passes
from cavs.runtime import program_cache
from tests.compiled_once import programs_shared
from tests.compiler import test_typed_structures as typed
from tests.compiler.test_structures import (
    ALL_ON,
    FLOAT32,
    FLOAT64,
    Attention,
    Tagger,
    Translator,
    compare,
    pair_of_sentences,
)
from tests.draws import examples
from tests.oracle import agrees, assert_close, drawn, reference
from tests.random_structures import cases

OFF = Passes(merge_vertices=False)


@pytest.fixture(autouse=True)
def small_batches_are_merged(monkeypatch):
    monkeypatch.setattr(program_cache, "MIN_MERGED", 1)


@examples(8)
@given(cases(smooth=True, mergeable=True))
def test_random_models_equal_the_oracle(case):
    with programs_shared():
        compare(*case, FLOAT64, dtype=np.float64, passes=ALL_ON)
        compare(*case, FLOAT32, dtype=np.float32, passes=ALL_ON)


@examples(4)
@given(cases())
def test_models_whose_copies_stay_separate_equal_the_oracle(case):
    compare(*case, FLOAT64, dtype=np.float64, passes=ALL_ON)


WORDS = ("abc", "ab", "abcd", "bcd", "c", "abc")


def sentence(words, rng, labels=False):
    """Return a sample of words, with a chain of characters for each."""
    n, lengths = len(words), [len(word) for word in words]
    chars = [ord(c) - ord("a") for c in "".join(words)]
    last = np.cumsum(lengths) - 1
    of_chars = {"char": chars, **({"kind": [c % 3 - 1 for c in chars]} if labels else {})}
    return cavs.Sample(
        words=cavs.Graph.chain(n, {"token": rng.integers(-1, 9, n), "tag": rng.integers(-1, 3, n)}),
        chars=cavs.Graph.chains(lengths, of_chars),
        links={
            "spelling": cavs.Link("words", "chars", last),
            "first": cavs.Link("words", "chars", last - lengths + 1),
            "letters": cavs.Link(
                "words",
                "chars",
                [range(end - n + 1, end + 1) for end, n in zip(last, lengths, strict=True)],
            ),
        },
    )


def sentences(count=5, labels=False):
    rng = np.random.default_rng(0)
    words = [rng.choice(WORDS, rng.integers(1, 6)).tolist() for _ in range(count)]
    return cavs.batch([sentence(each, rng, labels) for each in words])


def distinct(session, batch, training=True):
    """Return the number of vertices of each structure that run."""
    rows = session.schedule(batch, training=training).batch
    offsets = rows.vertex_offsets[:: rows.num_graphs]
    return dict(zip(batch.structures, np.diff(offsets).tolist(), strict=True))


def prefixes(batch):
    """Return the number of distinct beginnings of words."""
    chars, found = batch.graphs["chars"], set()
    topology, char = chars.topology, chars["char"].tolist()
    before = [""] * chars.num_vertices
    for v in range(chars.num_vertices):
        children = topology.children[topology.offsets[v] : topology.offsets[v + 1]]
        before[v] = "".join(before[c] for c in children) + chr(char[v])
        found.add(before[v])
    return len(found)


def test_words_with_equal_characters_share_their_chains():
    batch = sentences()
    session, _ = agrees(Tagger(), batch, FLOAT64)
    words = batch.graphs["words"].num_vertices
    assert distinct(session, batch) == {"chars": prefixes(batch), "words": words}
    assert prefixes(batch) < batch.graphs["chars"].num_vertices / 2
    separate = cavs.Session(session.model, dtype=np.float64, passes=OFF)
    results = [s.predict(batch)["output"] for s in (session, separate)]
    assert_close(*results, 1e-12, "output")
    _, expected = reference(session.model, batch, training=False)
    assert_close(results[0], expected["output"], FLOAT64, "output")
    session.set_serial(True)
    loss, _ = session.gradients(batch)
    assert_close(loss, separate.gradients(batch)[0], FLOAT64, "loss, one vertex at a time")


def test_training_equals_that_of_separate_vertices():
    batch, losses = sentences(12), []
    for passes in (None, OFF):
        model = Tagger()
        model.initialize(0, np.float64)
        session = cavs.Session(model, dtype=np.float64, passes=passes)
        trainer = cavs.Trainer(model, cavs.optim.Adam(lr=0.02), session=session)
        losses.append([float(trainer.step(batch)) for _ in range(8)])
        assert losses[-1][-1] < losses[-1][0]
    np.testing.assert_allclose(*losses, rtol=1e-9)


class BothWays(Tagger):
    """Reads the characters of a word in both directions."""

    def __init__(self, width=4):
        super().__init__(width)
        self.back, self.forth = nn.LSTM(3, width), nn.LSTM(3 + 2 * width, 5)

    def forward(self, batch):
        chars, words = batch.graphs["chars"], batch.graphs["words"]
        c = self.char(chars["char"])
        ends = ops.take(self.spell(chars, x=c), batch.link("spelling"))
        begins = ops.take(self.back(chars.reversed(), x=c), batch.link("first"))
        x = ops.concat([self.word(words["token"]), ends, begins])
        return self.output(self.forth(words, x=x))


def test_states_from_parents_are_shared_by_whole_words():
    batch = sentences()
    session, _ = agrees(BothWays(), batch, FLOAT64)
    chars = {word for s in batch.samples for word in words_of(s)}
    assert distinct(session, batch)["chars"] == sum(map(len, chars))
    _, expected = reference(session.model, batch, training=False)
    assert_close(session.predict(batch)["output"], expected["output"], FLOAT64, "output")


def words_of(sample):
    """Return the words of a sentence as texts."""
    text = "".join(chr(97 + c) for c in sample.graphs["chars"].features["char"])
    ends = [int(v) + 1 for v in sample.links["spelling"].vertices]
    return [text[a:b] for a, b in zip([0, *ends], ends, strict=False)]


class Letters(cavs.Model):
    """Losses, sums and outputs of characters, and links to lists of them."""

    def __init__(self):
        self.char, self.spell = nn.Embedding(4, 3), nn.LSTM(3, 4)
        self.kind, self.whole = nn.Linear(4, 2), nn.Linear(4, 3)

    def forward(self, batch):
        chars, link = batch.graphs["chars"], batch.link("letters")
        c = self.spell(chars, x=self.char(chars["char"]))
        of_words = ops.sum_linked(ops.tanh(c), link) * ops.mean_linked(c, link)
        whole = ops.sum_graph(c) + ops.mean_graph(ops.tanh(c)) + ops.sum_roots(c) * 0.5
        return {"kind": self.kind(c), "words": of_words, "whole": self.whole(whole), "state": c}

    def loss(self, batch):
        found, chars = self.forward(batch), batch.graphs["chars"]
        loss = ops.cross_entropy(found["kind"], chars["kind"])
        loss = loss + ops.mean_rows(ops.square(found["state"]).sum(-1))
        loss = loss + ops.mean_rows(ops.square(found["words"]).sum(-1))
        return loss + 0.1 * ops.mean_squared_error(found["whole"], 0.5)


def test_losses_and_sums_count_each_copy():
    batch = sentences(labels=True)
    session, _ = agrees(Letters(), batch, FLOAT64)
    assert distinct(session, batch)["chars"] == prefixes(batch)
    result = session.evaluate(batch)
    _, expected = reference(session.model, batch, training=False)
    assert_close(result.loss, expected["loss"], FLOAT64, "loss")
    for name, rows in result.outputs.items():
        assert_close(rows, expected[name], FLOAT64, name)


class Edges(cavs.Model):
    """A mean over the edges of a structure that is merged."""

    def __init__(self):
        self.char, self.cell = nn.Embedding(4, 3), Pairwise(3)

    def loss(self, batch):
        chars = batch.graphs["chars"]
        return ops.mean_rows(ops.square(self.cell(chars, x=self.char(chars["char"]))).sum(-1))


class Pairwise(cavs.VertexFunction):
    def __init__(self, size):
        self.state, self.linear = cavs.State(h=size), nn.Linear(2 * size, size)

    def vertex(self, v):
        x, h = v.pull("x"), v.gather().h
        v.scatter(h=ops.tanh(self.linear(ops.concat([x, h.sum()]))))
        v.push(ops.sigmoid(h) * x)


def test_edges_count_once_per_copy():
    session, _ = agrees(Edges(), sentences(), FLOAT64)
    batch = sentences()
    _, expected = reference(session.model, batch, training=False)
    assert_close(session.evaluate(batch).loss, expected["loss"], FLOAT64, "loss")


def test_a_cell_that_attends_reads_distinct_vertices():
    """Sources repeat and are merged; targets read their vertices while they run."""
    rng = np.random.default_rng(1)
    sources = [rng.integers(0, 9, n) for n in (3, 5)]
    samples = []
    for n, source in zip((4, 2, 3, 1), sources * 2, strict=True):
        read = [rng.integers(0, len(source), rng.integers(0, 4)) for _ in range(n)]
        samples.append(
            cavs.Sample(
                source=cavs.Graph.chain(len(source), {"token": source}),
                target=cavs.Graph.chain(n, {"token": rng.integers(0, 9, n)}),
                links={"to": cavs.Link("target", "source", read)},
            )
        )
    batch = cavs.batch(samples)
    session, _ = agrees(Translator(), batch, FLOAT64)
    assert distinct(session, batch) == {"source": 8, "target": 10}


def test_vertices_with_types_are_merged():
    """Columns, whose names are chains with types, are read by plans with types."""
    rng = np.random.default_rng(4)
    one, other = (typed.sample([[], [], [0, 1]], ["scan", "scan", "join"], rng) for _ in range(2))
    model, batch = drawn(typed.PlanCost(), 0.5), cavs.batch([one, other, one])
    session, _ = agrees(model, batch, FLOAT64)
    found = distinct(session, batch)
    assert found["plan"] == 9 and found["columns"] < 9
    _, expected = reference(model, batch, training=False)
    for name, rows in session.evaluate(batch).outputs.items():
        assert_close(rows, expected[name], FLOAT64, name)


def test_vertices_that_read_their_readers_stay_separate():
    rng = np.random.default_rng(2)
    one = pair_of_sentences(3, 4, rng)
    batch = cavs.batch([one, one])
    session, _ = agrees(Attention(), batch, FLOAT64)
    found = distinct(session, batch)
    assert found["target"] == 8 and found["source"] == 3


def test_a_structure_without_vertices():
    rng = np.random.default_rng(3)
    empty = cavs.Sample(
        words=cavs.Graph.chain(1, {"token": [1], "tag": [0]}),
        chars=cavs.Graph([]),
        links={
            "spelling": cavs.Link("words", "chars", [-1]),
            "first": cavs.Link("words", "chars", [-1]),
            "letters": cavs.Link("words", "chars", [[]]),
        },
    )
    full = sentence(["ab", "ab"], rng)
    batch = cavs.batch([full, empty, full])
    session, _ = agrees(Tagger(), batch, FLOAT64)
    assert distinct(session, batch)["chars"] == 2
    alone = cavs.batch([empty])
    _, expected = reference(session.model, batch, training=False)
    assert_close(session.predict(alone)["output"], expected["output"][2:3], FLOAT64, "output")


class Dropping(Tagger):
    """Drops values that the cell over characters pushes."""

    def forward(self, batch):
        chars, words = batch.graphs["chars"], batch.graphs["words"]
        c = ops.dropout(self.spell(chars, x=self.char(chars["char"])), 0.3)
        x = ops.concat([self.word(words["token"]), ops.take(c, batch.link("spelling"))])
        return self.output(self.forth(words, x=x))


def test_random_numbers_of_one_structure_keep_it_separate():
    batch = sentences()
    session, _ = agrees(Dropping(), batch, FLOAT64)
    every = batch.graphs["chars"].num_vertices
    assert distinct(session, batch)["chars"] == every
    assert distinct(session, batch, training=False)["chars"] == prefixes(batch)


def test_explain_names_each_structure():
    batch = sentences()
    found = cavs.explain(Tagger(), batch)
    every, words = (batch.graphs[name].num_vertices for name in ("chars", "words"))
    assert found.run.structures == {"chars": (every, prefixes(batch)), "words": (words, words)}
    assert f"  chars: {every} vertices ({prefixes(batch)} distinct)\n" in str(found)
    assert f"  words: {words} vertices ({words} distinct)\n" in str(found)

    def why(model, **options):
        lines = cavs.explain(model, batch, run=False, **options).not_batched
        return [line for line in lines if "the same features and children" in line]

    assert all("vertices of words run" in x and "along a link" in x for x in why(Tagger()))
    (line,) = [x for x in why(Dropping()) if "vertices of chars" in x]
    assert "draws random numbers" in line and f"of {every} vertices" in line
    (line,) = [x for x in why(Tagger(), passes=OFF) if "vertices of chars" in x]
    assert line.endswith("the pass merge_vertices is off")


def test_small_batches_stay_separate(monkeypatch):
    monkeypatch.setattr(program_cache, "MIN_MERGED", 10_000)
    batch = sentences()
    session = cavs.Session(Tagger())
    assert distinct(session, batch, training=False)["chars"] == batch.graphs["chars"].num_vertices
