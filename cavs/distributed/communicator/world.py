"""The ranks that this process is one of."""

from __future__ import annotations

import os

from cavs.distributed.communicator.mpi import MPICommunicator
from cavs.distributed.communicator.protocol import Communicator
from cavs.distributed.communicator.single import SingleCommunicator

_STARTED = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK")


def world(timeout: float = 300.0) -> Communicator:
    """All ranks that mpirun or srun started; one alone if this process was started by itself."""
    if any(name in os.environ for name in _STARTED):
        return MPICommunicator(timeout=timeout)
    return SingleCommunicator()
