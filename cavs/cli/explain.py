"""``cavs explain MODEL``: every stage of the compiler, and one batch as it runs."""

from __future__ import annotations

import argparse
from typing import Any

from cavs.cli import options
from cavs.cli.registry import Entry
from cavs.config import set_num_threads
from cavs.runtime import explain
from cavs.train import DataLoader


def add_parser(commands: Any, argv: list[str]) -> None:
    """Add the command."""
    text = "show how a model is compiled and scheduled"
    options.add_models(commands, "explain", text, argv, add_arguments)


def add_arguments(parser: argparse.ArgumentParser, entry: Entry) -> None:
    """All options of ``cavs explain`` but the model's own."""
    options.add_data_arguments(parser)
    options.add_engine_arguments(parser)
    parser.add_argument("--batch-size", type=options.count(1), default=64, metavar="N")
    parser.add_argument(
        "--inference", action="store_true", help="without gradients and update (default: training)"
    )
    parser.set_defaults(run=run, seed=0)


def run(args: argparse.Namespace) -> int:
    """Print every stage of the compiler, the program, and what one step of it did.

    A step of training, with the optimiser that ``cavs train`` takes for the model, or of inference.
    """
    entry: Entry = args.entry
    task = entry.build(args)
    graphs = task.required("train")[: args.batch_size]
    batch = next(iter(DataLoader(graphs, args.batch_size, prefetch=0)))
    if args.threads is not None:
        set_num_threads(args.threads)
    where = {"device": args.device, "precision": args.precision, "cudnn": args.cudnn}
    optimizer = options.make_optimizer(options.training_defaults(entry), 1)
    print(
        explain(
            task.model,
            batch,
            training=not args.inference,
            **where,
            deterministic=args.deterministic,
            optimizer=optimizer,
        )
    )
    return 0
