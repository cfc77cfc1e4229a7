"""Both models of typed_trees equal ones in NumPy that run vertex by vertex."""

from __future__ import annotations

import re

import numpy as np
import pytest

import cavs
from cavs import nn
from cavs.data import parse_tree, sst_graphs
from cavs.errors import CavsError
from models.tree_lstm import SentimentClassifier
from models.typed_trees import TypedClassifier, TypedTreeLSTM, typed_graphs
from tests.models import sentiment_trees
from tests.models.against_numpy import check, cross_entropy, sigmoid
from tests.models.sentiment_trees import (
    train,
    trains_and_predicts,
    trees,
    vocabulary,
    write_treebank,
)

WIDTHS = len(vocabulary()), 3, 4  # words, inputs, states


def typed_lstm(p, tree):
    """Return h of each vertex; forget gates of phrases have 1 added."""
    open_gates = np.repeat([0.0, 1.0], [3 * WIDTHS[2], 2 * WIDTHS[2]])
    word = p["tree.word.weight"], p["tree.word.bias"]
    phrase = p["tree.phrase.weight"], p["tree.phrase.bias"] + open_gates
    return sentiment_trees.tree_lstm(tree, p["embedding.weight"], word, phrase)


def tree_gru(p, tree):
    """Return h of each vertex: a GRU whose state before is the sum of the parts."""
    (Wr, Wz, Wn), (br, bz, bn) = np.split(p["tree.W"], 3, 1), np.split(p["tree.b"], 3)

    def compose(x, parts):
        before = sum(parts, np.zeros(WIDTHS[2]))
        read = [sigmoid(x @ Wr + br + h @ p["tree.U_r"]) * h for h in parts]
        z = sigmoid(x @ Wz + bz + before @ p["tree.U_z"])
        n = np.tanh(x @ Wn + bn + sum(read, np.zeros(WIDTHS[2])) @ p["tree.U_n"])
        return z * before + (1 - z) * n

    def word(token):
        return compose(p["embedding.weight"][token], [])

    return sentiment_trees.up(tree, word, lambda *parts: compose(np.zeros(WIDTHS[1]), parts))


CELLS = {
    "typed-lstm": (TypedClassifier, TypedTreeLSTM, typed_graphs, typed_lstm),
    "tree-gru": (SentimentClassifier, nn.TreeGRU, sst_graphs, tree_gru),
}


@pytest.mark.parametrize("copies", [1, 10])  # 10: a batch whose equal vertices are merged
@pytest.mark.parametrize("cell", CELLS)
def test_loss_scores_and_gradients_equal_the_reference(cell, copies):
    classifier, function, graphs, states = CELLS[cell]

    def reference(p):
        h = [row for tree in trees() for row in states(p, tree)]
        scores = np.array(h) @ p["output.weight"] + p["output.bias"]
        labels = [label for tree in trees() for label in tree.labels]
        loss = np.mean([cross_entropy(*pair) for pair in zip(scores, labels, strict=True)])
        return loss, np.tile(scores, (copies, 1))

    batch = cavs.batch(graphs(trees(), vocabulary()) * copies)
    check(classifier(*WIDTHS, 0.0, function), batch, reference)


def test_a_batch_of_sentences_of_one_word():
    model = TypedClassifier(*WIDTHS, 0.0, TypedTreeLSTM)
    model.initialize(0)
    words = typed_graphs([parse_tree("(2 plain)"), parse_tree("(4 works)")], vocabulary())
    alone = cavs.Session(model).predict(cavs.batch(words))["output"]
    both = typed_graphs(trees(), vocabulary())
    after = cavs.Session(model).predict(cavs.batch([*words, *both]))["output"]
    assert alone.shape == (2, 5)
    np.testing.assert_allclose(after[:2], alone, rtol=1e-5)


def test_a_phrase_of_three_parts_is_refused():
    graphs = typed_graphs([parse_tree("(2 (2 a) (2 b) (2 c))")], vocabulary())
    model = TypedClassifier(*WIDTHS, 0.0, TypedTreeLSTM)
    with pytest.raises(CavsError, match="3 children"):
        cavs.Session(model).predict(cavs.batch(graphs))


@pytest.mark.parametrize("cell", CELLS)
def test_the_loss_of_a_training_falls(cell, tmp_path, capsys):
    trains_and_predicts("typed-trees", tmp_path, capsys, "--cell", cell, "--embedding-size=5")


def test_bad_data_is_refused(tmp_path, capsys):
    write_treebank(tmp_path, dev="(7 it)")
    assert train("typed-trees", tmp_path) == 1
    assert re.search(r"DataError: .*dev.txt:17: ", capsys.readouterr().err)
