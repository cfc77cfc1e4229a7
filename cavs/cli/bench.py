"""``cavs bench MODEL``: time of a training step and of inference, on the model's own data."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from cavs.cli import options
from cavs.cli.numbers import count
from cavs.cli.registry import Entry
from cavs.errors import ConfigError
from cavs.train import DataLoader, Trainer


def add_parser(commands: Any, argv: list[str]) -> None:
    """Add the command."""
    options.add_models(commands, "bench", "time training and inference", argv, add_arguments)


def add_arguments(parser: argparse.ArgumentParser, entry: Entry) -> None:
    """Add all options of ``cavs bench`` but the model's own."""
    options.add_data_arguments(parser)
    options.add_engine_arguments(parser)
    group = parser.add_argument_group("measuring")
    group.add_argument("--batch-size", type=count(1), default=64, metavar="N")
    group.add_argument("--batches", type=count(1), default=20, metavar="N")
    group.add_argument(
        "--seconds", type=float, default=5.0, metavar="S", help="time for each figure"
    )
    group.add_argument("--json", action="store_true", help="print a JSON object")
    parser.set_defaults(run=run, seed=0)


def run(args: argparse.Namespace) -> int:
    """Print milliseconds per batch (median, quartiles), graphs and vertices per second."""
    if not 0 < args.seconds < 3600:
        raise ConfigError(
            f"--seconds is {args.seconds}, but must be above 0 and below 3600", hint="--seconds 5"
        )
    entry: Entry = args.entry
    task = entry.build(args)
    graphs = task.required("train", args.batches * args.batch_size)
    defaults = options.training_defaults(entry)
    optimizer = options.make_optimizer(defaults, 1)
    trainer = Trainer(
        task.model,
        optimizer,
        **options.engine_options(args),
        threads=args.threads,
        max_norm=defaults.max_norm,
    )
    started = time.perf_counter()
    loader = DataLoader(graphs, args.batch_size, prefetch=0)
    loader.prepare = trainer.session.prepare
    batches = list(loader)
    prepared = (time.perf_counter() - started) / len(batches)
    record: dict[str, Any] = {
        "model": entry.name,
        "batch_size": args.batch_size,
        "batches": len(batches),
        "vertices": sum(b.num_vertices for b in batches),
        "prepare_ms": 1e3 * prepared,
        "train": _measure(trainer.step, batches, args.seconds),
        "infer": _measure(trainer.session.evaluate, batches, args.seconds),
    }
    print(json.dumps(record) if args.json else _table(record))
    return 0


def _measure(
    work: Callable[[Any], object], batches: Sequence[Any], seconds: float
) -> dict[str, float]:
    """Time rounds over `batches` for about `seconds`, after one warm-up round."""
    for batch in batches:
        work(batch)
    rounds: list[float] = []
    until = time.perf_counter() + seconds
    while len(rounds) < 3 or time.perf_counter() < until:
        start = time.perf_counter()
        for batch in batches:
            work(batch)
        rounds.append(time.perf_counter() - start)
    low, middle, high = statistics.quantiles(rounds, n=4)
    vertices = sum(b.num_vertices for b in batches)
    return {
        "ms": 1e3 * middle / len(batches),
        "ms_low": 1e3 * low / len(batches),
        "ms_high": 1e3 * high / len(batches),
        "graphs_per_second": sum(b.num_graphs for b in batches) / middle,
        "vertices_per_second": vertices / middle,
        "rounds": len(rounds),
    }


def _table(record: dict[str, Any]) -> str:
    lines = [
        f"{record['model']}: {record['batches']} batches of {record['batch_size']}, "
        f"{record['vertices']} vertices",
        f"{'':8}{'ms a batch':>12}{'quartiles':>20}{'graphs/s':>12}{'vertices/s':>14}",
    ]
    for name in ("train", "infer"):
        row = record[name]
        spread = f"{row['ms_low']:.3f} .. {row['ms_high']:.3f}"
        lines.append(
            f"{name:8}{row['ms']:12.3f}{spread:>20}"
            f"{row['graphs_per_second']:12.0f}{row['vertices_per_second']:14.0f}"
        )
    share = record["prepare_ms"] / record["train"]["ms"]
    lines.append(f"collation and schedule: {record['prepare_ms']:.3f} ms a batch, ")
    lines[-1] += f"{share:.1%} of a training step"
    return "\n".join(lines)
