"""The ranks that this process is one of."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Sequence

from cavs.config import num_threads, share_processors
from cavs.distributed.comm.collectives import Collectives
from cavs.distributed.comm.hang_detection import WaitRegister
from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.comm.interrupt import begin_before_interrupt
from cavs.distributed.comm.launcher_pipe import NUMBER, SPARES
from cavs.distributed.comm.mailbox import Mailbox
from cavs.distributed.comm.messages import Message
from cavs.distributed.comm.mpi.communicator import MPICommunicator, join_running
from cavs.distributed.comm.pool import Pool, WaitingCommunicator, join_pool
from cavs.errors import ConfigError
from cavs.launched import started

Processors = tuple[str, tuple[int, ...], int]  # see `own_processors`
TIMEOUT = 300.0  # default seconds that a rank waits for another


def ranks_of(communicator: Communicator | None, timeout: float | None) -> Communicator:
    """Return `communicator`, or where none is given `world` with this timeout in seconds.

    ConfigError if `communicator` waits for another time.
    """
    if communicator is None:
        return world(TIMEOUT if timeout is None else timeout)
    if timeout not in (None, communicator.timeout):
        cls = type(communicator).__name__
        raise ConfigError(
            f"Trainer: timeout is {timeout} s, but the {cls} given waits for "
            f"{communicator.timeout} s",
            hint=f"give the time to the {cls}, or leave timeout out",
        )
    return communicator


def world(timeout: float = TIMEOUT) -> Communicator:
    """Return all ranks that mpirun or srun started; one if this process was started by itself.

    All ranks call it together, equally often: each call makes another communicator.
    timeout: seconds that a rank waits for another. DeviceError if MPI sees more or fewer.
    Ranks that may run on the same processors share the engine's default number of threads. Where
    their threads fill these, each rank keeps to its own of them, unless ``CAVS_BIND`` is 0.
    """
    if started() is None:
        return SingleCommunicator()
    if NUMBER in os.environ:
        everyone, count = join_running(timeout)
        return WaitingCommunicator(Pool(everyone, range(everyone.size - count)))
    with begin_before_interrupt():
        communicator = MPICommunicator(timeout=timeout)
    host, own = socket.gethostname(), os.sched_getaffinity(0)
    masks = communicator.share([host, sorted(own)])
    share_processors(sum(name == host and not own.isdisjoint(mask) for name, mask in masks))
    binds = os.environ.get("CAVS_BIND", "1") != "0" and sys.platform == "linux"
    threads = communicator.share(num_threads() if binds else 0)
    every = [(name, tuple(mask), n) for (name, mask), n in zip(masks, threads, strict=True)]
    processors = own_processors(every, communicator.rank)
    for thread in os.listdir("/proc/self/task") if processors else ():  # and those that they start
        with contextlib.suppress(OSError):  # it has ended, or a container forbids it
            os.sched_setaffinity(int(thread), processors)
    spares = int(os.environ.get(SPARES) or 0)
    return join_pool(communicator, spares) if spares else communicator


def own_processors(processors: Sequence[Processors], rank: int) -> tuple[int, ...]:
    """Return the processors that `rank` is to keep to, one per thread; none if it need not.

    processors: host of every rank, the processors that it may run on, and its threads, 0 if it is
    not to be pinned. The threads of one rank, which compute and communicate, disturb each other
    less than they disturb other ranks. With room to spare, or too many threads, the operating
    system schedules better.
    """
    host, mask, _ = processors[rank]
    sharing = [r for r, (name, other, _) in enumerate(processors) if name == host and other == mask]
    threads = [processors[r][2] for r in sharing]
    if len(sharing) == 1 or min(threads) == 0 or sum(threads) != len(mask):
        return ()
    begin = sum(threads[: sharing.index(rank)])
    return mask[begin : begin + processors[rank][2]]


class SingleCommunicator(Collectives):
    """A process alone: every operation is done at once, and nothing is sent."""

    def __init__(self) -> None:
        # The timeout is for NCCL, which is set up with this communicator.
        super().__init__(0, [0], TIMEOUT, WaitRegister(0), "alone")
        self.overlaps = False

    def _exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        if sends or receives:
            raise ConfigError("one rank has no other to send to", hint="run it on 2 ranks or more")

    def split(self, color: int, key: int = 0) -> SingleCommunicator:
        return SingleCommunicator()

    def subgroup(self, ranks: Sequence[int], number: int, mailbox: Mailbox) -> SingleCommunicator:
        return SingleCommunicator()

    def mailbox(self) -> Mailbox:
        return Mailbox(0, self.names)

    def agree(self, flag: bool) -> bool:
        return flag

    def leave(self) -> None:
        """Do nothing: no rank waits."""

    def shrink(self) -> SingleCommunicator:
        return self

    def abort(self, message: str) -> None:
        sys.exit(message)
