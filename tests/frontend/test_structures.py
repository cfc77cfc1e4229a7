"""Models over several structures a sample: what tracing allows, and its errors."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.errors import FeatureError, TraceError


def sample(**options):
    named = {
        "words": cavs.Graph.chain(2, {"token": [1, 2], "tag": [0, 1]}),
        "chars": cavs.Graph.chains([2, 1], {"char": [3, 4, 5], "x": np.ones((3, 3))}),
        "links": {
            "spelling": cavs.Link("words", "chars", [1, 2]),
            "all": cavs.Link("words", "chars", [[0, 1], [2]]),
        },
    }
    return cavs.Sample(**named | options)


class Model(cavs.Model):
    """Computes ``loss`` as the given function says."""

    def __init__(self, loss):
        self.function = loss
        self.char, self.word = nn.Embedding(9, 3), nn.Embedding(9, 3)
        self.spell, self.forth = nn.LSTM(3, 3), nn.LSTM(3, 3)

    def loss(self, batch):
        return self.function(self, batch)


def refuses(function, error, found, batch=None):
    """Assert that tracing raises ``error`` at the line of ``function``."""
    with pytest.raises(error, match=re.escape(found)) as raised:
        cavs.Session(Model(function)).evaluate(batch or cavs.batch([sample()]))
    first = inspect.getsourcelines(function)[1]
    last = first + len(inspect.getsourcelines(function)[0])
    name, _, line = raised.value.where.partition(":")
    assert (name, first <= int(line) < last) == ("test_structures.py", True), raised.value.where
    assert raised.value.hint
    return raised.value


def test_rows_of_two_structures_are_not_combined():
    def loss(m, batch):
        c = m.char(batch.graphs["chars"]["char"])
        w = m.word(batch.graphs["words"]["token"])
        return ops.sum_rows(c + w)

    error = refuses(loss, TraceError, "rows of structures 'chars' and 'words' cannot be combined")
    assert type(error) is TraceError
    assert "ops.take" in error.hint


def test_a_cell_pulls_values_of_its_structure():
    def loss(m, batch):
        c = m.char(batch.graphs["chars"]["char"])
        return ops.sum_rows(m.forth(batch.graphs["words"], x=c))

    refuses(loss, TraceError, "x has rows of structure 'chars', but the cell runs over 'words'")


def test_an_initial_state_is_of_the_structure_of_the_cell():
    def loss(m, batch):
        chars, words = batch.graphs["chars"], batch.graphs["words"]
        x = m.word(words["token"])
        return ops.sum_rows(m.forth(words, x=x, initial={"h": m.char(chars["char"])}))

    refuses(loss, TraceError, "initial state 'h' has rows of structure 'chars'")


def test_labels_are_of_the_structure_of_the_logits():
    def loss(m, batch):
        logits = m.char(batch.graphs["chars"]["char"])
        return ops.cross_entropy(logits, batch.graphs["words"]["tag"])

    refuses(loss, TraceError, "rows of structures 'chars' and 'words' cannot be combined")


def test_take_reads_the_source_of_a_single_link():
    def target(m, batch):
        w = m.word(batch.graphs["words"]["token"])
        return ops.sum_rows(ops.take(w, batch.link("spelling")))

    def lists(m, batch):
        c = m.char(batch.graphs["chars"]["char"])
        return ops.sum_rows(ops.take(c, batch.link("all")))

    def no_link(m, batch):
        c = m.char(batch.graphs["chars"]["char"])
        return ops.sum_rows(ops.take(c, "spelling"))

    refuses(
        target, TraceError, "along link 'spelling' from 'words' to 'chars' needs a value of every"
    )
    refuses(lists, TraceError, "needs a link to one vertex each, but link 'all' leads to lists")
    refuses(no_link, TraceError, "[take] needs a link, not 'spelling'")


class Reader(cavs.VertexFunction):
    def __init__(self, name="source"):
        self.name, self.state = name, cavs.State(h=3)

    def vertex(self, v):
        h = v.pull("x") + v.gather().h.sum() + v.link(self.name).h.sum()
        v.scatter(h=h)
        v.push(h)


def test_links_of_cells():
    def run(cell, structure, link, **values):
        def loss(m, batch):
            graph = batch.graphs[structure]
            x = m.char(graph["char"]) if structure == "chars" else m.word(graph["token"])
            chars = m.char(batch.graphs["chars"]["char"])
            source = ops.linked(batch.link(link), h=chars if not values else x)
            return ops.sum_rows(cell(graph, x=x, source=source).sum(-1))

        return loss

    refuses_at = (TraceError, FeatureError)
    for loss, found in (
        (run(Reader(), "chars", "all"), "source is linked from structure 'words', but the cell"),
        (run(Reader("sources"), "words", "all"), "link('sources'): the call passes source"),
        (run(Reader(), "words", "all", h=1), "needs a value of every vertex of 'chars'"),
    ):
        with pytest.raises(refuses_at, match=re.escape(found)) as error:
            cavs.Session(Model(loss)).evaluate(cavs.batch([sample()]))
        assert error.value.hint
        assert error.value.where.startswith("test_structures.py:")


def test_names_of_structures_links_and_features():
    def one_graph(m, batch):
        return ops.sum_rows(m.forth(batch.graph, x=1.0))

    def structure(m, batch):
        return ops.sum_rows(m.word(batch.graphs["word"]["token"]))

    def link(m, batch):
        return ops.sum_rows(batch.link("spellings"))

    def feature(m, batch):
        return ops.sum_rows(m.word(batch.graphs["chars"]["token"]))

    def of_batch(m, batch):
        return ops.sum_rows(m.word(batch["token"]))

    refuses(one_graph, TraceError, "samples of this batch have the structures chars, words")
    refuses(structure, TraceError, "have no structure 'word'; there are chars, words")
    refuses(link, FeatureError, "no link 'spellings' in the samples; there are all, spelling")
    error = refuses(feature, FeatureError, "structure 'chars' has no feature 'token'")
    assert "batch.graphs['words']['token']" in error.hint
    error = refuses(of_batch, FeatureError, "no feature 'token' of the batch as a whole")
    assert "batch.graphs['words']['token']" in error.hint


def test_graphs_of_samples_that_are_one_graph():
    def loss(m, batch):
        return ops.sum_rows(m.word(batch.graphs["words"]["token"]))

    batch = cavs.batch([cavs.Graph.chain(2, {"token": [1, 2]})])
    refuses(loss, TraceError, "samples of this batch are one graph each", batch)


def test_features_of_a_graph_by_the_graph():
    class Sum(cavs.Model):
        def loss(self, batch):
            return ops.sum_rows(batch.graph["x"]) + ops.sum_rows(batch["x"])

    batch = cavs.batch([cavs.Graph.chain(2, {"x": [1.0, 2.0]})])
    assert cavs.Session(Sum()).evaluate(batch).loss == 6.0


def test_values_of_samples_combine_structures():
    class Joined(cavs.Model):
        def loss(self, batch):
            chars, words = batch.graphs["chars"], batch.graphs["words"]
            both = ops.mean_graph(chars["x"].sum(-1)) * ops.sum_roots(words["y"])
            return ops.mean_rows(both) + ops.mean_rows(words["y"])

    one = cavs.Graph.chain(2, {"y": [1.0, 2.0]})
    other = cavs.Graph.chain(1, {"y": [4.0]})
    links = {"spelling": cavs.Link("words", "chars", [0])}
    batch = cavs.batch(
        [
            sample(words=one, links={"spelling": cavs.Link("words", "chars", [0, 1])}),
            sample(words=other, links=links),
        ]
    )
    expected = (6.0 + 12.0) / 2 + 7.0 / 3
    assert cavs.Session(Joined()).evaluate(batch).loss == pytest.approx(expected, rel=1e-6)


def test_later_batches_have_the_same_structures():
    def loss(m, batch):
        x = m.word(batch.graphs["words"]["token"])
        return ops.sum_rows(m.forth(batch.graphs["words"], x=x).sum(-1))

    session = cavs.Session(Model(loss))
    session.evaluate(cavs.batch([sample()]))
    with pytest.raises(
        FeatureError, match="samples of earlier batches had structures chars, words"
    ):
        session.evaluate(cavs.batch([sample(links={})]))
    with pytest.raises(FeatureError, match="has one graph each"):
        session.evaluate(cavs.batch([cavs.Graph.chain(2, {"token": [1, 2]})]))


def test_errors_of_data_name_sample_and_structure():
    def loss(m, batch):
        return ops.sum_rows(m.word(batch.graphs["words"]["token"]).sum(-1))

    bad = sample(words=cavs.Graph.chain(2, {"token": [1, 9], "tag": [0, 1]}))
    with pytest.raises(FeatureError) as error:
        cavs.Session(Model(loss)).evaluate(cavs.batch([sample(), bad]))
    assert "'words.token' is 9 at vertex 1 of \"words\" of sample 1" in str(error.value)


def test_arity_is_checked_in_the_structure_of_the_cell():
    class First(cavs.VertexFunction):
        def __init__(self):
            self.state = cavs.State(h=3)

        def vertex(self, v):
            h = v.pull("x") + v.gather(0).h
            v.scatter(h=h)
            v.push(h)

    class Two(cavs.Model):
        def __init__(self):
            self.cell, self.word = First(), nn.Embedding(9, 3)

        def loss(self, batch):
            words = batch.graphs["words"]
            return ops.sum_rows(self.cell(words, x=self.word(words["token"])).sum(-1))

    tree = cavs.Graph([[], [], [0, 1]], {"x": np.ones((3, 3))})
    cavs.Session(Two()).evaluate(cavs.batch([sample(chars=tree, links={})]))
    wide = cavs.Graph([[], [], [0, 1]], {"token": [1, 2, 3]})
    with pytest.raises(cavs.errors.GraphError) as error:
        cavs.Session(Two()).evaluate(cavs.batch([sample(words=wide, links={})]))
    assert 'vertex 2 of "words" of sample 0 has 2 children' in str(error.value)
