"""Fault tolerance: ranks survive one another if it is switched on in MPI (ULFM)."""

from __future__ import annotations

import os

from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.comm.launcher_pipe import ends_all
from cavs.distributed.comm.mpi.communicator import MPICommunicator
from cavs.errors import ConfigError

_SWITCH = "OMPI_MCA_mpi_ft_enable"  # set for the ranks by ``mpirun --with-ft ulfm``
_ON = ("1", "true", "yes", "enabled", "t", "y")


def check_survivable(c: Communicator) -> None:
    """ConfigError if the death of a rank of `c` would end the others, as far as one can know.

    Open MPI has the functions whether or not they are switched on; its mpirun tells by a variable.
    """
    if not isinstance(c, MPICommunicator) or c.size == 1:
        return
    if ends_all():
        raise ConfigError(
            "elastic=True, but cavs launch was started without --elastic: when a rank dies, it "
            "ends the others",
            hint="start with: cavs launch --elastic",
        )
    if os.environ.get(_SWITCH, "").lower() not in _ON:
        raise ConfigError(
            "elastic=True, but this MPI was started without fault tolerance: when a rank dies, so "
            "do the others",
            hint="start with: cavs launch --elastic, or mpirun --with-ft ulfm --mca "
            f"async_mpi_finalize 1; where it is switched on otherwise, set {_SWITCH}=1",
        )
