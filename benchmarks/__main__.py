"""Run all benchmarks one after another, then the report: the command of `make bench`.

By default small grids, with results, tables and plots in benchmarks/results/latest; --full measures
the whole grids, which the documents show.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from benchmarks import ablation, fixed_lstm, lstm, naive, preparation, report, sst, tree_fc
from benchmarks.options import OptionParser
from benchmarks.result_paths import LATEST
from benchmarks.workloads import missing_data

PROGRAMS: dict[str, Callable[[list[str]], int]] = {
    "sst": sst.main,
    "naive": naive.main,
    "tree_fc": tree_fc.main,
    "lstm": lstm.main,
    "fixed_lstm": fixed_lstm.main,
    "ablation": ablation.main,
    "preparation": preparation.main,
}

# The workloads whose data they read: missing data are an error before the first measurement.
WORKLOADS = {
    "sst": ("tree-lstm",),
    "naive": ("tree-lstm",),
    "lstm": ("var-lstm",),
    "fixed_lstm": ("fixed-lstm",),
    "ablation": ("tree-lstm", "var-lstm"),
    "preparation": ("tree-lstm", "var-lstm"),
}


def main(arguments: list[str] | None = None) -> int:
    parser = OptionParser("benchmarks", __doc__ or "")
    parser.add_argument(
        "programs", nargs="*", choices=[*PROGRAMS, []], default=[], help="default: all"
    )
    parser.add_argument(
        "--data",
        default=os.environ.get("CAVS_DATA", ""),
        metavar="DIR",
        help='folder that holds sst/ and wikitext2/, or "random": samples are drawn; default: '
        "$CAVS_DATA",
    )
    parser.add_argument(
        "--full", action="store_true", help="the whole grid of sizes; else --quick of each"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on where an earlier run of these sources stopped"
    )
    given = parser.parse_args(arguments)
    wanted = given.programs or PROGRAMS
    missing = missing_data((w for n in wanted for w in WORKLOADS.get(n, ())), given.data)
    if missing:
        print(missing, file=sys.stderr)
        return 2
    failed = []
    for name in wanted:
        print(f"\n## {name}\n", flush=True)
        options = ["--data", given.data] if given.data else []
        if not given.full:
            options.append("--quick")
        if given.resume and name != "preparation":  # which has a table at its end only
            options.append("--resume")
        if PROGRAMS[name](options):
            failed.append(name)
    report.main([] if given.full else ["--results", str(LATEST), "--out", str(LATEST)])
    if failed:
        print(f"failed in part: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
