"""The parser of the ``cavs`` command, and its exit status."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from typing import NoReturn

from cavs.cli import launch, streams
from cavs.errors import CavsError
from cavs.train.version import version

# The module of each command, of which only those that a command line names are imported.
_MODULES = {
    "demo": "demo",
    "train": "train",
    "evaluate": "evaluate",
    "predict": "evaluate",
    "report": "report",
    "bench": "bench",
    "explain": "explain",
    "strategy": "strategy",
    "info": "info",
    "launch": "launch",
    "config-server": "config_server",
}


class _Version(argparse.Action):
    """Print the version, which is slow to find, and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(f"cavs {version()}")
        parser.exit()


def parser_for(argv: list[str]) -> argparse.ArgumentParser:
    """Return the parser for `argv`, with all commands unless it begins with one.

    A model adds its options only if `argv` names it.
    """
    parser = argparse.ArgumentParser(
        prog="cavs", description="A runtime for dynamic neural networks."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    named = [_MODULES[word] for word in argv[:1] if word in _MODULES]
    for module in named or dict.fromkeys(_MODULES.values()):
        import_module(f"cavs.cli.{module}").add_parser(commands, argv)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Exit status: 0, 1 for an error of cavs, 2 for bad usage, 130 for Ctrl-C."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    streams.prepare()
    try:
        try:
            return _run(arguments, _collection_off() if argv is None else nullcontext())
        finally:
            sys.stdout.flush()
    except streams.OutputError as error:
        streams.give_up(error)
        return 1


@contextmanager
def _collection_off() -> Iterator[None]:
    """Pause garbage collection, then leave out all objects: imports create many, and no garbage.

    It is for a process that runs this command alone. `cavs.config` pauses it for others, and
    imports NumPy, which the launcher does without.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.freeze()
            gc.enable()


def _run(arguments: list[str], importing: AbstractContextManager[None]) -> int:
    try:
        with importing:
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
        from cavs.distributed.comm.launcher_pipe import is_stopping, rank_of_environment

        if not (is_stopping() and rank_of_environment() != "0"):  # rank 0 says it for all
            print(f"\ncavs: {str(error) or 'stopped'}", file=sys.stderr)
        return 130
