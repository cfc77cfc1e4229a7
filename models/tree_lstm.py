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
from cavs.cli import Task, data_file
from cavs.data import Tree, Vocabulary, parse_tree, read_sst, sst_graphs
from cavs.errors import DataError
from cavs.train import metrics

CLASSES = ("very negative", "negative", "neutral", "positive", "very positive")
LAYOUT = "train.txt, dev.txt and test.txt"
DEFAULTS = {"epochs": 8, "batch_size": 25, "lr": 0.05, "schedule": "cosine"}


class SentimentClassifier(cavs.Model):
    """Embed words, compose phrases by a cell, and classify each word and phrase."""

    def __init__(self, num_words: int, embedding_size: int, hidden_size: int, dropout: float):
        self.embedding = nn.Embedding(num_words, embedding_size)
        self.tree = nn.BinaryTreeLSTM(embedding_size, hidden_size)
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


def lowered(trees: list[Tree]) -> list[Tree]:
    """Return trees in lower case: the treebank is too small to learn two forms of a word."""
    return [replace(t, words=[word and word.lower() for word in t.words]) for t in trees]


def build(args, assets=None):
    """Return the model and the three splits; the vocabulary is that of the training trees."""
    if args.data is None and assets is None:
        raise DataError("tree-lstm has no data of its own", hint="pass --data DIR: see --help")

    def split(name):
        if args.data is None:
            return None
        return lowered(read_sst(data_file(args.data, f"{name}.txt", LAYOUT)))

    def graphs(trees):
        return None if trees is None else sst_graphs(trees, vocabulary)

    parsed = {}
    if assets is None:
        # All splits: a missing or malformed file is an error now, not after the training.
        parsed = {name: split(name) for name in ("train", "dev", "test")}
        words = (word for tree in parsed["train"] for word in tree.tokens)
        vocabulary = Vocabulary.build(words, args.min_count)
    else:
        vocabulary = Vocabulary(assets["words"])

    def part(name):
        return graphs(parsed.pop(name, None) or split(name))

    def read(text):
        lines = enumerate(text.split("\n"), 1)  # splitlines would cut tokens of the treebank too
        return graphs(lowered([parse_tree(line, number=i) for i, line in lines if line.strip()]))

    def predict(outputs, batch):
        best = outputs["output"].argmax(axis=1)
        return (CLASSES[best[root]] for root in metrics.batch_roots(batch))

    sizes = len(vocabulary), args.embedding_size, args.hidden_size
    model = SentimentClassifier(*sizes, args.dropout)
    model.initialize(args.seed)
    return Task(
        model,
        train=lambda: part("train"),
        dev=lambda: part("dev"),
        test=lambda: part("test"),
        metrics=[metrics.accuracy(), metrics.root_accuracy()],
        monitor="accuracy",
        assets={"words": vocabulary.to_json()},
        predict=predict,
        read=read,
    )
