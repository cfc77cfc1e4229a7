"""Models of `models` against the fastest rival that can be installed, training and inference.

A row is a model in one mode. `cavs` collates its batches within the time that is measured; a rival
in PyTorch is batched by hand, with indices prepared before; DyNet builds its graphs and batches
them itself, and takes part where $CAVS_BENCH_PYTHON_DYNET names a Python that has it. All train
with SGD from the same parameters on the same batches, or compute their losses, in turns; first the
losses are compared. "In products" is the share of matrix products in the time of our engine, which
a rival spends too where it computes them as fast.

A model is added by a module of its name in `benchmarks.model_cases`, whose function ``case``
returns a `benchmarks.model_case.ModelCase`. The models of `MEASURED_ELSEWHERE` have another
program, or no rival.

The result file is complete after each row. A row that fails, such as one whose losses differ, is
left out, and the exit status is 1.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from benchmarks import model_cases
from benchmarks.bounds import Row, checked, missed, verdict
from benchmarks.harness import markdown, write_report
from benchmarks.model_case import ModelCase, Sizes, passes, share_of_products
from benchmarks.options import at_least
from benchmarks.ratios import quartiles, take_turns
from benchmarks.result_paths import GridParser
from cavs.errors import DataError

LEAST = 2.0  # times as fast as the fastest rival, where the case names no reason
MEASURED_ELSEWHERE = {
    "ast-naming": "",
    "dependency-tagger": "",
    "lstm-lm": "benchmarks.lstm",
    "tree-fc": "benchmarks.tree_fc",
    "tree-lstm": "benchmarks.sst",
}
SECONDS = 0.1  # least time of a round
NAMES = sorted(module.name for module in pkgutil.iter_modules(model_cases.__path__))
HEADERS = (
    "model",
    "h",
    "mode",
    "a second",
    "in products",
    "fastest rival",
    "its time over ours",
    "others",
)


def measure(name: str, case: ModelCase, training: bool, given: Any) -> dict[str, Any]:
    """Return the times of all runners of a model in one mode."""
    with passes(case, training, given.threads) as runners:
        turns = take_turns(runners, given.rounds, case.tolerance, SECONDS)
    others = [runner for runner in turns["ratios"] if runner != "cavs"]
    mode = "training" if training else "inference"
    reason, least = (case.reasons or {}).get(mode, ("", LEAST))
    return {
        "model": name,
        "mode": mode,
        "hidden": case.hidden,
        "units": case.units,
        "unit": case.unit,
        "products": share_of_products(case, training, given.threads),
        "fastest": min(others, key=lambda runner: turns["ratios"][runner]["median"]),
        "reason": reason,
        "least": least,
        **turns,
    }


def table(rows: Sequence[Any]) -> str:
    """Return a line for each row, and the reasons of rows that have one below."""
    lines, reasons = [], []
    for row in rows:
        ratios, fastest = row["ratios"], row["fastest"]
        others = [
            f"{name} {quartiles(ratios[name], '{:.2f}')}"
            for name in ratios
            if name not in ("cavs", fastest)
        ]
        speed = row["units"] / row["seconds"]["cavs"]["median"]
        lines.append(
            [
                row["model"],
                str(row["hidden"]),
                row["mode"],
                f"{speed:,.0f} {row['unit']}",
                f"{row['products']:.0%}",
                fastest,
                quartiles(ratios[fastest], "{:.2f}"),
                ", ".join(others),
            ]
        )
        if row["reason"]:
            reasons.append(f"* {row['model']}, {row['mode']}: {row['reason']}")
    return "\n\n".join([markdown(HEADERS, lines), *(["\n".join(reasons)] if reasons else [])])


def bounds(rows: Sequence[Any]) -> list[Row]:
    """Return the bound of each row: twice as fast, or what its reason leaves."""
    return [
        checked(
            f"{row['model']}, {row['mode']}: time of {row['fastest']} over ours",
            row["ratios"][row["fastest"]]["median"],
            row["least"],
            True,
            "{:.2f}",
        )
        for row in rows
    ]


def case_of(name: str, sizes: Sizes) -> ModelCase:
    """Return the case of a name."""
    found: ModelCase = importlib.import_module(f"benchmarks.model_cases.{name}").case(sizes)
    return found


def without_data(names: Sequence[str], data: str) -> list[str]:
    """Return, for each name whose case cannot be built from a folder of data sets, why not.

    The cases have one sample, and are not kept: objects that live on slow the collector of garbage
    while others are timed.
    """
    found = []
    for name in names:
        try:
            case_of(name, Sizes(1, 1, data))
        except (OSError, DataError) as error:
            found.append(f"{name}: {error}")
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = GridParser("models", __doc__ or "")
    add = parser.add_argument
    add("--models", nargs="+", choices=NAMES, default=NAMES, metavar="NAME", help=", ".join(NAMES))
    modes = ("training", "inference")
    add("--mode", nargs="+", choices=modes, default=list(modes))
    add("--batch-size", type=at_least(1), default=32, help="graphs or samples")
    add("--batches", type=at_least(1), default=8)
    add("--threads", type=at_least(1), default=1)
    add("--rounds", type=at_least(1), default=7)
    add("--data", default=os.environ.get("CAVS_DATA", ""), metavar="DIR")
    given = parser.parse_args(arguments)
    if find_spec("torch") is None:
        print('the rivals need PyTorch: pip install "torch==2.13.0"', file=sys.stderr)
        return 2
    if missing := without_data(given.models, given.data):
        print("\n".join(missing), file=sys.stderr)
        return 2
    sizes = Sizes(given.batches, given.batch_size, given.data)
    head = f"batches of {given.batch_size}, {given.threads} thread{'s' * (given.threads > 1)}"
    rows, failed, text = list[dict[str, Any]](), list[str](), ""
    for name in given.models:
        case = case_of(name, sizes)
        for mode in given.mode:
            try:
                rows.append(measure(name, case, mode == "training", given))
            except (SystemExit, BrokenPipeError) as error:  # a rival died, or losses differ
                failed.append(f"{name}, {mode}, has failed: {error}")
                print(failed[-1], file=sys.stderr, flush=True)
                continue
            print(table(rows[-1:]), flush=True)
            text = f"{head}\n\n{table(rows)}{verdict(bounds(rows))}"
            write_report(given.out, text, [{"batch_size": given.batch_size, "rows": rows}])
    print("\n".join([text, *failed]))
    return 1 if failed or missed(bounds(rows)) else 0


if __name__ == "__main__":
    raise SystemExit(main())
