"""The ``cavs`` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from cavs.cli import (
    bench,
    config_server,
    demo,
    evaluate,
    explain,
    info,
    launch,
    report,
    strategy,
    streams,
    train,
)
from cavs.cli.registry import Task, data_file
from cavs.distributed.comm.launcher_pipe import is_stopping, rank_of_environment
from cavs.errors import CavsError
from cavs.train.checkpoint import version

__all__ = ["Task", "data_file", "main"]


def parser_for(argv: list[str]) -> argparse.ArgumentParser:
    """Return the parser for `argv`, with the options of a model only if `argv` names it."""
    parser = argparse.ArgumentParser(
        prog="cavs", description="A runtime for dynamic neural networks."
    )
    parser.add_argument("--version", action="version", version=f"cavs {version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    demo.add_parser(commands)
    train.add_parser(commands, argv)
    evaluate.add_parsers(commands)
    report.add_parser(commands)
    bench.add_parser(commands, argv)
    explain.add_parser(commands, argv)
    strategy.add_parser(commands, argv)
    info.add_parser(commands)
    launch.add_parser(commands)
    config_server.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Exit status: 0, 1 for an error of cavs, 2 for bad usage, 130 for Ctrl-C."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    streams.prepare()
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()
    except streams.OutputError as error:
        streams.give_up(error)
        return 1


def _run(arguments: list[str]) -> int:
    try:
        own, launched = launch.split(arguments)
        args = parser_for(own).parse_args(own)
        if launched:
            args.arguments = launched
        launch.require_alone(args)
        status: int = args.run(args)
        return status
    except CavsError as error:
        print(f"cavs: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        if not (is_stopping() and rank_of_environment() != "0"):  # rank 0 says it for all
            print(f"\ncavs: {str(error) or 'stopped'}", file=sys.stderr)
        return 130
