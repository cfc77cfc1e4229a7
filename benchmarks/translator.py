"""A translator with attention against PyTorch, padded and masked, on drawn sentences.

An LSTM reads the source; an LSTM over the target reads, at each word, the words of the source that
its state attends to. A sample of `cavs` has two structures and a link of all with all; the PyTorch
program is batched by hand: padded sequences, prepared before the steps, with a mask over the
attention and products of the input and of the output for all words at once. Both train from the
same parameters on the same batches in turns; first their losses are compared. Speeds are words of
the target.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

import cavs
from benchmarks.bounds import report_turns
from benchmarks.options import at_least
from benchmarks.ratios import Pass, take_turns, timed
from benchmarks.result_paths import GridParser
from models.translator import Translator
from models.translator import sample as sample_of

LEAST = {"padded": 1.5}  # times as fast as it
TOLERANCE = 1e-3  # relative difference allowed between losses after the first pass
LENGTHS = 5, 50  # words of a sentence
LR = 0.1
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Pair:
    """Numbers of the words of a source and of a target."""

    source: Ints
    target: Ints


def drawn(count: int, words: int, seed: int = 0) -> list[Pair]:
    """Return pairs of sentences of uniform lengths, of words from ``words``."""
    rng = np.random.default_rng(seed)

    def sentence() -> Ints:
        return rng.integers(0, words, rng.integers(*LENGTHS, endpoint=True)).astype(np.int32)

    return [Pair(sentence(), sentence()) for _ in range(count)]


def drawn_batches(batches: int, size: int, words: int) -> list[list[Pair]]:
    """Return batches of pairs of sentences of words from ``words``."""
    pairs = drawn(batches * size, words)
    return [pairs[i : i + size] for i in range(0, len(pairs), size)]


def target_words(batches: Sequence[Sequence[Pair]]) -> int:
    """Return the number of words of all targets."""
    return sum(len(pair.target) for batch in batches for pair in batch)


def sample(pair: Pair) -> cavs.Sample:
    """Return a pair of sentences as a sample of two structures."""
    return sample_of(pair.source, pair.target)


def plain(batches: Sequence[Sequence[Pair]]) -> list[list[Any]]:
    """Return batches as lists of (words of the source, words of the target), for the rivals."""
    return [[(p.source.tolist(), p.target.tolist()) for p in batch] for batch in batches]


def runners(
    words: int, batches: Sequence[Sequence[Pair]], hidden: int, threads: int
) -> dict[str, Pass]:
    """Return the training on all batches by each runner, from the same parameters."""
    from benchmarks.rivals import translator_torch

    model = Translator(words, hidden)
    model.initialize(0)
    session = cavs.Session(model, threads=threads)
    trainer = cavs.Trainer(model, cavs.optim.SGD(lr=LR), session=session)
    samples = [[sample(pair) for pair in pairs] for pairs in batches]
    own = lambda: [float(trainer.step(cavs.batch(batch))) for batch in samples][-1]  # noqa: E731
    step, plans = translator_torch.training(model, plain(batches), threads, LR)
    return {"cavs": timed(own), "padded": timed(lambda: [step(plan) for plan in plans][-1])}


def measure(hidden: int, given: Any) -> dict[str, Any]:
    """Return times of passes over the batches, by runner, and their ratio to cavs."""
    batches = drawn_batches(given.batches, given.batch_size, given.vocabulary)
    passes = runners(given.vocabulary, batches, hidden, given.threads)
    turns = take_turns(passes, given.rounds, TOLERANCE)
    return {"hidden": hidden, "words": target_words(batches), **turns}


def main(arguments: list[str] | None = None) -> int:
    parser = GridParser("translator", __doc__ or "")
    add = parser.add_argument
    add("--hidden", type=at_least(2), nargs="+", default=[256])
    add("--vocabulary", type=at_least(2), default=2000, help="words of each language")
    add("--batch-size", type=at_least(1), default=64)
    add("--batches", type=at_least(1), default=4)
    add("--threads", type=at_least(1), default=2)
    add("--rounds", type=at_least(1), default=7)
    given = parser.parse_args(arguments)
    if find_spec("torch") is None:
        print('the rival needs PyTorch: pip install "torch==2.13.0"', file=sys.stderr)
        return 2
    cases = [measure(hidden, given) for hidden in given.hidden]
    return report_turns(given, cases, LEAST, "h", "words")


if __name__ == "__main__":
    raise SystemExit(main())
