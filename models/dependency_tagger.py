"""Parts of speech from dependency trees on CoNLL-U: a child-sum Tree-LSTM up, a GRU down again.

    cavs train dependency-tagger --data DIR

DIR holds ``*train.conllu``, ``*dev.conllu`` and ``*test.conllu`` of a Universal Dependencies
treebank; without a training file, nine tenths of the development file are used instead. The tag of
a word is predicted from the word, its dependents, any number of them, and its head.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import cavs
from cavs import nn, ops
from cavs.cli import Task
from cavs.data import UPOS, Vocabulary, dependency_graphs, parse_conllu
from cavs.train import metrics

from ._treebank import treebank_parts

DEFAULTS = {"epochs": 12, "batch_size": 25, "lr": 0.05}


class Tagger(cavs.Model):
    """Embed forms, gather dependents by one cell and heads by another, and score tags."""

    def __init__(self, num_forms: int, embedding_size: int, hidden_size: int, dropout: float):
        self.embedding = nn.Embedding(num_forms, embedding_size)
        self.up = nn.ChildSumTreeLSTM(embedding_size, hidden_size)
        self.down = nn.GRU(embedding_size + hidden_size, hidden_size)
        self.output = nn.Linear(2 * hidden_size, len(UPOS))
        self.dropout = nn.Dropout(dropout)

    def forward(self, batch):
        """Return scores of the tags at every word."""
        forms = self.dropout(self.embedding(batch["token"]))
        up = self.up(batch.graph, x=forms)
        down = self.down(batch.graph.reversed(), x=ops.concat([forms, up]))
        return self.output(self.dropout(ops.concat([up, down])))

    def loss(self, batch):
        """Return the mean cross entropy over all words that have a tag."""
        return ops.cross_entropy(self.forward(batch), batch["label"])


def add_arguments(parser):
    """Add the options of this model."""
    parser.add_argument("--embedding-size", type=int, default=100)
    parser.add_argument("--hidden-size", type=int, default=100)
    parser.add_argument("--dropout", type=float, default=0.3)
    parser.add_argument(
        "--min-count", type=int, default=2, help="rarer forms are replaced by their endings"
    )


def ending(form: str) -> str:
    """Return the features of a rare form as one token: its shape and its last letters."""
    shape = "0" if form[-1].isdigit() else "A" if form[0].isupper() else "a"
    return f"{shape}-{form[-3:].lower()}"


def build(args, assets=None):
    """Return the model and the splits; rare forms share the embeddings of their endings."""
    found = treebank_parts(args, assets, "dependency-tagger")
    if assets is None:
        counts = Counter(form for s in found["train"] for form in s.forms)
        endings = (ending(form) for form in counts.elements())
        kept = [form for form, n in counts.most_common() if n >= args.min_count]
        vocabulary = Vocabulary(dict.fromkeys([*kept, *Vocabulary.build(endings, args.min_count)]))
    else:
        vocabulary = Vocabulary(assets["forms"])

    def graphs(sentences):
        shown = [[f if f in vocabulary else ending(f) for f in s.forms] for s in sentences]
        replaced = [replace(s, forms=f) for s, f in zip(sentences, shown, strict=True)]
        return dependency_graphs(replaced, vocabulary)

    def read(text):  # its tags are ignored: they are to be predicted
        found = parse_conllu(text.split("\n"))
        return graphs([replace(s, upos=["_"] * len(s.upos)) for s in found])

    def predict(outputs, batch):
        tags = [UPOS[i] for i in outputs["output"].argmax(axis=1)]
        offsets = batch.topology.vertex_offsets
        return (" ".join(tags[a:b]) for a, b in itertools.pairwise(offsets))

    model = Tagger(len(vocabulary), args.embedding_size, args.hidden_size, args.dropout)
    model.initialize(args.seed)
    return Task(
        model,
        **{name: graphs(sentences) for name, sentences in found.items()},
        metrics=[metrics.accuracy()],
        assets={"forms": vocabulary.to_json()},
        predict=predict,
        read=read,
    )
