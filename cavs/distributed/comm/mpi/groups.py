"""Creation of a group of some ranks, among which or besides which ranks may have died.

MPI_Comm_create_from_group makes it after a death of another rank too, for which Open MPI 5.0 has no
other call. But that one

- waits without end for a member that dies before it comes;
- crashes all members if it is in there that they first learn of the death of one;
- numbers the group differently on each rank, and MPIX_Comm_agree and MPIX_Comm_revoke take such
  groups for one another.

So the members tell each other by letters that they have come, which a dead one does not. A thread
makes the call while the caller watches for deaths. A duplicate of the group has one number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import IntEnum
from typing import Any, TypeVar

from cavs.distributed.comm.hang_detection import PendingWait
from cavs.distributed.comm.interfaces import LostPeerError
from cavs.distributed.comm.launcher_pipe import inside
from cavs.distributed.comm.mailbox import Letter, Mailbox, as_text
from cavs.distributed.comm.mpi.requests import CALLS
from cavs.distributed.comm.pool import Word
from cavs.distributed.comm.progress import Progress
from cavs.errors import CommunicationError

T = TypeVar("T")
CALL = "MPI_Comm_create_from_group"
_ALONE = 1.0  # seconds that the call runs before this thread enters MPI as well, to learn of deaths
_GLANCE = 0.05  # seconds between two looks
_NOTICE = 2.0  # seconds in which MPI reports the death that a failed call was about


class State(IntEnum):
    """State of a member, which its letters name after the number of the group."""

    COME = 0
    MADE = 1
    LOST = 2  # a member has died
    FAILED = 3  # with a text


class GroupConsensus:
    """Lets `members`, which are ranks of `mailbox`, act alike when they make group `number`.

    members: in the order of their ranks. waiting: returns a wait for the members that its argument
    returns. failure: the class of errors of MPI.
    """

    def __init__(
        self,
        members: Sequence[int],
        number: int,
        mailbox: Mailbox,
        waiting: Callable[[Callable[[], list[int]]], PendingWait],
        failure: type[Exception],
    ) -> None:
        self._members, self._number, self._mailbox = tuple(members), number, mailbox
        self._others = [rank for rank in members if rank != mailbox.rank]
        self._waiting, self._failure = waiting, failure

    def run(self, call: Callable[[], Any], duplicate: Callable[[Any], T], timeout: float) -> T:
        """Return duplicates of the group; all members call it.

        call: makes a group, waiting inside MPI. duplicate: returns duplicates of that group.
        Raises `LostPeerError` if a member has died, `CommunicationError` if a member fails.
        """
        try:
            self._exchange(State.COME, timeout)
            try:
                made = duplicate(self._watch(call, timeout))
            except self._failure as error:
                self._await_notice()
                raise CommunicationError(f"{self._describe()}: {error}") from error
            self._exchange(State.MADE, timeout)
        except LostPeerError:
            self._post(State.LOST)
            raise
        except CommunicationError as error:
            self._post(State.FAILED, error.what)
            raise
        return made

    def _watch(self, call: Callable[[], Any], timeout: float) -> Any:
        """Return `call()`, unless a member dies in it: then its thread is left waiting there.

        Two threads may be inside MPI at once only when the call takes so long that a member is
        missing, and then it waits outside of what the other uses.
        """
        limit, thread = time.monotonic() + timeout, Progress()
        with CALLS, inside(CALL, timeout), self._waiting(lambda: self._others) as waiting:
            job, pause = thread.start(call, ()), _ALONE
            while not job.ends_within(pause):
                pause = _GLANCE
                self._look()
                if time.monotonic() > limit:
                    raise waiting.hung(timeout)
            thread.close()
            return job.wait()

    def _exchange(self, state: State, timeout: float) -> None:
        """Tell all members of a state, and return when all have told this one of theirs."""
        self._post(state)
        missing, limit = set(self._others), time.monotonic() + timeout

        def is_due(letter: Letter) -> bool:
            words = letter.words
            if words[:2] != (Word.GROUP, self._number):
                return False
            return words[2] == state or words[2] > State.MADE

        with self._waiting(lambda: sorted(missing)) as waiting:
            while missing:
                letter = self._mailbox.take(_GLANCE, is_due)
                if letter is None:
                    self._check(missing)
                    if time.monotonic() > limit:
                        raise waiting.hung(timeout)
                elif letter.words[2] == state:
                    missing.discard(letter.source)
                else:
                    self._raise_told(letter)

    def _raise_told(self, letter: Letter) -> None:
        name = self._mailbox.names[letter.source]
        if letter.words[2] == State.FAILED:
            raise CommunicationError(f"{self._describe()}: rank {name} failed: {letter.text()}")
        self._await_notice()
        raise LostPeerError(f"{self._describe()}: a member has died, as rank {name} found out")

    def _post(self, state: State, text: str = "") -> None:
        for rank in self._others:
            with suppress(CommunicationError):  # it has died
                words = (Word.GROUP, self._number, state)
                self._mailbox.post(rank, words, [as_text(text)])

    def _look(self) -> None:
        """Let MPI report deaths, and raise if a member has died."""
        self._mailbox.take(0.0, lambda letter: False)
        self._check(self._others)

    def _await_notice(self) -> None:
        """Raise the death of a member if MPI reports it soon."""
        limit = time.monotonic() + _NOTICE
        while time.monotonic() < limit:
            self._look()
            time.sleep(_GLANCE)

    def _check(self, members: Sequence[int] | set[int]) -> None:
        gone = sorted(self._mailbox.names[r] for r in self._mailbox.lost() & set(members))
        if gone:
            ranks = f"rank {gone[0]} has" if len(gone) == 1 else f"ranks {gone} have"
            raise LostPeerError(f"{self._describe()}: {ranks} died")

    def _describe(self) -> str:
        names = [self._mailbox.names[rank] for rank in self._members]
        return f"rank {self._mailbox.names[self._mailbox.rank]} in {CALL} of ranks {names}"
