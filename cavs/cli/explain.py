"""``cavs explain MODEL``: every stage of the compiler, and one batch as it runs."""

from __future__ import annotations

import argparse
from typing import Any

from cavs.cli import options
from cavs.cli.registry import Entry
from cavs.runtime import Session
from cavs.train import DataLoader


def add_parser(commands: Any, argv: list[str]) -> None:
    """Add the command."""
    text = "show how a model is compiled and scheduled"
    options.add_models(commands, "explain", text, argv, add_arguments)


def add_arguments(parser: argparse.ArgumentParser, entry: Entry) -> None:
    """All options of ``cavs explain`` but the model's own."""
    options.add_data_arguments(parser)
    parser.add_argument("--batch-size", type=options.count(1), default=64, metavar="N")
    parser.set_defaults(run=run, seed=0)


def run(args: argparse.Namespace) -> int:
    """Print every stage of the compiler, the program, and what one training step of it did."""
    entry: Entry = args.entry
    task = entry.build(args)
    graphs = task.required("train")[: args.batch_size]
    batch = next(iter(DataLoader(graphs, args.batch_size, prefetch=0)))
    session = Session(task.model)
    print("\n".join(_compiled(session, batch)))
    session.set_profiling(True)
    for _ in range(2):  # the first run also packs weights and sizes the arena
        session.gradients(batch)
    print("\n".join(_ran(session.report(), batch)))
    return 0


def _compiled(session: Session, batch: Any) -> list[str]:
    compiled = session.compiled(batch)
    lines = []
    for name, text in compiled.stages:
        lines += [f"== {name}", text, ""]
    lines.append("== program")
    for stage in compiled.program.stages:
        bodies = [("", stage.body), *((f"kind {k}: ", b) for k, b in enumerate(stage.bodies))]
        lines.append(f"{stage.kind} {stage.label}".rstrip())
        lines += [
            f"  {head}{compiled.program.instructions[i].label}" for head, ids in bodies for i in ids
        ]
    return lines


def _ran(report: dict[str, Any], batch: Any) -> list[str]:
    widths = report["widths"]
    lines = [
        "",
        f"== one step: {batch.num_graphs} graphs, {batch.num_vertices} vertices, "
        f"{batch.num_edges} edges",
        f"tasks {report['tasks']}, widths {min(widths, default=0)} to {max(widths, default=0)}",
    ]
    for name in ("product", "map", "other", "pack"):
        lines.append(f"{name:10} {1e3 * report[f'{name}_seconds']:10.3f} ms")
    for name in ("gather", "write", "arena", "peak", "packed"):
        lines.append(f"{name:10} {report[f'{name}_bytes']:13,} bytes")
    for line in report["stages"]:
        lines.append(f"  {1e3 * line['seconds']:8.3f} ms  {line['kind']} {line['label']}".rstrip())
    return lines
