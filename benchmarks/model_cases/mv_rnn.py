"""MV-RNN on the treebank, with vectors of 25 elements and matrices of words of rank 3."""

from __future__ import annotations

from benchmarks import treebank
from benchmarks.model_case import ModelCase, Sizes
from models.mv_rnn import MatrixVectorClassifier
from models.typed_trees import typed_graphs

SIZE, RANK = 25, 3
REASON = (
    "a matrix of each vertex times its vector is a sum of scaled columns here, and one batched "
    "product of the rival"
)


def case(sizes: Sizes) -> ModelCase:
    """Return the case."""
    return treebank.case(
        sizes,
        lambda words: MatrixVectorClassifier(words, SIZE, RANK, dropout=0.0),
        typed_graphs,
        SIZE,
        {"torch": "mv_rnn_torch", "dynet": "mv_rnn_dynet"},
        reasons={"training": (REASON, 1.3), "inference": (REASON, 1.3)},
    )
