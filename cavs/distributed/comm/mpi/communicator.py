"""Ranks as MPI processes, through mpi4py.

Arrays travel as bytes between pairs of ranks; the sums are made here (see `collectives`). One
thread at a time calls MPI, and none waits inside it while another has work there, so
MPI_THREAD_SERIALIZED is enough; with less, nothing overlaps.
"""

from __future__ import annotations

import os
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from cavs.distributed.comm.collectives import Collectives
from cavs.distributed.comm.hang_detection import PendingWait
from cavs.distributed.comm.interfaces import Communicator, LostPeerError
from cavs.distributed.comm.launcher_pipe import (
    SPAWN,
    ends_all,
    inside,
    is_stopping,
    rank_of_environment,
    report,
)
from cavs.distributed.comm.mailbox import Mailbox
from cavs.distributed.comm.messages import Code, Message
from cavs.distributed.comm.mpi.groups import CALL, GroupConsensus
from cavs.distributed.comm.mpi.library import errors_of_ulfm, load_mpi
from cavs.distributed.comm.mpi.polling import MPIMailbox, MPIWaitRegister
from cavs.distributed.comm.mpi.requests import CALLS, Channel, Requests
from cavs.errors import CommunicationError, ConfigError, DeviceError

T = TypeVar("T")
_FAULT_TOLERANT = "OMPI_MCA_mpi_ft_enable"  # set for the ranks by ``mpirun --with-ft ulfm``
_ON = ("1", "true", "yes", "enabled", "t", "y")
_SPINS = 400  # polls before the first pause
# Seconds between two polls: a waiting rank leaves its core to those that compute. At most this part
# of the time waited so far, so that long waits, which are for a peer that computes, cost little.
_SHORTEST, _LONGEST, _PART = 20e-6, 500e-6, 1 / 16
_GLANCE = 0.05  # seconds between two looks at whether to go on waiting
_LAST_WORDS = 1.0  # seconds that ranks have to say why they end, when one of them ends all
_ORPHANS: list[Requests] = []  # aborted operations, whose memory MPI may still use
_JOINED: list[bool] = []  # True once this process has joined ranks that started it
_MADE: Counter[tuple[int, ...]] = Counter()  # groups of this process, by their ranks in the world


