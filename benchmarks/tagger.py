"""A tagger over words and their characters against PyTorch, on the English treebank.

Each word is its embedding and the last states of an LSTM in each direction over its characters; an
LSTM in each direction over the words gives the tags (the benchmark of DyNet). In `cavs` a sample
has two structures with links between them; the PyTorch program is batched by hand: packed
sequences of all words, then of all sentences, prepared before the steps, while `cavs` collates its
batches within them. DyNet takes part where $CAVS_BENCH_PYTHON_DYNET names a Python that has it; its
wheel uses one thread, whatever `--threads` says. `--separate` adds `cavs` without the merging of
equal vertices, which shares the characters of equal words. All train from the same parameters on
the same batches in turns; first their losses are compared.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
from benchmarks.rival_process import DYNET, rival_passes
from benchmarks.samples import data_folder
from cavs.compiler.pipeline import Passes
from cavs.data import UPOS, read_conllu
from models.char_tagger import Tagger
from models.char_tagger import sample as sample_of

LEAST = {"dynet": 3.0, "packed": 3.0}  # times as fast as these
TOLERANCE = 1e-3  # relative difference allowed between losses after the first pass
SEPARATE = "cavs-without-merge_vertices"
LR = 0.1
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Sentence:
    """Numbers of the words, their tags, and the numbers of the characters of each word."""

    words: Ints
    tags: Ints
    chars: list[Ints]


@dataclass(frozen=True)
class Corpus:
    sentences: list[Sentence]
    num_words: int
    num_chars: int


def corpus(data: str) -> Corpus:
    """Return the sentences of all files of the treebank."""
    files = sorted(data_folder("ud_english_ewt", data).glob("*.conllu"))
    words, chars, tags = dict[str, int](), dict[str, int](), {t: i for i, t in enumerate(UPOS)}
    found = []
    for sentence in (s for file in files for s in read_conllu(file)):
        numbers = [words.setdefault(form, len(words)) for form in sentence.forms]
        spelt = [[chars.setdefault(c, len(chars)) for c in form] for form in sentence.forms]
        own = [tags.get(tag, -1) for tag in sentence.upos]
        arrays = [np.array(x, np.int32) for x in spelt]
        found.append(Sentence(np.array(numbers, np.int32), np.array(own, np.int32), arrays))
    return Corpus(found, len(words), len(chars))


def new_model(found: Corpus, hidden: int) -> Tagger:
    """Return the tagger for the words and characters of a corpus."""
    return Tagger(found.num_words, found.num_chars, hidden)


def sample(sentence: Sentence) -> cavs.Sample:
    """Return a sentence as a sample of two structures."""
    return sample_of(sentence.words, sentence.tags, sentence.chars)


def chosen_batches(found: Corpus, batches: int, size: int) -> list[list[Sentence]]:
    """Return batches of sentences drawn from a corpus."""
    order = np.random.default_rng(0).permutation(len(found.sentences))[: batches * size]
    chosen = [found.sentences[i] for i in order]
    return [chosen[i : i + size] for i in range(0, len(chosen), size)]


def plain(batches: Sequence[Sequence[Sentence]]) -> list[list[Any]]:
    """Return batches as lists of (words, tags, characters of each word), for the rivals."""
    return [
        [(s.words.tolist(), s.tags.tolist(), [c.tolist() for c in s.chars]) for s in batch]
        for batch in batches
    ]


def training(
    model: Tagger, samples: Sequence[Sequence[cavs.Sample]], threads: int, passes: Passes
) -> Pass:
    """Return the training on all batches by `cavs`."""
    session = cavs.Session(model, threads=threads, passes=passes)
    trainer = cavs.Trainer(model, cavs.optim.SGD(lr=LR), session=session)
    return timed(lambda: [float(trainer.step(cavs.batch(batch))) for batch in samples][-1])


@contextmanager
def runners(
    found: Corpus,
    batches: Sequence[Sequence[Sentence]],
    hidden: int,
    threads: int,
    separate: bool = False,
) -> Iterator[dict[str, Pass]]:
    """Give the training on all batches by each runner, from the same parameters.

    The process of DyNet ends with the context. separate: with `cavs` without merging.
    """
    from benchmarks.rivals import tagger_torch

    model = new_model(found, hidden)
    model.initialize(0)
    python = os.environ.get(DYNET)
    programs = {"dynet": (python, "tagger_dynet")} if python else {}
    given = {"lr": LR, "training": True, "batches": plain(batches)}
    with rival_passes(programs, model, given) as others:
        samples = [[sample(s) for s in sentences] for sentences in batches]
        if separate:
            other = new_model(found, hidden)
            other.initialize(0)
            others[SEPARATE] = training(other, samples, threads, Passes(merge_vertices=False))
        step, plans = tagger_torch.training(model, plain(batches), threads, LR)
        others["packed"] = timed(lambda: [step(plan) for plan in plans][-1])
        yield {"cavs": training(model, samples, threads, Passes()), **others}


def measure(found: Corpus, hidden: int, given: Any) -> dict[str, Any]:
    """Return times of passes over the batches, by runner, and their ratio to cavs."""
    batches = chosen_batches(found, given.batches, given.batch_size)
    with runners(found, batches, hidden, given.threads, given.separate) as passes:
        turns = take_turns(passes, given.rounds, TOLERANCE)
    return {"hidden": hidden, "words": sum(len(s.words) for b in batches for s in b), **turns}


def main(arguments: list[str] | None = None) -> int:
    parser = GridParser("tagger", __doc__ or "")
    add = parser.add_argument
    add("--hidden", type=at_least(2), nargs="+", default=[50, 128], help="of a direction")
    add("--batch-size", type=at_least(1), default=32)
    add("--batches", type=at_least(1), default=8)
    add("--threads", type=at_least(1), default=2)
    add("--rounds", type=at_least(1), default=11)
    add("--separate", action="store_true", help="also without merging equal vertices")
    add("--data", default=os.environ.get("CAVS_DATA", ""), metavar="DIR")
    given = parser.parse_args(arguments)
    if find_spec("torch") is None:
        print('the rival needs PyTorch: pip install "torch==2.13.0"', file=sys.stderr)
        return 2
    found = corpus(given.data)
    cases = [measure(found, hidden, given) for hidden in given.hidden]
    return report_turns(given, cases, LEAST, "h of a direction", "words")


if __name__ == "__main__":
    raise SystemExit(main())
