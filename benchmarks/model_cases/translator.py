"""The translator with attention, on the drawn sentences of `benchmarks.translator`."""

from __future__ import annotations

from benchmarks.model_case import ModelCase, Sizes
from benchmarks.translator import LR, drawn_batches, plain, sample, target_words
from models.translator import Translator

HIDDEN, VOCABULARY = 256, 2000
REASON = (
    "both sides run the matrix products, among them the output layer of 2,000 words, at the same "
    "speed"
)


def case(sizes: Sizes) -> ModelCase:
    """Return the translator with batches of drawn sentences; its speed is words of the target."""
    batches = drawn_batches(sizes.batches, sizes.batch_size, VOCABULARY)
    return ModelCase(
        model=lambda: Translator(VOCABULARY, HIDDEN),
        batches=[[sample(pair) for pair in batch] for batch in batches],
        units=target_words(batches),
        unit="words",
        hidden=HIDDEN,
        rivals={"torch": "translator_torch", "dynet": "translator_dynet"},
        plain=plain(batches),
        lr=LR,
        reasons={"inference": (REASON, 1.3)},
    )
