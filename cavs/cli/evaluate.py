"""``cavs evaluate CHECKPOINT`` and ``cavs predict CHECKPOINT``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cavs.cli import options, stored_options
from cavs.cli.numbers import count
from cavs.cli.registry import SPLITS, Task, listed
from cavs.data.source import decode, read_bytes, refuse_device
from cavs.errors import ConfigError, DataError, FeatureError, GraphError
from cavs.train import DataLoader, Trainer, optim
from cavs.train.log import plain


def add_parser(commands: Any, argv: list[str]) -> None:
    """Add both commands."""
    text = "metrics of a checkpoint on a data set"
    parser = commands.add_parser("evaluate", help=text, description=text)
    _add_common(parser)
    parser.add_argument("--split", choices=SPLITS, default="test", help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.set_defaults(run=evaluate)
    text = "predictions of a checkpoint for new input"
    parser = commands.add_parser("predict", help=text, description=text)
    _add_common(parser)
    parser.add_argument("input", nargs="?", metavar="FILE", help="'-' is the standard input")
    parser.add_argument("--split", choices=SPLITS, help="predict a split of the data instead")
    parser.set_defaults(run=predict)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="written by cavs train")
    parser.add_argument("--model", metavar="FILE", help="the file of its model, if it was moved")
    parser.add_argument("--batch-size", type=count(1), default=64, metavar="N")
    options.add_data_arguments(parser)
    options.add_engine_arguments(parser)


def _open(args: argparse.Namespace) -> tuple[Task, Trainer]:
    task, _ = stored_options.reopen(args.checkpoint, args)
    # The optimiser is not used; SGD has no states.
    trainer = Trainer(
        task.model,
        optim.SGD(1.0),
        **options.engine_options(args),
        threads=args.threads,
    )
    trainer.load(args.checkpoint)
    return task, trainer


def evaluate(args: argparse.Namespace) -> int:
    """Print loss and metrics of one split."""
    task, trainer = _open(args)
    graphs = task.required(args.split)
    values = trainer.evaluate(
        DataLoader(graphs, args.batch_size), task.metrics, progress=not args.json
    )
    if args.json:
        print(json.dumps(plain({"split": args.split, "graphs": len(graphs), **values})))
    else:
        print(f"{args.split}: {len(graphs)} graphs")
        for name, value in values.items():
            print(f"  {name:20} {value:.4f}")
    return 0


def predict(args: argparse.Namespace) -> int:
    """Print one line per graph."""
    if (args.input is None) == (args.split is None):
        raise ConfigError("predict takes FILE or --split", hint="pass exactly one of them")
    task, trainer = _open(args)
    if task.predict is None:
        raise ConfigError("this model offers no predictions", hint="use cavs evaluate")
    if args.split is not None:
        graphs = task.required(args.split)
    else:
        if task.read is None:
            raise ConfigError("this model reads no files", hint="pass --split test")
        graphs = _read(task.read, args.input)
    loader = DataLoader(graphs, args.batch_size)
    loader.prepare = trainer.prepare_evaluation
    with _naming(_name(args.input)):
        for batch in loader:
            lines = task.predict(trainer.session.predict(batch), batch)
            for line in listed(lines, "the result of predict of the task", "the lines to print"):
                print(line)
    return 0


def _read(read: Callable[[str], Sequence[Any]], path: str) -> Sequence[Any]:
    """Return the graphs in a file."""
    name = _name(path)
    text = _text(path, name)
    with _naming(name, whole=True):
        graphs = listed(read(text), "the result of read of the task", "a sequence of graphs")
    if len(graphs) == 0:
        raise DataError(f"{name} has no graphs", hint="give at least one sample")
    return graphs


def _name(path: str | None) -> str:
    return "the standard input" if path == "-" else str(path)


@contextmanager
def _naming(name: str, *, whole: bool = False) -> Iterator[None]:
    """Name the input in errors of data, where readers call it <text>.

    whole: Name it also in errors without <text>.
    """
    try:
        yield
    except (DataError, GraphError, FeatureError) as error:
        text = error.what
        if "<text>" not in text:
            if not whole:
                raise
            text = f"<text>: {text}"
        raise error.reworded(text.replace("<text>", name)) from error


def _text(path: str, name: str) -> str:
    if path != "-":
        raw = read_bytes(Path(path))
    else:
        try:
            refuse_device(sys.stdin.buffer)
            raw = sys.stdin.buffer.read()  # bytes, since sys.stdin decodes by the locale
        except OSError as error:
            raise DataError(f"cannot read {name}: {error.strerror or error}") from error
    return decode(raw, name).replace("\r\n", "\n")
