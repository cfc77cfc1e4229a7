"""Hang detection: ranks share what they wait for, and follow it to the ranks that hang.

A rank that is waited for in one group may itself wait in another, for a rank that hangs. So each
rank shares what it waits for in all its groups, by the numbers of the world, and a rank that asks
follows the waits from rank to rank, up to those that wait for no rank.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cavs.distributed.comm.interrupt import INTERRUPT
from cavs.distributed.comm.launcher_pipe import is_stopping
from cavs.errors import CommunicationError

HINT = "look at what that rank does, or pass a longer timeout"


def nothing(rank: int) -> str:
    """Return what is known of a rank that may be behind: nothing."""
    return ""


class Wait(NamedTuple):
    """A wait of a rank, as it tells others of it."""

    group: str  # name of the ranks that wait for each other, the same on all of them
    begun: int  # number of operations of the rank there so far; 0 if they are not counted
    operation: str
    peers: Sequence[int]  # that it waits for, as far as it knows
    over: bool  # True if it has given up
    serial: int  # number of the wait in its process


Peers = Callable[[], Iterable[int]]  # returns the ranks that are waited for by now
Known = Callable[[int], str]  # returns what is known of a rank of the world that is behind
Said = Mapping[int, Sequence[Wait]]  # by rank of the world; without those that do not answer


class WaitRegister:
    """The waits of rank `number` of the world, which the others ask for.

    ask: returns the waits of all ranks, by rank; None: of this one alone.
    """

    def __init__(self, number: int, ask: Callable[[], dict[int, list[Wait]]] | None = None) -> None:
        self.number, self._ask = number, ask
        self.waits: list[PendingWait] = []

    def own(self) -> list[Wait]:
        """Return the waits of this rank."""
        return [waiting.now() for waiting in tuple(self.waits)]

    def listen(self) -> None:
        """Answer ranks that ask; never waits."""

    def ask(self) -> dict[int, list[Wait]]:
        """Return the waits of all ranks that answer soon, and of this one."""
        return {self.number: self.own()} if self._ask is None else self._ask()

    def tell(self, group: str, text: str, stuck: Said) -> None:
        """Tell ranks in which waits they are `stuck`, and that nothing goes on in `group`, if any.

        text: the ranks to blame.
        """

    def told(self, group: str, serial: int) -> str:
        """Return the ranks to blame, if another rank has told so, and which one; else ""."""
        return ""


@dataclass(eq=False)
class PendingWait:
    """A wait of this rank, registered while it lasts; one given up until the next of that group."""

    register: WaitRegister
    group: str
    begun: int
    operation: str
    peers: Peers  # called on any thread
    check: Callable[[], None]  # raises if no rank can come any more
    known: Known
    over: bool = False
    serial: int = field(default_factory=itertools.count(1).__next__)

    def now(self) -> Wait:
        """Return the wait as others see it."""
        peers = sorted(self.peers())
        return Wait(self.group, self.begun, self.operation, peers, self.over, self.serial)

    def __enter__(self) -> PendingWait:
        waits = self.register.waits
        for other in tuple(waits):
            if other.over and other.group == self.group:
                waits.remove(other)
        waits.append(self)
        return self

    def __exit__(self, *raised: object) -> None:
        if not self.over:
            self.register.waits.remove(self)

    def look(self) -> None:
        """Answer ranks that ask; to be called every second or so.

        CommunicationError if another rank has found out that this wait cannot end, LostPeerError if
        a rank of the group has died.
        """
        self.register.listen()
        self.check()
        if error := self._told():
            raise error

    def hung(self, seconds: float, where: str = "") -> CommunicationError:
        """Return the error after `seconds`, which names the ranks that hang. where: in place of the
        operation.

        KeyboardInterrupt outside of a training that the launcher stops: the others have ended, and
        Python drops an interrupt that comes to this rank in a callback, as those of imports are.
        """
        if is_stopping() and not INTERRUPT.trainings:
            raise KeyboardInterrupt
        wait, me = self.now(), self.register.number
        said = self.register.ask()
        if error := self._told():  # another was faster, and answers no more
            return error
        self.over = True
        text, blamed = find(me, wait, said, self.known)
        stuck = {
            rank: [w for w in waits if not w.over and not blamed.isdisjoint(led(w.peers, said))]
            for rank, waits in said.items()
            if rank != me
        }
        group = wait.group if wait.begun else ""
        self.register.tell(group, text, {rank: waits for rank, waits in stuck.items() if waits})
        return CommunicationError(
            f"rank {me} waited {seconds:g} s {where or f'in {self.operation}'}: {text}", hint=HINT
        )

    def _told(self) -> CommunicationError | None:
        found = self.register.told(self.group, self.serial)
        if not found:
            return None
        self.over = True
        me = self.register.number
        return CommunicationError(f"rank {me} in {self.operation}: {found}", hint=HINT)


def led(peers: Iterable[int], said: Said) -> set[int]:
    """Return `peers` and all ranks that they wait for, directly or through others."""
    reached, todo = set[int](), list(peers)
    while todo:
        rank = todo.pop()
        if rank not in reached:
            reached.add(rank)
            todo += [peer for wait in said.get(rank, ()) for peer in wait.peers]
    return reached


def find(me: int, wait: Wait, said: Said, known: Known) -> tuple[str, set[int]]:
    """Return the ranks to blame for a wait of rank `me`, in words and by number."""
    ranks = sorted(led(wait.peers, said) - {me})
    silent = [r for r in ranks if r not in said]
    absent = [r for r in ranks if r in said and not said[r]]
    if silent or absent:
        texts = [f"rank {r} does not answer" for r in silent]
        texts += [f"rank {r} {known(r) or 'did not come'}" for r in absent]
        return "; ".join(texts), {*silent, *absent}
    behind = [f"rank {r} {known(r)}" for r in ranks if known(r)]
    behind += [
        f"rank {r} is still in {w.operation}"
        for r in ranks
        for w in said[r]
        if w.group == wait.group and w.begun < wait.begun
    ]
    all_wait = [
        f"rank {r} {'has given up' if w.over else 'is'} in {w.operation}"
        for r in ranks
        for w in said[r]
    ]
    return "; ".join(dict.fromkeys(behind or all_wait)) or "no rank is missing", set(ranks)
