"""The Tree-GRU of `models.typed_trees` on the treebank."""

from __future__ import annotations

from benchmarks import treebank
from benchmarks.model_case import PRODUCTS, ModelCase, Sizes
from cavs import nn
from cavs.data import sst_graphs
from models.tree_lstm import SentimentClassifier

EMBEDDING, HIDDEN = 300, 150


def case(sizes: Sizes) -> ModelCase:
    """Return the case."""
    return treebank.case(
        sizes,
        lambda words: SentimentClassifier(words, EMBEDDING, HIDDEN, 0.0, nn.TreeGRU),
        sst_graphs,
        HIDDEN,
        {"torch": "tree_gru_torch", "dynet": "tree_gru_dynet"},
        reasons={"inference": (PRODUCTS, 1.5)},
    )
