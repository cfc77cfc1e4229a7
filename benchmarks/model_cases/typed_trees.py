"""The two-typed Tree-LSTM on the treebank."""

from __future__ import annotations

from benchmarks import treebank
from benchmarks.model_case import PRODUCTS, ModelCase, Sizes
from models.typed_trees import TypedClassifier, TypedTreeLSTM, typed_graphs

EMBEDDING, HIDDEN = 300, 150


def case(sizes: Sizes) -> ModelCase:
    """Return the case."""
    return treebank.case(
        sizes,
        lambda words: TypedClassifier(words, EMBEDDING, HIDDEN, 0.0, TypedTreeLSTM),
        typed_graphs,
        HIDDEN,
        {"torch": "typed_trees_torch", "dynet": "typed_trees_dynet"},
        reasons={"training": (PRODUCTS, 1.6), "inference": (PRODUCTS, 1.5)},
    )
