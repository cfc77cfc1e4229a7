"""What the command line does when it runs as one of many ranks."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cavs.cuda.device import Device
from cavs.cuda.memory import CupyMemory
from cavs.distributed import Trainer, contiguous
from cavs.distributed.agreement import is_agreed
from cavs.distributed.balance import (
    NARX,
    PREDICTORS,
    PairBalancer,
    SpeedBalancer,
    StructureBalancer,
    Usage,
    gpu_usage,
    host_usage,
)
from cavs.distributed.communicator import Communicator, LostPeerError
from cavs.distributed.resources import load_resources
from cavs.distributed.shards import Split
from cavs.distributed.watch import is_watched
from cavs.errors import CavsError


def trainer(
    args: argparse.Namespace,
    model: Any,
    optimizer: Any,
    communicator: Communicator,
    common: Mapping[str, Any],
) -> Trainer:
    """The trainer that ``--strategy`` and ``--resources`` ask for."""
    made = Trainer(
        model,
        optimizer,
        strategy=args.strategy,
        communicator=communicator,
        elastic=args.elastic,
        collectives=args.collectives,
        resources=None if args.resources is None else load_resources(args.resources),
        **common,
    )
    made.session.split = split(args, made.session.session.device)
    return made


def split(args: argparse.Namespace, device: Device | None) -> Split:
    """What ``--balance`` and ``--predictor`` ask for, on a rank that computes on `device`."""
    match args.balance:
        case "structure":
            return StructureBalancer()
        case "lb-bsp":
            return SpeedBalancer(predictor=PREDICTORS.get(args.predictor, NARX))
        case "lb-bsp-gpu":
            return PairBalancer(usage=_usage(device))
    return contiguous


def _usage(device: Device | None) -> Usage:
    """Of the memory that holds the batches of this rank; None: of its host."""
    return host_usage if device is None else gpu_usage(CupyMemory(device.ordinal))


@contextmanager
def one_voice(communicator: Communicator) -> Iterator[None]:
    """An error ends all ranks; what all know of, rank 0 alone says."""
    try:
        yield
    except (CavsError, KeyboardInterrupt, SystemExit) as error:
        if isinstance(error, SystemExit) and not error.code:
            raise
        stopped = isinstance(error, KeyboardInterrupt) and str(error)
        dead = isinstance(error, LostPeerError) and is_watched()  # the launcher says who it was
        if communicator.size > 1 and not (is_agreed(error) or stopped or dead):
            communicator.abort(f"{type(error).__name__}: {error}")
        if communicator.rank != 0 or dead:
            sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (until exit)
        raise
