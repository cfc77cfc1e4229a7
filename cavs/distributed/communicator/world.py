"""The ranks that this process is one of."""

from __future__ import annotations

from cavs.distributed.communicator.mpi import MPICommunicator
from cavs.distributed.communicator.protocol import Communicator
from cavs.distributed.communicator.single import SingleCommunicator
from cavs.distributed.communicator.started import started


def world(timeout: float = 300.0) -> Communicator:
    """All ranks that mpirun or srun started; one alone if this process was started by itself.

    timeout: seconds that a rank waits for another. DeviceError if MPI sees more or fewer.
    """
    return SingleCommunicator() if started() is None else MPICommunicator(timeout=timeout)
