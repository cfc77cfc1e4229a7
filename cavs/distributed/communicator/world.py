"""The ranks that this process is one of."""

from __future__ import annotations

import os
import socket

from cavs.config import share_processors
from cavs.distributed.communicator.mpi import MPICommunicator
from cavs.distributed.communicator.protocol import Communicator
from cavs.distributed.communicator.single import SingleCommunicator
from cavs.distributed.communicator.started import started
from cavs.errors import ConfigError

TIMEOUT = 300.0  # seconds that a rank waits for another where nobody says how many


def ranks_of(communicator: Communicator | None, timeout: float | None) -> Communicator:
    """`communicator`, or where none is given `world`, with this timeout in seconds.

    ConfigError if `communicator` waits for another time.
    """
    if communicator is None:
        return world(TIMEOUT if timeout is None else timeout)
    if timeout not in (None, communicator.timeout):
        kind = type(communicator).__name__
        raise ConfigError(
            f"Trainer: timeout is {timeout} s, but the {kind} given waits for "
            f"{communicator.timeout} s",
            hint=f"give the time to the {kind}, or leave timeout out",
        )
    return communicator


def world(timeout: float = TIMEOUT) -> Communicator:
    """All ranks that mpirun or srun started; one alone if this process was started by itself.

    timeout: seconds that a rank waits for another. DeviceError if MPI sees more or fewer.
    Ranks that may run on the same processors share the engine's default number of threads.
    """
    if started() is None:
        return SingleCommunicator()
    communicator = MPICommunicator(timeout=timeout)
    share_processors(_beside(communicator))
    return communicator


def _beside(communicator: Communicator) -> int:
    """How many ranks of this host, itself among them, may run where this one may."""
    host, own = socket.gethostname(), os.sched_getaffinity(0)
    told = communicator.share([host, sorted(own)])
    return sum(name == host and not own.isdisjoint(mask) for name, mask in told)
