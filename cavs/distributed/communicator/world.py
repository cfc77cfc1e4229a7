"""The ranks that this process is one of."""

from __future__ import annotations

import os

from cavs.distributed.communicator.mpi import MPICommunicator
from cavs.distributed.communicator.protocol import Communicator
from cavs.distributed.communicator.single import SingleCommunicator
from cavs.errors import ConfigError

_STARTED = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK")
_TASKS = "SLURM_STEP_NUM_TASKS"  # that srun started, whether or not MPI can find them


def world(timeout: float = 300.0) -> Communicator:
    """All ranks that mpirun or srun started; one alone if this process was started by itself.

    ConfigError where srun has started several that cannot find each other: each would train alone.
    """
    if any(name in os.environ for name in _STARTED):
        return MPICommunicator(timeout=timeout)
    tasks = os.environ.get(_TASKS, "1")
    if tasks != "1":
        raise ConfigError(
            f"srun has started {tasks} processes, and tells MPI nothing of each other",
            hint="srun --mpi=pmix (srun --mpi=list says what there is); for processes that are to "
            f"train each by itself, unset {_TASKS}",
        )
    return SingleCommunicator()
