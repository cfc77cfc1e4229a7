"""Batches of the Stanford Sentiment Treebank for the cases of models of trees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

import cavs
from benchmarks.model_case import ModelCase, Sizes
from benchmarks.samples import data_folder
from cavs.data import Tree, Vocabulary, read_sst
from models.tree_lstm import lowered

MakeGraphs = Callable[[list[Tree], Vocabulary], list[cavs.Graph]]


@dataclass(frozen=True)
class Treebank:
    """The training part of the treebank."""

    trees: list[Tree]
    vocabulary: Vocabulary


@lru_cache(maxsize=1)
def treebank(data: str) -> Treebank:
    """Return the treebank in a folder of data sets, or in $CAVS_DATA."""
    trees = [lowered(tree) for tree in read_sst(data_folder("sst", data) / "train.txt")]
    return Treebank(trees, Vocabulary.build(word for tree in trees for word in tree.tokens))


def plain(tree: Tree, vocabulary: Vocabulary) -> list[list[int]]:
    """Return left and right child, token and label of each vertex, -1 for none, for rivals."""
    pairs = [tree.children_of(v) or [-1, -1] for v in range(len(tree.labels))]
    left, right = zip(*pairs, strict=True)
    return [list(left), list(right), vocabulary.encode(tree.words).tolist(), list(tree.labels)]


def case(
    sizes: Sizes,
    model: Callable[[int], cavs.Model],
    make_graphs: MakeGraphs,
    hidden: int,
    rivals: dict[str, str],
    **options: Any,
) -> ModelCase:
    """Return the case of a model of trees. model: of a number of words. options: of `ModelCase`."""
    bank = treebank(sizes.data)
    order = np.random.default_rng(0).permutation(len(bank.trees))
    chosen = [bank.trees[i] for i in order[: sizes.batches * sizes.batch_size]]
    batches = [chosen[i : i + sizes.batch_size] for i in range(0, len(chosen), sizes.batch_size)]
    return ModelCase(
        lambda: model(len(bank.vocabulary)),
        [make_graphs(batch, bank.vocabulary) for batch in batches],
        sum(len(tree.tokens) for tree in chosen),
        "words",
        hidden,
        rivals,
        [[plain(tree, bank.vocabulary) for tree in batch] for batch in batches],
        **options,
    )