class MPICommunicator(Collectives):
    """The ranks of an MPI communicator; all of MPI_COMM_WORLD unless `comm` is given.

    timeout: seconds that an operation waits for a peer before it raises, naming it.
    """

    _register: MPIWaitRegister

    def __init__(
        self,
        comm: Any = None,
        *,
        timeout: float = 300.0,
        register: MPIWaitRegister | None = None,
        names: Sequence[int] | None = None,
    ) -> None:
        """register: the waits of these ranks, or of a group that they are a part of. With it, only
        this object uses `comm`. names: the numbers of its ranks; by default those in the world."""
        mpi: Any = load_mpi(timeout)
        self._mpi, self._no_ulfm = mpi, errors_of_ulfm(mpi)
        self._is_part, whole = False, comm is None
        try:
            if register is None:
                # Its own messages cannot meet those of the program that uses cavs.
                with inside("MPI_Comm_dup", timeout):
                    comm = (mpi.COMM_WORLD if whole else comm).Dup()
                    asks = comm.Dup()
        except mpi.Exception as error:  # MPI names none: it knows of no message yet
            raise CommunicationError(
                f"a rank is gone before all of them had begun: {error}",
                hint="look for the first error that a rank printed, and start again",
            ) from error
        self._comm: Any = comm
        self._channel = Channel(mpi, comm)
        names = _names(mpi, comm) if names is None else tuple(names)
        register = register or MPIWaitRegister(mpi, asks, names)
        # All ranks of a group make all groups of the same ranks in one order.
        group = f"{zlib.crc32(repr(names).encode()):x}.{_MADE[names]}"
        _MADE[names] += 1
        super().__init__(comm.Get_rank(), names, timeout, register, group)
        self.overlaps = mpi.Query_thread() >= mpi.THREAD_SERIALIZED
        lost = ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_REVOKED")
        self._lost = {getattr(mpi, n) for n in lost if hasattr(mpi, n)}
        self._leaving: list[Requests] = []
        self._ended = False  # True once the ranks have agreed that one is lost
        if whole and self.size > 1:
            _end_all_on_uncaught_error(self)

    def _exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        self._finish(self._posted(Requests(self._channel, self._code, sends, receives)))

    def _receive(self, receives: Sequence[Message]) -> list[float]:
        requests = self._posted(Requests(self._channel, self._code, [], receives, timed=True))
        self._finish(requests)
        return requests.times()

    def _begin(self, sends: Sequence[Message]) -> Callable[[], object]:
        requests = self._posted(Requests(self._channel, self._code, sends, []))
        self._leaving.append(requests)  # MPI reads its memory, also if the operation raises

        def finish() -> None:
            self._finish(requests)
            self._leaving.remove(requests)

        return finish

    def _finish(self, requests: Requests) -> None:
        try:
            self._complete(requests)
        except CommunicationError:
            _ORPHANS.append(requests)  # an operation that does not end keeps its memory
            raise
        except self._mpi.Exception as error:
            raise self._error_of(requests, error) from error

    def _posted(self, requests: Requests) -> Requests:
        try:
            requests.post()
        except self._mpi.Exception as error:
            raise self._error_of(requests, error) from error
        return requests

    def _error_of(self, requests: Requests, error: Exception) -> CommunicationError:
        """Return the error of messages at which MPI raised ``error``, and keep their memory."""
        _ORPHANS.append(requests)
        peers = [r for _, r in requests.messages]
        return self._failed(peers, error, lost=self._is_loss(error))

    def _failed(self, peers: Sequence[int], why: object, *, lost: bool) -> CommunicationError:
        """Return the error of the operation with `peers`. lost: True if a rank has died."""
        others = sorted({self.names[r] for r in peers})
        text = f"rank {self.names[self.rank]} in {self.operation} with ranks {others}: {why}"
        return LostPeerError(text) if lost else CommunicationError(text)

    def _lost_anyone(self) -> bool:
        """True if a rank has died, as far as ULFM reports it here or on another rank."""
        try:
            with CALLS:
                return bool(self._comm.Is_revoked() or self._comm.Get_failed().Get_size() > 0)
        except self._no_ulfm:
            return False

    def _check_alive(self) -> None:
        if self._register.missed and self._lost_anyone():
            raise self._failed(self._others(), "a rank has died", lost=True)

    def _complete(self, requests: Requests) -> None:
        test = requests.test
        for _ in range(_SPINS):
            if test():
                return
        started = looked = now = time.monotonic()
        with self._waiting(self.operation, requests.pending) as waiting:
            while not test():
                time.sleep(min(max(_SHORTEST, (now - started) * _PART), _LONGEST))
                now = time.monotonic()
                if now - looked > _GLANCE:
                    looked = now
                    if found := requests.mismatch():
                        error = found.error(self.names, self.rank, self.operation)
                        # The others would wait for this rank in vain.
                        others = {self.names[r]: () for r in self._others()}
                        self._register.tell(self._group, error.what, others)
                        raise error
                    waiting.look()
                    if now - started > self.timeout:
                        raise waiting.hung(self.timeout)

    # ---- groups --------------------------------------------------------------------------------

    def split(self, color: int, key: int = 0) -> MPICommunicator:
        part = self._run(
            Code.SPLIT, "split", self._all_come, "MPI_Comm_split", self._comm.Split, color, key
        )
        return self._part(part)

    def _part(self, part: Any) -> MPICommunicator:
        names, register = self._names_of(part), self._register
        made = MPICommunicator(part, timeout=self.timeout, register=register, names=names)
        made._is_part, made.traffic = True, self.traffic
        return made

    def _names_of(self, comm: Any) -> tuple[int, ...]:
        """Return the numbers of the ranks of `comm`, which are some of these."""
        ranks = comm.Get_group().Translate_ranks(None, self._comm.Get_group())
        return tuple(self.names[r] for r in ranks)

    def subgroup(self, ranks: Sequence[int], number: int, mailbox: Mailbox) -> MPICommunicator:
        group = self._comm.Get_group().Incl(list(ranks))

        def create() -> Any:
            return self._mpi.Intracomm.Create_from_group(group, f"cavs.{number}")

        def duplicate(part: Any) -> tuple[Any, Any]:
            with inside("MPI_Comm_dup", self.timeout), CALLS:
                return part.Dup(), part.Dup()

        def waiting(peers: Callable[[], list[int]]) -> PendingWait:
            return self.waiting(CALL, peers)

        consensus = GroupConsensus(ranks, number, mailbox, waiting, self._mpi.Exception)
        part, asks = consensus.run(create, duplicate, self.timeout)
        names = self._names_of(part)
        register = MPIWaitRegister(self._mpi, asks, names)  # these ranks may have left their own
        made = MPICommunicator(part, timeout=self.timeout, register=register, names=names)
        made.traffic = self.traffic
        return made

    def spawn(self, command: Sequence[str], count: int) -> MPICommunicator:
        """Return the group of these ranks and of `count` processes that MPI starts.

        They call `join_running`. All ranks call it. command: the words of their command line.
        """
        try:
            with inside(SPAWN, self.timeout), CALLS:
                between = self._comm.Spawn(command[0], list(command[1:]), count)
                whole = between.Merge(False)
                names = whole.allgather(self.names[self.rank])
        except self._mpi.Exception as error:
            raise CommunicationError(f"MPI cannot start {count} processes: {error}") from error
        return MPICommunicator(whole, timeout=self.timeout, names=names)

    def mailbox(self) -> MPIMailbox:
        if not self.overlaps:
            raise DeviceError(
                "letters, by which servers apply gradients as they come and services answer, need "
                "a thread that calls MPI, which this MPI does not allow (its thread level is below "
                "MPI_THREAD_SERIALIZED)",
                hint="use staleness=0 and sync=True, no services, or another MPI",
            )
        comm = self._run(Code.MAILBOX, "mailbox", self._all_come, "MPI_Comm_dup", self._comm.Dup)
        box = MPIMailbox(self._mpi, comm, self.names, self._register)
        box.traffic = self.traffic
        return box

    def _all_come(self, name: str, call: Callable[..., T], *arguments: Any) -> T:
        """Return `call()`, in which MPI waits for all ranks and names none, once all are there.

        If a rank dies in it, it is lost for all: MPI may tell only some.
        """
        self._tree_all_reduce(np.zeros(1, np.uint8))
        made: T | None = None
        why: Any = "a rank has died"
        with inside(name, self.timeout):
            try:
                made = call(*arguments)
            except self._mpi.Exception as error:
                why = error
        agreed = self._vote(made is not None)
        if made is None or not agreed:
            lost = made is not None or self._is_loss(why)
            raise self._failed(self._others(), why, lost=lost) from None
        return made

    def agree(self, flag: bool) -> bool:
        """See `Communicator`. All ranks come first: MPI waits for them without a limit."""
        if flag:
            try:
                self.barrier()
            except LostPeerError:
                flag = False
        return self._vote(flag)

    def _vote(self, flag: bool) -> bool:
        """True on all ranks if all vote True and none has died; without ULFM, if this rank does.

        Ranks that have failed in different operations vote False, and their votes meet: none waits
        for a rank that has gone on. After that no rank votes here again. All ranks come to the
        operations of which some vote True, and shrink the group only after a False.
        """
        if self._ended:
            return False
        with inside("MPIX_Comm_agree", self.timeout):
            try:
                flag = bool(self._comm.Agree(int(flag)))
            except self._mpi.Exception:
                flag = False
            except self._no_ulfm:
                return flag
        self._ended = not flag
        return flag

    def _is_loss(self, error: Any) -> bool:
        """True if MPI raised `error` because a rank has died."""
        return error.Get_error_class() in self._lost or self._lost_anyone()

    def leave(self) -> None:
        """See `Communicator`. By ULFM, which Open MPI's ``mpirun --with-ft ulfm`` switches on."""
        super().leave()
        self._surviving(self._comm.Revoke)
        if not self._is_part:  # parts ask where the whole does
            self._surviving(self._register.revoke)

    def shrink(self) -> MPICommunicator:
        self.leave()
        self._vote(False)
        with inside("MPIX_Comm_shrink", self.timeout):
            left = self._surviving(self._comm.Shrink)
            asks = self._surviving(self._comm.Shrink)
            while asks.Get_size() < left.Get_size():  # one more died in between, as all see
                left, asks = asks, self._surviving(self._comm.Shrink)
        self.close()
        names = self._names_of(left)
        register = MPIWaitRegister(self._mpi, asks, names)
        return MPICommunicator(left, timeout=self.timeout, register=register, names=names)

    def _surviving(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except self._no_ulfm as error:
            raise DeviceError(
                f"this MPI cannot go on without a rank: {error}",
                hint="start with: cavs launch --elastic, or mpirun --with-ft ulfm",
            ) from error

    def abort(self, message: str) -> None:
        report("failed")
        print(f"cavs: rank {self.names[self.rank]}: {message}", file=sys.stderr, flush=True)
        if self._broken is not None:  # the others find that out now, too
            time.sleep(_LAST_WORDS)
        self._mpi.COMM_WORLD.Abort(1)


def join_running(timeout: float) -> tuple[MPICommunicator, int]:
    """Return the group of the ranks that started this process and its like, and how many these are.

    Raises `ConfigError` at a second call: the ranks make no other such group.
    """
    mpi: Any = load_mpi(timeout)
    if _JOINED:
        raise ConfigError(
            "a process that was started in place of a dead one asks for all ranks a second time",
            hint="call cavs.distributed.world() once, and pass its result on",
        )
    _JOINED.append(True)
    with inside(SPAWN, timeout):
        whole = mpi.Comm.Get_parent().Merge(True)
        names = whole.allgather(int(rank_of_environment() or 0))
    made = MPICommunicator(whole, timeout=timeout, names=names)
    return made, int(mpi.COMM_WORLD.Get_size())


def _end_all_on_uncaught_error(communicator: MPICommunicator) -> None:
    """Abort all ranks if this one dies of an exception: at exit, MPI would wait for them."""
    before = sys.excepthook

    def hook(cls: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(cls, error, trace)
        if issubclass(cls, KeyboardInterrupt) and is_stopping():
            return  # all ranks are told to stop
        if not getattr(error, "agreed", False):
            communicator.abort(f"{cls.__name__}: {error}")

    sys.excepthook = hook


def _names(mpi: Any, comm: Any) -> tuple[int, ...]:
    """Return the numbers in MPI_COMM_WORLD of the ranks of `comm`; its own if some lack one."""
    found = comm.Get_group().Translate_ranks(None, mpi.COMM_WORLD.Get_group())
    return tuple(range(len(found)) if mpi.UNDEFINED in found else found)


def check_survivable(c: Communicator) -> None:
    """Raise ConfigError if, as far as one can know, the death of a rank of `c` ends the others.

    Open MPI has the functions whether or not they are switched on; its mpirun tells by a variable.
    """
    if not isinstance(c, MPICommunicator) or c.size == 1:
        return
    cure = "start with: cavs launch --elastic"
    if ends_all():
        found = "cavs launch was started without --elastic: when a rank dies, it ends the others"
    elif os.environ.get(_FAULT_TOLERANT, "").lower() not in _ON:
        found = "this MPI was started without fault tolerance: when a rank dies, so do the others"
        cure += ", or mpirun --with-ft ulfm --mca async_mpi_finalize 1; where it is switched on "
        cure += f"otherwise, set {_FAULT_TOLERANT}=1"
    else:
        return
    raise ConfigError(f"elastic=True, but {found}", hint=cure)
