"""The evaluation of the paper (thesis, 6.6) on this machine, with the figures of the paper.

    python -m benchmarks.paper --figure 6.11 6.12 6.13 table-6.2 table-6.3

6.11       four models over batch and hidden sizes, training and inference, against DyNet (batching
           by its agenda and by depth), PyTorch batched by hand and by recursion, and DGL
6.12       collation and scheduling, against the construction of expressions in DyNet
6.13       one optimisation on at a time: eager and lazy operators batched, fusion; on a GPU streams
table-6.2  computation alone, against DyNet
table-6.3  memory operations, and computation

Language models predict among the whole vocabulary. Times of 6.11 include what each program does
for a batch: collation and schedules, index tensors, expressions. DyNet takes part where
$CAVS_BENCH_PYTHON_DYNET names a Python that has it, DGL where $CAVS_BENCH_PYTHON_DGL does; DyNet's
wheel uses one thread. The whole grid takes hours; `--resume` goes on where it stopped.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence as SequenceOf
from importlib.util import find_spec
from typing import Any

from benchmarks import paper_tables
from benchmarks.bounds import missed, verdict
from benchmarks.harness import run
from benchmarks.options import THREADS, at_least, power_of_two
from benchmarks.paper_cases import BATCH_SIZES, FIGURES, HIDDEN, LEAVES, PANELS, cases
from benchmarks.result_paths import GridParser

TABLES = {
    "6.11": paper_tables.panels,
    "6.12": paper_tables.construction,
    "6.13": paper_tables.optimisations,
    "table-6.2": paper_tables.computation,
    "table-6.3": paper_tables.memory,
}


def summarise(entries: SequenceOf[Any], figures: SequenceOf[str]) -> str:
    """Return the tables of figures, and their bounds."""
    parts = [TABLES[figure](entries) for figure in figures]
    return "\n\n".join(filter(None, parts)) + verdict(paper_tables.bounds(entries, figures))


def options() -> GridParser:
    """Return the parser of the options."""
    parser = GridParser("paper", __doc__ or "")
    add = parser.add_argument
    add("--figure", nargs="+", choices=FIGURES, default=list(FIGURES), metavar="NAME")
    add("--models", nargs="+", choices=PANELS, default=list(PANELS), metavar="NAME")
    add("--batch-size", type=at_least(1), nargs="+", default=list(BATCH_SIZES), metavar="N")
    add("--hidden", type=at_least(1), nargs="+", default=list(HIDDEN), metavar="H")
    add("--leaves", type=power_of_two, nargs="+", default=list(LEAVES), metavar="N")
    add("--threads", type=THREADS, default=1, metavar="N")
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--rounds", type=at_least(1), default=3)
    add("--data", default=os.environ.get("CAVS_DATA", ""), metavar="DIR")
    add("--resume", action="store_true", help="keep the cases of the result file of these sources")
    # Options that `benchmarks.harness.run` reads, and this program lacks.
    parser.set_defaults(quick=False, in_process=False, refcheck=False, reference="cavs")
    return parser


def main(arguments: list[str] | None = None) -> int:
    given = options().parse_args(arguments)
    if find_spec("torch") is None:
        print('the rivals need PyTorch: pip install "torch==2.13.0"', file=sys.stderr)
        return 2
    found = cases(
        given.figure,
        given.data,
        given.device,
        given.threads,
        batch_sizes=given.batch_size,
        hidden=given.hidden,
        leaves=given.leaves,
        models=given.models,
    )
    if not found:
        print("no figure has one of these models", file=sys.stderr)
        return 2
    results: list[Any] = []

    def tables(entries: SequenceOf[Any]) -> str:
        results[:] = entries
        return summarise(entries, given.figure)

    status = run(given, list(found), runners=found, summarise=tables)
    return status or (1 if missed(paper_tables.bounds(results, given.figure)) else 0)


if __name__ == "__main__":
    raise SystemExit(main())
