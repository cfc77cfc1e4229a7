"""Binary Tree-LSTM on the Stanford Sentiment Treebank, the main workload."""

from __future__ import annotations

from benchmarks.harness import cases_from, parser_for, run
from benchmarks.options import at_least
from benchmarks.workloads import Case


def main(arguments: list[str] | None = None) -> int:
    parser = parser_for(
        "sst",
        __doc__ or "",
        hidden=(150, 256, 512),
        batch_sizes=(1, 16, 64, 256),
        runners=("cavs", "floor", "hand", "hand-unique", "manual", "manual-compile"),
    )
    parser.add_argument("--embedding", type=at_least(1), default=300, help="width of the embedding")
    given = parser.parse_args(arguments)
    return run(given, cases_from(given, Case("tree-lstm", 0, 0, embedding=given.embedding)))


if __name__ == "__main__":
    raise SystemExit(main())
