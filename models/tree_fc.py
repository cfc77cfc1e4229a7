"""Tree-FC on complete binary trees: the simplest tree of the Cavs paper, on synthetic data.

    cavs train tree-fc

Every symbol has a hidden weight; the label of a tree is 1 if the weights of its leaves sum to more
than zero. The cell must learn the weights and their addition.
"""

from __future__ import annotations

import numpy as np

import cavs
from cavs import nn, ops
from cavs.cli import Task, require_least
from cavs.errors import ConfigError
from cavs.train import metrics

DEFAULTS = {"epochs": 10, "batch_size": 32, "lr": 0.02}
NUM_SYMBOLS = 50


class TreeClassifier(cavs.Model):
    """Use the embedding of a symbol as the input of its leaf, and classify trees at their root."""

    def __init__(self, hidden_size: int):
        self.embedding = nn.Embedding(NUM_SYMBOLS, hidden_size)
        self.tree = nn.TreeFC(hidden_size)
        self.output = nn.Linear(hidden_size, 2)

    def forward(self, batch):
        """Return scores of the two classes, one row per tree."""
        h = self.tree(batch.graph, x=self.embedding(batch["token"]))
        return self.output(ops.sum_roots(h))

    def loss(self, batch):
        """Return the mean cross entropy over trees."""
        return ops.cross_entropy(self.forward(batch), batch["label"])


def add_arguments(parser):
    """Add the options of this model."""
    parser.add_argument("--hidden-size", type=int, default=64)
    parser.add_argument(
        "--leaves", type=int, default=32, help="number of leaves of a tree, a power of two"
    )
    parser.add_argument("--trees", type=int, default=3000, help="number of trees for training")


def complete_tree(symbols: np.ndarray, label: int) -> cavs.Graph:
    """Return the complete binary tree over some leaves: level by level, the root last."""
    leaves = len(symbols)
    parents = leaves + np.arange(2 * leaves - 1) // 2
    parents[-1] = -1
    token = np.concatenate([symbols, np.full(leaves - 1, -1)])
    return cavs.Graph.from_parents(
        parents, features={"token": token}, graph_features={"label": label}
    )


def synthetic_trees(count: int, leaves: int, seed: int) -> list[cavs.Graph]:
    """Return trees labelled by the same hidden weights; `seed` draws their symbols."""
    weights = np.random.default_rng(0).normal(size=NUM_SYMBOLS)
    symbols = np.random.default_rng((1, seed)).integers(0, NUM_SYMBOLS, (count, leaves))
    labels = weights[symbols].sum(axis=1) > 0
    return [complete_tree(row, int(label)) for row, label in zip(symbols, labels, strict=True)]


def build(args, assets=None):
    """Return the model, and trees that depend on ``--leaves`` and ``--trees`` alone."""
    if args.leaves < 2 or args.leaves & (args.leaves - 1):
        raise ConfigError(f"--leaves {args.leaves}", hint="choose a power of two, such as 32")
    require_least(args, trees=1)
    held_out = max(args.trees // 10, 1)
    model = TreeClassifier(args.hidden_size)
    model.initialize(args.seed)
    return Task(
        model,
        train=lambda: synthetic_trees(args.trees, args.leaves, seed=0),
        dev=lambda: synthetic_trees(held_out, args.leaves, seed=1),
        test=lambda: synthetic_trees(held_out, args.leaves, seed=2),
        metrics=[metrics.accuracy()],
    )
