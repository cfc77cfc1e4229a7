"""The nested RNN on documents drawn from the treebank."""

from __future__ import annotations

from benchmarks.model_case import PRODUCTS, ModelCase, Sizes
from benchmarks.treebank import plain, treebank
from models.nested_rnn import DocumentClassifier, draw_documents, sample

EMBEDDING, HIDDEN = 300, 150


def case(sizes: Sizes) -> ModelCase:
    """Return the case: batches of documents."""
    bank = treebank(sizes.data)
    documents = draw_documents(bank.trees, sizes.batches * sizes.batch_size, seed=0)
    samples = [sample(document, bank.vocabulary) for document in documents]
    given = [
        (
            [plain(tree, bank.vocabulary) for tree in document],
            int(x.graphs["sentences"].graph_features["class"]),
        )
        for document, x in zip(documents, samples, strict=True)
    ]
    starts = range(0, len(samples), sizes.batch_size)
    return ModelCase(
        lambda: DocumentClassifier(len(bank.vocabulary), EMBEDDING, HIDDEN, dropout=0.0),
        [samples[i : i + sizes.batch_size] for i in starts],
        sum(len(tree.tokens) for document in documents for tree in document),
        "words",
        HIDDEN,
        {"torch": "nested_rnn_torch", "dynet": "nested_rnn_dynet"},
        [given[i : i + sizes.batch_size] for i in starts],
        reasons={"training": (PRODUCTS, 1.4), "inference": (PRODUCTS, 1.4)},
    )
