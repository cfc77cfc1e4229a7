"""The command line as one of many ranks."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cavs.distributed import Trainer, contiguous
from cavs.distributed.balance import (
    NARX,
    PREDICTORS,
    PairBalancer,
    SpeedBalancer,
    StructureBalancer,
)
from cavs.distributed.balance.shards import Split
from cavs.distributed.cluster.resources import load_resources
from cavs.distributed.comm import Communicator, LostPeerError
from cavs.distributed.comm.agreement import is_agreed
from cavs.distributed.comm.launcher_pipe import is_stopping, is_watched
from cavs.errors import CavsError
from cavs.train.fit_options import OnEvent
from cavs.train.log import JsonLines


def trainer(
    args: argparse.Namespace,
    model: Any,
    optimizer: Any,
    communicator: Communicator,
    common: Mapping[str, Any],
) -> Trainer:
    """Return the trainer for ``--strategy``, ``--balance`` and ``--resources``."""
    return Trainer(
        model,
        optimizer,
        strategy=args.strategy,
        communicator=communicator,
        elastic=args.elastic,
        collectives=args.collectives,
        resources=None if args.resources is None else load_resources(args.resources),
        split=split(args),
        **common,
    )


def split(args: argparse.Namespace) -> Split:
    """Return the split for ``--balance`` and ``--predictor``."""
    match args.balance:
        case "structure":
            return StructureBalancer()
        case "lb-bsp":
            return SpeedBalancer(predictor=PREDICTORS.get(args.predictor, NARX))
        case "lb-bsp-gpu":
            return PairBalancer()
    return contiguous


def log_strategy(trainer: Trainer, log: JsonLines, *, shows: bool) -> OnEvent:
    """Return a callback that logs the strategy on rank 0; shows: print the choice of `auto` too."""

    def on_event(event: str, record: Mapping[str, Any]) -> None:
        strategy = trainer.strategy
        if event != "start" or strategy is None:
            return
        log.write("strategy", builder=strategy.builder, digest=strategy.digest)
        if shows and trainer.requested_strategy == "auto":
            words = filter(None, (strategy.builder, trainer.session.predicted))
            print(f"strategy auto: {', '.join(words)}", file=sys.stderr)

    return on_event


@contextmanager
def one_voice(communicator: Communicator) -> Iterator[None]:
    """End all ranks if the block fails; only rank 0 prints an error that all ranks have."""
    try:
        yield
    except (CavsError, KeyboardInterrupt, SystemExit) as error:
        if isinstance(error, SystemExit) and not error.code:
            raise
        stopped = isinstance(error, KeyboardInterrupt) and (bool(str(error)) or is_stopping())
        dead = isinstance(error, LostPeerError) and is_watched()  # the launcher names the rank
        if communicator.size > 1 and not (is_agreed(error) or stopped or dead):
            communicator.abort(f"{type(error).__name__}: {error}")
        if communicator.rank != 0 or dead:
            sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (until exit)
        raise
