"""Options of ``cavs train`` that a checkpoint stores, and the model that they describe."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from cavs.cli.options import ENGINE, add_training_arguments
from cavs.cli.registry import Entry, Task, find
from cavs.errors import CheckpointError, ConfigError
from cavs.train.checkpoint import Checkpoint, read_checkpoint

# Stored for --resume, besides the options of training: options that change the result, and the
# device. Threads, ranks, cluster and timeout are those of each command.
KEPT = (
    *("limit", *ENGINE, "without"),
    *("strategy", "balance", "predictor", "save_every"),
)


def training_config(entry: Entry, args: argparse.Namespace, task: Task) -> dict[str, Any]:
    """Return the options that a checkpoint stores for `reopen` and ``--resume``."""
    name = entry.name
    if name.endswith(".py"):
        name = os.path.abspath(name)
    options = {key: getattr(args, key) for key in entry.options()}
    parser = argparse.ArgumentParser(add_help=False)
    add_training_arguments(parser)
    training = {key: getattr(args, key) for key in vars(parser.parse_args([]))}
    data = None if args.data is None else os.path.abspath(args.data)
    return {
        "model": name,
        "options": options,
        "data": data,
        "seed": args.seed,
        "training": training | {key: getattr(args, key) for key in KEPT},
        "assets": dict(task.assets),
    }


def reopen(path: str | os.PathLike[str], args: argparse.Namespace) -> tuple[Task, Checkpoint]:
    """Return the task of a checkpoint, without its parameters, and the checkpoint.

    ``args.data`` replaces the data set of the training. Raises `CheckpointError` if the file was
    not written by ``cavs train``.
    """
    stored = read_checkpoint(path)
    config = stored.config
    if not {"model", "options", "assets"} <= set(config):
        raise CheckpointError(
            f"{path} names no model of the command line",
            hint="it was written by Trainer.save; load it with Trainer.load in Python",
        )
    name = args.model or config["model"]
    # A file may hold any model, even one that has the name of another.
    other = ConfigError(
        f"--model {name}, but {path} holds the model {config['model']}",
        hint="leave --model out, or pass the checkpoint of that model",
    )
    named = not name.endswith(".py")
    if named and name != Path(config["model"]).stem.replace("_", "-"):
        raise other
    if name.endswith(".py") and not os.path.isfile(name):
        raise CheckpointError(
            f"{path} was trained with the model of {name}, but there is no such file",
            hint="pass --model FILE.py, its present path",
        )
    entry = find(name)
    if named and set(entry.options()) != set(config["options"]):
        raise other
    own = argparse.Namespace(**{**entry.options(), **config["options"]})
    own.seed, own.limit = config.get("seed", 0), args.limit
    own.data = args.data if args.data is not None else config.get("data")
    if args.data is None and own.data is not None and not os.path.exists(own.data):
        own.data = None
    try:
        return entry.build(own, config["assets"]), stored
    except (KeyError, TypeError) as error:
        if named and name != config["model"]:  # a file of that name with other assets
            raise other from error
        raise
