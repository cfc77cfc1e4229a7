"""``cavs info [CHECKPOINT]``: this installation, or the contents of a checkpoint."""

from __future__ import annotations

import argparse
import os
import platform
from typing import Any

import numpy as np

from cavs.cli.registry import names, summary
from cavs.train.checkpoint import read_checkpoint
from cavs.train.version import version


def add_parser(commands: Any, argv: list[str]) -> None:
    """Add the command."""
    text = "the installation, or the contents of a checkpoint"
    parser = commands.add_parser("info", help=text, description=text)
    parser.add_argument(
        "checkpoint",
        nargs="?",
        metavar="CHECKPOINT",
        help="its model, options, epochs and parameters (default: versions, engine, GPU and models "
        "of this installation)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print a few lines."""
    lines = _installation() if args.checkpoint is None else _checkpoint(args.checkpoint)
    print("\n".join(f"{name:12} {value}" for name, value in lines))
    return 0


def _installation() -> list[tuple[str, str]]:
    lines = [
        ("cavs", f"{version()} in {os.path.dirname(os.path.dirname(os.path.abspath(__file__)))}"),
        ("python", f"{platform.python_version()}, numpy {np.__version__}"),
        ("machine", f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores"),
        ("engine", _engine()),
        *_gpu(),
    ]
    for name in names():
        lines.append(("model", f"{name:20} {summary(name)}"))
    return lines


def _engine() -> str:
    try:
        from cavs import _engine as engine
    except ImportError as error:
        return f"not built ({error})"
    found = [engine.isa(products) for products in ("int16", "bfloat16x3", "bfloat16")]
    return "instruction set " + ", ".join(dict.fromkeys([engine.isa(), *found]))


def _gpu() -> list[tuple[str, str]]:
    try:
        from cavs.cuda.cache import default_folder
        from cavs.cuda.device import describe
    except ImportError as error:
        return [("gpu", f"none: the engine for GPUs is not built ({error})")]
    return [("gpu", describe()), ("kernels", f"compiled for a GPU: kept in {default_folder()}")]


def _listed(options: object) -> str:
    """Return the options as text; a program may have stored anything under that name."""
    if not isinstance(options, dict):
        return str(options)
    return ", ".join(f"{k}={v}" for k, v in options.items())


def _checkpoint(path: str) -> list[tuple[str, str]]:
    stored = read_checkpoint(path)
    arrays = stored.parameters
    size = sum(array.size for array in arrays.values())
    states = sum(array.nbytes for kept in stored.states.values() for array in kept)
    progress = stored.progress
    fit = progress.get("fit") or {}
    lines = [
        ("file", f"{path}, {os.path.getsize(path):,} bytes, by cavs {stored.version}"),
        ("model", f"{stored.model} ({stored.config.get('model', 'no model of the command line')})"),
        ("options", _listed(stored.config.get("options") or {})),
        ("training", f"step {progress.get('step')}, {fit.get('epoch', '?')} epochs finished"),
    ]
    if fit.get("best") is not None:
        lines.append(
            ("best", f"dev {progress.get('monitor')} {fit['best']:.4f}, epoch {fit['best_epoch']}")
        )
    lines.append(("states", f"{states:,} bytes of the optimiser"))
    lines.append(("parameters", f"{size:,} numbers in {len(arrays)} arrays"))
    for name, array in arrays.items():
        lines.append(("", f"{name:40} {array.dtype}{list(array.shape)}"))
    return lines
