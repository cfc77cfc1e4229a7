"""The tagger over words and their characters, on the sentences of `benchmarks.tagger`."""

from __future__ import annotations

from benchmarks.model_case import ModelCase, Sizes
from benchmarks.tagger import LR, chosen_batches, corpus, new_model, plain, sample

HIDDEN = 128


def case(sizes: Sizes) -> ModelCase:
    """Return the tagger with batches of the English treebank."""
    found = corpus(sizes.data)
    batches = chosen_batches(found, sizes.batches, sizes.batch_size)
    return ModelCase(
        model=lambda: new_model(found, HIDDEN),
        batches=[[sample(sentence) for sentence in batch] for batch in batches],
        units=sum(len(sentence.words) for batch in batches for sentence in batch),
        unit="words",
        hidden=HIDDEN,
        rivals={"torch": "tagger_torch", "dynet": "tagger_dynet"},
        plain=plain(batches),
        lr=LR,
    )
