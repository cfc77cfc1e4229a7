"""Fixed-LSTM: an LSTM over chunks of WikiText-2 of one length."""

from __future__ import annotations

from benchmarks.harness import cases_from, parser_for, run
from benchmarks.options import at_least
from benchmarks.workloads import Case


def main(arguments: list[str] | None = None) -> int:
    parser = parser_for(
        "fixed_lstm",
        __doc__ or "",
        hidden=(128, 256, 512),
        batch_sizes=(1, 16, 64, 256),
        runners=("cavs", "floor", "padded", "hand", "manual", "manual-compile"),
    )
    parser.add_argument(
        "--softmax",
        action="store_true",
        help="predict the next token among the whole vocabulary, not 8 classes",
    )
    parser.add_argument(
        "--vocabulary", type=at_least(1), default=10_000, help="most frequent words kept"
    )
    parser.add_argument("--length", type=at_least(1), default=64, help="tokens of a sequence")
    given = parser.parse_args(arguments)
    base = Case(
        "fixed-lstm",
        0,
        0,
        embedding=0,
        classes=0 if given.softmax else 8,
        vocabulary=given.vocabulary,
        length=given.length,
    )
    return run(given, cases_from(given, base))


if __name__ == "__main__":
    raise SystemExit(main())
