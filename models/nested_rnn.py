"""Sentiment of documents and their sentences: an LSTM over sentences above a Tree-LSTM over words.

    cavs train nested-rnn --data DIR

DIR holds the treebank as for tree-lstm. Its sentences come alone, so documents are drawn from each
split: a class is drawn for each document, and 2 to 8 sentences, those of a class the less likely
the further it is from that of the document. The label of a document is the rounded mean class of
its sentences. The model predicts it, and the class of each sentence next to the others. A document
is a sample of two structures: the trees of its sentences, and a chain that reads their roots.
The defaults reach 40.2 % of the sentences and 46.8 % of the documents of the test part.
``cavs predict`` reads one tree a line, with an empty line between documents.
"""

from __future__ import annotations

from functools import partial
from itertools import groupby, pairwise

import numpy as np

import cavs
from cavs import nn, ops
from cavs.cli import Task, require_least
from cavs.data import Tree, Vocabulary
from cavs.train import metrics

from . import tree_lstm
from .tree_lstm import CLASSES, Treebank, parse_lines

DEFAULTS = {"epochs": 4, "batch_size": 10, "lr": 0.03, "schedule": "cosine"}
SEEDS = {"train": 0, "dev": 1, "test": 2}


class DocumentClassifier(cavs.Model):
    """Compose each sentence by its tree, read them in both directions, and classify all."""

    def __init__(self, num_words: int, embedding_size: int, hidden_size: int, dropout: float):
        self.embedding = nn.Embedding(num_words, embedding_size)
        self.tree = nn.BinaryTreeLSTM(embedding_size, hidden_size)
        self.chain = nn.Bidirectional(
            nn.LSTM(hidden_size, hidden_size), nn.LSTM(hidden_size, hidden_size)
        )
        self.sentence = nn.Linear(2 * hidden_size, len(CLASSES))
        self.document = nn.Linear(2 * hidden_size, len(CLASSES))
        self.dropout = nn.Dropout(dropout)

    def forward(self, batch):
        """Return scores of the classes of sentences and of documents."""
        trees, sentences = batch.graphs["trees"], batch.graphs["sentences"]
        phrases = self.tree(trees, x=self.dropout(self.embedding(trees["token"])))
        roots = self.dropout(ops.take(phrases, batch.link("root")))
        h = self.dropout(self.chain(sentences, x=roots))
        return {"sentence": self.sentence(h), "document": self.document(ops.mean_graph(h))}

    def loss(self, batch):
        """Return the mean cross entropy over sentences plus that over documents."""
        scores, sentences = self.forward(batch), batch.graphs["sentences"]
        loss = ops.cross_entropy(scores["sentence"], sentences["label"])
        return loss + ops.cross_entropy(scores["document"], sentences["class"])


def draw_documents(trees: list[Tree], count: int, seed: int) -> list[list[Tree]]:
    """Return documents of sentences; those of one class are equally likely."""
    rng = np.random.default_rng(seed)
    labels = np.array([tree.labels[-1] for tree in trees])
    present, sizes = np.unique(labels, return_counts=True)
    documents = []
    for _ in range(count):
        weight = 4.0 ** -np.abs(present - rng.integers(len(CLASSES)))
        share = np.zeros(len(CLASSES))
        share[present] = weight / weight.sum() / sizes
        chosen = rng.choice(len(trees), rng.integers(2, 9), p=share[labels])
        documents.append([trees[i] for i in chosen])
    return documents


def sample(document: list[Tree], vocabulary: Vocabulary) -> cavs.Sample:
    """Return a document as its trees, a forest, and a chain of sentences linked to the roots."""
    sizes = [len(tree.labels) for tree in document]
    starts = np.cumsum([0, *sizes])
    children = [np.array(t.children, np.int32) + s for t, s in zip(document, starts, strict=False)]
    arities = np.concatenate([np.diff(tree.offsets) for tree in document])
    labels = np.array([tree.labels[-1] for tree in document], np.int32)
    return cavs.Sample(
        trees=cavs.Graph(
            (np.cumsum([0, *arities]), np.concatenate(children)),
            {"token": np.concatenate([vocabulary.encode(tree.words) for tree in document])},
        ),
        sentences=cavs.Graph.chain(
            len(document),
            {"label": labels},
            graph_features={"class": int(np.floor(labels.mean() + 0.5))},
        ),
        links={"root": cavs.Link("sentences", "trees", starts[1:] - 1)},
        name=document[0].name,
    )


def add_arguments(parser):
    """Add the options of this model to those of tree-lstm."""
    tree_lstm.add_arguments(parser)
    parser.add_argument("--documents", type=int, default=2000, help="number to draw for training")


def build(args, assets=None):
    """Return the model, and documents drawn from the three splits, the same in each training."""
    require_least(args, documents=1)
    bank = Treebank(args, assets, "nested-rnn")
    counts = {"train": args.documents, "dev": args.documents // 5, "test": args.documents // 5}

    def part(split):
        trees = bank.trees(split)
        if trees is None:
            return None
        documents = draw_documents(trees, max(counts[split], 1), SEEDS[split])
        return [sample(document, bank.vocabulary) for document in documents]

    def read(text):
        blocks = groupby(parse_lines(text), key=lambda tree: tree is not None)
        return [sample(list(trees), bank.vocabulary) for full, trees in blocks if full]

    def predict(outputs, batch):
        sentences = [CLASSES[i] for i in outputs["sentence"].argmax(axis=1)]
        offsets = batch.graphs["sentences"].topology.vertex_offsets
        for i, (start, end) in enumerate(pairwise(offsets)):
            document = CLASSES[outputs["document"][i].argmax()]
            yield f"{document}: {', '.join(sentences[start:end])}"

    sizes = len(bank.vocabulary), args.embedding_size, args.hidden_size
    model = DocumentClassifier(*sizes, args.dropout)
    model.initialize(args.seed)
    return Task(
        model,
        **{split: partial(part, split) for split in SEEDS},
        metrics=[
            metrics.accuracy("document", "sentences.class", name="document_accuracy"),
            metrics.accuracy("sentence", "sentences.label", name="sentence_accuracy"),
        ],
        monitor="sentence_accuracy",
        assets=bank.assets(),
        predict=predict,
        read=read,
    )
