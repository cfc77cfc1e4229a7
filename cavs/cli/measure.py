"""``cavs strategy measure``: a resource specification of the ranks that run it."""

from __future__ import annotations

import argparse
from typing import Any

from cavs.cli.distributed import one_voice
from cavs.data.whole_file import write_whole
from cavs.distributed import world
from cavs.distributed.cluster.resources import text_of
from cavs.distributed.comm import Communicator
from cavs.distributed.comm.agreement import Agreement
from cavs.distributed.planning.choice import measured_cluster
from cavs.errors import CavsError, ConfigError


def add_parser(actions: Any) -> None:
    """Add ``measure`` to the actions of ``cavs strategy``."""
    text = "the hosts of the ranks that run this, and the speed of messages between them"
    parser = actions.add_parser(
        "measure",
        help=text,
        description=f"{text}: a resource specification for --resources, YAML. Start it on the "
        "ranks of the training, by cavs launch -n N strategy measure, or by mpirun or srun.",
    )
    parser.add_argument("--out", metavar="FILE", help="write it to a file too")
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="device of the ranks (default: %(default)s)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure, and print the result on rank 0."""
    communicator = world()
    with one_voice(communicator):
        text = measured(communicator, args.out, gpus=args.device == "cuda")
    if communicator.rank == 0:
        print(text, end="")
    return 0


def measured(communicator: Communicator, out: str | None = None, *, gpus: bool = False) -> str:
    """Return the specification as YAML text; rank 0 writes it to `out`.

    All ranks call it. Raises `ConfigError` if there is one rank, or if `out` cannot be written; the
    other ranks then raise `CommunicationError`.
    """
    if communicator.size == 1:
        raise ConfigError(
            "there is only 1 rank, which sends no messages",
            hint="start several: cavs launch -n 4 strategy measure",
        )
    text, failed = text_of(measured_cluster(communicator, gpus=gpus)), None
    try:
        if communicator.rank == 0 and out is not None:
            write_whole(out, text)
    except CavsError as error:  # the other ranks must learn of it
        failed = error
    Agreement(communicator).same(None, failed)
    return text
