"""Parts of speech from dependency trees on CoNLL-U: a child-sum Tree-LSTM up, a GRU down again.

    cavs train dependency-tagger --data DIR

DIR holds ``*train.conllu``, ``*dev.conllu`` and ``*test.conllu`` of a Universal Dependencies
treebank; where there is no training part, nine tenths of the development part take its place. A
word sees itself, everything that depends on it, any number of children, and what it depends on.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import cavs
from cavs import nn, ops
from cavs.cli import Task
from cavs.data import UPOS, Sentence, Vocabulary, dependency_graphs, parse_conllu, read_conllu
from cavs.errors import DataError
from cavs.train import metrics

DEFAULTS = {"epochs": 12, "batch_size": 25, "lr": 0.05}


class Tagger(cavs.Model):
    """Forms are embedded, one cell gathers dependents, another the head; a linear layer scores."""

    def __init__(self, num_forms: int, embedding_size: int, hidden_size: int, dropout: float):
        self.embedding = nn.Embedding(num_forms, embedding_size)
        self.up = nn.ChildSumTreeLSTM(embedding_size, hidden_size)
        self.down = nn.GRU(embedding_size + hidden_size, hidden_size)
        self.output = nn.Linear(2 * hidden_size, len(UPOS))
        self.dropout = nn.Dropout(dropout)

    def forward(self, batch):
        """Scores of the tags at every word."""
        forms = self.dropout(self.embedding(batch["token"]))
        up = self.up(batch.graph, x=forms)
        down = self.down(batch.graph.reversed(), x=ops.concat([forms, up]))
        return self.output(self.dropout(ops.concat([up, down])))

    def loss(self, batch):
        """Mean over all words that have a tag."""
        return ops.cross_entropy(self.forward(batch), batch["label"])


def add_arguments(parser):
    """Options of this model."""
    parser.add_argument("--embedding-size", type=int, default=100)
    parser.add_argument("--hidden-size", type=int, default=100)
    parser.add_argument("--dropout", type=float, default=0.3)
    parser.add_argument("--min-count", type=int, default=2, help="rarer forms show their ending")


def ending(form: str) -> str:
    """What a rare form still says: its shape and its last letters."""
    shape = "0" if form[-1].isdigit() else "A" if form[0].isupper() else "a"
    return f"{shape}-{form[-3:].lower()}"


def read_split(data: str, name: str) -> list[Sentence] | None:
    """The sentences of the one file of this split, None if there is no such file."""
    files = sorted(Path(data).glob(f"*{name}.conllu"))
    if len(files) > 1:
        raise DataError(f"{data} has {len(files)} files *{name}.conllu; expected one treebank")
    return read_conllu(files[0]) if files else None


def splits(data: str) -> dict[str, list[Sentence] | None]:
    """The sentences of train, dev and test."""
    found = {name: read_split(data, name) for name in ("train", "dev", "test")}
    dev = found["dev"]
    if found["train"] is None and dev is not None:
        found |= {"train": [s for i, s in enumerate(dev) if i % 10], "dev": dev[::10]}
    return found


def build(args, assets=None):
    """The model and the splits; forms seen less than ``min_count`` times share their endings."""
    if args.data is None and assets is None:
        raise DataError("dependency-tagger has no data of its own", hint="pass --data DIR")
    found = splits(args.data) if args.data is not None else {}
    if args.data is not None and not any(found.values()):
        wanted = "*train.conllu, *dev.conllu and *test.conllu"
        raise DataError(f"{args.data} has none of {wanted}", hint="pass the folder of a treebank")
    if assets is None:
        if not found["train"]:
            raise DataError(f"{args.data} has neither *train.conllu nor *dev.conllu")
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

    def read(text):  # whatever tags it has: they are what is asked for
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
        **{name: graphs(sentences) for name, sentences in found.items() if sentences},
        metrics=[metrics.accuracy()],
        assets={"forms": vocabulary.to_json()},
        predict=predict,
        read=read,
    )
