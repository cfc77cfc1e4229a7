"""The MPI library, as mpi4py's module."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from cavs.distributed.comm.launcher_pipe import FINALIZE, INIT, inside, rank_of_environment, report
from cavs.distributed.comm.mpi.requests import PIECE
from cavs.errors import ConfigError, DeviceError
from cavs.launched import started

MINIMUM = (4, 1)
STANDARD = (3, 0)  # version of MPI with matched probes
INSTALL = 'pip install "cavs[mpi]"'
_EAGER = "OMPI_MCA_btl_tcp_eager_limit"
_HEADER = 1 << 10
_BTL = "OMPI_MCA_btl"  # transports of Open MPI
_JOINED = "CAVS_RANK"  # process that joined MPI as a rank, and the rank; its children inherit it


def load_mpi(timeout: float = 300.0) -> ModuleType:
    """Return the module ``mpi4py.MPI``, initialised; DeviceError, with the cure, if there is none.

    timeout: seconds that `cavs launch` lets MPI wait for all ranks meanwhile.
    """
    from importlib import metadata  # slow to import

    refuse_child_of_rank()
    try:
        version = metadata.version("mpi4py")
    except metadata.PackageNotFoundError:
        raise DeviceError("mpi4py is not installed", hint=INSTALL) from None
    if tuple(int(x) for x in version.split(".")[:2]) < MINIMUM:
        needed = ".".join(map(str, MINIMUM))
        raise DeviceError(f"mpi4py {version} is too old, cavs needs {needed}", hint=INSTALL)
    begins = "mpi4py.MPI" not in sys.modules
    try:
        if begins:
            import mpi4py

            mpi4py.rc.thread_level = "serialized"
            os.environ.setdefault(_EAGER, str(PIECE + _HEADER))
        with inside(INIT, timeout), _without_peers():
            from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise DeviceError(f"mpi4py finds no MPI library: {error}", hint=INSTALL) from error
    library = MPI.Get_library_version().split(",")[0]
    if MPI.Get_version() < STANDARD:
        has, needs = (".".join(map(str, v)) for v in (MPI.Get_version(), STANDARD))
        raise DeviceError(f"{library} implements MPI {has}, cavs needs {needs}", hint=INSTALL)
    if begins:
        os.environ[_JOINED] = _identity(os.getpid())
        atexit.register(_report_finalize, os.getpid(), timeout)
    told, size = started(), MPI.COMM_WORLD.Get_size()
    if told is not None and told.ranks not in (None, size):
        raise DeviceError(
            f"{told.by} started {told.ranks} ranks, but the MPI library of mpi4py ({library}) "
            f"sees {size}",
            hint=told.hint,
        )
    module: ModuleType = MPI
    return module


def refuse_child_of_rank() -> None:
    """Raise `ConfigError` in a process that has the environment of a rank that started it."""
    rank = os.environ.get(_JOINED, "").partition(" ")[0]
    if not rank or os.environ[_JOINED] != _identity(int(rank)) or int(rank) == os.getpid():
        return
    raise ConfigError(
        f"process {os.getpid()} is no rank: rank {rank_of_environment()}, process {rank}, started "
        "it and has already joined MPI",
        hint="train in the rank itself; where the process is to train alone, start it without "
        "the variables OMPI_COMM_WORLD_*, PMIX_* and PMI_*",
    )


def _identity(process: int) -> str:
    """Return the number of a process and the rank that its environment names, in one text."""
    return f"{process} {os.environ.get('PMIX_NAMESPACE', '')} {rank_of_environment()}"


def _report_finalize(process: int, timeout: float) -> None:
    if os.getpid() == process:  # not in a process forked from the rank
        report("in", FINALIZE, timeout)


@contextmanager
def _without_peers() -> Iterator[None]:
    """Give a process started by itself no memory to share: Open MPI leaves it in /dev/shm.

    Programs that it starts later, which may be ranks, do not inherit the setting.
    """
    if started() is not None or _BTL in os.environ:
        yield
        return
    os.environ[_BTL] = "^sm,vader"
    try:
        yield
    finally:
        del os.environ[_BTL]


def errors_of_ulfm(mpi: Any) -> tuple[type[Exception], ...]:
    """Return what a call of ULFM raises where MPI lacks it, has it off, or a rank is gone."""
    return AttributeError, NotImplementedError, mpi.Exception
