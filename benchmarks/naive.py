"""The recursion that every tutorial shows, a vertex at a time in PyTorch, against cavs on SST."""

from __future__ import annotations

from benchmarks.harness import cases_from, parser_for, run
from benchmarks.workloads import Case


def main(arguments: list[str] | None = None) -> int:
    parser = parser_for(
        "naive", __doc__ or "", hidden=(150,), batch_sizes=(64,), runners=("cavs", "naive")
    )
    parser.set_defaults(threads=[1], mode=["training"], rounds=3, batches=1)
    given = parser.parse_args(arguments)
    return run(given, cases_from(given, Case("tree-lstm", 0, 0)))


if __name__ == "__main__":
    raise SystemExit(main())
