"""A model with batches and rivals, as each module of `benchmarks.model_cases` gives it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import cavs
from benchmarks.ratios import Pass, timed
from benchmarks.rival_process import DYNET, rival_passes

#: The reason of models whose rival is batched by hand without much besides their products.
PRODUCTS = "most of the time is in products, which the rival computes too"


@dataclass(frozen=True)
class Sizes:
    """Sizes that the command gives. data: the folder of data sets, empty: $CAVS_DATA."""

    batches: int
    batch_size: int
    data: str = ""


@dataclass(frozen=True)
class ModelCase:
    """A model of `models` with batches of its data, for `cavs` and for rivals.

    model: returns a new model, not yet initialized.
    batches: lists of graphs or samples, which `cavs` collates within the time that is measured.
    units, unit: the number of words, gates, ... of all batches, and its name.
    hidden: the size of its states, for the table.
    rivals: the programs of `benchmarks.rivals` by library, ``{"torch": "jets_torch"}``; see
    `benchmarks.rivals.program`.
    plain: the batches as JSON values, for the rivals.
    lr: the learning rate of SGD, with which all train.
    reasons: why `cavs` is less than twice as fast as the fastest rival, and how many times as fast
    it is at least, by mode ("training" or "inference"); None where it is twice as fast.
    tolerance: the relative difference allowed between losses after the first pass.
    """

    model: Callable[[], cavs.Model]
    batches: Sequence[Sequence[Any]]
    units: int
    unit: str
    hidden: int
    rivals: dict[str, str]
    plain: Any
    lr: float = 0.01
    reasons: dict[str, tuple[str, float]] | None = None
    tolerance: float = 1e-3


def plain_children(graph: cavs.Graph) -> list[list[int]]:
    """Return the children of each vertex, for the rivals."""
    return [graph.children(v).tolist() for v in range(graph.num_vertices)]


def own_pass(case: ModelCase, session: cavs.Session, training: bool) -> Callable[[], float]:
    """Return a pass of `cavs` over the batches, which takes steps or evaluates the loss."""
    trainer = cavs.Trainer(session.model, cavs.optim.SGD(lr=case.lr), session=session)

    def run() -> float:
        if training:
            return [float(trainer.step(cavs.batch(batch))) for batch in case.batches][-1]
        return [float(session.evaluate(cavs.batch(batch)).loss) for batch in case.batches][-1]

    return run


def share_of_products(case: ModelCase, training: bool, threads: int) -> float:
    """Return the share of matrix products in the time of the engine.

    It is profiled in a pass of its own, since that takes longer.
    """
    model = case.model()
    model.initialize(0)
    session = cavs.Session(model, threads=threads)
    run = own_pass(case, session, training)
    run()
    session.set_profiling(True)
    run()
    counted = session.report(training=training)
    products = float(counted["product_seconds"])
    return products / (products + counted["map_seconds"] + counted["other_seconds"])


@contextmanager
def passes(case: ModelCase, training: bool, threads: int) -> Iterator[dict[str, Pass]]:
    """Give a pass over the batches by each runner, from the same parameters.

    Each rival has a process of its own, which ends with the context; DyNet takes part where
    $CAVS_BENCH_PYTHON_DYNET names a Python that has it, and has one thread.
    """
    model = case.model()
    model.initialize(0)
    given = {"threads": threads, "lr": case.lr, "training": training, "batches": case.plain}
    pythons = {"torch": sys.executable, "dynet": os.environ.get(DYNET, "")}
    programs = {name: (pythons[name], case.rivals[name]) for name in case.rivals if pythons[name]}
    with rival_passes(programs, model, given) as found:
        session = cavs.Session(model, threads=threads)
        yield {"cavs": timed(own_pass(case, session, training)), **found}
