"""Tree-FC: h = tanh(x + [h_l, h_r] W + b) on complete binary trees."""

from __future__ import annotations

from benchmarks.harness import cases_from, parser_for, run
from benchmarks.options import power_of_two
from benchmarks.workloads import Case


def main(arguments: list[str] | None = None) -> int:
    parser = parser_for(
        "tree_fc",
        __doc__ or "",
        hidden=(128, 256, 512),
        batch_sizes=(1, 16, 64, 256),
        runners=("cavs", "floor", "hand", "manual"),
    )
    parser.add_argument(
        "--leaves", type=power_of_two, default=256, help="of each tree, a power of two"
    )
    given = parser.parse_args(arguments)
    return run(given, cases_from(given, Case("tree-fc", 0, 0, embedding=0, leaves=given.leaves)))


if __name__ == "__main__":
    raise SystemExit(main())
