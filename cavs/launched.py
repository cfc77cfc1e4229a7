"""The program that started this process, by its environment."""

from __future__ import annotations

import os
from typing import NamedTuple

_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_RANKS = ("PMIX_RANK", "PMI_RANK")
_TASKS = "SLURM_STEP_NUM_TASKS"  # by srun for each task, whether or not it tells an MPI of them


class Started(NamedTuple):
    """The program that started this process."""

    by: str
    ranks: int | None  # processes that it started; None if it does not say
    hint: str  # the cure if MPI sees another number


def started() -> Started | None:
    """Return which program started this process, by its environment; None if none did."""
    found = os.environ
    size = next((found[name] for name in _SIZES if found.get(name)), None)
    # Another's ranks may run inside of a task of Slurm's: then it is not Slurm that counts them.
    others = "PMIX_RANK" in found and not found.get("PMIX_NAMESPACE", "").startswith("slurm.")
    tasks = int(found.get(_TASKS) or 1)
    if size is None and tasks > 1 and not others:
        return Started(
            "srun",
            tasks,
            "start with: srun --mpi=pmix, or what else srun --mpi=list has that this MPI knows; "
            f"where each process is to train alone: unset {_TASKS}",
        )
    if size is None and not any(name in found for name in _RANKS):
        return None
    ranks = None if size is None else int(size)
    return Started("mpirun", ranks, "start with the mpirun of the same MPI, or with: cavs launch")
