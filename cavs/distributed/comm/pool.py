"""`Pool`: the processes of a launch, those that train and those that wait to join them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from cavs.distributed.comm.collectives import Collectives
from cavs.distributed.comm.hang_detection import WaitRegister
from cavs.distributed.comm.interfaces import Array, Communicator, LostPeerError
from cavs.distributed.comm.mailbox import Letter, Mailbox, as_text
from cavs.distributed.comm.messages import Message
from cavs.errors import CommunicationError, ConfigError

_GLANCE = 0.05  # seconds between two looks of a waiting process at whether to stop


class Word(IntEnum):
    """First word of a letter of the pool; the second is the version."""

    INVITE = 0  # from the first rank: the text of what all ranks must have alike
    READY = 1  # answer: 1 if it has the same, else 0 and a text
    JOIN = 2  # from the first rank: make the new group; its members follow
    RELEASE = 3  # from the first rank: the training has ended
    BEGIN = 4  # from each rank: 1 if the new group trains, 0 if the ranks go on as before
    GROUP = 5  # between members of a new group: its number and their `State`


@dataclass(frozen=True)
class Invitation:
    """The group that a waiting process is to join. members: processes, by rank."""

    version: int
    members: tuple[int, ...]


class Pool:
    """The processes of a launch.

    everyone: all of them. members: the processes of the training, by rank. version: number of
    groups so far; letters about earlier ones are dropped.
    """

    def __init__(self, everyone: Communicator, members: Sequence[int]) -> None:
        self.everyone, self.members, self.version = everyone, tuple(members), 0
        self._mailbox = everyone.mailbox()
        self._mailbox.outlives = True
        self.unfit: list[int] = []  # processes that did not answer, or run something else
        self._released = False  # True in a waiting process once the training has ended

    @property
    def is_member(self) -> bool:
        """True if this process trains."""
        return self.everyone.rank in self.members

    @property
    def waiting(self) -> list[int]:
        """The processes that may join, in order."""
        every = range(self.everyone.size)
        return [p for p in every if p not in self.members and p not in self.unfit]

    def keep_only(self, names: Sequence[int]) -> None:
        """Forget members that have died. names: numbers in the world of those that are left."""
        numbers = [self.everyone.names.index(name) for name in names]
        self.unfit += [p for p in self.members if p not in numbers]
        self.members = tuple(numbers)

    # ---- the first rank ------------------------------------------------------------------------

    def invite(self, count: int, facts: str, patience: float) -> tuple[list[int], list[str]]:
        """Return up to `count` waiting processes that are ready, and why others are not.

        facts: what all ranks of the training have alike. patience: seconds to wait for an answer.
        """
        ready, reasons = list[int](), list[str]()
        for process in self.waiting:
            if len(ready) == count:
                break
            name = self.everyone.names[process]
            try:
                self._mailbox.post(process, (Word.INVITE, self.version), [as_text(facts)])
                answer = self._answer(process, patience)
            except CommunicationError as error:
                answer, reason = None, f"process {name} is gone: {error.what}"
            else:
                reason = f"process {name} did not answer within {patience:g} s"
            if answer is not None and answer.words[2]:
                ready.append(process)
                continue
            if answer is not None:
                reason = f"process {name} has another program: {answer.text()}"
            self.unfit.append(process)
            reasons.append(reason)
        return ready, reasons

    def _answer(self, process: int, patience: float) -> Letter | None:
        limit = time.monotonic() + patience
        while (left := limit - time.monotonic()) > 0:
            letter = self._mailbox.take(min(left, _GLANCE))
            if letter is None:
                if process in self._mailbox.lost():
                    raise CommunicationError("it has died")
                continue
            if (letter.source, *letter.words[:2]) == (process, Word.READY, self.version):
                return letter
        return None

    def announce(self, members: Sequence[int], version: int) -> list[str]:
        """Let waiting processes make the group of `members`; return why it cannot be made."""
        joining, lost = set(members).difference(self.members), self._mailbox.lost()
        if gone := sorted(self.everyone.names[process] for process in joining & lost):
            return [f"processes {gone} have died"]
        for process in joining:
            with suppress(CommunicationError):  # the group fails, and says why
                self._mailbox.post(process, (Word.JOIN, version, *members))
        return []

    def release(self) -> None:
        """Tell waiting processes that the training has ended."""
        for process in range(self.everyone.size):
            if process not in self.members:
                self._mailbox.post(process, (Word.RELEASE, self.version))

    # ---- all ranks -----------------------------------------------------------------------------

    def make(self, members: Sequence[int], version: int) -> Communicator:
        """Return the group of `members`, all of which call it."""
        return self.everyone.subgroup(members, version, self._mailbox)

    def begin(self, joining: Sequence[int], version: int, *, trains: bool) -> None:
        """Tell processes that have made a group whether it trains.

        All ranks do, in case one of them dies meanwhile.
        """
        for process in joining:
            with suppress(CommunicationError):
                self._mailbox.post(process, (Word.BEGIN, version, trains))

    def note(self, members: Sequence[int], version: int) -> None:
        """Note which processes train from now on."""
        self.members, self.version = tuple(members), version

    # ---- waiting processes ---------------------------------------------------------------------

    def wait(self, facts: Callable[[], str], stopped: Callable[[], bool]) -> Invitation | None:
        """Wait until this process is to join, or return None once the training has ended.

        facts: as for `invite`. stopped: True if the process is to end. Raises `LostPeerError` if
        all ranks have died, and `CommunicationError` if the mail fails.
        """
        while not (stopped() or self._released):
            letter = self._mailbox.take(_GLANCE)
            if letter is None:
                if self._mailbox.lost().issuperset(self.members):
                    raise LostPeerError(
                        "all ranks that trained have died while this process waited",
                        hint="resume from the last checkpoint",
                    )
                continue
            word, version, *rest = letter.words
            if word == Word.INVITE:
                own = facts()
                same = own == letter.text()
                text = "" if same else _difference(letter.text(), own)
                self._mailbox.post(letter.source, (Word.READY, version, same), [as_text(text)])
            elif word == Word.JOIN:
                return Invitation(version, tuple(rest))
            self._released |= word == Word.RELEASE
        return None

    def begins(self, invitation: Invitation) -> bool:
        """Wait for the word of the ranks; True if the group of `invitation` trains."""
        ranks = set(invitation.members) & set(self.members)
        while not self._released:
            letter = self._mailbox.take(_GLANCE)
            if letter is None:
                if self._mailbox.lost() >= ranks:
                    return False
            elif letter.words[:2] == (Word.BEGIN, invitation.version):
                return bool(letter.words[2])
            else:
                self._released = letter.words[0] == Word.RELEASE
        return False


class WaitingCommunicator(Collectives):
    """The communicator of a process that waits: it has the number of the process, and no peers.

    Operations leave the values of this process as they are.
    """

    def __init__(self, pool: Pool) -> None:
        everyone = pool.everyone
        number = everyone.rank
        names = [everyone.names[number]]
        super().__init__(0, names, everyone.timeout, WaitRegister(names[0]), "waiting")
        self.rank, self.overlaps, self.pool = number, False, pool

    def _exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """Do nothing: there is no peer."""

    def all_gather(self, array: Array) -> list[Array]:
        return [array]

    def share(self, value: Any) -> list[Any]:
        return [value]

    def _check_alive(self) -> None:
        """Do nothing: this process is alive."""

    def split(self, color: int, key: int = 0) -> WaitingCommunicator:
        return self

    def subgroup(self, ranks: Sequence[int], number: int, mailbox: Mailbox) -> WaitingCommunicator:
        return self

    def mailbox(self) -> Mailbox:
        return Mailbox(0, self.names)

    def agree(self, flag: bool) -> bool:
        return flag

    def leave(self) -> None:
        """Do nothing: no rank waits."""

    def shrink(self) -> WaitingCommunicator:
        return self

    def abort(self, message: str) -> None:
        self.pool.everyone.abort(message)


def join_pool(everyone: Communicator, spares: int) -> Communicator:
    """Return the communicator of this process, where the last `spares` processes wait at first.

    All of `everyone` call it. Raises `ConfigError` if none would train.
    """
    if not 0 <= spares < everyone.size:
        raise ConfigError(
            f"{spares} spares of {everyone.size} processes", hint="at least one process trains"
        )
    members = range(everyone.size - spares)
    pool = Pool(everyone, members)
    c = everyone.split(int(not pool.is_member), everyone.rank)
    if not pool.is_member:
        c.close()
        return WaitingCommunicator(pool)
    c.pool = pool
    return c


def _difference(theirs: str, own: str) -> str:
    """Return the first lines that differ."""
    for line, other in zip(theirs.splitlines(), own.splitlines(), strict=False):
        if line != other:
            return f"{other}, the ranks have {line}"
    return "its settings are others"
