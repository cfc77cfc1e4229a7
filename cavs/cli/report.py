"""``cavs report RUN``."""

from __future__ import annotations

import argparse
from typing import Any

from cavs.inspect.report import write_report
from cavs.inspect.report.charts import OVER


def add_parser(commands: Any, argv: list[str]) -> None:
    """Add the command."""
    text = "draw the course of a training: loss, metrics, batch size, monitors, changes"
    parser = commands.add_parser("report", help=text, description=text)
    parser.add_argument(
        "run_log", metavar="RUN", help="the --out of cavs train, or a log of Trainer.fit"
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="FILE.html for a page that needs no network, FILE.png for a picture by matplotlib "
        "(default: report.html next to the log)",
    )
    parser.add_argument(
        "--over",
        choices=OVER,
        default="steps",
        help="the axis of a picture, and that which a page shows first (default: %(default)s)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the report and print its path."""
    print(f"written: {write_report(args.run_log, args.out, over=args.over)}")
    return 0
