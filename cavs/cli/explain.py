"""``cavs explain MODEL``: every pass of the compiler and a run, as text or a page; or a drawing."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from cavs.cli import options, passes
from cavs.cli.numbers import count
from cavs.cli.registry import Entry
from cavs.config import set_num_threads
from cavs.data import GraphBatch, SampleBatch
from cavs.errors import ConfigError
from cavs.frontend.model import Model
from cavs.inspect import dot_function, dot_graph, dot_schedule, explain, render
from cavs.runtime import Session
from cavs.train import DataLoader

DRAWINGS = ("function", "graph", "schedule")


def add_parser(commands: Any, argv: list[str]) -> None:
    """Add the command."""
    text = "show how a model is compiled and scheduled"
    options.add_models(commands, "explain", text, argv, add_arguments)


def add_arguments(parser: argparse.ArgumentParser, entry: Entry) -> None:
    """Add all options of ``cavs explain`` but the model's own."""
    options.add_data_arguments(parser)
    options.add_engine_arguments(parser)
    parser.add_argument("--batch-size", type=count(1), default=64, metavar="N")
    parser.add_argument(
        "--inference", action="store_true", help="without gradients and update (default: training)"
    )
    passes.add_argument(parser)
    parser.add_argument(
        "--html",
        metavar="FILE",
        help="write the explanation as one page that needs no network and no script, with pictures "
        "of the schedule, the step and its memory",
    )
    group = parser.add_argument_group("drawings")
    group.add_argument(
        "--draw",
        choices=DRAWINGS,
        help="draw instead of explaining: the model with its vertex functions, the first graph of "
        "the data, or the tasks in which a training step on a batch runs",
    )
    group.add_argument(
        "--out",
        metavar="FILE",
        help="where the drawing goes: .dot and .gv for text, .svg, .png or .pdf for a picture by "
        "Graphviz (default: text on the standard output)",
    )
    parser.set_defaults(run=run, seed=0)


def run(args: argparse.Namespace) -> int:
    """Print the graph after every pass, the program, and a report of one step, or write a page.

    The step trains, with the optimiser of ``cavs train`` for the model, or infers.
    """
    if args.html is not None and (args.draw is not None or args.out is not None):
        other = f"--draw {args.draw}" if args.draw is not None else f"--out {args.out}"
        raise ConfigError(
            f"--html {args.html} and {other} exclude each other",
            hint="--html FILE writes the explanation as a page; a drawing needs a command of its "
            "own: --draw and --out without --html",
        )
    if args.out is not None and args.draw is None:
        raise ConfigError(
            f"--out {args.out} without a drawing",
            hint=f"add --draw {'|'.join(DRAWINGS)}; the explanation itself is printed",
        )
    entry: Entry = args.entry
    task = entry.build(args)
    graphs = task.required("train", args.batch_size)
    batch = next(iter(DataLoader(graphs, args.batch_size, prefetch=0)))
    if args.threads is not None:
        set_num_threads(args.threads)
    where = {**options.engine_options(args), "passes": passes.passes(args)}
    if args.draw is not None:
        _write(_drawing(args.draw, task.model, batch, where, not args.inference), args.out)
        return 0
    optimizer = options.make_optimizer(options.training_defaults(entry), 1)
    explained = explain(
        task.model,
        batch,
        training=not args.inference,
        **where,
        optimizer=optimizer,
    )
    if args.html is None:
        print(explained)
    else:
        print(f"written: {explained.write_html(args.html)}")
    return 0


def _drawing(
    drawing: str, model: Model, batch: GraphBatch, where: dict[str, Any], training: bool
) -> str:
    if drawing == "function":
        return dot_function(model, batch)
    if drawing == "graph":
        return dot_graph(batch.samples[0] if isinstance(batch, SampleBatch) else batch.graphs[0])
    return dot_schedule(Session(model, **where).schedule(batch, training=training))


def _write(dot: str, out: str | os.PathLike[str] | None) -> None:
    """Write text to the standard output or a file, pictures through Graphviz; print the path."""
    if out is None:
        print(dot, end="")
        return
    path = Path(out)
    if path.suffix not in (".dot", ".gv"):
        render(dot, path)
    else:
        try:
            path.write_text(dot, encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"cannot write the drawing {path}: {error.strerror or error}",
                hint="choose a folder and file that you may write to",
            ) from None
    print(f"written: {path}")
