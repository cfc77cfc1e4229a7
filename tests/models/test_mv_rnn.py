"""MV-RNN equals one in NumPy with matrices, vertex by vertex."""

from __future__ import annotations

import re

import numpy as np
import pytest

import cavs
from models.mv_rnn import MatrixVectorClassifier
from models.typed_trees import typed_graphs
from tests.models.against_numpy import check, cross_entropy
from tests.models.sentiment_trees import (
    train,
    trains_and_predicts,
    trees,
    up,
    vocabulary,
    write_treebank,
)

SIZE, RANK = 3, 2


def states(p, tree):
    """Return vector and matrix of each vertex (Socher et al. 2012, section 2.2)."""
    W = p["tree.compose.weight"].T  # [size, 2 * size], as in the paper
    W_M = p["tree.W_M"].T

    def word(token):
        U = p["left.weight"][token].reshape(RANK, SIZE).T
        V = p["right.weight"][token].reshape(RANK, SIZE)
        return p["vector.weight"][token], U @ V + np.diag(p["diagonal.weight"][token])

    def phrase(left, right):
        (a, A), (b, B) = left, right
        h = np.tanh(W @ np.concatenate([B @ a, A @ b]) + p["tree.compose.bias"])
        return h, W_M @ np.concatenate([A, B])

    return up(tree, word, phrase)


@pytest.mark.parametrize("copies", [1, 10])  # 10: a batch whose equal vertices are merged
def test_loss_scores_and_gradients_equal_the_reference(copies):
    def reference(p):
        h = [row for tree in trees() for row, _ in states(p, tree)]
        scores = np.array(h) @ p["output.weight"] + p["output.bias"]
        labels = [label for tree in trees() for label in tree.labels]
        loss = np.mean([cross_entropy(*pair) for pair in zip(scores, labels, strict=True)])
        return loss, np.tile(scores, (copies, 1))

    batch = cavs.batch(typed_graphs(trees(), vocabulary()) * copies)
    check(MatrixVectorClassifier(len(vocabulary()), SIZE, RANK, 0.0), batch, reference)


def test_phrases_of_words_with_matrices_near_the_identity_begin_near_it():
    model = MatrixVectorClassifier(len(vocabulary()), SIZE, RANK, 0.0)
    model.initialize(0)
    p = {name: x.value for name, x in model.parameters().items()}
    matrices = np.array([m for tree in trees()[:2] for _, m in states(p, tree)])
    assert np.abs(matrices - np.eye(SIZE)).max() < 0.3


def test_the_loss_of_a_training_falls(tmp_path, capsys):
    trains_and_predicts("mv-rnn", tmp_path, capsys, "--rank=1")


def test_bad_data_and_options_are_refused(tmp_path, capsys):
    write_treebank(tmp_path, test="(3 (2 it)")
    assert train("mv-rnn", tmp_path) == 1
    assert re.search(r"DataError: .*test.txt:17: ", capsys.readouterr().err)
    assert train("mv-rnn", tmp_path, "--rank=0") == 1
    assert "--rank 0\n  hint: choose at least 1" in capsys.readouterr().err
