"""The ranks that this process is one of."""

from __future__ import annotations

import os
import socket

from cavs.config import share_processors
from cavs.distributed.communicator.mpi import MPICommunicator
from cavs.distributed.communicator.protocol import Communicator
from cavs.distributed.communicator.single import SingleCommunicator
from cavs.distributed.communicator.started import started


def world(timeout: float = 300.0) -> Communicator:
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
