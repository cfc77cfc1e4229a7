"""Word-level language model: an LSTM on chains of WikiText-2, each of its own length.

    cavs train lstm-lm --data DIR [--length 35]

DIR holds train.txt, valid.txt and test.txt, one paragraph per line; without train.txt, nine tenths
of the paragraphs of valid.txt are used instead. Every paragraph is a chain of its own; ``--length
N`` cuts the text into chunks of N words instead, for the fixed-length LSTM of the Cavs paper.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

import cavs
from cavs import nn, ops
from cavs.cli import Task, data_file, require_data, require_least
from cavs.data import Vocabulary, chains, read_text
from cavs.train import metrics

LAYOUT = "train.txt (optional), valid.txt and test.txt"
DEFAULTS = {"epochs": 8, "batch_size": 16, "lr": 0.1, "max_norm": 5.0, "bucket": "size"}


class LanguageModel(cavs.Model):
    """Predict the next word from the state of the LSTM after all words before it."""

    def __init__(self, num_words: int, embedding_size: int, hidden_size: int, dropout: float):
        self.embedding = nn.Embedding(num_words, embedding_size)
        self.chain = nn.LSTM(embedding_size, hidden_size)
        self.output = nn.Linear(hidden_size, num_words)
        self.dropout = nn.Dropout(dropout)

    def forward(self, batch):
        """Return scores of all words at every vertex."""
        words = self.dropout(self.embedding(batch["token"]))
        return self.output(self.dropout(self.chain(batch.graph, x=words)))

    def loss(self, batch):
        """Return the mean cross entropy over all words."""
        return ops.cross_entropy(self.forward(batch), batch["label"])


def add_arguments(parser):
    """Add the options of this model."""
    parser.add_argument("--embedding-size", type=int, default=200)
    parser.add_argument("--hidden-size", type=int, default=200)
    parser.add_argument("--dropout", type=float, default=0.3)
    parser.add_argument("--vocabulary-size", type=int, default=5000, help="rarer words are <unk>")
    parser.add_argument("--length", type=int, help="words of a chain (default: a paragraph)")
    parser.add_argument("--max-length", type=int, default=80, help="longer paragraphs are cut")


def chunks(sentences: list[list[str]], length: int) -> list[list[str]]:
    """Return the running text cut into lists of one length, without the rest at the end."""
    text = list(itertools.chain.from_iterable(sentences))
    return [text[i : i + length] for i in range(0, len(text) - length + 1, length)]


def build(args, assets=None):
    """Return the model and the chains; the vocabulary is that of the training text."""
    require_least(args, length=1)
    require_data(args, assets, "lstm-lm")
    has_train = args.data is not None and Path(args.data, "train.txt").exists()

    def sentences(split):
        cut = args.max_length if args.length is None else None
        file = {"train": "train" if has_train else "valid", "dev": "valid", "test": "test"}[split]
        path = data_file(args.data, f"{file}.txt", LAYOUT)
        found = read_text(path, cut, headings=False)
        if not has_train and split != "test":
            found = found[::10] if split == "dev" else [s for i, s in enumerate(found) if i % 10]
        return found if args.length is None else chunks(found, args.length)

    parsed = {}

    def graphs(split):
        if args.data is None:
            return None
        return chains(parsed.pop(split, None) or sentences(split), vocabulary)

    if assets is None:
        # All splits: a missing or malformed file is an error now, not after the training.
        parsed |= {split: sentences(split) for split in ("train", "dev", "test")}
        words = itertools.chain.from_iterable(parsed["train"])
        vocabulary = Vocabulary.build(words, max_size=args.vocabulary_size)
    else:
        vocabulary = Vocabulary(assets["words"])

    def predict(outputs, batch):
        ends = np.asarray(batch.topology.vertex_offsets[1:]) - 1
        return (str(w) for w in vocabulary.decode(outputs["output"][ends].argmax(axis=1)))

    def read(text):  # <unk> stands for the word after each line, which is to be predicted
        lines = text.removesuffix("\n").split("\n") if text else []
        return chains([[*line.split(), "<unk>"] for line in lines], vocabulary)

    model = LanguageModel(len(vocabulary), args.embedding_size, args.hidden_size, args.dropout)
    model.initialize(args.seed)
    return Task(
        model,
        **{name: lambda name=name: graphs(name) for name in ("train", "dev", "test")},
        metrics=[metrics.perplexity()],
        assets={"words": vocabulary.to_json()},
        predict=predict,
        read=read,
    )
