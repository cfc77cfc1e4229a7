"""Sentiment of sentences: a binary Tree-LSTM on the Stanford Sentiment Treebank.

    cavs train tree-lstm --data DIR

DIR holds train.txt, dev.txt and test.txt, one bracketed tree per line, ``(3 (2 It) (4 works))``.
Five classes, from very negative to very positive, are predicted at every vertex: the words, all
phrases, and the root, which is the sentence (Socher et al. 2013; Tai et al. 2015). From random
embeddings the defaults reach 81.6 % of all vertices and 46.4 % of the roots of the test part.
"""

from __future__ import annotations

from dataclasses import replace

import cavs
from cavs import nn, ops
from cavs.cli import Task, data_file, require_data
from cavs.data import Tree, Vocabulary, parse_tree, read_sst, sst_graphs
from cavs.train import metrics

CLASSES = ("very negative", "negative", "neutral", "positive", "very positive")
LAYOUT = "train.txt, dev.txt and test.txt"
DEFAULTS = {"epochs": 8, "batch_size": 25, "lr": 0.05, "schedule": "cosine"}


class SentimentClassifier(cavs.Model):
    """Embed words, compose phrases by a cell, and classify each word and phrase."""

    def __init__(
        self,
        num_words: int,
        embedding_size: int,
        hidden_size: int,
        dropout: float,
        cell=nn.BinaryTreeLSTM,
    ):
        self.embedding = nn.Embedding(num_words, embedding_size)
        self.tree = cell(embedding_size, hidden_size)
        self.output = nn.Linear(hidden_size, len(CLASSES))
        self.dropout = nn.Dropout(dropout)

    def forward(self, batch):
        """Return scores of the classes at every vertex."""
        words = self.dropout(self.embedding(batch["token"]))
        return self.output(self.dropout(self.tree(batch.graph, x=words)))

    def loss(self, batch):
        """Return the mean cross entropy over all vertices."""
        return ops.cross_entropy(self.forward(batch), batch["label"])


def add_arguments(parser):
    """Add the options of this model."""
    parser.add_argument("--embedding-size", type=int, default=300)
    parser.add_argument("--hidden-size", type=int, default=150)
    parser.add_argument(
        "--dropout", type=float, default=0.5, help="rate of dropout at words and outputs"
    )
    parser.add_argument("--min-count", type=int, default=1, help="rarer words are <unk>")


def lowered(tree: Tree) -> Tree:
    """Return a tree in lower case: the treebank is too small to learn two forms of a word."""
    return replace(tree, words=[word and word.lower() for word in tree.words])


class Treebank:
    """The trees of the splits in ``--data``, and the vocabulary of those for training.

    All splits are read at once: a missing or malformed file is an error before the training.
    With the `assets` that a training stored, its vocabulary is used again. `model` is the name of
    the model in errors.
    """

    def __init__(self, args, assets, model: str):
        require_data(args, assets, model)
        self.folder, self.parsed = args.data, {}
        if assets is None:
            self.parsed = {name: self.trees(name) for name in ("train", "dev", "test")}
            words = (word for tree in self.parsed["train"] for word in tree.tokens)
            self.vocabulary = Vocabulary.build(words, args.min_count)
        else:
            self.vocabulary = Vocabulary(assets["words"])

    def trees(self, split: str) -> list[Tree] | None:
        """Return the trees of a split; None without ``--data``."""
        if self.folder is None:
            return None
        file = data_file(self.folder, f"{split}.txt", LAYOUT)
        return self.parsed.pop(split, None) or [lowered(tree) for tree in read_sst(file)]

    def assets(self) -> dict[str, object]:
        """Return the JSON that a checkpoint stores."""
        return {"words": self.vocabulary.to_json()}


def parse_lines(text: str) -> list[Tree | None]:
    """Return the tree on each line of a text, None for empty lines."""
    lines = enumerate(text.split("\n"), 1)  # splitlines would cut tokens of the treebank too
    return [lowered(parse_tree(line, number=i)) if line.strip() else None for i, line in lines]


def sentiment_task(model: cavs.Model, bank: Treebank, seed: int, make_graphs=sst_graphs) -> Task:
    """Return the task of a model whose output is the scores of the classes at every vertex.

    `make_graphs` makes graphs of trees and a vocabulary.
    """

    def graphs(trees):
        return None if trees is None else make_graphs(trees, bank.vocabulary)

    def predict(outputs, batch):
        best = outputs["output"].argmax(axis=1)
        return (CLASSES[best[root]] for root in metrics.batch_roots(batch))

    model.initialize(seed)
    return Task(
        model,
        train=lambda: graphs(bank.trees("train")),
        dev=lambda: graphs(bank.trees("dev")),
        test=lambda: graphs(bank.trees("test")),
        metrics=[metrics.accuracy(), metrics.root_accuracy()],
        monitor="accuracy",
        assets=bank.assets(),
        predict=predict,
        read=lambda text: graphs([tree for tree in parse_lines(text) if tree is not None]),
    )


def build(args, assets=None):
    """Return the model and the three splits; the vocabulary is that of the training trees."""
    bank = Treebank(args, assets, "tree-lstm")
    sizes = len(bank.vocabulary), args.embedding_size, args.hidden_size
    return sentiment_task(SentimentClassifier(*sizes, args.dropout), bank, args.seed)
