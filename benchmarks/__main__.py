"""All benchmarks one after another, then the report; what `make bench` runs."""

from __future__ import annotations

import argparse
import os

from benchmarks import fixed_lstm, lstm, report, sst, tree_fc

PROGRAMS = {
    "sst": sst.main,
    "tree_fc": tree_fc.main,
    "lstm": lstm.main,
    "fixed_lstm": fixed_lstm.main,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "programs", nargs="*", choices=[*PROGRAMS, []], default=[], help="default: all"
    )
    parser.add_argument(
        "--data",
        default=os.environ.get("CAVS_DATA", ""),
        metavar="DIR",
        help="folder that holds sst/ and wikitext2/; default: $CAVS_DATA",
    )
    parser.add_argument(
        "--full", action="store_true", help="the whole grid of sizes; else --quick of each"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on where an earlier run of this commit stopped"
    )
    given = parser.parse_args()
    failed = []
    for name in given.programs or PROGRAMS:
        print(f"\n## {name}\n", flush=True)
        options = ["--data", given.data] if given.data else []
        if not given.full:
            options.append("--quick")
        if given.resume:
            options.append("--resume")
        if PROGRAMS[name](options):
            failed.append(name)
    report.main([])
    if failed:
        print(f"failed in part: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
