"""``cavs launch -n RANKS COMMAND``."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any

from cavs.cli.numbers import count
from cavs.errors import ConfigError
from cavs.launched import started
from cavs.train.configuration.names import STORE, TOKEN

_ALONE = (
    *("bench", "config-server", "demo", "evaluate", "explain", "info", "launch", "predict"),
    *("report", "strategy show", "strategy check", "strategy compare"),  # but not strategy measure
)
# Options that take a value.
_VALUED = ("-n", "--ranks", "--threads", "--spares", "--config-store", "--config-token-file")
_PYTHON = re.compile(r"python[0-9.]*")
_READ_ONLY = ("explain", "info")


def add_parser(commands: Any, argv: list[str]) -> None:
    """Add the command."""
    text = "run a cavs command, or a Python file, on several ranks of this machine"
    parser = commands.add_parser("launch", help=text, description=text)
    parser.add_argument(
        "-n",
        "--ranks",
        type=count(1),
        required=True,
        metavar="N",
        help="processes to start, each a rank of the training",
    )
    parser.add_argument(
        "--threads",
        type=count(1),
        metavar="N",
        help="threads of the engine of each rank (default: $CAVS_NUM_THREADS, else 1)",
    )
    parser.add_argument(
        "--spares",
        type=count(0),
        default=0,
        metavar="N",
        help="further processes, which wait until a policy of the training wants more ranks",
    )
    parser.add_argument(
        "--elastic", action="store_true", help="go on with the surviving ranks if one dies"
    )
    parser.add_argument(
        "--restore",
        action="store_true",
        help="start new processes in place of dead ones, which join the training; implies "
        "--elastic",
    )
    parser.add_argument(
        "--config-store",
        metavar="URL|FILE",
        help="store with the wanted number of ranks, which cavs train follows: the URL of cavs "
        "config-server, or a file",
    )
    parser.add_argument(
        "--config-token-file",
        metavar="FILE",
        help=f"file with the token of the store (default: ${TOKEN} is the token)",
    )
    parser.add_argument(
        "arguments",
        nargs="*",
        metavar="COMMAND ...",
        help="such as: train tree-lstm --data DIR, or: program.py, or: -m module",
    )
    parser.set_defaults(run=run)


def split(argv: list[str]) -> tuple[list[str], list[str]]:
    """Return the words of cavs, and those of the command that ``cavs launch`` starts.

    The command begins after ``--``, at ``-m``, or at the first word that is no option of ``cavs
    launch``. The name of the interpreter before a program, which mpirun needs, is left out.
    """
    if argv[:1] != ["launch"]:
        return argv, []
    at = 1
    while argv[at : at + 1] and argv[at].startswith("-") and not argv[at].startswith("-m"):
        if argv[at] == "--":
            break
        at += 2 if any(option.startswith(argv[at]) for option in _VALUED) else 1
    own, command = argv[:at], argv[at:]
    if command[:1] == ["--"]:
        del command[0]
    if command[1:] and _PYTHON.fullmatch(command[0]):
        del command[0]
    if command and command[0].startswith("-m"):
        command[:1] = ["-m", *filter(None, [command[0][2:]])]
    return own, command


def require_alone(args: argparse.Namespace) -> None:
    """Raise `ConfigError` if mpirun or srun started a command that ranks do not share.

    Commands that only describe a machine or a model are allowed.
    """
    by, command = started(), _command([args.command, getattr(args, "action", "")])
    many = by is not None and (by.ranks or 1) > 1  # a single task of Slurm may not know
    if by is None or not many or command not in _ALONE or command in _READ_ONLY:
        return
    raise ConfigError(
        f"cavs {command} runs in one process: {by.ranks} ranks of {by.by} would each do all of it",
        hint=f"run cavs {command} without {by.by}",
    )


def _command(words: Sequence[str]) -> str:
    """Return the command of a command line, with its action if it has several."""
    command, *rest = words or [""]
    action = next((word for word in rest if not word.startswith("-")), "")
    return f"{command} {action}" if command == "strategy" else command


def run(args: argparse.Namespace) -> int:
    """Start the ranks and wait for them; `ConfigError` for commands that ranks do not share."""
    from cavs.distributed.launch.launcher import launch

    command = _command(args.arguments)
    if command in _ALONE:
        raise ConfigError(
            f"cavs {command} runs in one process: {args.ranks} ranks would each do all of it",
            hint=f"run cavs {command} without launch",
        )
    return launch(
        args.ranks,
        args.arguments,
        threads=args.threads,
        elastic=args.elastic,
        spares=args.spares,
        restore=args.restore,
        environment=_store_environment(args),
    )


def _store_environment(args: argparse.Namespace) -> dict[str, str]:
    """Return the variables by which ranks find the configuration store; it must answer now."""
    if args.config_store is None:
        if args.config_token_file is not None:
            raise ConfigError(
                "--config-token-file without --config-store", hint="pass both, or none of them"
            )
        return {}
    from cavs.train.configuration.location import open_store
    from cavs.train.configuration.store import FileStore, read_token

    store = open_store(args.config_store, args.config_token_file)
    store.read()
    if isinstance(store, FileStore):
        return {STORE: str(store.path.absolute())}
    token = {} if args.config_token_file is None else {TOKEN: read_token(args.config_token_file)}
    return {STORE: args.config_store, **token}
