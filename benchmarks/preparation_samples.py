"""Preparation of a step on samples of two structures: collation, merging and the schedule.

The tagger has links from words to their characters, the translator a link of all words of a target
with all of a source. Times as in `benchmarks.preparation`: of a step, of preparation right after
steps, whose values sweep the caches, and of preparation batch after batch.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import cavs
from benchmarks import tagger, translator
from benchmarks.bounds import Row, checked, missed, verdict
from benchmarks.harness import markdown, write_report
from benchmarks.new_process import in_new_process
from benchmarks.options import THREADS, at_least
from benchmarks.preparation import PATIENCE, in_turns
from benchmarks.ratios import quartiles
from benchmarks.result_paths import GridParser

MODELS = ("tagger", "translator")
VOCABULARY = 2000  # words of each language of the translator
MOST = 0.05  # largest share of a step
BOUND_AT = 128, 32  # hidden size and samples of a batch


@dataclass(frozen=True)
class Case:
    """A model, the size of its states, samples of a batch, batches, threads of a step, the data."""

    model: str
    hidden: int
    batch_size: int
    batches: int
    threads: int
    data: str = ""

    @property
    def title(self) -> str:
        """Return the words for the case in tables."""
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}"
        return f"{self.model} training, h {self.hidden}, bs {self.batch_size}, {threads}"


def model_and_samples(case: Case) -> tuple[cavs.Model, list[cavs.Sample]]:
    """Return the model of a case, and a sample for each place in its batches."""
    count = case.batch_size * case.batches
    if case.model == "translator":
        pairs = translator.drawn(count, VOCABULARY)
        model = translator.Translator(VOCABULARY, case.hidden)
        return model, [translator.sample(pair) for pair in pairs]
    found = tagger.corpus(case.data)
    order = np.random.default_rng(0).permutation(len(found.sentences))
    if count > len(order):
        raise ValueError(f"the treebank has {len(order)} sentences; --batches takes {count}")
    chosen = [found.sentences[i] for i in order[:count]]
    return tagger.new_model(found, case.hidden), [tagger.sample(each) for each in chosen]


def share(case: Case, rounds: int) -> dict[str, Any]:
    """Return the times of `benchmarks.preparation.in_turns` for a case."""
    model, samples = model_and_samples(case)
    model.initialize(0)
    session = cavs.Session(model, threads=case.threads)
    trainer = cavs.Trainer(model, cavs.optim.SGD(lr=tagger.LR), session=session)

    def prepare(chosen: list[cavs.Sample]) -> Any:
        batch = cavs.batch(chosen)
        session.prepare(batch)
        return batch

    def train(batches: list[Any]) -> None:
        for batch in batches:
            trainer.step(batch)

    size = case.batch_size
    batches = [samples[i : i + size] for i in range(0, len(samples), size)]
    vertices = sum(sample.num_vertices for sample in samples) / len(batches)
    found = in_turns(prepare, train, batches, rounds)
    record = {name: value for name, value in asdict(case).items() if name != "data"}  # a path
    return {"case": record, "title": case.title, "vertices": vertices, **found}


def table(found: list[dict[str, Any]]) -> str:
    """Return a row for each case."""
    rows = [
        [
            entry["title"],
            f"{entry['vertices']:.0f}",
            f"{entry['alone']['median'] * 1e3:.3f}",
            f"{entry['vertices'] / entry['alone']['median'] / 1e6:.1f} M",
            f"{entry['between']['median'] * 1e3:.3f}",
            f"{entry['step']['median'] * 1e3:.2f}",
            quartiles(entry["share"], "{:.1%}"),
        ]
        for entry in found
    ]
    heads = ["case", "vertices", "alone ms", "vertices/s", "between steps ms", "step ms", "share"]
    return markdown(heads, rows)


def bounds(found: list[dict[str, Any]]) -> list[Row]:
    """Return the bound on the share of a step, at the size that has one."""
    return [
        checked(f"{x['title']}: share of a step", x["share"]["median"], MOST, False, "{:.1%}")
        for x in found
        if (x["case"]["hidden"], x["case"]["batch_size"]) == BOUND_AT
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = GridParser("preparation_samples", __doc__ or "")
    add = parser.add_argument
    add("--models", nargs="+", choices=MODELS, default=list(MODELS))
    add("--hidden", type=at_least(2), nargs="+", default=[128], metavar="H")
    add("--batch-size", type=at_least(1), nargs="+", default=[32], metavar="N")
    add("--threads", type=THREADS, nargs="+", default=[1, 2], metavar="N", help="of the step")
    add("--batches", type=at_least(1), default=8)
    add("--rounds", type=at_least(1), default=10)
    add("--data", default=os.environ.get("CAVS_DATA", ""), metavar="DIR")
    given = parser.parse_args(arguments)
    cases = [
        Case(model, hidden, size, given.batches, threads, given.data)
        for model in given.models
        for hidden in given.hidden
        for size in given.batch_size
        for threads in given.threads
    ]
    found = [in_new_process(share, case, given.rounds, patience=PATIENCE) for case in cases]
    rows = bounds(found)
    text = table(found) + verdict(rows)
    print(text)
    write_report(given.out, text, found)
    return 1 if missed(rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
